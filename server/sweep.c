/* SPDX-License-Identifier: Apache-2.0 */
#include "server/sweep.h"

#include <stdlib.h>

#include "server/cache.h"
#include "server/repair.h"
#include "server/slabd.h"
#include "shm/atomic.h"

struct sweep {
	struct loop *loop;
	struct event *turn;
	struct arena *arena; /* whose caches are looked at; NULL: none's */
	struct repair_walk walk;
};

/* The next arena of which some cache is marked. */
static struct arena *
next_arena(struct slabd *slabd)
{
	for (unsigned i = 0; i < slabd->n_arenas; i++)
		/* order: CLOSED acquire - pairs with session_set_open() */
		if (atomic_read_acquire(&slabd->arenas[i]->has_closed) && atomic_swap(&slabd->arenas[i]->has_closed, 0))
			return slabd->arenas[i];
	return NULL;
}

/* The next marked cache after that id; 0: none. */
static uint32_t
next_closed(struct arena *arena, uint32_t id)
{
	struct cache *cache;

	for (cache = arena_cache_after(arena, id); cache; cache = arena_cache_after(arena, cache->id))
		if (atomic_read(&cache->is_closed) && atomic_swap(&cache->is_closed, 0))
			return cache->id;
	return 0;
}

/* Unless somebody has opened it again. */
static void
trim(struct cache *cache)
{
	for (unsigned i = 0; i < cache->n_nodes && atomic_read(&cache->n_openers) == 0; i++)
		node_trim(cache->arena, &cache->nodes[i]);
}

/* A portion.  false: the arena has been looked at. */
static bool
sweep_on(struct sweep *sweep)
{
	struct arena *arena = sweep->arena;
	struct cache *cache;
	bool is_more = true;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	if (!sweep->walk.cache || repair_step(arena, &sweep->walk) != REPAIR_E_MORE) {
		cache = arena_cache(arena, sweep->walk.cache);
		if (cache)
			trim(cache);
		sweep->walk = (struct repair_walk){.cache = next_closed(arena, sweep->walk.cache)};
		is_more = sweep->walk.cache != 0;
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	return is_more;
}

static void
wait_turn(struct sweep *sweep)
{
	/* A timer, not an active event: that would come before the sockets are looked at. */
	static const struct timeval at_once;

	event_add(sweep->turn, &at_once);
}

static void
on_turn(evutil_socket_t fd, short what, void *ctx)
{
	struct sweep *sweep = ctx;

	(void)fd;
	(void)what;
	if (!sweep->arena)
		sweep->arena = next_arena(sweep->loop->slabd);
	if (!sweep->arena)
		return;
	if (!sweep_on(sweep))
		sweep->arena = NULL;
	wait_turn(sweep);
}

static struct sweep *
sweep_new(struct loop *loop)
{
	struct sweep *sweep = calloc(1, sizeof *sweep);

	if (!sweep)
		return NULL;
	sweep->loop = loop;
	sweep->turn = evtimer_new(loop->base, on_turn, sweep);
	if (sweep->turn)
		return sweep;
	free(sweep);
	return NULL;
}

void
sweep_wake(struct loop *loop)
{
	struct slabd *slabd = loop->slabd;
	bool is_wanted = false;

	for (unsigned i = 0; i < slabd->n_arenas; i++)
		is_wanted = is_wanted || atomic_read(&slabd->arenas[i]->has_closed);
	if (!is_wanted || (loop->sweep && loop->sweep->arena))
		return;
	if (!loop->sweep)
		loop->sweep = sweep_new(loop);
	if (loop->sweep)
		wait_turn(loop->sweep);
}

void
sweep_deinit(struct loop *loop)
{
	struct sweep *sweep = loop->sweep;

	if (!sweep)
		return;
	repair_cancel(&sweep->walk);
	event_free(sweep->turn);
	free(sweep);
	loop->sweep = NULL;
}
