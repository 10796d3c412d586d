/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who ends at about the same time is reaped together, in phases, since each walk goes over every word of the arena:
 *
 *   all are marked DYING, THEN all their sheaves are drained, THEN the words are walked, once, THEN their slots are free.
 *
 * A session's work is held while it is marked and while it is drained; nobody else touches what is DYING (grant.c, orphan.c).
 */
#include "server/reaper.h"

#include <stdio.h>

#include "server/claim.h"
#include "server/grant.h"
#include "server/log.h"
#include "server/orphan.h"
#include "server/stash.h"

/* Slabs walked in one hold of a list_lock: others' refills wait no longer than this takes. */
enum { BATCH = 64 };

/* Compare-and-swaps on one word that may be lost. */
enum { MAX_LOST = 64 };

struct walk {
	struct arena *arena;
	struct node *node; /* whose lock is held; NULL: none */
	unsigned n_held;   /* slabs since it was taken */
	struct node_discard discard;
	uint64_t n_words;
	uint64_t dying[(WORD_OWNER_MASK + 1) / 64]; /* a bit for each client that is reaped */
};

static void
mark(struct session *first)
{
	for (struct session *s = first; s; s = s->next_dying) {
		pthread_mutex_lock(&s->work);
		session_mark_dying(s);
		pthread_mutex_unlock(&s->work);
	}
}

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
	for (struct cache *k = arena_cache_after(session->arena, 0); k; k = arena_cache_after(session->arena, k->id))
		stash_trim(session, k, 0);
}

static void
drain_all(struct session *first)
{
	for (struct session *s = first; s; s = s->next_dying) {
		pthread_mutex_lock(&s->work);
		if (s->map)
			drain(s);
		pthread_mutex_unlock(&s->work);
	}
}

/* 0, nobody, is never of them. */
static bool
is_dying(const struct walk *walk, uint32_t owner)
{
	return walk->dying[owner / 64] >> owner % 64 & 1;
}

/* One object that names one of the dead: by compare-and-swap, since others may adopt it at this moment. */
static void
walk_word(struct walk *walk, uint32_t number, uint32_t i)
{
	struct arena *arena = walk->arena;
	uint32_t index = arena->slabs[number].first_word + i, *word = &arena->words[index];
	uint32_t w = atomic_read(word);

	/* A client that writes others' words can make it fail again and again: then the object stays an orphan. */
	for (int tries = 0; is_dying(walk, word_owner(w)) && slab_get(arena, index) == SLAB_OUT; tries++) {
		struct session *dead = arena->sessions[word_owner(w)];
		bool frees = word_state(w) == WORD_CLOSING || walk->node->cache->flags & LAYOUT_CACHE_RECLAIM;
		uint32_t to = frees ? word_cleared(w) : word_with(w, dead->client, WORD_SHARED);

		if (tries == MAX_LOST) {
			dead->n_kept++;
			return;
		}
		STEP(RECLAIM_READ);
		if (MUTANT(PLAIN_RECLAIM))
			atomic_write(word, to);
		else if (!atomic_cas(word, &w, to))
			continue;
		if (frees)
			node_put_free(arena, walk->node, number, index, &walk->discard);
		dead->n_freed += frees;
		dead->n_kept += !frees;
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
	node_discard(walk->arena, &walk->discard);
}

static void
walk_slab(struct walk *walk, uint32_t number)
{
	struct arena *arena = walk->arena;
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
	walk->n_words += n_objects;
	/* An emptied slab may be retired in the midst of it; its last object was then the one. */
	for (uint32_t i = 0; i < n_objects && slab->n_free < n_objects; i++)
		if (is_dying(walk, word_owner(atomic_read(&arena->words[slab->first_word + i]))))
			walk_word(walk, number, i);
}

/* Returns how many words it looked at. */
static uint64_t
walk_words(struct session *first)
{
	struct walk walk = {.arena = first->arena};
	bool is_needed = false;

	for (struct session *s = first; s; s = s->next_dying) {
		walk.dying[s->client / 64] |= 1ull << s->client % 64;
		is_needed = is_needed || !s->is_readonly;
	}
	for (uint32_t number = 1; is_needed && number <= atomic_read_acquire(&walk.arena->n_slabs); number++)
		walk_slab(&walk, number);
	walk_unlock(&walk);
	return walk.n_words;
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

static void
say(char **atp, size_t *leftp, uint64_t n, const char *what)
{
	int length = n ? snprintf(*atp, *leftp, ", %llu %s", (unsigned long long)n, what) : 0;

	*atp += length;
	*leftp -= (size_t)length;
}

/* Says what became of what it had, so far as it had any. */
static void
log_end(const struct session *session, uint64_t n_not_back)
{
	char fate[192] = "", *at = fate;
	size_t left = sizeof fate;

	say(&at, &left, session->n_freed, "of its objects freed");
	say(&at, &left, session->n_kept, "kept for who adopts them");
	say(&at, &left, n_not_back, "without owner words not given back");
	if (*fate)
		*fate = ':';
	log_info("client %u (pid %d, uid %u, '%s') has ended%s", session->id, session->pid, session->uid, session->label, fate);
}

static void
end(struct session *session)
{
	uint64_t n_not_back;

	/* Its caches stay. */
	pthread_rwlock_rdlock(&session->arena->sessions_lock);
	n_not_back = n_left(session);
	pthread_rwlock_unlock(&session->arena->sessions_lock);
	log_end(session, n_not_back);
	session_end(session, session->n_kept > 0);
}

uint64_t
reaper_reap(struct session *first)
{
	struct arena *arena = first->arena;
	struct session *next;
	uint64_t n_words = 0, n_kept = 0;
	unsigned n = 0;

	for (struct session *s = first; s; s = s->next_dying)
		session_take_copy(s);
	pthread_rwlock_rdlock(&arena->sessions_lock);
	mark(first);
	if (MUTANT(WORDS_FIRST))
		n_words = walk_words(first);
	drain_all(first);
	STEP(REAP_DRAINED);
	if (!MUTANT(WORDS_FIRST))
		n_words = walk_words(first);
	STEP(REAP_WALKED);
	pthread_rwlock_unlock(&arena->sessions_lock);
	for (struct session *s = first; s; s = next, n++) {
		next = s->next_dying;
		n_kept += s->n_kept;
		end(s);
	}
	if (n_kept)
		orphan_bound(arena);
	if (n > 1)
		log_info("%u clients of arena '%s' have ended together: one walk over %llu words", n, arena->name, (unsigned long long)n_words);
	return n_words;
}
