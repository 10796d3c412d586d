/* SPDX-License-Identifier: Apache-2.0 */
#include "server/access.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEFAULT_MODE = 0660, MAX_GROUPS = 65536 };

enum access_class { CLASS_OTHERS, CLASS_GROUP, CLASS_OWNER };

void
access_init(struct access *access)
{
	*access = (struct access){.owner = geteuid(), .group = getegid(), .mode = DEFAULT_MODE};
	snprintf(access->owner_name, sizeof access->owner_name, "%u", access->owner);
	snprintf(access->group_name, sizeof access->group_name, "%u", access->group);
}

bool
access_mode_is_valid(unsigned mode)
{
	for (int i = 0; i < 3; i++, mode >>= 3)
		if ((mode & 7) != 0 && (mode & 7) != 4 && (mode & 7) != 6)
			return false;
	return mode == 0;
}

/* The kernel tells how many there are when the room is too small. */
static int
read_groups(int fd, gid_t **groupsp, unsigned *n_groupsp)
{
	socklen_t bytes = 0;
	gid_t *groups;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || (errno == ERANGE && bytes == 0))
		return 0;
	if (errno != ERANGE || bytes > MAX_GROUPS * sizeof *groups)
		return -errno;
	groups = malloc(bytes);
	if (!groups)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0) {
		free(groups);
		return -errno;
	}
	*groupsp = groups;
	*n_groupsp = (unsigned)(bytes / sizeof *groups);
	return 0;
}

int
access_peer_init(struct access_peer *peer, int fd, uid_t uid, gid_t gid)
{
	struct ucred connected;
	socklen_t length = sizeof connected;

	*peer = (struct access_peer){.uid = uid, .gid = gid};
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &connected, &length) < 0)
		return -errno;
	return connected.uid == uid && connected.gid == gid ? read_groups(fd, &peer->groups, &peer->n_groups) : 0;
}

void
access_peer_deinit(struct access_peer *peer)
{
	free(peer->groups);
}

static enum access_class
class_of(const struct access *access, const struct access_peer *peer)
{
	if (peer->uid == access->owner)
		return CLASS_OWNER;
	if (peer->gid == access->group)
		return CLASS_GROUP;
	for (unsigned i = 0; i < peer->n_groups; i++)
		if (peer->groups[i] == access->group)
			return CLASS_GROUP;
	return CLASS_OTHERS;
}

static unsigned
bits_of(const struct access *access, enum access_class class)
{
	return access->mode >> 3 * (unsigned)class & 7;
}

bool
access_may(const struct access *access, const struct access_peer *peer, enum access_want want)
{
	unsigned bits = bits_of(access, class_of(access, peer));

	if (peer->uid == 0 || peer->uid == geteuid())
		return true;
	switch (want) {
	case ACCESS_READ:
		return bits & 4;
	case ACCESS_WRITE:
		return bits == 6;
	case ACCESS_ADMIN:
		break;
	}
	return peer->uid == access->owner;
}

void
access_explain(
	const struct access *access, const struct access_peer *peer, enum access_want want, const char *arena, char *why, size_t why_size)
{
	static const char *const classes[] = {"others' digit", "the group's digit", "the owner's digit"};
	enum access_class class = class_of(access, peer);
	unsigned bits = bits_of(access, class);

	if (want == ACCESS_ADMIN)
		snprintf(why, why_size,
			"uid %u may not administer arena '%s': root, slabd's user and its owner %s may; owner= in [arena %s] sets it",
			peer->uid, arena, access->owner_name, arena);
	else if (want == ACCESS_WRITE && access_may(access, peer, ACCESS_READ))
		snprintf(why, why_size,
			"uid %u may only read arena '%s' (owner %s, group %s, mode %04o, of which %s (%u) counts); use SLABC_RDONLY, or "
			"change "
			"%s in [arena %s]",
			peer->uid, arena, access->owner_name, access->group_name, access->mode, classes[class], bits,
			class == CLASS_OTHERS ? "mode=, or join the group" : "mode=", arena);
	else
		snprintf(why, why_size,
			"uid %u may not %s arena '%s' (owner %s, group %s, mode %04o, of which %s (%u) counts); change %s in [arena %s]",
			peer->uid, want == ACCESS_READ ? "read" : "use", arena, access->owner_name, access->group_name, access->mode,
			classes[class], bits, class == CLASS_OTHERS ? "mode=, or join the group" : "mode=", arena);
}
