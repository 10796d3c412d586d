/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's numbers; shrinking and destroying caches.
 *
 * A cache is destroyed in two steps.  First slabd is asked whether anything is against it: nothing has been changed then.  Only when nobody
 * else has it open and no object is in use do all threads' sheaves and the barn go back, and slabd ends the cache.  After that the
 * session's handles of it are buried: no thread has a sheaf of theirs, so their hot paths find nothing, and their slow paths say ENOENT;
 * the id, should slabd give it out again, is another handle's.  An answer that does not come counts as a yes: the handles are then not used
 * with what may be another cache.
 */
#include "client/internal.h"

#include <string.h>

int
slabc_get_stats(struct slabc *c, struct slabc_stats *out)
{
	struct slabc_stats s = {0};
	union proto_request request = {0};
	union proto_reply reply;
	size_t size = out->size;
	int r = session_usable(c);

	if (r == 0 && size < sizeof(size))
		r = error_set(EINVAL, "size %zu of struct slabc_stats: start from SLABC_STATS_INIT", size);
	if (r == 0)
		r = session_ask(c, PROTO_OP_SESSION_STATS, &request, &reply);
	if (r < 0)
		return r;
	s = (struct slabc_stats){
		.size = size,
		.arena_bytes = reply.session_stats.arena_bytes,
		.committed_bytes = reply.session_stats.committed_bytes,
		.bytes_held = reply.session_stats.bytes_held,
		.bytes_idle = reply.session_stats.bytes_idle,
		.n_refills = reply.session_stats.n_refills,
		.n_flushes = reply.session_stats.n_flushes,
		.n_foreign_frees = reply.session_stats.n_foreign_frees,
		.n_bad_frees = reply.session_stats.n_bad_frees,
		.n_dropped = reply.session_stats.n_dropped,
		.n_nested = reply.session_stats.n_nested,
		.n_threads = reply.session_stats.n_threads,
		.n_caches = reply.session_stats.n_caches,
		.n_waits = reply.session_stats.n_waits,
	};
	/* A newer program's further fields are 0. */
	if (size > sizeof(s))
		memset((char *)out + sizeof(s), 0, size - sizeof(s));
	memcpy(out, &s, size < sizeof(s) ? size : sizeof(s));
	return 0;
}

/* Only from inside. */
static int
shrink(struct slabc_cache *k)
{
	union proto_request request = {.shrink = {.cache = k->v.cache}};
	union proto_reply reply;
	int64_t deadline = 0;

	owed_pay_all(k);
	cache_drop_idle(k, false);
	return session_call(k->c, PROTO_OP_SHRINK, &request, &reply, session_deadline(k->c, &deadline));
}

int
slabc_cache_shrink(struct slabc_cache *k)
{
	int error = errno, r = cache_usable(k);

	if (r < 0)
		return r;
	if (!thread_enter(k))
		return error_set(EAGAIN, "slabc_cache_shrink() in a signal handler that interrupted the library");
	r = shrink(k);
	thread_leave();
	if (r == 0)
		errno = error;
	return r;
}

/* opening held.  The id under which this session has the cache open; 0: it has not. */
static uint32_t
find_id(struct slabc *c, const char *name)
{
	uint32_t found = 0;

	pthread_mutex_lock(&library_lock);
	for (uint32_t id = 1; id < LAYOUT_MAX_CACHES && !found; id++)
		if (c->handles[id] && strcmp(c->handles[id]->name, name) == 0)
			found = id;
	pthread_mutex_unlock(&library_lock);
	return found;
}

/* opening held, so that handles neither come nor go. Only from inside. */
static int
destroy(struct slabc *c, const char *name)
{
	union proto_request request = {0};
	uint32_t id = find_id(c, name);
	union proto_reply reply;
	int64_t deadline = 0;
	int r;

	strcpy(request.destroy.name, name);
	/* What this session has freed does not count as in use. */
	for (struct slabc_cache *k = c->handles[id]; id && k; k = k->next) {
		thread_drain_all(c, k);
		cache_settle(k);
	}
	r = session_call(c, PROTO_OP_DESTROY, &request, &reply, session_deadline(c, &deadline));
	if (r < 0)
		return r;
	for (struct slabc_cache *k = c->handles[id]; id && k; k = k->next)
		cache_drop_idle(k, true);
	request.destroy.commit = 1;
	r = session_call(c, PROTO_OP_DESTROY, &request, &reply, session_deadline(c, &deadline));
	if (id && (r == 0 || r == -ETIMEDOUT))
		cache_bury(c, id);
	return r;
}

int
slabc_cache_destroy(struct slabc *c, const char *name)
{
	int error = errno, r = session_writable(c);

	if (r < 0)
		return r;
	if (!name || !*name)
		return error_set(EINVAL, "name of a cache: 1 to %zu bytes", sizeof(((struct proto_destroy_request *)NULL)->name) - 1);
	if (strlen(name) >= sizeof(((struct proto_destroy_request *)NULL)->name))
		return error_set(ENAMETOOLONG, "name of a cache: %zu bytes, at most %zu", strlen(name),
			sizeof(((struct proto_destroy_request *)NULL)->name) - 1);
	if (!thread_enter(NULL))
		return error_set(EAGAIN, "slabc_cache_destroy() in a signal handler that interrupted the library");
	pthread_mutex_lock(&c->opening);
	r = destroy(c, name);
	pthread_mutex_unlock(&c->opening);
	thread_leave();
	if (r == 0)
		errno = error;
	return r;
}
