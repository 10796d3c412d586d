/* SPDX-License-Identifier: Apache-2.0 */
#include "server/reaper.h"

#include "server/claim.h"
#include "server/grant.h"
#include "server/log.h"

/* Slabs walked in one hold of a list_lock: others' refills wait no longer than this takes. */
enum { BATCH = 64 };

/* Compare-and-swaps on one word that may be lost. */
enum { MAX_LOST = 64 };

struct walk {
	struct session *session;
	struct node *node; /* whose lock is held; NULL: none */
	unsigned n_held;   /* slabs since it was taken */
	struct node_discard discard;
	uint64_t n_freed;
	uint64_t n_kept;
};

/*
 * What lies in an ordinary sheaf is freed; only then may an unsettled one say of a word that names the dead, CLOSING, that its own claim made it
 * so: until then it may be another thread's, whose sheaf has the object.
 */
static void
drain(struct session *session)
{
	for (uint32_t slot = 0; slot < session->n_slots; slot++)
		if (session->slots[slot].cache && claim_is_unsettled(session, slot) == MUTANT(FOREIGN_FIRST))
			grant_take_back(session, slot, true);
	STEP(REAP_ORDINARY);
	for (uint32_t slot = 0; slot < session->n_slots; slot++)
		if (session->slots[slot].cache)
			grant_take_back(session, slot, true);
}

/* One object that names the dead: by compare-and-swap, since others may adopt it at this moment. */
static void
walk_word(struct walk *walk, uint32_t number, uint32_t i)
{
	struct arena *arena = walk->session->arena;
	uint32_t index = arena->slabs[number].first_word + i, *word = &arena->words[index];
	uint32_t w = atomic_read(word);
	bool frees;

	/* A client that writes others' words can make it fail again and again: then the object stays an orphan. */
	for (int tries = 0; word_owner(w) == walk->session->client && slab_get(arena, index) == SLAB_OUT; tries++) {
		if (tries == MAX_LOST) {
			walk->n_kept++;
			return;
		}
		frees = word_state(w) == WORD_CLOSING || walk->node->cache->flags & LAYOUT_CACHE_RECLAIM;
		STEP(RECLAIM_READ);
		if (MUTANT(PLAIN_RECLAIM))
			atomic_write(word, frees ? word_cleared(w) : word_with(w, walk->session->client, WORD_SHARED));
		else if (!atomic_cas(word, &w, frees ? word_cleared(w) : word_with(w, walk->session->client, WORD_SHARED)))
			continue;
		if (frees)
			node_put_free(arena, walk->node, number, index, &walk->discard);
		walk->n_freed += frees;
		walk->n_kept += !frees;
		return;
	}
}

static void
walk_unlock(struct walk *walk)
{
	if (!walk->node)
		return;
	node_unlock(walk->node);
	walk->node = NULL;
	node_discard(walk->session->arena, &walk->discard);
}

static void
walk_slab(struct walk *walk, uint32_t number)
{
	struct arena *arena = walk->session->arena;
	struct slab *slab = &arena->slabs[number];
	struct cache *cache = arena_cache(arena, atomic_read_acquire(&slab->cache));
	struct node *node;
	uint32_t n_objects;

	if (!cache || cache->flags & LAYOUT_CACHE_NO_OWNER)
		return;
	node = &cache->nodes[atomic_read(&slab->node) % cache->n_nodes];
	if (walk->node != node || ++walk->n_held >= BATCH) {
		walk_unlock(walk);
		node_lock(node);
		walk->node = node;
		walk->n_held = 0;
	}
	/* What was read before the lock may be another slab by now: then its objects, new ones, do not name the dead. */
	if (atomic_read(&slab->cache) != cache->id || atomic_read(&slab->node) != node->index)
		return;
	n_objects = slab->n_objects;
	/* An emptied slab may be retired in the midst of it; its last object was then the one. */
	for (uint32_t i = 0; i < n_objects && slab->n_free < n_objects; i++)
		if (word_owner(atomic_read(&arena->words[slab->first_word + i])) == walk->session->client)
			walk_word(walk, number, i);
}

static void
walk_words(struct walk *walk)
{
	for (uint32_t number = 1; number <= atomic_read_acquire(&walk->session->arena->n_slabs); number++)
		walk_slab(walk, number);
	walk_unlock(walk);
}

/* What it goes with of caches without owner words: nobody can say which objects these are. */
static uint64_t
n_left(struct session *session)
{
	uint64_t n = 0;

	for (uint32_t id = 1; id < LAYOUT_MAX_CACHES; id++) {
		const struct cache *cache = arena_cache(session->arena, id);

		if (cache && cache->flags & LAYOUT_CACHE_NO_OWNER && session->n_drawn[id] > 0)
			n += (uint64_t)session->n_drawn[id];
	}
	return n;
}

void
reaper_reap(struct session *session)
{
	struct arena *arena = session->arena;
	struct walk walk = {.session = session};
	uint64_t n_not_back;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	pthread_mutex_lock(&session->work);
	atomic_write(&session->state, SESSION_DYING);
	if (!session->is_readonly) {
		if (MUTANT(WORDS_FIRST))
			walk_words(&walk);
		if (session->map)
			drain(session);
		STEP(REAP_DRAINED);
		if (!MUTANT(WORDS_FIRST))
			walk_words(&walk);
	}
	n_not_back = n_left(session);
	pthread_mutex_unlock(&session->work);
	pthread_rwlock_unlock(&arena->sessions_lock);
	log_info("client %u (pid %d, uid %u, '%s') has ended: %llu of its objects freed, %llu kept, %llu without owner words not given back", session->id,
		session->pid, session->uid, session->label, (unsigned long long)walk.n_freed, (unsigned long long)walk.n_kept,
		(unsigned long long)n_not_back);
	session_end(session, walk.n_kept > 0);
}
