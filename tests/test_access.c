/* SPDX-License-Identifier: Apache-2.0 */
/* server/access: which class of a mode counts, and what a peer's socket tells of it (tests/it_access.c does it with real users). */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "proto/proto.h"
#include "server/access.h"
#include "tests/skip.h"

CU_pSuite test_access_suite(void);

/* Nobody's ids on a test machine: not root, and not who runs the tests. */
enum { OWNER = 100001, GROUP = 100002, OTHER = 100003 };

/* Each digit 0, 4 or 6, and nothing above them. */
static void
test_modes(void)
{
	unsigned n_valid = 0;

	for (unsigned mode = 0; mode <= 07777; mode++)
		n_valid += access_mode_is_valid(mode);
	CU_ASSERT_EQUAL(n_valid, 27);
	CU_ASSERT(access_mode_is_valid(0) && access_mode_is_valid(0640) && access_mode_is_valid(0666) && access_mode_is_valid(046));
	CU_ASSERT(!access_mode_is_valid(01640) && !access_mode_is_valid(0620) && !access_mode_is_valid(0641));
}

/* The first class that fits decides, also against the peer. */
static void
test_classes(void)
{
	gid_t groups[] = {7, GROUP};
	const struct access_peer owner = {.uid = OWNER, .gid = GROUP}, member = {.uid = OTHER, .gid = GROUP};
	const struct access_peer by_groups = {.uid = OTHER, .gid = OTHER, .groups = groups, .n_groups = 2};
	const struct access_peer stranger = {.uid = OTHER, .gid = OTHER, .groups = groups, .n_groups = 1}, root = {.uid = 0, .gid = OTHER};
	struct access access = {.owner = OWNER, .group = GROUP};

	for (unsigned digit = 0; digit <= 6; digit += digit ? 2 : 4) {
		const unsigned may_read = digit >= 4, may_write = digit == 6;

		access.mode = digit << 6;
		CU_ASSERT(access_may(&access, &owner, ACCESS_READ) == may_read && access_may(&access, &owner, ACCESS_WRITE) == may_write);
		CU_ASSERT(!access_may(&access, &member, ACCESS_READ) && !access_may(&access, &stranger, ACCESS_READ));
		access.mode = digit << 3;
		CU_ASSERT(access_may(&access, &member, ACCESS_READ) == may_read && access_may(&access, &member, ACCESS_WRITE) == may_write);
		CU_ASSERT(access_may(&access, &by_groups, ACCESS_READ) == may_read &&
			  access_may(&access, &by_groups, ACCESS_WRITE) == may_write);
		CU_ASSERT(!access_may(&access, &owner, ACCESS_READ) && !access_may(&access, &stranger, ACCESS_READ));
		access.mode = digit;
		CU_ASSERT(access_may(&access, &stranger, ACCESS_READ) == may_read &&
			  access_may(&access, &stranger, ACCESS_WRITE) == may_write);
		CU_ASSERT(!access_may(&access, &owner, ACCESS_READ) && !access_may(&access, &by_groups, ACCESS_READ));
		CU_ASSERT(access_may(&access, &root, ACCESS_WRITE) && access_may(&access, &root, ACCESS_ADMIN));
		CU_ASSERT(access_may(&access, &owner, ACCESS_ADMIN) && !access_may(&access, &member, ACCESS_ADMIN));
	}
}

/* Slabd's own user is trusted; the default is that user's alone. */
static void
test_own_user(void)
{
	struct access_peer own = {.uid = geteuid(), .gid = OTHER}, other = {.uid = OTHER, .gid = OTHER};
	struct access access;

	access_init(&access);
	CU_ASSERT_EQUAL(access.mode, 0660);
	CU_ASSERT(access_may(&access, &own, ACCESS_WRITE) && access_may(&access, &own, ACCESS_ADMIN));
	CU_ASSERT(!access_may(&access, &other, ACCESS_READ) && !access_may(&access, &other, ACCESS_ADMIN));
}

static unsigned
n_groups_of(int fd, uid_t uid, gid_t gid)
{
	struct access_peer peer;
	unsigned n;

	if (access_peer_init(&peer, fd, uid, gid) < 0)
		return 99;
	n = peer.uid == uid && peer.gid == gid ? peer.n_groups : 98;
	access_peer_deinit(&peer);
	return n;
}

/* The groups are those of who connected: they are no help to another process that has got hold of the socket. */
static void
test_groups_of_another(void)
{
	static const gid_t groups[] = {GROUP, OTHER};
	struct access_peer peer;
	int fds[2], status = -1;
	pid_t pid;

	CU_ASSERT_EQUAL(access_peer_init(&peer, -1, 0, 0), -EBADF);
	if (geteuid() != 0) {
		skip("only root may have other groups");
		return;
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(setgroups(2, groups) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0 &&
					n_groups_of(fds[0], geteuid(), getegid()) == 2 && n_groups_of(fds[0], OTHER, getegid()) == 0 &&
					n_groups_of(fds[0], geteuid(), OTHER) == 0
				? 0
				: 1);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_EQUAL(status, 0);
}

/* A sentence fits a packet's (PROTO_SENTENCE_BYTES) with names of a good length; with longer ones its end is cut. */
static void
test_sentences_fit(void)
{
	struct access access = {.owner = OWNER, .group = GROUP, .mode = 0640};
	struct access_peer peer = {.uid = 4294967294u, .gid = GROUP};
	char why[512], arena[41];

	strcpy(access.owner_name, "systemd-timesync");
	strcpy(access.group_name, "systemd-timesync");
	strcpy(arena, "video-frames.cam-01");
	for (int want = ACCESS_READ; want <= ACCESS_ADMIN; want++)
		for (peer.gid = GROUP; peer.gid <= OTHER; peer.gid++) {
			access_explain(&access, &peer, (enum access_want)want, arena, why, sizeof why);
			CU_ASSERT(strlen(why) < PROTO_SENTENCE_BYTES);
			CU_ASSERT_PTR_NOT_NULL(strstr(why, "uid 4294967294 may"));
		}
}

CU_pSuite
test_access_suite(void)
{
	CU_pSuite suite = CU_add_suite("access", NULL, NULL);

	CU_ADD_TEST(suite, test_modes);
	CU_ADD_TEST(suite, test_classes);
	CU_ADD_TEST(suite, test_own_user);
	CU_ADD_TEST(suite, test_groups_of_another);
	CU_ADD_TEST(suite, test_sentences_fit);
	return suite;
}
