/* SPDX-License-Identifier: Apache-2.0 */
#include "server/audit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/cache.h"
#include "server/claim.h"
#include "server/clock.h"
#include "server/session.h"
#include "server/stash.h"

/* A batch's words take half a millisecond; so many slabs of other caches are passed by in as much. */
enum { BATCH = 16384, WHOLE_BATCH = 1 << 20, SLABS_A_BATCH = 1 << 16, MAX_ROUNDS = 16, MAX_WATCHED = 4096, SLOTS_A_LOOK = 16, ENTRIES_A_LOOK = 4096, JUDGED_A_LOOK = 1024 };

/* 65,536 allocations of one object take 0.3 ms at the fastest. */
static const uint64_t max_window_ns = 250000;

/* An object that a round looks at. */
struct suspect {
	uint32_t slab;
	uint32_t word;
	uint32_t seen_word; /* at the first look */
	bool has_changed;   /* at one since */
};

struct audit_walk {
	struct arena *arena;
	uint32_t only;   /* cache id; 0: all */
	uint32_t id;     /* the cache under way; 0: none yet */
	uint32_t number; /* of the slab, and the object in it, where the next batch begins */
	uint32_t object;
	unsigned n_rounds; /* of this batch, or of the last suspects of it */
	struct audit audit;
	struct suspect *suspects;
	uint32_t room;
	uint32_t n_suspects;
	/* While a hold lasts: the cache, and the suspects looked at, from this one on. */
	struct cache *cache;
	uint32_t first;
	/* Where they lie: what sheaves have elsewhere need not be looked up. */
	uint32_t lowest_place;
	uint32_t highest_place;
	/* By word, SEEN_: in how many sheaves and stashes the object is, at most 2; in a stash; in a sheaf whose client its word does not name. */
	uint8_t *seen;
	uint64_t n_words;
	uint64_t last_look_ns; /* at the suspects' words */
	bool is_broken;        /* two looks lay too far apart: nothing that turns on generations can be said in this round */
	audit_told_fn *told;   /* NULL: nothing is taken back */
	bool may_take_back;    /* in this hold */
	struct audit_back back; /* of this cache */
	struct node_discard discard;
};

enum { SEEN_COUNT = 0x03, SEEN_STASH = 0x40, SEEN_STRANGE = 0x80 };

/* Were the last two looks near enough for the generation to mean something? */
static void
note_window(struct audit_walk *run, uint64_t now)
{
	uint64_t window = now - run->last_look_ns;

	if (window >= max_window_ns)
		run->is_broken = true;
	else if (window > run->audit.longest_window_ns)
		run->audit.longest_window_ns = window;
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

/* One slab's objects from where the walk stands, as many as there is room for; the first round suspects every one. */
static void
list_slab(struct audit_walk *run, const struct slab *slab)
{
	for (; run->object < slab->n_objects && run->n_suspects < run->room; run->object++) {
		uint32_t word = slab->first_word + run->object;
		enum slab_state state = slab_get(run->arena, word);

		run->audit.n_objects++;
		run->audit.n_free += state == SLAB_FREE;
		run->audit.n_barn += state == SLAB_BARN;
		run->audit.n_out += state == SLAB_OUT;
		run->suspects[run->n_suspects++] = (struct suspect){.slab = run->number, .word = word};
	}
}

/* The next objects of the cache. */
static void
list_batch(struct audit_walk *run)
{
	struct arena *arena = run->arena;

	for (uint32_t n = 0; run->number <= atomic_read_acquire(&arena->n_slabs) && n < SLABS_A_BATCH; n++) {
		const struct slab *slab = &arena->slabs[run->number];

		/* Carved since the audit began, or not yet on the list: what was not there then is not asked about. */
		if (atomic_read_acquire(&slab->cache) == run->cache->id && slab->first_word + slab->n_objects <= run->n_words) {
			list_slab(run, slab);
			if (run->object < slab->n_objects)
				return;
		}
		run->number++;
		run->object = 0;
	}
}

/* Between two holds its slab may have gone. */
static bool
is_there(const struct audit_walk *run, const struct suspect *s)
{
	const struct slab *slab = &run->arena->slabs[s->slab];

	return atomic_read_acquire(&slab->cache) == run->cache->id && s->word >= slab->first_word && s->word - slab->first_word < slab->n_objects;
}

static uint64_t
place_of(const struct audit_walk *run, const struct suspect *s)
{
	return slab_place(run->arena, run->cache, s->slab, s->word - run->arena->slabs[s->slab].first_word) + 1ull;
}

static void
first_look(struct audit_walk *run)
{
	run->lowest_place = UINT32_MAX;
	run->highest_place = 0;
	for (uint32_t i = run->first; i < run->n_suspects; i++) {
		uint32_t place;

		run->seen[run->suspects[i].word] = 0;
		if (!is_there(run, &run->suspects[i]))
			continue;
		place = (uint32_t)(place_of(run, &run->suspects[i]) - 1);
		run->lowest_place = place < run->lowest_place ? place : run->lowest_place;
		run->highest_place = place > run->highest_place ? place : run->highest_place;
	}
	run->is_broken = false;
	run->last_look_ns = clock_now_ns();
	for (uint32_t i = run->first; i < run->n_suspects; i++) {
		run->suspects[i].seen_word = atomic_read_acquire(&run->arena->words[run->suspects[i].word]);
		run->suspects[i].has_changed = false;
	}
}

/*
 * The sheaves may take longer than a generation takes to come round.  So the words of a few suspects are looked at again and again in between: as
 * long as each look finds the same as the one before, shortly before, the object was not allocated all the while.
 */
static void
look_again(struct audit_walk *run)
{
	uint64_t now;

	if (run->n_suspects - run->first > MAX_WATCHED)
		return;
	for (uint32_t i = run->first; i < run->n_suspects; i++)
		if (atomic_read_acquire(&run->arena->words[run->suspects[i].word]) != run->suspects[i].seen_word)
			run->suspects[i].has_changed = true;
	now = clock_now_ns();
	note_window(run, now);
	run->last_look_ns = now;
	STEP(AUDIT_LOOKED_AGAIN);
}

/* One sheaf's, or a stash's, word on an object; client 0: a stash, whose objects nobody is to name. */
static void
note_place(struct audit_walk *run, uint32_t place, uint32_t client)
{
	struct slab_object o;
	uint32_t owner;

	if (place < run->lowest_place || place > run->highest_place)
		return;
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

/* Returns how many entries it has. */
static uint32_t
look_into_sheaf(struct audit_walk *run, struct session *session, uint32_t slot)
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
		return size;
	for (uint32_t i = 0; i < size; i++)
		note_place(run, place[i], session->client);
	return size;
}

static void
look_into_stash(struct audit_walk *run, const struct session *session)
{
	const struct stash *stash = stash_of(session, run->cache->id);

	for (uint32_t i = 0; stash && i < stash->size; i++)
		note_place(run, stash->place[i], 0);
}

static void
look_into_sheaves(struct audit_walk *run)
{
	uint32_t n_slots = 0, n_entries = 0;

	for (struct session *session = run->arena->first_session; session; session = session->next) {
		look_into_stash(run, session);
		if (!session->map)
			continue;
		/* order: SLOTS acquire - pairs with session_slot_lend() */
		for (uint32_t slot = 0; slot < atomic_read_acquire(&session->n_slots); slot++) {
			if (atomic_read(&session->slots[slot].cache) != run->cache->id)
				continue;
			n_entries += look_into_sheaf(run, session, slot);
			if (++n_slots < SLOTS_A_LOOK && n_entries < ENTRIES_A_LOOK)
				continue;
			look_again(run);
			n_slots = n_entries = 0;
		}
	}
}

/* Is somebody there who answers to the name? */
static bool
is_alive(const struct audit_walk *run, uint32_t owner)
{
	const struct session *session = owner <= LAYOUT_MAX_CLIENTS ? run->arena->sessions[owner] : NULL;

	return session && atomic_read(&session->state) != SESSION_DYING;
}

/* May it be said that nothing happened to the object since the first look, its word being w now? */
static bool
is_unchanged(struct audit_walk *run, const struct suspect *s, uint32_t w)
{
	note_window(run, clock_now_ns());
	if (MUTANT(NO_SECOND_LOOK))
		return true;
	return w == s->seen_word && !s->has_changed && !run->is_broken;
}

/* Sheaves of a session that could not be mapped again (session.c) are not seen: what lies in them is not lost. */
static bool
sees_all(const struct arena *arena)
{
	for (const struct session *s = arena->first_session; s; s = s->next)
		if (!s->map && !s->is_readonly)
			return false;
	return true;
}

/* The one place where a lost object goes back: the locks are held under which it was found to be.  A slab that this empties goes when they are let go of. */
static void
take_back(struct audit_walk *run, const struct suspect *s)
{
	struct arena *arena = run->arena;

	run->back.n++;
	run->back.bytes += slab_object_bytes(arena, run->cache, s->slab);
	run->audit.n_repaired++;
	atomic_add(&arena->n_repaired, 1);
	node_put_free(arena, &run->cache->nodes[arena->slabs[s->slab].node], s->slab, s->word, &run->discard);
}

/* What the round says of a suspect; true: nothing more to ask. */
static bool
judge(struct audit_walk *run, const struct suspect *s)
{
	struct audit *audit = &run->audit;
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
		if (run->may_take_back)
			take_back(run, s);
		return true;
	}
	if (!is_unowned && run->told)
		run->back.n_named[word_owner(s->seen_word)]++;
	if (is_unowned)
		++*(seen & SEEN_STASH ? &audit->n_in_stashes : &audit->n_in_sheaves);
	else if (is_alive(run, word_owner(s->seen_word)))
		audit->n_held++;
	else
		audit->n_orphans++;
	return true;
}

/* The suspects from `first` on.  In one hold of the locks: that is what makes its looks and the sheaves' count tell the same story. */
static void
one_round(struct audit_walk *run)
{
	uint32_t left = run->first;

	first_look(run);
	STEP(AUDIT_FIRST_LOOK);
	look_into_sheaves(run);
	STEP(AUDIT_SECOND_LOOK);
	for (uint32_t i = run->first; i < run->n_suspects; i++) {
		if (is_there(run, &run->suspects[i]) && !judge(run, &run->suspects[i]))
			run->suspects[left++] = run->suspects[i];
		if ((i - run->first + 1) % JUDGED_A_LOOK == 0)
			look_again(run);
	}
	run->n_suspects = left;
	run->n_rounds++;
	run->audit.n_rounds++;
}

/* Of those that a whole batch left over, the last few, until each is judged or they have had their rounds. */
static void
judge_again(struct audit_walk *run)
{
	if (run->n_rounds >= MAX_ROUNDS) {
		run->audit.n_undecided += run->n_suspects - run->first;
		run->n_suspects = run->first;
	} else {
		one_round(run);
	}
}

/* The last of those that the batch's first round, which counts for each, left over. */
static void
choose_few(struct audit_walk *run)
{
	run->first = run->n_suspects > MAX_WATCHED ? run->n_suspects - MAX_WATCHED : 0;
	run->n_rounds = 1;
}

static void
one_portion(struct audit_walk *run)
{
	lock_all(run->cache);
	run->may_take_back = run->told && sees_all(run->arena);
	if (run->n_suspects == 0) {
		run->first = 0;
		list_batch(run);
		if (run->n_suspects)
			one_round(run);
		choose_few(run);
	} else {
		judge_again(run);
		if (run->n_suspects == run->first)
			choose_few(run);
	}
	unlock_all(run->cache);
	node_discard(run->arena, &run->discard);
}

/* A cache that the walk can be in, from the next id on.  false: there is none. */
static bool
enter_next(struct audit_walk *run)
{
	struct words_counters words;
	const struct cache *cache;

	if (run->only && run->id)
		return false;
	cache = run->only ? arena_cache(run->arena, run->only) : arena_cache_after(run->arena, run->id);
	while (cache && cache->flags & LAYOUT_CACHE_NO_OWNER)
		cache = run->only ? NULL : arena_cache_after(run->arena, cache->id);
	if (!cache)
		return false;
	run->id = cache->id;
	run->number = 1;
	run->object = 0;
	words_count(&run->arena->words_runs, &words);
	if (words.n_high_water + 1 > run->n_words) {
		free(run->seen);
		run->n_words = words.n_high_water + 1;
		run->seen = calloc(1, run->n_words);
	}
	return true;
}

/* Of the cache that it has been in; nobody asks about one that was destroyed since. */
static void
tell(struct audit_walk *run)
{
	struct cache *cache = run->id ? arena_cache(run->arena, run->id) : NULL;

	if (run->back.n > 0 && cache)
		run->told(cache, &run->back);
	run->back.n = run->back.bytes = 0;
	if (run->back.n_named)
		memset(run->back.n_named, 0, (WORD_ORPHAN + 1) * sizeof *run->back.n_named);
}

static int
begin(struct audit_walk **runp, struct arena *arena, uint32_t id, uint32_t room, audit_told_fn *told)
{
	struct audit_walk *run;

	if (id && !arena_cache(arena, id))
		return -ENOENT;
	run = malloc(sizeof *run);
	if (!run)
		return -ENOMEM;
	*run = (struct audit_walk){.arena = arena, .only = id, .room = room, .told = told, .suspects = malloc(room * sizeof(struct suspect))};
	if (told)
		run->back.n_named = calloc(WORD_ORPHAN + 1, sizeof *run->back.n_named);
	if (!run->suspects || (told && !run->back.n_named)) {
		audit_end(run);
		return -ENOMEM;
	}
	*runp = run;
	return 0;
}

int
audit_begin(struct audit_walk **runp, struct arena *arena, uint32_t id, audit_told_fn *told)
{
	return begin(runp, arena, id, BATCH, told);
}

static bool
is_at_end(const struct audit_walk *run)
{
	return run->n_suspects == 0 && run->number > atomic_read_acquire(&run->arena->n_slabs);
}

int
audit_step(struct audit_walk *run)
{
	/* A cache that was destroyed between two portions had nothing OUT. */
	run->cache = run->id ? arena_cache(run->arena, run->id) : NULL;
	if (run->cache && !is_at_end(run)) {
		one_portion(run);
		return AUDIT_E_MORE;
	}
	run->n_suspects = 0;
	tell(run);
	if (!enter_next(run))
		return 0;
	return run->seen ? AUDIT_E_MORE : -ENOMEM;
}

const struct audit *
audit_result(const struct audit_walk *run)
{
	return &run->audit;
}

void
audit_end(struct audit_walk *run)
{
	if (!run)
		return;
	tell(run);
	free(run->back.n_named);
	free(run->seen);
	free(run->suspects);
	free(run);
}

void
audit_cancel(void *ctx)
{
	struct audit_walk *run = ctx;
	struct arena *arena = run->arena;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	audit_end(run);
	pthread_rwlock_unlock(&arena->sessions_lock);
}

/* All portions. */
static int
run_whole(struct audit_walk *run, struct audit *audit)
{
	int r;

	do {
		pthread_rwlock_rdlock(&run->arena->sessions_lock);
		r = audit_step(run);
		pthread_rwlock_unlock(&run->arena->sessions_lock);
	} while (r == AUDIT_E_MORE);
	*audit = *audit_result(run);
	audit_end(run);
	return r;
}

int
audit_run(struct arena *arena, uint32_t id, struct audit *audit)
{
	struct audit_walk *run;
	int r;

	*audit = (struct audit){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	r = audit_begin(&run, arena, id, NULL);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r < 0 ? r : run_whole(run, audit);
}

int
audit_take_back(struct arena *arena, audit_told_fn *told, struct audit *audit)
{
	struct audit_walk *run;
	int r;

	*audit = (struct audit){0};
	r = begin(&run, arena, 0, WHOLE_BATCH, told);
	return r < 0 ? r : run_whole(run, audit);
}
