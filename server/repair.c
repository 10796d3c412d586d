/* SPDX-License-Identifier: Apache-2.0 */
#include "server/repair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "server/cache.h"
#include "server/clock.h"
#include "server/log.h"
#include "server/session.h"
#include "server/stash.h"
#include "shm/atomic.h"
#include "shm/word.h"

/* After it ran it does not for so many times the time that it took, and so many portions are the most; who wants it meanwhile naps, so many times. */
enum { PAUSE_SHARE = 4, MAX_PORTIONS = 32, NAP_NS = 1000000, MAX_NAPS = 20 };

/* Of one cache. */
enum { MAX_AUDITS = 4 };

/* What a session has idle of a cache, in sheaves and stashes. */
static uint64_t
idle_of(const struct session *session, uint32_t cache)
{
	uint64_t n = stash_size(session, cache);

	/* order: SLOTS acquire - pairs with session_slot_lend() */
	for (uint32_t slot = 0; session->map && slot < atomic_read_acquire(&session->n_slots); slot++)
		if (atomic_read(&session->slots[slot].cache) == cache)
			n += session_slot_entries(session, slot);
	return n;
}

/* Who was lent most that did not come back from him and that he does not have, as a clause: not always whose fault it is. */
static void
describe_suspect(const struct cache *cache, const struct audit_back *back, char *text, size_t size)
{
	struct arena *arena = cache->arena;
	const struct session *top = NULL;
	int64_t n_top = 0;

	*text = '\0';
	for (const struct session *s = arena->first_session; s; s = s->next) {
		/* Of one that only reads there is no such page in the ledger, and a look would make one. */
		int64_t n = s->is_readonly ? 0 : atomic_read(&s->n_drawn[cache->id]) - (int64_t)(back->n_named[s->client] + idle_of(s, cache->id));

		if (n <= n_top)
			continue;
		top = s;
		n_top = n;
	}
	pthread_mutex_lock(&arena->ledger_lock);
	if (top && n_top >= cache->missing.n)
		snprintf(text, size, "; client %u (pid %d, uid %u, '%s') was lent %lld that it has no more and that did not come back from it", top->id,
			top->pid, top->uid, top->label, (long long)n_top);
	else if (cache->missing.n > 0)
		snprintf(text, size, "; client %u (pid %d, uid %u, '%s'), which has ended, was lent %lld that did not come back from it",
			cache->missing.client, cache->missing.pid, cache->missing.uid, cache->missing.label, (long long)cache->missing.n);
	pthread_mutex_unlock(&arena->ledger_lock);
}

/* A wrong client fills no log: at each power of two. */
static bool
is_worth_saying(uint64_t before, uint64_t n)
{
	return before == 0 || __builtin_clzll(before) != __builtin_clzll(before + n);
}

void
repair_tell(struct cache *cache, const struct audit_back *back)
{
	uint64_t before = atomic_add(&cache->n_repaired, back->n);
	char suspect[200];

	if (!is_worth_saying(before, back->n))
		return;
	describe_suspect(cache, back, suspect, sizeof suspect);
	log_warning("arena '%s', cache '%s': %llu objects, %llu bytes, lay in no sheaf and nobody had them: they are taken back, %llu by now%s",
		cache->arena->name, cache->name, (unsigned long long)back->n, (unsigned long long)back->bytes, (unsigned long long)(before + back->n),
		suspect);
}

/* Is more of it OUT and named by nobody than lies idle? */
static bool
can_be_lost(const struct cache *cache, const struct stats_census *counts)
{
	uint64_t n_idle = 0;

	for (const struct session *s = cache->arena->first_session; s; s = s->next)
		n_idle += idle_of(s, cache->id);
	return counts->n[0] > n_idle;
}

static int
glance(struct cache *cache, struct repair_walk *walk)
{
	if (!walk->glance.started_ns)
		census_start(&walk->glance, cache->id);
	if (!census_step(cache->arena, &walk->glance))
		return REPAIR_E_MORE;
	if (!can_be_lost(cache, &walk->glance.counts))
		return 0;
	return audit_begin(&walk->audit, cache->arena, cache->id, repair_tell) < 0 ? -ENOMEM : REPAIR_E_MORE;
}

/* Of the audit; what it cannot judge it is asked about anew.  It also ends short of memory: then what it has seen so far is what there is. */
static int
go_on(struct cache *cache, struct repair_walk *walk)
{
	int r = audit_step(walk->audit);

	if (r == AUDIT_E_MORE)
		return REPAIR_E_MORE;
	if (r < 0 || !cache || audit_result(walk->audit)->n_undecided == 0 || ++walk->n_audits >= MAX_AUDITS)
		return 0;
	repair_end(walk);
	return audit_begin(&walk->audit, cache->arena, cache->id, repair_tell) < 0 ? -ENOMEM : REPAIR_E_MORE;
}

int
repair_step(struct arena *arena, struct repair_walk *walk)
{
	struct cache *cache = arena_cache(arena, walk->cache);
	int r = 0;

	if (walk->audit)
		r = go_on(cache, walk);
	else if (cache && !(cache->flags & LAYOUT_CACHE_NO_OWNER) && (walk->glance.started_ns || cache_count_out(cache) > 0))
		r = glance(cache, walk);
	if (r != REPAIR_E_MORE)
		repair_end(walk);
	return r;
}

void
repair_end(struct repair_walk *walk)
{
	audit_end(walk->audit);
	walk->audit = NULL;
}

void
repair_cancel(struct repair_walk *walk)
{
	if (walk->audit)
		audit_cancel(walk->audit);
	walk->audit = NULL;
}

/* false: it was the last. */
static bool
enter_next(struct arena *arena, struct repair_walk *walk)
{
	const struct cache *cache = arena_cache_after(arena, walk->cache);

	*walk = (struct repair_walk){.cache = cache ? cache->id : 0};
	return cache != NULL;
}

/* So many portions of the pass at most.  true: one that began here is over. */
static bool
pass_on(struct arena *arena, struct repair_walk *walk)
{
	bool is_whole = walk->cache == 0;

	for (unsigned n = 0; n < MAX_PORTIONS;) {
		if (walk->cache && repair_step(arena, walk) == REPAIR_E_MORE) {
			n++;
			continue;
		}
		if (enter_next(arena, walk))
			continue;
		if (is_whole)
			return true;
		is_whole = true;
	}
	return false;
}

/* May the pass go on here?  Naps for it, not for long, and only where something was lost before. */
static bool
begin(struct arena *arena)
{
	static const struct timespec nap = {.tv_nsec = NAP_NS};

	for (unsigned i = 0; i < MAX_NAPS; i++) {
		/* order: REPAIR acquire - pairs with repair_arena() */
		uint64_t due = atomic_read_acquire(&arena->repair_due_ns);

		/* Others find it not due until this is over: the pass is ours. */
		if (clock_now_ns() >= due && atomic_cas(&arena->repair_due_ns, &due, UINT64_MAX))
			return true;
		if (atomic_read(&arena->n_repaired) == 0)
			return false;
		nanosleep(&nap, NULL);
	}
	return false;
}

/* What this thread has worked: who was kept from it by others has not hurt them. */
static uint64_t
worked_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

bool
repair_arena(struct arena *arena, uint64_t *np)
{
	uint64_t n_before = atomic_read(&arena->n_repaired), start;
	bool is_over = false;

	*np = 0;
	if (!begin(arena))
		return false;
	start = worked_ns();
	if (!arena->repair)
		arena->repair = calloc(1, sizeof *arena->repair);
	if (arena->repair)
		is_over = pass_on(arena, arena->repair);
	*np = atomic_read(&arena->n_repaired) - n_before;
	/* order: REPAIR release - how far the pass has come is visible to whose turn is next */
	atomic_write_release(&arena->repair_due_ns, clock_now_ns() + (worked_ns() - start) * PAUSE_SHARE);
	return is_over;
}
