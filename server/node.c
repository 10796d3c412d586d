/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partial list and node barn of a (cache, node), after the kernel's: whole free lists, as few slabs per hold as possible; a slab joins at the
 * tail when a free made it partial, at the head when an allocation left it so; an empty one is discarded when n_partial >= min_partial.
 *
 * Under the policy slob the list is in order of place, and an object comes from the lowest slab that has one: first fit by address, so that what
 * lives packs at the low end, and the slabs above it empty and go back.  The kernel's SLOB was one heap for all sizes, with free blocks split and
 * merged, so that objects of different caches shared a page.  Here a page is of one cache, since the page map names one for each page: by that
 * any process finds an object's word, and a wild pointer is told from a good one.  So the heap is that of a cache, and what is packed is its pages.
 */
#include "server/node.h"

#include <stdlib.h>
#include <time.h>

#include "server/arena.h"
#include "server/cache.h"
#include "server/clock.h"
#include "shm/atomic.h"
#include "shm/step.h"

void
node_init(struct node *node, struct cache *cache, unsigned index)
{
	pthread_mutex_init(&node->lock.mutex, NULL);
	node->cache = cache;
	node->index = index;
	node->last_full = &node->first_full;
}

static void
drop_spares(struct node *node)
{
	struct node_sheaf *sheaf;

	while ((sheaf = node->first_spare)) {
		node->first_spare = sheaf->next;
		free(sheaf);
	}
	node->n_spares = 0;
}

void
node_deinit(struct node *node)
{
	struct node_sheaf *sheaf;

	while ((sheaf = node_barn_get(node)))
		free(sheaf);
	drop_spares(node);
	pthread_mutex_destroy(&node->lock.mutex);
}

void
node_lock(struct node *node)
{
	struct list_lock *lock = &node->lock;

	if (pthread_mutex_trylock(&lock->mutex) != 0) {
		uint64_t start = clock_now_ns();

		pthread_mutex_lock(&lock->mutex);
		lock->wait_ns += clock_now_ns() - start;
		lock->n_contended++;
	}
	if (lock->n_acquired++ % NODE_LOCK_SAMPLE == 0)
		lock->held_since = clock_now_ns();
}

void
node_unlock(struct node *node)
{
	struct list_lock *lock = &node->lock;

	if (lock->held_since) {
		lock->hold_ns += (clock_now_ns() - lock->held_since) * NODE_LOCK_SAMPLE;
		lock->held_since = 0;
	}
	pthread_mutex_unlock(&lock->mutex);
}

/* The first slab of the list that lies above this one; 0: none does.  Linear, as SLOB's own search is. */
static uint32_t
list_above(const struct arena *arena, const struct node *node, uint32_t number)
{
	uint32_t next = node->first_partial;

	while (next && arena->slabs[next].first_page < arena->slabs[number].first_page)
		next = arena->slabs[next].next;
	return next;
}

/* Before the slab next; 0: at the tail.  Under slob where it lies. */
static void
list_add(struct arena *arena, struct node *node, uint32_t number, uint32_t next)
{
	struct slab *slab = &arena->slabs[number];

	if (node->cache->policy == CACHE_POLICY_SLOB)
		next = list_above(arena, node, number);
	slab->prev = next ? arena->slabs[next].prev : node->last_partial;
	slab->next = next;
	*(slab->prev ? &arena->slabs[slab->prev].next : &node->first_partial) = number;
	*(next ? &arena->slabs[next].prev : &node->last_partial) = number;
	node->n_partial++;
}

static void
list_del(struct arena *arena, struct node *node, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];

	*(slab->prev ? &arena->slabs[slab->prev].next : &node->first_partial) = slab->next;
	*(slab->next ? &arena->slabs[slab->next].prev : &node->last_partial) = slab->prev;
	node->n_partial--;
}

void
node_add_slab(struct arena *arena, struct node *node, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];

	list_add(arena, node, number, node->first_partial);
	node->n_slabs++;
	node->n_pages += 1u << slab->order;
	atomic_write(&node->n_objects, node->n_objects + slab->n_objects);
	node->n_free += slab->n_free;
	node->n_carved++;
	node->n_order_fallback += slab->order != node->cache->order;
}

void
node_add_run(struct arena *arena, struct node *node, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];

	slab_set(arena, slab->first_word, SLAB_OUT);
	STEP(GRANT_MARKED);
	slab->n_free = 0;
	node->n_slabs++;
	node->n_pages += slab->n_pages;
	atomic_write(&node->n_objects, node->n_objects + 1);
	node->n_carved++;
}

void
node_adopt_slab(struct arena *arena, struct node *node, uint32_t number)
{
	struct slab *slab = &arena->slabs[number];

	if (slab->n_free && slab->order != SLAB_RUN)
		list_add(arena, node, number, 0);
	node->n_slabs++;
	node->n_pages += slab_pages(slab);
	atomic_write(&node->n_objects, node->n_objects + slab->n_objects);
	node->n_free += slab->n_free;
}

/* What a hold costs is the slabs that it touches: their lines, and the objects' bits, are cold. */
static void
touch(struct node *node, uint32_t number)
{
	node->n_slabs_touched += number != node->touched;
	node->touched = number;
}

uint32_t
node_take_slab(struct arena *arena, struct node *node, uint32_t *places, uint32_t want)
{
	uint32_t number = node->first_partial, n = 0;
	struct slab *slab = &arena->slabs[number];

	touch(node, number);
	for (uint32_t i = 0; i < slab->n_objects && n < want; i += 16) {
		uint32_t bits = atomic_read(&arena->bits[(slab->first_word + i) / 16]);
		uint32_t free = ~(bits | bits >> 1) & 0x55555555u;

		while (free && n < want) {
			uint32_t j = i + (uint32_t)__builtin_ctz(free) / 2;

			free &= free - 1;
			if (j >= slab->n_objects)
				break;
			slab_set(arena, slab->first_word + j, SLAB_OUT);
			STEP(GRANT_MARKED);
			places[n++] = slab_place(arena, node->cache, number, j);
		}
	}
	slab->n_free = (uint16_t)(slab->n_free - n);
	node->n_free -= n;
	if (slab->n_free == 0)
		list_del(arena, node, number);
	return n;
}

uint32_t
node_take_free(struct arena *arena, struct node *node, uint32_t *places, uint32_t want)
{
	uint32_t n = 0;

	while (n < want && node->first_partial)
		n += node_take_slab(arena, node, places + n, want - n);
	return n;
}

static void
discard_slab(struct arena *arena, struct node *node, uint32_t number, struct node_discard *discard)
{
	struct slab *slab = &arena->slabs[number];

	if (slab->order != SLAB_RUN)
		list_del(arena, node, number);
	node->n_slabs--;
	node->n_pages -= slab_pages(slab);
	atomic_write(&node->n_objects, node->n_objects - slab->n_objects);
	node->n_free -= slab->n_free;
	node->n_discarded++;
	slab_retire(arena, number);
	slab->next = discard->first;
	discard->first = number;
	discard->cache = node->cache;
}

void
node_put_free(struct arena *arena, struct node *node, uint32_t number, uint32_t word, struct node_discard *discard)
{
	struct slab *slab = &arena->slabs[number];
	uint64_t n_partial = node->n_partial; /* the slab itself included, if it was on the list: the kernel's count */
	bool is_run = slab->order == SLAB_RUN;

	touch(node, number);
	slab_set(arena, word, SLAB_FREE);
	if (slab->n_free++ == 0 && !is_run)
		list_add(arena, node, number, 0);
	node->n_free++;
	if (is_run || (slab->n_free == slab->n_objects && n_partial >= node->cache->min_partial))
		discard_slab(arena, node, number, discard);
}

void
node_discard(struct arena *arena, struct node_discard *discard)
{
	while (discard->first) {
		uint32_t number = discard->first;

		discard->first = arena->slabs[number].next;
		slab_free(arena, discard->cache, number);
	}
}

struct node_sheaf *
node_sheaf_new(struct node *node)
{
	uint32_t capacity = node->cache->capacity;
	struct node_sheaf *sheaf;

	/* From before the capacity was tuned they are of no use. */
	if (node->first_spare && node->first_spare->capacity != capacity)
		drop_spares(node);
	sheaf = node->first_spare;
	if (sheaf) {
		node->first_spare = sheaf->next;
		node->n_spares--;
	} else {
		sheaf = malloc(sizeof *sheaf + capacity * sizeof sheaf->at[0]);
	}
	if (sheaf) {
		sheaf->size = 0;
		sheaf->capacity = capacity;
	}
	return sheaf;
}

void
node_sheaf_free(struct node *node, struct node_sheaf *sheaf)
{
	if (node->n_spares >= NODE_MAX_SPARES || (node->first_spare && node->first_spare->capacity != sheaf->capacity)) {
		free(sheaf);
		return;
	}
	sheaf->next = node->first_spare;
	node->first_spare = sheaf;
	node->n_spares++;
}

struct node_sheaf *
node_barn_get(struct node *node)
{
	struct node_sheaf *sheaf = node->first_full;

	if (!sheaf)
		return NULL;
	node->first_full = sheaf->next;
	if (!node->first_full)
		node->last_full = &node->first_full;
	atomic_write(&node->n_full, node->n_full - 1);
	node->n_barn -= sheaf->size;
	return sheaf;
}

void
node_barn_put(struct node *node, struct node_sheaf *sheaf)
{
	sheaf->next = NULL;
	*node->last_full = sheaf;
	node->last_full = &sheaf->next;
	atomic_write(&node->n_full, node->n_full + 1);
	node->n_barn += sheaf->size;
}

void
node_trim(struct arena *arena, struct node *node)
{
	node_trim_to(arena, node, 0, 0);
}

void
node_trim_to(struct arena *arena, struct node *node, uint32_t max_full, uint32_t min_partial)
{
	struct node_discard discard = {0};
	struct node_sheaf *sheaf;
	uint32_t next;

	node_lock(node);
	while (node->n_full > max_full && (sheaf = node_barn_get(node))) {
		for (uint32_t i = 0; i < sheaf->size; i++) {
			struct slab_object o;

			if (slab_find(arena, node->cache, sheaf->at[i].place, &o))
				node_put_free(arena, node, o.slab, o.word, &discard);
		}
		free(sheaf);
	}
	drop_spares(node);
	for (uint32_t number = node->first_partial; number && node->n_partial > min_partial; number = next) {
		next = arena->slabs[number].next;
		if (arena->slabs[number].n_free == arena->slabs[number].n_objects)
			discard_slab(arena, node, number, &discard);
	}
	node_unlock(node);
	node_discard(arena, &discard);
}
