/* SPDX-License-Identifier: Apache-2.0 */
#include "server/retire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/log.h"
#include "server/recall.h"
#include "shm/atomic.h"
#include "shm/barn.h"
#include "shm/word.h"

/* Objects of a cache that somebody has, but for what clients without owner words left when they ended. */
struct uses {
	uint64_t n_out;
	uint64_t n_held; /* of these, named by somebody; the rest lies in sheaves. Without owner words: not known, 0 */
	uint32_t top;    /* who holds most; 0: nobody */
	uint64_t n_top;
};

static struct uses
find_uses(struct cache *cache, const struct stats_census *counts)
{
	struct uses uses = {.n_out = cache_count_out(cache)};

	for (uint32_t client = 1; client <= WORD_ORPHAN; client++) {
		uses.n_held += counts->n[client];
		if (counts->n[client] > uses.n_top) {
			uses.n_top = counts->n[client];
			uses.top = client;
		}
	}
	/* They were counted before. */
	if (uses.n_held > uses.n_out)
		uses.n_held = uses.n_out;
	return uses;
}

/* Somebody who has the cache open; NULL: nobody else. */
static const struct session *
other_opener(const struct cache *cache, const struct session *own)
{
	for (const struct session *s = cache->arena->first_session; s; s = s->next)
		if (s != own && session_has_open(s, cache->id))
			return s;
	return NULL;
}

static int
explain(const struct cache *cache, const struct uses *uses, char *why, size_t why_size)
{
	const struct arena *arena = cache->arena;
	const struct session *s = uses->top && uses->top <= LAYOUT_MAX_CLIENTS ? arena->sessions[uses->top] : NULL;
	unsigned long long n = uses->n_held, n_top = uses->n_top;

	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		snprintf(why, why_size, "cache '%s' has %llu objects that living clients have, nobody can say who (SLABC_NO_OWNER)",
			cache->name, (unsigned long long)uses->n_out);
	else if (n == 0)
		snprintf(why, why_size, "cache '%s': %llu of its objects lie idle in clients' sheaves where slabd does not reach them",
			cache->name, (unsigned long long)uses->n_out);
	else if (s)
		snprintf(why, why_size, "cache '%s' has %llu objects in use; client %u (pid %d, '%s') has most of them, %llu", cache->name,
			n, s->id, s->pid, s->label, n_top);
	else if (uses->top)
		snprintf(why, why_size,
			"cache '%s' has %llu objects in use; %llu of them were left by one dead client: adopt or free them, or `slabctl "
			"orphans reclaim`",
			cache->name, n, n_top);
	else
		snprintf(why, why_size, "cache '%s' has %llu objects in use", cache->name, n);
	return -EBUSY;
}

/*
 * Is anything against it?  own: a session whose having it open does not count.  is_idle_counted: objects that lie idle in sheaves count too.  Who holds what
 * was counted a little before; whether anything is OUT is as of now.
 */
static int
check(struct cache *cache, const struct session *own, const struct stats_census *counts, bool is_idle_counted, char *why, size_t why_size)
{
	const struct session *other = other_opener(cache, own);
	struct uses uses = find_uses(cache, counts);
	uint64_t n_openers = atomic_read(&cache->n_openers) - (own && session_has_open(own, cache->id));

	/* What the dead had of a cache without owner words nobody can adopt or free: it goes with the cache. */
	uses.n_out -= cache_left(cache, uses.n_out);
	if (uses.n_held > 0 || (is_idle_counted && uses.n_out > 0 && !other))
		return explain(cache, &uses, why, why_size);
	if (!other)
		return 0;
	snprintf(why, why_size, "cache '%s' is open in %llu other sessions; client %u (pid %d, '%s') is one: no object of it is in use",
		cache->name, (unsigned long long)n_openers, other->id, other->pid, other->label);
	return -EBUSY;
}

/* What a session had of the cache.  sessions_lock held for writing: nobody works on it. */
static void
take_from(struct session *session, struct cache *cache)
{
	if (!session->map)
		return;
	for (uint32_t slot = 0; slot < session->n_slots; slot++) {
		if (session->slots[slot].cache != cache->id)
			continue;
		atomic_write(&session_sheaf(session, slot)->size, 0);
		atomic_write(&session_sheaf(session, slot)->busy, 0);
		barn_hand(&session_slots(session)[slot], LAYOUT_HOLDER_SLABD);
		session_slot_put(session, slot);
	}
	/* Its counters are another cache's from now on. */
	memset(session_cache(session, cache->id), 0, sizeof(struct layout_session_cache));
}

/* What is OUT by now was left by the dead.  sessions_lock held for writing. */
static void
take_left(struct cache *cache)
{
	struct arena *arena = cache->arena;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];
		uint32_t n_objects = slab->n_objects, word = slab->first_word;
		struct node_discard discard = {0};
		struct node *node;

		if (atomic_read_acquire(&slab->cache) != cache->id)
			continue;
		node = &cache->nodes[slab->node];
		node_lock(node);
		/* The last one may take the slab with it. */
		for (uint32_t i = 0; i < n_objects; i++)
			if (slab_get(arena, word + i) == SLAB_OUT)
				node_put_free(arena, node, number, word + i, &discard);
		node_unlock(node);
		node_discard(arena, &discard);
	}
}

/* sessions_lock held for writing. */
static int
retire_locked(struct cache *cache, struct session *own, const struct stats_census *counts, char *why, size_t why_size)
{
	struct arena *arena = cache->arena;
	int r = check(cache, own, counts, true, why, why_size);

	if (r < 0)
		return r;
	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		take_left(cache);
	for (unsigned i = 0; i < cache->n_nodes; i++) {
		node_trim(arena, &cache->nodes[i]);
		/* Nothing is OUT, and nobody is in the midst of anything: every slab was empty. */
		if (cache->nodes[i].n_slabs != 0)
			abort();
	}
	for (struct session *s = arena->first_session; s; s = s->next)
		take_from(s, cache);
	if (own)
		session_set_open(own, cache, false);
	log_notice("arena '%s': cache '%s' is destroyed", arena->name, cache->name);
	cache_remove(cache);
	return 0;
}

static int
no_cache(const struct arena *arena, const char *name, char *why, size_t why_size)
{
	snprintf(why, why_size, "there is no cache '%s' in arena '%s'", name, arena->name);
	return -ENOENT;
}

/* A portion of counting who holds what of the cache.  0: done; RETIRE_E_MORE.  sessions_lock held for reading. */
static int
count_uses(struct cache *cache, struct retire_walk *walk)
{
	/* At first, or anew if another has come by the name. */
	if (walk->count.place.cache != cache->id)
		census_start(&walk->count, cache->id);
	if (walk->count.ended_ns || cache_count_out(cache) == 0)
		return 0;
	return census_step(cache->arena, &walk->count) ? 0 : RETIRE_E_MORE;
}

int
retire_look(struct arena *arena, const char *name, struct session *own, struct retire_walk *walk, char *why, size_t why_size)
{
	struct cache *cache;
	int r;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = cache_find(arena, name);
	r = cache ? count_uses(cache, walk) : no_cache(arena, name, why, why_size);
	if (r == 0)
		r = check(cache, own, &walk->count.counts, false, why, why_size);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}

/* What lies idle goes back, once, then what is lost, a portion at a time.  0: done; RETIRE_E_MORE.  sessions_lock held for reading. */
static int
take_all(struct cache *cache, struct session *own, struct retire_walk *walk)
{
	if (walk->repair.cache != cache->id) {
		if (own)
			pthread_mutex_lock(&own->work);
		recall_shrink(cache->arena, own, cache);
		if (own)
			pthread_mutex_unlock(&own->work);
		repair_end(&walk->repair);
		walk->repair = (struct repair_walk){.cache = cache->id};
		walk->is_repaired = false;
	}
	/* While another has it open it stays anyway. */
	if (walk->is_repaired || other_opener(cache, own))
		return 0;
	if (repair_step(cache->arena, &walk->repair) == REPAIR_E_MORE)
		return RETIRE_E_MORE;
	walk->is_repaired = true;
	return 0;
}

/* Then it is looked at. */
static int
prepare(struct cache *cache, struct session *own, struct retire_walk *walk, char *why, size_t why_size)
{
	int r = take_all(cache, own, walk);

	if (r == 0)
		r = count_uses(cache, walk);
	return r == 0 ? check(cache, own, &walk->count.counts, true, why, why_size) : r;
}

int
retire_cache(struct arena *arena, const char *name, struct session *own, struct retire_walk *walk, char *why, size_t why_size)
{
	struct cache *cache;
	int r;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = cache_find(arena, name);
	r = cache ? prepare(cache, own, walk, why, why_size) : no_cache(arena, name, why, why_size);
	pthread_rwlock_unlock(&arena->sessions_lock);
	if (r != 0)
		return r;
	pthread_rwlock_wrlock(&arena->sessions_lock);
	cache = cache_find(arena, name);
	r = cache ? retire_locked(cache, own, &walk->count.counts, why, why_size) : no_cache(arena, name, why, why_size);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}

void
retire_end(void *ctx)
{
	struct retire_walk *walk = ctx;

	repair_cancel(&walk->repair);
	free(walk);
}
