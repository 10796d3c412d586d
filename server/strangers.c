/* SPDX-License-Identifier: Apache-2.0 */
#include "server/strangers.h"

#include <stdlib.h>
#include <sys/resource.h>

enum { DEFAULT_LIMIT = 256 };

struct stranger_user {
	uint32_t uid;
	uint32_t n;
};

void
strangers_init(struct strangers *s)
{
	struct rlimit files = {.rlim_cur = 1024};

	getrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur > INT32_MAX)
		files.rlim_cur = INT32_MAX;
	*s = (struct strangers){.limit = DEFAULT_LIMIT, .reserve_fd = (int)(files.rlim_cur - files.rlim_cur / 4)};
	if (s->limit > files.rlim_cur / 4)
		s->limit = (uint32_t)files.rlim_cur / 4;
	pthread_mutex_init(&s->lock, NULL);
}

void
strangers_deinit(struct strangers *s)
{
	pthread_mutex_destroy(&s->lock);
	free(s->users);
}

/* lock held. NULL: he has none. */
static struct stranger_user *
find(struct strangers *s, uint32_t uid)
{
	for (unsigned i = 0; i < s->n_users; i++)
		if (s->users[i].uid == uid)
			return &s->users[i];
	return NULL;
}

/* lock held. NULL: no memory. */
static struct stranger_user *
make(struct strangers *s, uint32_t uid)
{
	if (s->n_users == s->room) {
		unsigned room = s->room ? s->room * 2 : 16;
		struct stranger_user *users = realloc(s->users, room * sizeof *users);

		if (!users)
			return NULL;
		s->users = users;
		s->room = room;
	}
	s->users[s->n_users] = (struct stranger_user){.uid = uid};
	return &s->users[s->n_users++];
}

bool
strangers_take(struct strangers *s, uint32_t uid)
{
	struct stranger_user *user;
	bool is_taken;

	pthread_mutex_lock(&s->lock);
	user = find(s, uid);
	if (!user)
		user = make(s, uid);
	is_taken = user && user->n < s->limit;
	if (is_taken)
		user->n++;
	pthread_mutex_unlock(&s->lock);
	return is_taken;
}

void
strangers_put(struct strangers *s, uint32_t uid)
{
	struct stranger_user *user;

	pthread_mutex_lock(&s->lock);
	user = find(s, uid);
	if (user && --user->n == 0)
		*user = s->users[--s->n_users];
	pthread_mutex_unlock(&s->lock);
}

bool
strangers_are_many(const struct strangers *s, int fd)
{
	return fd >= s->reserve_fd;
}
