/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections without a session, counted by user: what anybody may open who can reach the socket.
 *
 * A user has a limit of them, so that one who opens many does not take the descriptors of the others.  Who says no HELLO is closed after two seconds, and
 * before that for a newcomer of the same user who is over the limit, the longest silent first (conn.c).  If none is silent the newcomer's HELLO is refused.
 * Where few descriptors are left newcomers over the limit are closed at once, silent ones of any user go, and no call may take more of them to wait.
 */
#ifndef SLAB_SERVER_STRANGERS_H
#define SLAB_SERVER_STRANGERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct strangers {
	pthread_mutex_t lock;
	struct stranger_user *users;
	unsigned n_users, room;
	uint32_t limit; /* of a user */
	int reserve_fd; /* descriptors from this number on are for sessions */
};

/* After the limit of descriptors was raised. */
void strangers_init(struct strangers *s);
void strangers_deinit(struct strangers *s);

/* One more of the user's; false: there are as many as may be, and it is not counted. */
bool strangers_take(struct strangers *s, uint32_t uid);
void strangers_put(struct strangers *s, uint32_t uid);

/* Does the descriptor that came last show that few are left? */
bool strangers_are_many(const struct strangers *s, int fd);

#endif
