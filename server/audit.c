/* SPDX-License-Identifier: Apache-2.0 */
#include "server/audit.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "server/cache.h"
#include "server/claim.h"
#include "server/clock.h"
#include "server/session.h"
#include "server/stash.h"

enum { MAX_ROUNDS = 16, MAX_WATCHED = 1024, SLOTS_A_LOOK = 16 };

/* 65,536 allocations of one object take 0.3 ms at the fastest. */
static const uint64_t max_window_ns = 250000;

/* An object that a round looks at. */
struct suspect {
	uint32_t slab;
	uint32_t word;
	uint32_t seen_word; /* at the first look */
	bool has_changed;   /* at one since */
};

struct run {
	struct arena *arena;
	struct cache *cache;
	struct audit *audit;
	struct suspect *suspects;
	uint32_t n_suspects;
	uint32_t room;
	/* By word, SEEN_: in how many sheaves and stashes the object is, at most 2; in a stash; in a sheaf whose client its word does not name. */
	uint8_t *seen;
	uint64_t n_words;
	uint64_t last_look_ns; /* at the suspects' words */
	bool is_broken;        /* two looks lay too far apart: nothing that turns on generations can be said in this round */
	audit_lost_fn *lost;
	void *ctx;
};

enum { SEEN_COUNT = 0x03, SEEN_STASH = 0x40, SEEN_STRANGE = 0x80 };

/* Were the last two looks near enough for the generation to mean something? */
static void
note_window(struct run *run, uint64_t now)
{
	uint64_t window = now - run->last_look_ns;

	if (window >= max_window_ns)
		run->is_broken = true;
	else if (window > run->audit->longest_window_ns)
		run->audit->longest_window_ns = window;
}

static void
lock_all(struct cache *cache)
{
	for (unsigned i = 0; i < cache->n_nodes && !MUTANT(NO_LOCK); i++)
		node_lock(&cache->nodes[i]);
	/* None appears meanwhile: that takes a list_lock. */
	for (struct session *s = cache->arena->first_session; s && !MUTANT(NO_LOCK); s = s->next)
		if (stash_of(s, cache->id))
			pthread_mutex_lock(&stash_of(s, cache->id)->lock);
}

static void
unlock_all(struct cache *cache)
{
	for (struct session *s = cache->arena->first_session; s && !MUTANT(NO_LOCK); s = s->next)
		if (stash_of(s, cache->id))
			pthread_mutex_unlock(&stash_of(s, cache->id)->lock);
	for (unsigned i = cache->n_nodes; i-- > 0 && !MUTANT(NO_LOCK);)
		node_unlock(&cache->nodes[i]);
}

/* All objects of the cache; the first round suspects every one that is OUT. */
static int
list_objects(struct run *run)
{
	struct arena *arena = run->arena;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];

		if (atomic_read_acquire(&slab->cache) != run->cache->id)
			continue;
		/* Carved, and not yet on the list: nothing of it was ever handed out. */
		if (slab->first_word + slab->n_objects > run->n_words)
			continue;
		for (uint32_t i = 0; i < slab->n_objects; i++) {
			enum slab_state state = slab_get(arena, slab->first_word + i);

			run->audit->n_objects++;
			run->audit->n_free += state == SLAB_FREE;
			run->audit->n_barn += state == SLAB_BARN;
			run->audit->n_out += state == SLAB_OUT;
			if (run->n_suspects == run->room) {
				uint32_t room = run->room ? run->room * 2 : 4096;
				struct suspect *more = realloc(run->suspects, room * sizeof *more);

				if (!more)
					return -ENOMEM;
				run->suspects = more;
				run->room = room;
			}
			run->suspects[run->n_suspects++] = (struct suspect){.slab = number, .word = slab->first_word + i};
		}
	}
	return 0;
}

static void
first_look(struct run *run)
{
	for (uint32_t i = 0; i < run->n_suspects; i++)
		run->seen[run->suspects[i].word] = 0;
	run->is_broken = false;
	run->last_look_ns = clock_now_ns();
	for (uint32_t i = 0; i < run->n_suspects; i++) {
		run->suspects[i].seen_word = atomic_read_acquire(&run->arena->words[run->suspects[i].word]);
		run->suspects[i].has_changed = false;
	}
}

/*
 * The sheaves may take longer than a generation takes to come round.  So the words of a few suspects are looked at again and again in between: as
 * long as each look finds the same as the one before, shortly before, the object was not allocated all the while.
 */
static void
look_again(struct run *run)
{
	uint64_t now;

	if (run->n_suspects > MAX_WATCHED)
		return;
	for (uint32_t i = 0; i < run->n_suspects; i++)
		if (atomic_read_acquire(&run->arena->words[run->suspects[i].word]) != run->suspects[i].seen_word)
			run->suspects[i].has_changed = true;
	now = clock_now_ns();
	note_window(run, now);
	run->last_look_ns = now;
	STEP(AUDIT_LOOKED_AGAIN);
}

/* One sheaf's, or a stash's, word on an object; client 0: a stash, whose objects nobody is to name. */
static void
note_place(struct run *run, uint32_t place, uint32_t client)
{
	struct slab_object o;
	uint32_t owner;

	if (!slab_find(run->arena, run->cache, place, &o) || o.word >= run->n_words)
		return;
	if ((run->seen[o.word] & SEEN_COUNT) < 2)
		run->seen[o.word]++;
	if (client == 0)
		run->seen[o.word] |= SEEN_STASH;
	owner = word_owner(atomic_read_acquire(&run->arena->words[o.word]));
	if (owner != 0 && owner != client)
		run->seen[o.word] |= SEEN_STRANGE;
}

static void
look_into_sheaf(struct run *run, struct session *session, uint32_t slot)
{
	const struct sheaf *sheaf = session_sheaf(session, slot);
	uint32_t capacity = atomic_read(&session->slots[slot].capacity), place[LAYOUT_MAX_SHEAF];
	bool was_unsettled = claim_is_unsettled(session, slot);
	/* order: SHEAF_SIZE acquire - pairs with sheaf_push() */
	uint32_t size = atomic_read_acquire(&sheaf->size);

	if (size > capacity)
		size = capacity;
	for (uint32_t i = 0; i < size; i++)
		place[i] = atomic_read(&sheaf->entry[i]);
	/* Those of an unsettled sheaf are no places; one that became unsettled meanwhile had lost all that it had as an ordinary one. */
	atomic_fence_acquire();
	if ((was_unsettled || claim_is_unsettled(session, slot)) && !MUTANT(AUDIT_COUNTS))
		return;
	for (uint32_t i = 0; i < size; i++)
		note_place(run, place[i], session->client);
}

static void
look_into_stash(struct run *run, const struct session *session)
{
	const struct stash *stash = stash_of(session, run->cache->id);

	for (uint32_t i = 0; stash && i < stash->size; i++)
		note_place(run, stash->place[i], 0);
}

static void
look_into_sheaves(struct run *run)
{
	uint32_t n_slots = 0;

	for (struct session *session = run->arena->first_session; session; session = session->next) {
		look_into_stash(run, session);
		if (!session->map)
			continue;
		/* order: SLOTS acquire - pairs with session_slot_lend() */
		for (uint32_t slot = 0; slot < atomic_read_acquire(&session->n_slots); slot++) {
			if (atomic_read(&session->slots[slot].cache) != run->cache->id)
				continue;
			look_into_sheaf(run, session, slot);
			if (++n_slots % SLOTS_A_LOOK == 0)
				look_again(run);
		}
	}
}

/* Is somebody there who answers to the name? */
static bool
is_alive(const struct run *run, uint32_t owner)
{
	const struct session *session = owner <= LAYOUT_MAX_CLIENTS ? run->arena->sessions[owner] : NULL;

	return session && atomic_read(&session->state) != SESSION_DYING;
}

static uint64_t
place_of(const struct run *run, const struct suspect *s)
{
	return slab_place(run->arena, run->cache, s->slab, s->word - run->arena->slabs[s->slab].first_word) + 1ull;
}

/* May it be said that nothing happened to the object since the first look, its word being w now? */
static bool
is_unchanged(struct run *run, const struct suspect *s, uint32_t w)
{
	note_window(run, clock_now_ns());
	return w == s->seen_word && !s->has_changed && !run->is_broken;
}

/* What the round says of a suspect; true: nothing more to ask. */
static bool
judge(struct run *run, const struct suspect *s)
{
	struct audit *audit = run->audit;
	uint8_t seen = run->seen[s->word];
	uint32_t w = atomic_read_acquire(&run->arena->words[s->word]);
	bool is_out = slab_get(run->arena, s->word) == SLAB_OUT;
	bool is_unowned = (s->seen_word & WORD_LOW_MASK) == 0;

	if (!is_out && !(seen & SEEN_COUNT) && !(w & WORD_LOW_MASK))
		return true;
	if (!is_out || (seen & SEEN_STRANGE) || (seen & SEEN_COUNT) >= 2) {
		if (!is_unchanged(run, s, w))
			return false;
		audit->n_doubled++;
		if (!audit->first_doubled)
			audit->first_doubled = place_of(run, s);
		return true;
	}
	if (is_unowned && !seen) {
		if (!is_unchanged(run, s, w))
			return false;
		audit->n_lost++;
		if (!audit->first_lost)
			audit->first_lost = place_of(run, s);
		if (run->lost)
			run->lost(run->ctx, run->cache, s->slab, s->word, s->seen_word);
		return true;
	}
	if (is_unowned)
		++*(seen & SEEN_STASH ? &audit->n_in_stashes : &audit->n_in_sheaves);
	else if (is_alive(run, word_owner(s->seen_word)))
		audit->n_held++;
	else
		audit->n_orphans++;
	return true;
}

static void
one_round(struct run *run)
{
	uint32_t left = 0;

	first_look(run);
	STEP(AUDIT_FIRST_LOOK);
	look_into_sheaves(run);
	STEP(AUDIT_SECOND_LOOK);
	for (uint32_t i = 0; i < run->n_suspects; i++)
		if (!judge(run, &run->suspects[i]))
			run->suspects[left++] = run->suspects[i];
	run->n_suspects = left;
	run->audit->n_rounds++;
}

/* What the first round leaves, in portions whose words can be looked at again and again: a client may have lost any number. */
static void
judge_rest(struct run *run)
{
	struct suspect *all = run->suspects;
	uint32_t n_all = run->n_suspects, n;

	for (uint32_t at = 0; at < n_all; at += n) {
		n = n_all - at < MAX_WATCHED ? n_all - at : MAX_WATCHED;
		run->suspects = all + at;
		run->n_suspects = n;
		for (int i = 1; run->n_suspects && i < MAX_ROUNDS; i++)
			one_round(run);
		run->audit->n_undecided += run->n_suspects;
	}
	run->suspects = all;
}

int
audit_cache(struct cache *cache, struct audit *audit, audit_lost_fn *lost, void *ctx)
{
	struct arena *arena = cache->arena;
	struct run run = {.arena = arena, .cache = cache, .audit = audit, .lost = lost, .ctx = ctx};
	struct words_counters words;
	int r;

	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		return 0;
	words_count(&arena->words_runs, &words);
	run.n_words = words.n_high_water + 1;
	run.seen = calloc(1, run.n_words);
	if (!run.seen)
		return -ENOMEM;
	lock_all(cache);
	r = list_objects(&run);
	if (r == 0 && run.n_suspects)
		one_round(&run);
	if (r == 0)
		judge_rest(&run);
	unlock_all(cache);
	free(run.seen);
	free(run.suspects);
	return r;
}

int
audit_run(struct arena *arena, uint32_t id, struct audit *audit)
{
	struct cache *cache;
	int r = 0;

	*audit = (struct audit){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = id ? arena_cache(arena, id) : arena_cache_after(arena, 0);
	if (id && !cache)
		r = -ENOENT;
	for (; cache && r == 0; cache = id ? NULL : arena_cache_after(arena, cache->id))
		r = audit_cache(cache, audit, NULL, NULL);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}
