/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas of several nodes: what a thread frees that lies on another node than it runs on goes back to that node, and is not what it
 * allocates next (design.md, section 4).
 */
#include <stdio.h>

#include "server/grant.h"
#include "server/session.h"
#include "tests/steps_rig.h"

enum { N_FAR = 2 * RIG_CAPACITY + 3, N_AFTER = 6 * RIG_CAPACITY };

static struct slabc *b, *c;
static struct slabc_cache *bk, *ck;

static void
begin(uint32_t flags)
{
	rig_start_two_nodes(1);
	b = rig_open(rig.socket);
	c = rig_open(rig.socket);
	bk = rig_open_cache(b, flags);
	ck = rig_open_cache(c, flags);
}

static void
end(void)
{
	slabc_close(b);
	slabc_close(c);
	rig_stop();
}

static struct thread_cache *
mine(const struct slabc_cache *k)
{
	return &tls.block->cache[k->v.index];
}

static unsigned
node_of(const struct slabc_cache *k, const void *p)
{
	struct slab_object o;

	NEED(slab_find(rig.arena, arena_cache(rig.arena, k->v.cache), rig_place(k->c, p), &o), "no object");
	return rig.arena->slabs[o.slab].node;
}

/* What a thread allocates is near, whatever it has freed. */
static void
allocate_near(struct slabc_cache *k, const char *story)
{
	void *pv[N_AFTER];

	rig_get_some(k, N_AFTER, pv);
	for (int i = 0; i < N_AFTER; i++)
		HOLDS(node_of(k, pv[i]) == 0, "%s, and an object of the far node is allocated", story);
	slabc_free_bulk(k, N_AFTER, pv);
}

static void
free_each(struct slabc_cache *k, void **pv)
{
	for (int i = 0; i < N_FAR; i++)
		slabc_free(k, pv[i]);
}

static void
free_in_bulk(struct slabc_cache *k, void **pv)
{
	slabc_free_bulk(k, N_FAR, pv);
}

static void
free_shared(struct slabc_cache *k, void **pv)
{
	for (int i = 0; i < N_FAR; i++) {
		if (!k->is_wordless && i % 2)
			rig_share(k->c, pv[i]);
		slabc_free(k, pv[i]);
	}
}

static void
far_goes_home(uint32_t flags, void (*free_far)(struct slabc_cache *k, void **pv), const char *story)
{
	void *pv[N_FAR], *held[3];

	begin(flags);
	allocate_near(bk, "a beginning");
	rig_get_far(bk, N_FAR, pv);
	/* Main has room. */
	rig_get_some(bk, 3, held);
	errno = 0;
	free_far(bk, pv);
	NEED(errno == 0, "%s", slabc_last_error());
	HOLDS(mine(bk)->away && atomic_read(&mine(bk)->away->size) == N_FAR % RIG_CAPACITY, "%s: no away sheaf has %d of them", story,
		N_FAR % RIG_CAPACITY);
	if (!(flags & SLABC_NO_OWNER))
		rig_judge("%s", story);
	allocate_near(bk, story);
	NEED(slabc_cache_shrink(bk) == 0, "%s", slabc_last_error());
	HOLDS(!mine(bk)->away, "%s: an away sheaf outlives shrinking", story);
	for (int i = 0; i < N_FAR; i++)
		HOLDS(rig_ledger(bk, pv[i]) != SLAB_OUT, "%s: an object did not go home", story);
	if (!(flags & SLABC_NO_OWNER))
		rig_judge("%s, and went home", story);
	end();
}

void
it_far_objects_do_not_come_back(void)
{
	far_goes_home(0, free_each, "freed one by one");
	far_goes_home(0, free_in_bulk, "freed in bulk");
	far_goes_home(0, free_shared, "freed, some shared");
	far_goes_home(SLABC_RECLAIM, free_each, "freed one by one, to be reclaimed");
	far_goes_home(SLABC_SHARED, free_in_bulk, "freed in bulk, shared from birth");
	far_goes_home(SLABC_NO_OWNER, free_each, "freed one by one, without owner words");
	far_goes_home(SLABC_NO_OWNER, free_in_bulk, "freed in bulk, without owner words");
}

/* Sheaves with objects that have come to the barn or into this thread's rack. */
static uint32_t
n_kept(const struct slabc_cache *k)
{
	return (uint32_t)k->shown->n_barn_puts + tls.block->rack[k->v.index][RACK_FULL].n;
}

/* Another client's: claimed first, then not kept. A sheaf of near ones is kept, as ever. */
void
it_far_foreign_objects_do_not_come_back(void)
{
	void *pv[N_FAR];

	begin(0);
	for (int is_far = 0; is_far < 2; is_far++) {
		static const char *const story[] = {"another client's near objects were freed", "another client's far objects were freed"};
		uint32_t n_puts, n_flushes;

		if (is_far)
			rig_get_far(bk, N_FAR, pv);
		else
			rig_get_some(bk, N_FAR, pv);
		n_puts = n_kept(ck);
		n_flushes = (uint32_t)ck->shown->n_flushes;
		for (int i = 0; i < N_FAR; i++)
			slabc_free(ck, slabc_deref(c, rig_share(b, pv[i])));
		HOLDS(ck->shown->n_foreign_frees >= (uint64_t)(is_far + 1) * N_FAR - RIG_CAPACITY, "%s: no claims are made", story[is_far]);
		HOLDS(n_kept(ck) - n_puts == (is_far ? 0 : 2), "%s: %u sheaves are kept", story[is_far], n_kept(ck) - n_puts);
		HOLDS(ck->shown->n_flushes - n_flushes == (is_far ? 2 : 0), "%s: %llu sheaves go back", story[is_far],
			(unsigned long long)ck->shown->n_flushes - n_flushes);
		rig_judge("%s", story[is_far]);
		allocate_near(ck, story[is_far]);
		NEED(slabc_cache_shrink(ck) == 0, "%s", slabc_last_error());
	}
	for (int i = 0; i < N_FAR; i++)
		HOLDS(rig_ledger(bk, pv[i]) != SLAB_OUT, "another client's far object did not go home");
	end();
}

/* As slabd revokes main and spare: until it has taken the sheaf what is freed stays here, then there is a new one. */
void
it_revoked_away_sheaf_is_left_to_slabd(void)
{
	struct session *session;
	struct sheaf *s;
	void *pv[N_FAR];
	uint32_t slot;

	begin(0);
	allocate_near(bk, "a beginning");
	rig_get_far(bk, N_FAR, pv);
	slabc_free(bk, pv[0]);
	s = mine(bk)->away;
	NEED(s, "it is not in an away sheaf");
	slot = (uint32_t)mine(bk)->away_slot;
	atomic_write(&s->floor, UINT32_MAX);
	atomic_write(&s->limit, 0);
	errno = 0;
	slabc_free(bk, pv[1]);
	HOLDS(errno == 0 && atomic_read(&s->size) == 1, "a free went into a revoked sheaf");
	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	session = rig.arena->sessions[b->me];
	pthread_mutex_lock(&session->work);
	NEED(session_slot_take(session, slot, LAYOUT_HOLDER_THREAD + tls.block->number), "the slot is not the thread's");
	grant_take_back(session, slot, true);
	session_slot_put(session, slot);
	pthread_mutex_unlock(&session->work);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
	HOLDS(rig_ledger(bk, pv[0]) != SLAB_OUT, "slabd took an away sheaf, and its object is still out");
	slabc_free(bk, pv[2]);
	HOLDS(mine(bk)->away && atomic_read(&mine(bk)->away->size) == 1, "after a revocation nothing is far any more");
	rig_judge("an away sheaf was revoked");
	end();
}

/* A thread on a node of which the arena has nothing; and the mark of a sheaf on an arena of one node. */
void
it_node_without_pages_has_nothing_far(void)
{
	void *pv[N_FAR];

	begin(0);
	rig_get(bk);
	rig_get_far(bk, N_FAR, pv);
	/* As if getcpu() had said so, until the next slow path. */
	mine(bk)->home_os_node = 1;
	mine(bk)->home_first = 0;
	mine(bk)->n_home = UINT32_MAX;
	slabc_free(bk, pv[0]);
	HOLDS(!mine(bk)->away, "a thread without a node of its own put an object away");
	rig_judge("freed by a thread without a node of its own");
	end();
	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	HOLDS(bk->mark == 0, "sheaves on one node have the mark %u", bk->mark);
	slabc_close(b);
	rig_stop();
}
