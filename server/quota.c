/* SPDX-License-Identifier: Apache-2.0 */
#include "server/quota.h"

#include <stdio.h>
#include <stdlib.h>

#include "server/cache.h"
#include "server/clock.h"
#include "server/pages.h"
#include "server/recall.h"
#include "server/stats.h"

/* Of what others have, for client-min; and of what a client has that asks again and again for more than client-max. */
static const uint64_t max_age_ns = 100000000;

/* Refusals in a row, each after a count of its own. */
enum { MAX_COUNTED = 8 };

/* In sheaves; without owner words, all that was lent and is not back. The session's work is held. */
static uint64_t
bytes_beside_words(const struct session *session)
{
	uint64_t bytes = session_idle_bytes(session, true);

	for (const struct cache *k = arena_cache_after(session->arena, 0); k; k = arena_cache_after(session->arena, k->id))
		if (k->flags & LAYOUT_CACHE_NO_OWNER && session->n_drawn[k->id] > 0)
			bytes += (uint64_t)session->n_drawn[k->id] * k->object_bytes;
	return bytes;
}

static bool
is_counted(const struct session *session)
{
	return session->map && !session->is_readonly && atomic_read(&session->state) != SESSION_DYING;
}

/* What is granted and taken while words are walked counts again: it may have been seen or not. */
static void
mark(struct session *session, const struct stats_census *census)
{
	(void)census;
	session->quota.granted_before = session->quota.granted;
	session->quota.taken_before = session->quota.taken;
	session->quota.is_marked = true;
}

static void
settle(struct session *session, const struct stats_census *census)
{
	struct session_quota *q = &session->quota;

	if (!q->is_marked)
		return;
	q->is_marked = false;
	atomic_write(&q->held, census->bytes[session->client]);
	atomic_write(&q->counted, census->bytes[session->client] + bytes_beside_words(session));
	atomic_write(&q->granted, q->granted - q->granted_before);
	atomic_write(&q->taken, q->taken - q->taken_before);
}

static void
for_each(struct session *mine, const struct stats_census *census, void (*visit)(struct session *session, const struct stats_census *census))
{
	visit(mine, census);
	for (struct session *s = mine->arena->first_session; s; s = s->next) {
		if (s == mine || pthread_mutex_trylock(&s->work) != 0)
			continue;
		if (is_counted(s))
			visit(s, census);
		pthread_mutex_unlock(&s->work);
	}
}

/* Without memory for it the estimates stay. */
static void
count(struct session *mine)
{
	struct arena *arena = mine->arena;
	struct stats_census *census = malloc(sizeof *census);

	mine->quota.counted_ns = clock_now_ns();
	mine->quota.n_counts++;
	if (!census)
		return;
	pthread_mutex_lock(&arena->quota_lock);
	for_each(mine, census, mark);
	stats_count(arena, census);
	for_each(mine, census, settle);
	atomic_write(&arena->counted_ns, clock_now_ns());
	pthread_mutex_unlock(&arena->quota_lock);
	free(census);
}

static uint64_t
bytes_of(const struct session *session)
{
	return atomic_read(&session->quota.counted) + atomic_read(&session->quota.granted);
}

/* In all sessions of the user, this one among them. */
static uint64_t
bytes_of_user(const struct session *session, uint32_t *n_sessionsp)
{
	uint64_t bytes = 0;

	*n_sessionsp = 0;
	for (const struct session *s = session->arena->first_session; s; s = s->next) {
		if (s->uid != session->uid || !is_counted(s))
			continue;
		bytes += bytes_of(s);
		++*n_sessionsp;
	}
	return bytes;
}

static uint64_t
room_up_to(uint64_t has, uint64_t max)
{
	return max == 0 ? UINT64_MAX : has < max ? max - has : 0;
}

/* By client-max and user-max. */
static uint64_t
room_left(const struct session *session)
{
	const struct arena_options *o = &session->arena->options;
	uint64_t own = room_up_to(bytes_of(session), o->client_max), user = UINT64_MAX;
	uint32_t n;

	if (o->user_max)
		user = room_up_to(bytes_of_user(session, &n), o->user_max);
	return own < user ? own : user;
}

/* What the session keeps idle, and where it is the user's limit, what his others do that nobody works on. */
static void
call_in(struct session *mine, uint64_t least)
{
	recall_own(mine);
	if (room_up_to(bytes_of(mine), mine->arena->options.client_max) < least)
		return;
	for (struct session *s = mine->arena->first_session; s; s = s->next) {
		if (s == mine || s->uid != mine->uid || pthread_mutex_trylock(&s->work) != 0)
			continue;
		if (is_counted(s))
			recall_own(s);
		pthread_mutex_unlock(&s->work);
	}
}

static void
explain(const struct session *session, uint64_t least, char *why, size_t why_size)
{
	const struct arena *arena = session->arena;
	const struct arena_options *o = &arena->options;
	uint64_t bytes;
	uint32_t n;

	if (room_up_to(bytes_of(session), o->client_max) < least) {
		snprintf(why, why_size, "this client has its %llu bytes of arena '%s' (client-max): %llu in objects, %llu idle",
			(unsigned long long)o->client_max, arena->name, (unsigned long long)session->quota.held,
			(unsigned long long)(session->quota.counted - session->quota.held));
		return;
	}
	bytes = bytes_of_user(session, &n);
	snprintf(why, why_size, "user %u has his %llu bytes of arena '%s' (user-max): %llu in %u sessions, %llu of them in this one", session->uid,
		(unsigned long long)o->user_max, arena->name, (unsigned long long)bytes, n, (unsigned long long)bytes_of(session));
}

/* Was it refused often just now, and gave nothing back since?  What others freed of its own, or its user's others gave back, counts a moment later. */
static bool
is_known_full(const struct session *session)
{
	const struct session_quota *q = &session->quota;

	return q->n_refused >= MAX_COUNTED && q->taken == 0 && clock_now_ns() - q->counted_ns < max_age_ns;
}

static uint64_t
count_room(struct session *session, uint64_t least)
{
	uint64_t room;

	count(session);
	room = room_left(session);
	if (room >= least)
		return room;
	call_in(session, least);
	count(session);
	return room_left(session);
}

uint64_t
quota_room(struct session *session, uint64_t least, uint64_t want, bool may_count, char *why, size_t why_size)
{
	uint64_t room = room_left(session);

	if (room < least && may_count && !is_known_full(session))
		room = count_room(session, least);
	if (room >= least) {
		session->quota.n_refused = 0;
		return room < want ? room : want;
	}
	if (may_count)
		session->quota.n_refused++;
	explain(session, least, why, why_size);
	return 0;
}

static uint64_t
bytes_had(const struct session *session)
{
	uint64_t has = atomic_read(&session->quota.counted) + atomic_read(&session->quota.granted),
		 taken = atomic_read(&session->quota.taken);

	return has > taken ? has - taken : 0;
}

/* What the others may still ask for, each up to client-min. */
static uint64_t
bytes_promised(const struct session *mine, uint64_t min, uint32_t *n_othersp)
{
	uint64_t bytes = 0;

	*n_othersp = 0;
	for (const struct session *s = mine->arena->first_session; s; s = s->next) {
		uint64_t has = bytes_had(s);

		if (s == mine || !is_counted(s))
			continue;
		++*n_othersp;
		bytes += has < min ? min - has : 0;
	}
	return bytes;
}

static uint64_t
bytes_free(struct arena *arena)
{
	uint64_t committed = atomic_read(&arena->committed_bytes),
		 bytes = committed < arena->options.limit_bytes ? arena->options.limit_bytes - committed : 0;

	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct pages_counters c;

		pages_count(&arena->segments[i].pages, &c);
		bytes += (uint64_t)c.n_free * LAYOUT_PAGE_BYTES;
	}
	return bytes;
}

bool
quota_may_carve(struct session *session, uint64_t bytes)
{
	struct arena *arena = session->arena;
	uint64_t min = arena->options.client_min, promised, left;
	uint32_t n_others;

	if (min == 0 || bytes_had(session) + bytes <= min)
		return true;
	promised = bytes_promised(session, min, &n_others);
	left = bytes_free(arena);
	/* Others may have freed what these have drawn. */
	if (left < n_others * min + bytes && clock_now_ns() - atomic_read(&arena->counted_ns) > max_age_ns) {
		count(session);
		promised = bytes_promised(session, min, &n_others);
	}
	return left >= promised + bytes;
}
