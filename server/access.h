/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may do what with an arena: an owner, a group and a mode, read as a file's are.
 *
 * One class of the mode counts for a peer: the owner's if its user is that, else the group's if it is in that group, else the others'.  In
 * it, 4 lets the peer attach for reading, 6 for writing.  Root, slabd's own user and the owner administer; the first two may always attach.
 */
#ifndef SLAB_SERVER_ACCESS_H
#define SLAB_SERVER_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum access_want { ACCESS_READ, ACCESS_WRITE, ACCESS_ADMIN };

struct access {
	uid_t owner;
	gid_t group;
	unsigned mode;
	char owner_name[33]; /* as configured: a name or a number */
	char group_name[33];
};

/* A process, by what the kernel says of it. */
struct access_peer {
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary ones */
	unsigned n_groups;
};

/* Slabd's own user and group, mode 0660. */
void access_init(struct access *access);

/* Each of the three digits is 0, 4 or 6. */
bool access_mode_is_valid(unsigned mode);

/*
 * The peer of a connected socket; uid and gid are known already and may be those of another process than the one that connected, whose
 * supplementary groups then do not count.  0, or a negative errno.
 */
int access_peer_init(struct access_peer *peer, int fd, uid_t uid, gid_t gid);
void access_peer_deinit(struct access_peer *peer);

bool access_may(const struct access *access, const struct access_peer *peer, enum access_want want);

/* One sentence for who may not: which arena, who, what the mode says, what would change it. */
void access_explain(
	const struct access *access, const struct access_peer *peer, enum access_want want, const char *arena, char *why, size_t why_size);

#endif
