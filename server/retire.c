/* SPDX-License-Identifier: Apache-2.0 */
#include "server/retire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/log.h"
#include "server/recall.h"
#include "server/repair.h"
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

static void
count_slabs(const struct cache *cache, struct uses *uses, uint32_t *counts)
{
	struct arena *arena = cache->arena;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];

		if (atomic_read_acquire(&slab->cache) != cache->id)
			continue;
		for (uint32_t i = 0; i < slab->n_objects; i++) {
			uint32_t index = slab->first_word + i, owner;

			if (slab_get(arena, index) != SLAB_OUT)
				continue;
			uses->n_out++;
			if (cache->flags & LAYOUT_CACHE_NO_OWNER)
				continue;
			owner = word_owner(atomic_read(&arena->words[index]));
			if (owner == 0)
				continue;
			uses->n_held++;
			if (counts && ++counts[owner] > uses->n_top) {
				uses->n_top = counts[owner];
				uses->top = owner;
			}
		}
	}
}

static struct uses
count_uses(struct cache *cache)
{
	/* Without memory nobody is named. */
	uint32_t *counts = calloc(WORD_ORPHAN + 1, sizeof *counts);
	struct uses uses = {0};

	for (unsigned i = 0; i < cache->n_nodes; i++)
		node_lock(&cache->nodes[i]);
	count_slabs(cache, &uses, counts);
	for (unsigned i = cache->n_nodes; i-- > 0;)
		node_unlock(&cache->nodes[i]);
	free(counts);
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

int
retire_check(struct cache *cache, const struct session *own, bool is_idle_counted, char *why, size_t why_size)
{
	const struct session *other = other_opener(cache, own);
	struct uses uses = count_uses(cache);
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
retire_locked(struct cache *cache, struct session *own, char *why, size_t why_size)
{
	struct arena *arena = cache->arena;
	int r = retire_check(cache, own, true, why, why_size);

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

int
retire_cache(struct arena *arena, const char *name, struct session *own, char *why, size_t why_size)
{
	struct cache *cache;
	int r = 0;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = cache_find(arena, name);
	if (cache) {
		if (own)
			pthread_mutex_lock(&own->work);
		recall_shrink(arena, own, cache);
		if (own)
			pthread_mutex_unlock(&own->work);
		if (!other_opener(cache, own))
			repair_cache(cache);
		r = retire_check(cache, own, true, why, why_size);
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	if (r < 0)
		return r;
	pthread_rwlock_wrlock(&arena->sessions_lock);
	cache = cache_find(arena, name);
	if (cache)
		r = retire_locked(cache, own, why, why_size);
	pthread_rwlock_unlock(&arena->sessions_lock);
	if (!cache) {
		snprintf(why, why_size, "there is no cache '%s' in arena '%s'", name, arena->name);
		return -ENOENT;
	}
	return r;
}
