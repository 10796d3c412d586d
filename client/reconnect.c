/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that goes on with the next slabd: the same mappings, the same sheaves, another socket.
 *
 * Nothing watches the connection: the next request finds it ended, connects again until its deadline, with pauses that no two clients have alike, and
 * shows the token that ATTACH brought.  Slabd looks whether it is the same process.  What the answers that were lost with the old connection would have
 * said is made good here: a prefilled sheaf that was granted and not heard of goes back, and a request that is sent a second time, and fails since it was
 * carried out the first time, has succeeded.
 *
 * Everything here runs with slabc.requests held.
 */
#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_PAUSE_US = 500, MAX_PAUSE_US = 50000 };

int
session_note_fd(struct slabc *c)
{
	struct stat st;

	if (fstat(c->fd, &st) < 0)
		return -errno;
	atomic_write(&c->fd_dev, (uint64_t)st.st_dev);
	atomic_write(&c->fd_ino, (uint64_t)st.st_ino);
	return 0;
}

/* In the old socket's place, so that whoever posts beside us meets one of the two. */
static void
replace_fd(struct slabc *c, int fd)
{
	if (session_owns_fd(c) && dup3(fd, c->fd, O_CLOEXEC) >= 0)
		close(fd);
	else
		atomic_write(&c->fd, fd);
	session_note_fd(c);
}

/* -EAGAIN: not now. */
static int
connect_again(struct slabc *c)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(address.sun_path, c->path);
	if (fd < 0)
		return -EAGAIN;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -EAGAIN;
	}
	session_let_block(fd);
	replace_fd(c, fd);
	return 0;
}

/* What the application never heard of. */
static void
return_unheard(struct slabc *c)
{
	for (uint32_t slot = 0; c->slots && slot < atomic_read(&c->session->n_slots) && slot < LAYOUT_MAX_SLOTS; slot++) {
		uint32_t cache = atomic_read(&c->slots[slot].cache);

		if (atomic_read(&c->slots[slot].holder) != LAYOUT_HOLDER_APP || atomic_read(&c->is_with_app[slot]) || cache == 0 ||
			cache >= LAYOUT_MAX_CACHES)
			continue;
		slot_give_back(c, cache, slot, LAYOUT_HOLDER_APP);
	}
}

static int
gone(struct slabc *c)
{
	atomic_write(&c->is_stale, 1);
	return session_usable(c);
}

/* One try.  -EAGAIN: not now. */
static int
resume(struct slabc *c, int64_t deadline)
{
	union proto_request request = {.resume = {.client_id = c->id, .token = c->token}};
	union proto_reply reply;
	uint64_t nonce;
	int r = connect_again(c);

	if (r < 0)
		return r;
	snprintf(request.resume.arena, sizeof(request.resume.arena), "%s", c->arena_name);
	r = session_hello(c, &nonce, deadline);
	if (r == 0)
		r = session_exchange(c, PROTO_OP_RESUME, &request, &reply, NULL, NULL, deadline);
	if (r == 0) {
		for (uint32_t i = 0; i < LAYOUT_MAX_CACHES; i++)
			if (c->nowait[i] == NOWAIT_SENT)
				c->nowait[i] = NOWAIT_IDLE;
		return_unheard(c);
		atomic_write(&c->is_dead, 0);
		return 0;
	}
	/* Ended again, or not yet to be had; or too many connect at once, or slabd is short of something. */
	if (r == -ENOTCONN || r == -EBUSY || r == -EDQUOT || r == -EIO || r == -ENOMEM)
		return -EAGAIN;
	return r == -ETIMEDOUT ? r : gone(c);
}

bool
session_rest(const struct slabc *c, uint32_t *pause_usp, int64_t deadline)
{
	uint64_t now = (uint64_t)session_now_ns(), x = now ^ (uint64_t)c->id << 32 ^ (uintptr_t)c;
	uint32_t pause_us = *pause_usp * 2;
	struct timespec t = {0};

	if (deadline != CLIENT_FOR_EVER && (int64_t)now >= deadline)
		return false;
	pause_us = pause_us < FIRST_PAUSE_US ? FIRST_PAUSE_US : pause_us < MAX_PAUSE_US ? pause_us : MAX_PAUSE_US;
	*pause_usp = pause_us;
	x ^= x >> 33;
	x *= UINT64_C(0xff51afd7ed558ccd);
	x ^= x >> 33;
	t.tv_nsec = (int64_t)(pause_us / 2 + x % pause_us) * 1000;
	if (deadline != CLIENT_FOR_EVER && t.tv_nsec > deadline - (int64_t)now)
		t.tv_nsec = deadline - (int64_t)now;
	nanosleep(&t, NULL);
	return true;
}

int
session_ready(struct slabc *c, int64_t deadline)
{
	uint32_t pause_us = 0;
	int r = session_usable(c);

	if (r < 0 || !atomic_read(&c->is_dead))
		return r;
	if (!c->token)
		return session_lost(c);
	while ((r = resume(c, deadline)) == -EAGAIN)
		if (!session_rest(c, &pause_us, deadline))
			return session_timed_out(c, "waiting for the next slabd");
	return r;
}

int
session_judge_resent(struct slabc *c, enum proto_op op, const union proto_request *request, int r, int64_t deadline)
{
	union proto_request lookup = {0};
	union proto_reply reply;

	switch (op) {
	case PROTO_OP_PUBLISH:
		strcpy(lookup.lookup.name, request->publish.name);
		return r == -EEXIST && session_exchange(c, PROTO_OP_LOOKUP, &lookup, &reply, NULL, NULL, deadline) == 0 &&
				       reply.lookup.ref == request->publish.ref
			       ? 0
			       : r;
	case PROTO_OP_UNPUBLISH:
		return r == -ENOENT ? 0 : r;
	case PROTO_OP_DESTROY:
		return r == -ENOENT && request->destroy.commit ? 0 : r;
	case PROTO_OP_ADOPT_ORPHAN:
		return r == -ESTALE && ref_owner(c, request->adopt_orphan.ref) == c->me ? 0 : r;
	case PROTO_OP_GIVE:
		return r == -EINVAL && ref_owner(c, request->give.ref) == (request->give.client_id & WORD_OWNER_MASK) ? 0 : r;
	default:
		return r;
	}
}
