/* SPDX-License-Identifier: Apache-2.0 */
#include "server/audit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/cache.h"
#include "server/session.h"

enum { MAX_ROUNDS = 16 };

/* 65,536 allocations of one object take 0.3 ms at the fastest. */
static const uint64_t max_window_ns = 250000;

/* An object that a round looks at. */
struct suspect {
	uint32_t slab;
	uint32_t word;
	uint32_t seen_word; /* at the first look */
};

struct run {
	struct arena *arena;
	struct cache *cache;
	struct audit *audit;
	struct suspect *suspects;
	uint32_t n_suspects;
	uint32_t room;
	/* By word: how often a sheaf has the object, and bit 7: in a sheaf whose client is not the one the word named. */
	uint8_t *seen;
	uint64_t n_words;
};

enum { SEEN_STRANGE = 0x80 };

static uint64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void
lock_all(struct cache *cache)
{
	for (unsigned i = 0; i < cache->n_nodes && !MUTANT(NO_LOCK); i++)
		node_lock(&cache->nodes[i]);
}

static void
unlock_all(struct cache *cache)
{
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
	memset(run->seen, 0, run->n_words);
	for (uint32_t i = 0; i < run->n_suspects; i++)
		run->suspects[i].seen_word = atomic_read_acquire(&run->arena->words[run->suspects[i].word]);
}

static void
look_into_sheaf(struct run *run, struct session *session, uint32_t slot)
{
	const struct sheaf *sheaf = session_sheaf(session, slot);
	/* order: SHEAF_SIZE acquire - pairs with sheaf_push() */
	uint32_t size = atomic_read_acquire(&sheaf->size);

	if (size > atomic_read(&session->slots[slot].capacity))
		size = atomic_read(&session->slots[slot].capacity);
	for (uint32_t i = 0; i < size; i++) {
		struct slab_object o;
		uint32_t owner;

		if (!slab_find(run->arena, run->cache, atomic_read(&sheaf->entry[i]), &o) || o.word >= run->n_words)
			continue;
		if ((run->seen[o.word] & ~SEEN_STRANGE) < 2)
			run->seen[o.word]++;
		owner = word_owner(atomic_read_acquire(&run->arena->words[o.word]));
		if (owner != 0 && owner != session->client)
			run->seen[o.word] |= SEEN_STRANGE;
	}
}

static void
look_into_sheaves(struct run *run)
{
	for (struct session *session = run->arena->first_session; session; session = session->next) {
		if (!session->map)
			continue;
		for (uint32_t slot = 0; slot < atomic_read_acquire(&session->n_slots); slot++)
			if (atomic_read(&session->slots[slot].cache) == run->cache->id)
				look_into_sheaf(run, session, slot);
	}
}

/* Is somebody there who answers to the name? */
static bool
is_alive(const struct run *run, uint32_t owner)
{
	const struct session *session = owner <= LAYOUT_MAX_CLIENTS ? run->arena->sessions[owner] : NULL;

	return session && session->state != SESSION_DYING;
}

static uint64_t
place_of(const struct run *run, const struct suspect *s)
{
	return slab_place(run->arena, run->cache, s->slab, s->word - run->arena->slabs[s->slab].first_word) + 1ull;
}

/* Called after the second look: were both near enough for the generation to mean something? */
static bool
note_window(struct audit *audit, uint64_t first_look_ns)
{
	uint64_t window = now_ns() - first_look_ns;

	if (window >= max_window_ns)
		return false;
	if (window > audit->longest_window_ns)
		audit->longest_window_ns = window;
	return true;
}

/* What the round says of a suspect; true: nothing more to ask. */
static bool
judge(struct run *run, const struct suspect *s, uint64_t first_look_ns)
{
	struct audit *audit = run->audit;
	uint8_t seen = run->seen[s->word];
	uint32_t w = atomic_read_acquire(&run->arena->words[s->word]);
	bool is_out = slab_get(run->arena, s->word) == SLAB_OUT;
	bool is_unowned = (s->seen_word & WORD_LOW_MASK) == 0;

	if (!is_out && !(seen & ~SEEN_STRANGE) && !(w & WORD_LOW_MASK))
		return true;
	if (!is_out || (seen & SEEN_STRANGE) || (seen & ~SEEN_STRANGE) >= 2) {
		if (w != s->seen_word || !note_window(audit, first_look_ns))
			return false;
		audit->n_doubled++;
		if (!audit->first_doubled)
			audit->first_doubled = place_of(run, s);
		return true;
	}
	if (is_unowned && !seen) {
		if (w != s->seen_word || !note_window(audit, first_look_ns))
			return false;
		audit->n_lost++;
		if (!audit->first_lost)
			audit->first_lost = place_of(run, s);
		return true;
	}
	if (is_unowned)
		audit->n_in_sheaves++;
	else if (is_alive(run, word_owner(s->seen_word)))
		audit->n_held++;
	else
		audit->n_orphans++;
	return true;
}

static void
one_round(struct run *run)
{
	uint64_t start = now_ns();
	uint32_t left = 0;

	first_look(run);
	STEP(AUDIT_FIRST_LOOK);
	look_into_sheaves(run);
	STEP(AUDIT_SECOND_LOOK);
	for (uint32_t i = 0; i < run->n_suspects; i++)
		if (!judge(run, &run->suspects[i], start))
			run->suspects[left++] = run->suspects[i];
	run->n_suspects = left;
	run->audit->n_rounds++;
}

static int
audit_cache(struct arena *arena, struct cache *cache, struct audit *audit)
{
	struct run run = {.arena = arena, .cache = cache, .audit = audit};
	struct words_counters words;
	int r;

	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		return 0;
	words_count(&arena->words_runs, &words);
	run.n_words = words.n_high_water + 1;
	run.seen = malloc(run.n_words);
	if (!run.seen)
		return -ENOMEM;
	lock_all(cache);
	r = list_objects(&run);
	for (int i = 0; r == 0 && run.n_suspects && i < MAX_ROUNDS; i++)
		one_round(&run);
	unlock_all(cache);
	audit->n_undecided += run.n_suspects;
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
		r = audit_cache(arena, cache, audit);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}
