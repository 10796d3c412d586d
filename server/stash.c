/* SPDX-License-Identifier: Apache-2.0 */
#include "server/stash.h"

#include <stdlib.h>

#include "server/cache.h"
#include "server/quota.h"
#include "server/session.h"
#include "shm/atomic.h"
#include "shm/word.h"

struct stash *
stash_of(const struct session *session, uint32_t cache)
{
	/* order: STASH acquire - pairs with stash_new(): the stash is whole */
	return atomic_read_acquire(&session->stashes[cache]);
}

uint32_t
stash_size(const struct session *session, uint32_t cache)
{
	const struct stash *stash = stash_of(session, cache);

	return stash ? atomic_read(&stash->size) : 0;
}

/* Under list_lock, since the audit locks, and later unlocks, those that it finds. */
static struct stash *
stash_new(struct session *session, struct cache *cache)
{
	struct stash *stash = calloc(1, sizeof *stash);

	if (!stash)
		return NULL;
	pthread_mutex_init(&stash->lock, NULL);
	node_lock(&cache->nodes[0]);
	/* order: STASH release - the stash is whole before it is found */
	atomic_write_release(&session->stashes[cache->id], stash);
	node_unlock(&cache->nodes[0]);
	return stash;
}

struct stash *
stash_get(struct session *session, struct cache *cache, struct node *node)
{
	struct stash *stash = stash_of(session, cache->id);

	if (cache->cpu_partial == 0)
		return NULL;
	if (!stash)
		stash = stash_new(session, cache);
	if (!stash)
		return NULL;
	if (stash->room < cache->cpu_partial) {
		uint32_t *place;

		pthread_mutex_lock(&stash->lock);
		place = realloc(stash->place, cache->cpu_partial * sizeof *place);
		if (place) {
			stash->place = place;
			stash->room = cache->cpu_partial;
		}
		pthread_mutex_unlock(&stash->lock);
		if (!place)
			return NULL;
	}
	if (stash->node != node->index) {
		stash_trim(session, cache, 0);
		stash->node = node->index;
	}
	return stash;
}

uint32_t
stash_take(struct stash *stash, uint32_t *places, uint32_t want)
{
	uint32_t n = want < stash->size ? want : stash->size;

	for (uint32_t i = 0; i < n; i++)
		places[i] = stash->place[stash->size - n + i];
	atomic_write(&stash->size, stash->size - n);
	return n;
}

uint32_t
stash_restock(struct stash *stash, struct session *session, struct node *node, uint64_t max)
{
	struct cache *cache = node->cache;
	/* Another loop may have tuned the knob down, and not trimmed yet. */
	uint32_t before = stash->size, room = before < cache->cpu_partial ? cache->cpu_partial - before : 0;
	uint32_t most = before + (max < room ? (uint32_t)max : room);

	/* Half of them and one, as get_partial_node() does: it is the slabs that make a hold long. */
	for (uint32_t i = 0; i <= cache->cpu_partial_slabs / 2 && stash->size < most && node->first_partial; i++) {
		uint32_t n = node_take_slab(cache->arena, node, stash->place + stash->size, most - stash->size);

		session_drew(session, cache, n, (int64_t)n * cache->object_bytes);
		quota_granted(session, (uint64_t)n * cache->object_bytes);
		atomic_write(&stash->size, stash->size + n);
	}
	return stash->size - before;
}

/* Nobody names it: then it is the stash's still, and not some client's who wrote where it should not. */
static bool
is_unnamed(const struct cache *cache, uint32_t word)
{
	return cache->flags & LAYOUT_CACHE_NO_OWNER || !(atomic_read(&cache->arena->words[word]) & WORD_LOW_MASK);
}

void
stash_trim(struct session *session, struct cache *cache, uint32_t max)
{
	struct stash *stash = stash_of(session, cache->id);
	struct arena *arena = cache->arena;
	struct node_discard discard = {0};
	struct node *node;

	if (!stash || stash->size <= max)
		return;
	node = &cache->nodes[stash->node];
	node_lock(node);
	while (stash->size > max) {
		struct slab_object o;

		atomic_write(&stash->size, stash->size - 1);
		/* A client that names what it was not given can have made away with it. */
		if (!slab_find(arena, cache, stash->place[stash->size], &o) || slab_get(arena, o.word) != SLAB_OUT ||
			!is_unnamed(cache, o.word))
			continue;
		session_drew(session, cache, -1, -(int64_t)cache->object_bytes);
		quota_taken(session, cache->object_bytes);
		node_put_free(arena, node, o.slab, o.word, &discard);
	}
	node_unlock(node);
	node_discard(arena, &discard);
}

void
stash_forget(struct session *session, uint32_t cache)
{
	struct stash *stash = stash_of(session, cache);

	if (!stash)
		return;
	session->stashes[cache] = NULL;
	pthread_mutex_destroy(&stash->lock);
	free(stash->place);
	free(stash);
}
