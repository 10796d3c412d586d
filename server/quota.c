/* SPDX-License-Identifier: Apache-2.0 */
#include "server/quota.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/clock.h"
#include "server/pages.h"
#include "server/recall.h"
#include "server/repair.h"
#include "server/stash.h"
#include "server/stats.h"

/* Of what others have, for client-min; and of what a client has that asks again and again for more than client-max. */
static const uint64_t max_age_ns = 100000000;

/* Refusals in a row, each after a count of its own. */
enum { MAX_COUNTED = 8 };

/* Of a cache without owner words: what is OUT and idle nowhere, and how much all clients lack of what they were lent: apportioned by that. */
struct unseen {
	int64_t here;
	uint64_t lacking;
};

/* One count. */
struct tally {
	struct stats_census census;
	int64_t bytes_missing; /* of caches with owner words: what is lost, or was on its way while it was counted */
	struct unseen wordless[LAYOUT_MAX_CACHES]; /* objects: what is in use, by cache */
	uint64_t idle[LAYOUT_MAX_CACHES]; /* of the session at hand */
};

static bool
is_wordless(const struct cache *k)
{
	return k && k->flags & LAYOUT_CACHE_NO_OWNER;
}

static bool
is_counted(const struct session *session)
{
	return session->map && !session->is_readonly && atomic_read(&session->state) != SESSION_DYING;
}

/* Objects of each cache without owner words that lie in the session's sheaves and stashes. */
static void
count_idle(const struct session *session, uint64_t idle[LAYOUT_MAX_CACHES])
{
	memset(idle, 0, LAYOUT_MAX_CACHES * sizeof *idle);
	/* order: SLOTS acquire - pairs with session_slot_lend() */
	for (uint32_t slot = 0; session->map && slot < atomic_read_acquire(&session->n_slots); slot++) {
		const struct cache *k = arena_cache(session->arena, atomic_read(&session->slots[slot].cache));

		if (is_wordless(k))
			idle[k->id] += session_slot_entries(session, slot);
	}
	for (const struct cache *k = arena_cache_after(session->arena, 0); k; k = arena_cache_after(session->arena, k->id))
		if (is_wordless(k))
			idle[k->id] += stash_size(session, k->id);
}

/* Objects that the session was lent, and that it neither gave back nor has idle; below 0: it frees what others were lent. */
static int64_t
objects_lacking(const struct session *session, const struct cache *k, uint64_t idle)
{
	return atomic_read(&session->n_drawn[k->id]) - (int64_t)idle;
}

/* What the session may have made away with, at most: of what it was lent of caches with owner words, neither back from it nor with it, nor seen with others. */
static uint64_t
bytes_missing(const struct session *session, const struct tally *t)
{
	int64_t lacking = atomic_read(session->bytes_drawn) - (int64_t)(t->census.bytes[session->client] + session_idle_bytes(session, true));
	int64_t n = lacking < t->bytes_missing ? lacking : t->bytes_missing;

	return n > 0 ? (uint64_t)n : 0;
}

static void
add_up(struct unseen *u, int64_t lacking)
{
	if (lacking > 0)
		u->lacking += (uint64_t)lacking;
}

static uint64_t
share(const struct unseen *u, int64_t lacking)
{
	if (lacking <= 0 || u->here <= 0)
		return 0;
	if ((uint64_t)u->here >= u->lacking)
		return (uint64_t)lacking;
	return (uint64_t)((double)u->here * (double)lacking / (double)u->lacking);
}

/* The words are counted already. */
static void
count_unseen(struct arena *arena, struct tally *t)
{
	t->bytes_missing = (int64_t)t->census.bytes[0];
	for (struct cache *k = arena_cache_after(arena, 0); k; k = arena_cache_after(arena, k->id))
		if (is_wordless(k)) {
			t->wordless[k->id] = (struct unseen){.here = (int64_t)cache_count_out(k)};
			/* The dead had theirs; nobody who lives is charged for it. */
			add_up(&t->wordless[k->id], atomic_read(&k->n_dead_drawn));
		}
	for (const struct session *s = arena->first_session; s; s = s->next) {
		if (s->is_readonly)
			continue;
		t->bytes_missing -= (int64_t)session_idle_bytes(s, true);
		count_idle(s, t->idle);
		for (const struct cache *k = arena_cache_after(arena, 0); k; k = arena_cache_after(arena, k->id))
			if (is_wordless(k)) {
				t->wordless[k->id].here -= (int64_t)t->idle[k->id];
				add_up(&t->wordless[k->id], objects_lacking(s, k, t->idle[k->id]));
			}
	}
}

/* What is granted and taken while words are walked counts again: it may have been seen or not. */
static void
mark(struct session *session, struct tally *t)
{
	(void)t;
	session->quota.granted_before = session->quota.granted;
	session->quota.taken_before = session->quota.taken;
	session->quota.is_marked = true;
}

static void
settle(struct session *session, struct tally *t)
{
	struct session_quota *q = &session->quota;
	uint64_t idle = session_idle_bytes(session, false), wordless = 0;

	if (!q->is_marked)
		return;
	q->is_marked = false;
	count_idle(session, t->idle);
	for (const struct cache *k = arena_cache_after(session->arena, 0); k; k = arena_cache_after(session->arena, k->id))
		if (is_wordless(k))
			wordless += share(&t->wordless[k->id], objects_lacking(session, k, t->idle[k->id])) * k->object_bytes;
	atomic_write(&q->held, t->census.bytes[session->client]);
	q->wordless = wordless;
	atomic_write(&q->missing, bytes_missing(session, t));
	atomic_write(&q->counted, q->held + idle + wordless);
	atomic_write(&q->granted, q->granted - q->granted_before);
	atomic_write(&q->taken, q->taken - q->taken_before);
}

static void
for_each(struct session *mine, struct tally *t, void (*visit)(struct session *session, struct tally *t))
{
	visit(mine, t);
	for (struct session *s = mine->arena->first_session; s; s = s->next) {
		if (s == mine || pthread_mutex_trylock(&s->work) != 0)
			continue;
		if (is_counted(s))
			visit(s, t);
		pthread_mutex_unlock(&s->work);
	}
}

/* Without memory for it the estimates stay. */
static void
count(struct session *mine)
{
	struct arena *arena = mine->arena;
	struct tally *t = malloc(sizeof *t);

	mine->quota.counted_ns = clock_now_ns();
	mine->quota.n_counts++;
	if (!t)
		return;
	pthread_mutex_lock(&arena->quota_lock);
	for_each(mine, t, mark);
	stats_count(arena, &t->census);
	count_unseen(arena, t);
	for_each(mine, t, settle);
	atomic_write(&arena->bytes_missing, t->bytes_missing > 0 ? (uint64_t)t->bytes_missing : 0);
	atomic_write(&arena->counted_ns, clock_now_ns());
	pthread_mutex_unlock(&arena->quota_lock);
	free(t);
}

static uint64_t
bytes_of(const struct session *session)
{
	return atomic_read(&session->quota.counted) + atomic_read(&session->quota.granted);
}

/* On top of that, what it may have made away with: no more than all have that was seen with nobody. */
static uint64_t
bytes_lost(const struct session *session)
{
	uint64_t own = atomic_read(&session->quota.missing), all = atomic_read(&session->arena->bytes_missing);

	return own < all ? own : all;
}

/* In all sessions of the user, this one among them. */
static uint64_t
bytes_of_user(const struct session *session, uint32_t *n_sessionsp)
{
	uint64_t bytes = 0, missing = 0, all = atomic_read(&session->arena->bytes_missing);

	*n_sessionsp = 0;
	for (const struct session *s = session->arena->first_session; s; s = s->next) {
		if (s->uid != session->uid || !is_counted(s))
			continue;
		bytes += bytes_of(s);
		missing += bytes_lost(s);
		++*n_sessionsp;
	}
	return bytes + (missing < all ? missing : all);
}

static uint64_t
room_up_to(uint64_t has, uint64_t max)
{
	return max == 0 ? UINT64_MAX : has < max ? max - has : 0;
}

static uint64_t
own_room(const struct session *session)
{
	return room_up_to(bytes_of(session) + bytes_lost(session), session->arena->options.client_max);
}

/* By client-max and user-max. */
static uint64_t
room_left(const struct session *session)
{
	uint64_t own = own_room(session), user = UINT64_MAX, user_max = session->arena->options.user_max;
	uint32_t n;

	if (user_max)
		user = room_up_to(bytes_of_user(session, &n), user_max);
	return own < user ? own : user;
}

/* What the session keeps idle, and where it is the user's limit, what his others do that nobody works on. */
static void
call_in(struct session *mine, uint64_t least)
{
	recall_own(mine);
	if (own_room(mine) < least)
		return;
	for (struct session *s = mine->arena->first_session; s; s = s->next) {
		if (s == mine || s->uid != mine->uid || pthread_mutex_trylock(&s->work) != 0)
			continue;
		if (is_counted(s))
			recall_own(s);
		pthread_mutex_unlock(&s->work);
	}
}

/* What nobody was seen to have, be it whose it may: what is lost goes back, and what then is not seen was on its way. */
static void
clear_up(struct session *session)
{
	struct arena *arena = session->arena;
	bool is_over;
	uint64_t n;

	if (atomic_read(&arena->bytes_missing) == 0)
		return;
	is_over = repair_arena(arena, &n);
	if (n > 0)
		count(session);
	/* No turn: where nothing was ever lost it was looked for just now. */
	if (is_over || atomic_read(&arena->n_repaired) == 0)
		atomic_write(&arena->bytes_missing, 0);
}

static void
explain_own(const struct session *session, char *why, size_t why_size)
{
	const struct session_quota *q = &session->quota;
	unsigned long long idle = q->counted - q->held - q->wordless, missing = bytes_lost(session);
	int n = snprintf(why, why_size, "this client has its %llu bytes of arena '%s' (client-max): %llu in objects, %llu idle",
		(unsigned long long)session->arena->options.client_max, session->arena->name, (unsigned long long)q->held, idle);

	if (q->wordless && n >= 0 && (size_t)n < why_size)
		n += snprintf(why + n, why_size - (size_t)n, ", %llu as its share of what is in use of caches without owner words",
			(unsigned long long)q->wordless);
	if (missing && n >= 0 && (size_t)n < why_size)
		snprintf(why + n, why_size - (size_t)n, ", %llu that it was lent and nobody has", missing);
}

static void
explain(const struct session *session, uint64_t least, char *why, size_t why_size)
{
	const struct arena *arena = session->arena;
	uint64_t bytes;
	uint32_t n;

	if (own_room(session) < least) {
		explain_own(session, why, why_size);
		return;
	}
	bytes = bytes_of_user(session, &n);
	snprintf(why, why_size, "user %u has his %llu bytes of arena '%s' (user-max): %llu in %u sessions, %llu of them in this one", session->uid,
		(unsigned long long)arena->options.user_max, arena->name, (unsigned long long)bytes, n, (unsigned long long)bytes_of(session));
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
	room = room_left(session);
	if (room >= least)
		return room;
	clear_up(session);
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
