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

/* After a pass there is none for so many times the time that it took; who wants one meanwhile naps, so many times. */
enum { PAUSE_SHARE = 4, NAP_NS = 1000000, MAX_NAPS = 20 };

/* One cache's OUT objects by what their words say, at a glance. */
struct glance {
	uint64_t n_unnamed;
	uint64_t n_idle;                  /* in sheaves and stashes */
	uint32_t n_named[WORD_ORPHAN + 1]; /* by owner */
};

struct repair {
	struct node_discard discard;
	uint64_t n;
	uint64_t bytes;
};

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

static void
glance_at(const struct cache *cache, struct glance *glance)
{
	struct arena *arena = cache->arena;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];

		if (atomic_read_acquire(&slab->cache) != cache->id)
			continue;
		for (uint32_t i = 0; i < atomic_read(&slab->n_objects); i++) {
			uint32_t word = atomic_read(&slab->first_word) + i, owner = word_owner(atomic_read(&arena->words[word]));

			if (slab_get(arena, word) != SLAB_OUT)
				continue;
			glance->n_named[owner] += owner != 0;
			glance->n_unnamed += owner == 0;
		}
	}
	for (const struct session *s = arena->first_session; s; s = s->next)
		glance->n_idle += idle_of(s, cache->id);
}

/* Who was lent most that did not come back from him and that he does not have, as a clause: not always whose fault it is. */
static void
describe_suspect(const struct cache *cache, char *text, size_t size)
{
	struct arena *arena = cache->arena;
	struct glance *glance = calloc(1, sizeof *glance);
	const struct session *top = NULL;
	int64_t n_top = 0;

	*text = '\0';
	if (glance)
		glance_at(cache, glance);
	for (const struct session *s = arena->first_session; glance && s; s = s->next) {
		int64_t n = atomic_read(&s->n_drawn[cache->id]) - (int64_t)(glance->n_named[s->client] + idle_of(s, cache->id));

		if (n <= n_top)
			continue;
		top = s;
		n_top = n;
	}
	free(glance);
	pthread_mutex_lock(&arena->registry_lock);
	if (top && n_top >= cache->missing.n)
		snprintf(text, size, "; client %u (pid %d, uid %u, '%s') was lent %lld that it has no more and that did not come back from it", top->id,
			top->pid, top->uid, top->label, (long long)n_top);
	else if (cache->missing.n > 0)
		snprintf(text, size, "; client %u (pid %d, uid %u, '%s'), which has ended, was lent %lld that did not come back from it",
			cache->missing.client, cache->missing.pid, cache->missing.uid, cache->missing.label, (long long)cache->missing.n);
	pthread_mutex_unlock(&arena->registry_lock);
}

/* A slab that this empties goes when the locks are let go of. */
static void
take_lost(void *ctx, struct cache *cache, uint32_t slab, uint32_t word, uint32_t seen)
{
	struct repair *repair = ctx;
	struct arena *arena = cache->arena;

	if (atomic_read(&arena->words[word]) != seen)
		return;
	repair->n++;
	repair->bytes += slab_object_bytes(arena, cache, slab);
	node_put_free(arena, &cache->nodes[arena->slabs[slab].node], slab, word, &repair->discard);
}

/* Sheaves of a session that could not be mapped again (session.c) are not seen: what lies in them is not lost. */
static bool
sees_all(const struct arena *arena)
{
	for (const struct session *s = arena->first_session; s; s = s->next)
		if (!s->map && !s->is_readonly)
			return false;
	return true;
}

/* Audits the cache, and takes back what is lost. */
static int
repair_audit(struct cache *cache, struct audit *audit)
{
	struct arena *arena = cache->arena;
	struct repair repair = {0};
	int r = audit_cache(cache, audit, sees_all(arena) ? take_lost : NULL, &repair);
	char suspect[200];

	node_discard(arena, &repair.discard);
	if (repair.n == 0)
		return r;
	audit->n_repaired += repair.n;
	atomic_add(&arena->n_repaired, repair.n);
	describe_suspect(cache, suspect, sizeof suspect);
	log_warning("arena '%s', cache '%s': %llu objects, %llu bytes, lay in no sheaf and nobody had them: they are taken back%s", arena->name,
		cache->name, (unsigned long long)repair.n, (unsigned long long)repair.bytes, suspect);
	return r;
}

int
repair_run(struct arena *arena, uint32_t id, struct audit *audit)
{
	struct cache *cache;
	int r = 0;

	*audit = (struct audit){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = id ? arena_cache(arena, id) : arena_cache_after(arena, 0);
	if (id && !cache)
		r = -ENOENT;
	for (; cache && r == 0; cache = id ? NULL : arena_cache_after(arena, cache->id))
		r = repair_audit(cache, audit);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}

uint64_t
repair_cache(struct cache *cache)
{
	struct audit audit = {0};
	struct glance *glance;
	bool can_be_lost;

	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		return 0;
	glance = calloc(1, sizeof *glance);
	if (!glance)
		return 0;
	glance_at(cache, glance);
	can_be_lost = glance->n_unnamed > glance->n_idle;
	free(glance);
	if (can_be_lost)
		repair_audit(cache, &audit);
	return audit.n_repaired;
}

/* May a pass begin?  Naps for it, not for long, and only where something was lost before. */
static bool
begin(struct arena *arena)
{
	static const struct timespec nap = {.tv_nsec = NAP_NS};

	for (unsigned i = 0; i < MAX_NAPS; i++) {
		uint64_t due = atomic_read(&arena->repair_due_ns);

		/* Others find it not due until it is over. */
		if (clock_now_ns() >= due && atomic_cas(&arena->repair_due_ns, &due, UINT64_MAX))
			return true;
		if (atomic_read(&arena->n_repaired) == 0)
			return false;
		nanosleep(&nap, NULL);
	}
	return false;
}

bool
repair_arena(struct arena *arena, uint64_t *np)
{
	uint64_t start, now;

	*np = 0;
	if (!begin(arena))
		return false;
	start = clock_now_ns();
	for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id))
		*np += repair_cache(cache);
	now = clock_now_ns();
	atomic_write(&arena->repair_due_ns, now + (now - start) * PAUSE_SHARE);
	return true;
}
