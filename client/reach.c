/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What connect() says is seldom what is wrong: a file that is no socket is ECONNREFUSED as a slabd that has ended is, and EACCES is a
 * folder, a mode or a group.  A look at the path tells them apart; what it finds may have changed since, so it is said and never acted
 * upon.
 */
#include "client/reach.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 33, ENTRY_BYTES = 4096 };

static void
group_name(gid_t gid, char *name)
{
	struct group group, *found = NULL;
	char entry[ENTRY_BYTES];

	snprintf(name, NAME_BYTES, "%u", gid);
	if (getgrgid_r(gid, &group, entry, sizeof(entry), &found) == 0 && found)
		snprintf(name, NAME_BYTES, "%s", found->gr_name);
}

static void
user_name(uid_t uid, char *name)
{
	struct passwd user, *found = NULL;
	char entry[ENTRY_BYTES];

	snprintf(name, NAME_BYTES, "USER");
	if (getpwuid_r(uid, &user, entry, sizeof(entry), &found) == 0 && found)
		snprintf(name, NAME_BYTES, "%s", found->pw_name);
}

/* Who may connect, and what would let this user. */
static void
explain_access(const char *path, char *what, size_t size)
{
	char group[NAME_BYTES], user[NAME_BYTES];
	struct stat st;

	if (stat(path, &st) < 0) {
		snprintf(what, size, "a folder on the way lets uid %u not pass", geteuid());
		return;
	}
	group_name(st.st_gid, group);
	user_name(geteuid(), user);
	if (st.st_mode & S_IWGRP)
		snprintf(what, size, "it is for group %s (mode %04o): usermod -aG %s %s, and log in again", group, st.st_mode & 07777u,
			group, user);
	else
		snprintf(what, size, "its mode %04o is for its owner alone, uid %u; socket-mode= in slabd.conf sets it",
			st.st_mode & 07777u, st.st_uid);
}

void
reach_explain(const char *path, const char *source, int error, char *why, size_t size)
{
	char what[200];
	struct stat st;

	switch (error) {
	case EACCES:
	case EPERM:
		explain_access(path, what, sizeof(what));
		break;
	case ENOENT:
		snprintf(what, sizeof(what), "is slabd running?");
		break;
	case ECONNREFUSED:
	case ENOTSOCK:
		snprintf(what, sizeof(what),
			stat(path, &st) == 0 && !S_ISSOCK(st.st_mode) ? "it is no socket" : "nobody listens; is slabd running?");
		break;
	case EPROTOTYPE:
		snprintf(what, sizeof(what), "it is another program's socket");
		break;
	default:
		snprintf(what, sizeof(what), "is it slabd's socket?");
	}
	snprintf(why, size, "%.107s (%s): %s; %s", path, source, strerror(error), what);
}
