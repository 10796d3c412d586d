/* SPDX-License-Identifier: Apache-2.0 */
#include "server/grant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/claim.h"
#include "server/log.h"
#include "server/quota.h"
#include "server/recall.h"
#include "server/stash.h"
#include "server/stats.h"
#include "shm/barn.h"

/* Fresh objects a refill may carve: this share of what the cache has, but so many sheaves at least (speed-notes.md, 4.2). */
enum { CARVE_SHARE = 64, CARVE_MIN_SHEAVES = 2, MAX_SHEAVES = 512 };

/*
 * What a client may have in its process barn by a refill: a part of what the cache has, so that all together have but a small share of it idle;
 * few clients of a small cache may have more, for a pipe's sake: this divided by the square of their number.
 */
enum { FAIR_SHARE = 16, FAIR_BYTES = 8 * 1024 * 1024 };

/* Compare-and-swaps on one word that may be lost to a client that does not stop writing it. */
enum { MAX_LOST = 64 };

/* Empty sheaves that are left on a client's list at most, whatever barn_empty says: beyond that another cache of the client may want them. */
enum { MAX_EMPTY = 256 };

/* Sheaves that are asked for before the first of them is looked at. */
enum { TAKE_AT_ONCE = 8 };

/* One take-back under way. */
struct take {
	struct session *session;
	struct cache *cache;
	struct sheaf *sheaf;
	uint16_t *bound; /* of a sealed session, in the ledger: that many entries are left; else NULL */
	const struct sheaf *record; /* of an unsettled sheaf: words as read at the frees */
	struct node *node; /* whose lock is held */
	struct node_sheaf *barn;
	struct node *barn_node;
	struct node_discard discard;
	uint32_t n_marked;
	uint64_t bytes; /* of them that are runs */
	/* The page that was looked at last, as slab_find() read it: good as long as the lock is held and no slab goes. page NO_PAGE: none. */
	uint32_t page;
	uint32_t page_slab;
	uint64_t page_prod;
};

/* No place lies there. */
#define NO_PAGE UINT32_MAX

/* Holds the lock of the object's node, whichever was held before; false: no such object. */
static bool
take_lock(struct take *t, uint32_t place, struct slab_object *o)
{
	struct arena *arena = t->session->arena;

	if (!slab_find(arena, t->cache, place, o))
		return false;
	if (t->node->index != arena->slabs[o->slab].node) {
		node_unlock(t->node);
		t->node = &t->cache->nodes[arena->slabs[o->slab].node];
		node_lock(t->node);
		/* The slab may have gone before its lock was held. */
		return slab_find(arena, t->cache, place, o) && arena->slabs[o->slab].node == t->node->index;
	}
	return true;
}

/* As take_lock(); of the page that the entry before lay on the checks of the page need not be made again. */
__attribute__((always_inline)) static inline bool
take_find(struct take *t, uint32_t place, struct slab_object *o)
{
	const struct arena *arena = t->session->arena;
	const struct slab *slab;
	uint64_t x;

	if (place >> LAYOUT_PLACE_PAGE_SHIFT != t->page) {
		t->page = NO_PAGE;
		if (!take_lock(t, place, o))
			return false;
		t->page = place >> LAYOUT_PLACE_PAGE_SHIFT;
		t->page_prod = arena->page_map[t->page].prod;
		t->page_slab = o->slab;
		return true;
	}
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * t->cache->recip + t->page_prod;
	slab = &arena->slabs[t->page_slab];
	*o = (struct slab_object){.slab = t->page_slab, .word = (uint32_t)(x >> 32)};
	return (uint32_t)x < t->cache->recip && o->word - slab->first_word < slab->n_objects;
}

/* A sheaf for the node's barn, if that has room. */
static struct node_sheaf *
take_new_barn(const struct take *t)
{
	return t->node->n_full < t->cache->barn_full ? node_sheaf_new(t->node) : NULL;
}

/* The sheaf wins over its own client's name, and over nobody else's. */
static bool
take_clear_word(struct take *t, uint32_t *word)
{
	uint32_t w;

	if (t->cache->flags & LAYOUT_CACHE_NO_OWNER)
		return true;
	w = atomic_read(word);
	for (int tries = 0; tries < MAX_LOST; tries++) {
		uint32_t owner = word_owner(w);

		if (owner != 0 && owner != t->session->client && !MUTANT(NO_WORD_CHECK))
			return false;
		STEP(TAKE_CHECKED);
		if (!(w & WORD_LOW_MASK) || MUTANT(WORD_LEFT) || atomic_cas(word, &w, word_cleared(w)))
			return true;
	}
	return false;
}

__attribute__((always_inline)) static inline void
mark(struct take *t, uint32_t place, const struct slab_object *o)
{
	struct arena *arena = t->session->arena;

	t->n_marked++;
	if (t->cache->flags & LAYOUT_CACHE_RUNS)
		t->bytes += slab_object_bytes(arena, t->cache, o->slab);
	if (t->node == t->barn_node && (t->barn || (t->barn = take_new_barn(t)))) {
		slab_set(arena, o->word, SLAB_BARN);
		t->barn->at[t->barn->size++] = (struct node_place){.place = place, .word = o->word};
		/* A larger one than the cache's, a prefilled one, becomes several. */
		if (t->barn->size == t->barn->capacity) {
			node_barn_put(t->node, t->barn);
			t->barn = NULL;
		}
	} else {
		node_put_free(arena, t->node, o->slab, o->word, &t->discard);
		t->page = NO_PAGE;
	}
}

/* Checks that it is OUT, and marks it. false: it is not. */
__attribute__((always_inline)) static inline bool
take_mark(struct take *t, uint32_t place, const struct slab_object *o)
{
	if (slab_get(t->session->arena, o->word) != SLAB_OUT)
		return false;
	mark(t, place, o);
	return true;
}

/* What slabd writes into a sealed session's sheaf dies with it: the next one finds the sheaf as it was, and goes by the ledger. */
__attribute__((always_inline)) static inline void
keep_bound(const struct take *t, uint32_t n)
{
	if (t->bound)
		atomic_write(t->bound, (uint16_t)n);
}

static void
take_entry(struct take *t, uint32_t n)
{
	struct arena *arena = t->session->arena;
	uint32_t place = atomic_read(&t->sheaf->entry[n]);
	struct slab_object o;
	bool is_good;

	is_good = take_find(t, place, &o) && take_clear_word(t, &arena->words[o.word]);
	STEP(TAKE_CLEARED);
	if (MUTANT(LEDGER_FIRST) && is_good && take_mark(t, place, &o)) {
		STEP(TAKE_REMOVED);
		atomic_write(&t->sheaf->size, n);
		return;
	}
	atomic_write(&t->sheaf->size, n);
	keep_bound(t, n);
	STEP(TAKE_REMOVED);
	if (MUTANT(READ_TWICE) && is_good) {
		place = atomic_read(&t->sheaf->entry[n]);
		is_good = take_lock(t, place, &o);
	}
	if (!is_good || !take_mark(t, place, &o))
		session_fault(t->session, "a sheaf entry that is not its to give back, or that another client gave back before");
}

/* Of an unsettled sheaf. */
static void
take_unsettled(struct take *t, uint32_t n)
{
	uint32_t place = atomic_read(&t->sheaf->entry[n]), recorded = atomic_read(&t->record->entry[n]);
	struct arena *arena = t->session->arena;
	struct slab_object o;
	bool is_won = take_find(t, place, &o) && claim_make(t->session, t->cache, &arena->words[o.word], recorded);

	STEP(TAKE_CLEARED);
	/* order: TAKEN release - the record was read as far as the sheaf has shrunk: its thread may write it anew when that is empty */
	atomic_write_release(&t->sheaf->size, n);
	keep_bound(t, n);
	STEP(TAKE_REMOVED);
	if (!is_won || !take_mark(t, place, &o))
		claim_lost(t->session, t->cache);
}

/* The last sheaf for the barn, which is not full. */
static void
put_rest(struct take *t)
{
	if (!t->barn || !t->barn->size)
		return;
	if (t->node != t->barn_node) {
		node_unlock(t->node);
		t->node = t->barn_node;
		node_lock(t->node);
	}
	node_barn_put(t->node, t->barn);
	t->barn = NULL;
}

#ifdef SLAB_STEPS
/* The mutant CHECK_THEN_MARK: all entries checked, then all marked. */
static void
take_all_checks_first(struct take *t, uint32_t size)
{
	struct slab_object objects[LAYOUT_MAX_SHEAF];
	bool is_good[LAYOUT_MAX_SHEAF];
	uint32_t places[LAYOUT_MAX_SHEAF];

	for (uint32_t i = 0; i < size; i++) {
		places[i] = t->sheaf->entry[i];
		is_good[i] = take_lock(t, places[i], &objects[i]) && slab_get(t->session->arena, objects[i].word) == SLAB_OUT;
	}
	atomic_write(&t->sheaf->size, 0);
	for (uint32_t i = 0; i < size; i++)
		if (is_good[i] && take_clear_word(t, &t->session->arena->words[objects[i].word]))
			mark(t, places[i], &objects[i]);
}
#endif

void
grant_take_back(struct session *session, uint32_t slot, bool to_barn)
{
	uint32_t capacity = session->slots[slot].capacity, size;
	bool is_unsettled = claim_is_unsettled(session, slot) && !MUTANT(ORDINARY_TAKE);
	struct take t = {
		.session = session,
		.cache = arena_cache(session->arena, session->slots[slot].cache),
		.sheaf = session_sheaf(session, slot),
		.bound = session->is_bounded ? &session->slots[slot].capacity : NULL,
		.page = NO_PAGE,
	};

	/* order: SHEAF_SIZE acquire - pairs with sheaf_push(): the entries below it */
	size = atomic_read_acquire(&t.sheaf->size);
	if (size > capacity && session->is_bounded) {
		size = capacity;
	} else if (size > capacity) {
		session_fault_own(session, "a sheaf larger than its capacity");
		if (!MUTANT(TRUST_SIZE))
			size = capacity;
	}
	STEP(TAKE_SIZED);
	/* Nothing unsettled is lost with it: its objects are named by whoever has them. */
	if (is_unsettled && size > 0 && !(t.record = claim_record(session, t.cache, slot, size))) {
		session_fault_own(session, "a foreign sheaf without a record");
		atomic_write(&t.sheaf->size, 0);
		size = 0;
	}
	if (is_unsettled && size == 0)
		atomic_write_release(&t.sheaf->busy, 0);
	if (size == 0)
		return;
	t.node = &t.cache->nodes[0];
	node_lock(t.node);
	/* What is less than a sheaf of the cache's fills no slot that it is granted to. */
	if (to_barn && t.cache->capacity && capacity >= t.cache->capacity) {
		struct slab_object o;

		/* The barn of the node of its top entry; where that is full, the slabs. */
		take_find(&t, atomic_read(&t.sheaf->entry[size - 1]), &o);
		t.barn_node = t.node;
	}
#ifdef SLAB_STEPS
	if (MUTANT(CHECK_THEN_MARK)) {
		take_all_checks_first(&t, size);
		size = 0;
	}
#endif
	while (size > 0 && !is_unsettled)
		take_entry(&t, --size);
	while (size > 0)
		take_unsettled(&t, --size);
	/* An ordinary slot again, whoever has it next; not before it is empty. */
	if (is_unsettled)
		/* order: TAKEN release - as in take_unsettled() */
		atomic_write_release(&t.sheaf->busy, 0);
	put_rest(&t);
	t.node->n_sheaves_taken++;
	node_unlock(t.node);
	t.bytes = t.cache->flags & LAYOUT_CACHE_RUNS ? t.bytes : (uint64_t)t.n_marked * t.cache->object_bytes;
	session_drew(session, t.cache, -(int64_t)t.n_marked, -(int64_t)t.bytes);
	quota_taken(session, t.bytes);
	free(t.barn);
	node_discard(session->arena, &t.discard);
}

static void
hand_out(struct session *session, struct cache *cache, uint32_t slot, bool to_app, bool is_empty)
{
	struct layout_session_cache *lists = session_cache(session, cache->id);
	struct layout_slot *shown = session_slots(session);

	session->slots[slot].is_lent = true;
	/* Until who gets it has opened it: a recall that comes in between meets it busy. */
	if (!MUTANT(LENT_IDLE))
		atomic_write(&session_sheaf(session, slot)->busy, SHEAF_BUSY);
	/* By that its taker knows that what is in it has been elsewhere (client/rack.c). */
	atomic_write(&session_sheaf(session, slot)->limit, 0);
	barn_hand(&shown[slot], to_app ? LAYOUT_HOLDER_APP : LAYOUT_HOLDER_BARN);
	if (!to_app)
		barn_push(is_empty ? &lists->empty : &lists->full, shown, slot);
}

/* Their lines lie in the client's cache. */
static void
prefetch_sheaves(const struct session *session, const uint16_t *slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (size_t off = 0; off < sheaf_bytes(session->slots[slots[i]].capacity); off += 64)
			atomic_prefetch_write((char *)session_sheaf(session, slots[i]) + off);
}

/* A slot that was on one of the client's lists. */
static void
take_slot(struct session *session, struct cache *cache, uint32_t slot, uint32_t holder, bool to_barn)
{
	uint32_t max_empty = cache->barn_empty < MAX_EMPTY ? cache->barn_empty : MAX_EMPTY;

	if (session->slots[slot].cache != cache->id) {
		session_fault_own(session, "a slot of another cache on a list");
		return;
	}
	if (!session_slot_take(session, slot, holder))
		return;
	grant_take_back(session, slot, to_barn);
	if (to_barn && session->slots[slot].capacity == cache->capacity && !cache->is_sheafless &&
		barn_count(atomic_read(&session_cache(session, cache->id)->empty)) < max_empty)
		hand_out(session, cache, slot, false, true);
	else
		session_slot_put(session, slot);
}

/*
 * Slots on one of the client's lists, as far as they are what the list says; bounded by slabd's own count.  Who gives sheaves back will want
 * them again, empty: they stay with him.
 */
static void
take_list(struct session *session, struct cache *cache, uint64_t *head, uint32_t holder, bool to_barn)
{
	struct layout_slot *shown = session_slots(session);
	uint16_t slots[TAKE_AT_ONCE];
	uint32_t n;

	for (uint32_t left = session->n_slots; left > 0; left -= n) {
		n = barn_pop_some(head, shown, session->n_slots, left < TAKE_AT_ONCE ? left : TAKE_AT_ONCE, slots);
		if (n == 0)
			return;
		prefetch_sheaves(session, slots, n);
		for (uint32_t i = 0; i < n; i++)
			take_slot(session, cache, slots[i], holder, to_barn);
	}
}

void
grant_flush(struct session *session, struct cache *cache)
{
	take_list(session, cache, &session_cache(session, cache->id)->returned, LAYOUT_HOLDER_RETURNED, true);
}

void
grant_close(struct session *session, struct cache *cache)
{
	for (uint32_t slot = 0; slot < session->n_slots; slot++) {
		if (session->slots[slot].cache != cache->id)
			continue;
		if (!session->slots[slot].is_lent || (!session_slot_take(session, slot, LAYOUT_HOLDER_BARN) &&
		    !session_slot_take(session, slot, LAYOUT_HOLDER_RETURNED)))
			continue;
		grant_take_back(session, slot, true);
		session_slot_put(session, slot);
	}
	/* Whatever the lists still name is in slabd's hands now. */
	atomic_write(&session_cache(session, cache->id)->full, 0);
	atomic_write(&session_cache(session, cache->id)->empty, 0);
	atomic_write(&session_cache(session, cache->id)->returned, 0);
	stash_trim(session, cache, 0);
}

void
grant_shrink(struct session *session, struct cache *cache)
{
	struct layout_session_cache *lists = session_cache(session, cache->id);

	take_list(session, cache, &lists->returned, LAYOUT_HOLDER_RETURNED, false);
	take_list(session, cache, &lists->full, LAYOUT_HOLDER_BARN, false);
	take_list(session, cache, &lists->empty, LAYOUT_HOLDER_BARN, false);
	stash_trim(session, cache, 0);
}

void
grant_call_in(struct session *session, struct cache *cache)
{
	struct layout_session_cache *lists = session_cache(session, cache->id);

	take_list(session, cache, &lists->returned, LAYOUT_HOLDER_RETURNED, false);
	take_list(session, cache, &lists->full, LAYOUT_HOLDER_BARN, false);
	stash_trim(session, cache, 0);
	/* Its client shall ask for fewer. */
	atomic_write(&lists->n_granted, UINT32_MAX);
}

/* Keeps the newest sheaves of the list, max_kept of them, of the cache's capacity, and takes the others. */
static void
trim_list(struct session *session, struct cache *cache, uint64_t *head, uint32_t max_kept)
{
	struct layout_slot *shown = session_slots(session);
	uint32_t n_kept = 0, n_slots = session->n_slots;
	uint16_t kept[LAYOUT_MAX_SLOTS];

	for (uint32_t tries = 0; tries < n_slots; tries++) {
		int32_t slot = barn_pop(head, shown, n_slots);

		if (slot < 0)
			break;
		if (session->slots[slot].cache != cache->id) {
			session_fault_own(session, "a slot of another cache on a list");
			continue;
		}
		if (n_kept < max_kept && session->slots[slot].capacity == cache->capacity &&
			atomic_read(&shown[slot].holder) == LAYOUT_HOLDER_BARN) {
			kept[n_kept++] = (uint16_t)slot;
			continue;
		}
		if (!session_slot_take(session, (uint32_t)slot, LAYOUT_HOLDER_BARN))
			continue;
		grant_take_back(session, (uint32_t)slot, true);
		session_slot_put(session, (uint32_t)slot);
	}
	/* In the order in which they were.  Off the list nobody could take them: who finds none meanwhile asks for one. */
	while (n_kept > 0)
		barn_push(head, shown, kept[--n_kept]);
}

void
grant_trim(struct session *session, struct cache *cache)
{
	struct layout_session_cache *lists = session_cache(session, cache->id);
	uint64_t max_full = cache->max_cached / ((uint64_t)cache->capacity * cache->object_bytes);

	trim_list(session, cache, &lists->full, max_full == 0 ? 1 : max_full < LAYOUT_MAX_SLOTS ? (uint32_t)max_full : LAYOUT_MAX_SLOTS);
	trim_list(session, cache, &lists->empty, cache->barn_empty);
}

/* A grant under way. */
struct lending {
	struct session *session;
	struct cache *cache;
	uint32_t capacity;
	uint64_t room;        /* objects that the client's quota leaves */
	uint32_t want;        /* of the sheaf at hand: its capacity, or what that leaves */
	const uint8_t *nodes; /* near to far */
	unsigned n_nodes;     /* of these, those that may serve the client: all, or (node-policy strict) its own */
	struct stash *stash;  /* of the nearest; NULL: none */
	uint64_t fresh;       /* objects that may still be carved */
	bool is_ahead;        /* nobody waits for it: what others keep idle they keep */
	bool is_all_or_none;  /* a sheaf that is not full is of no use */
	uint32_t n_granted;   /* sheaves so far: for more than the first nobody else's are called in */
	bool has_looked;      /* at all sessions' returns */
	unsigned relieved; /* stages of recall_relieve() */
	int r; /* why carving failed last */
};

/* A client got memory of another node than it runs on. */
static void
note_elsewhere(const struct lending *l, const struct node *node, uint64_t n)
{
	struct arena *arena = l->session->arena;
	unsigned own = l->nodes[0];

	if (node->index != own && n && atomic_add(&arena->n_from_elsewhere[own], n) == 0)
		log_notice("arena '%s': node %u has no memory for its clients: they get objects on node %u (node-policy preferred)", arena->name,
			arena->topology.os_node[own], arena->topology.os_node[node->index]);
}

/* Objects of the barn's oldest sheaf, up to want; the rest go to their slabs. list_lock held. */
static uint32_t
open_barn_sheaf(struct lending *l, struct node *node, uint32_t *places, uint32_t want, struct node_discard *discard)
{
	struct arena *arena = l->session->arena;
	struct node_sheaf *barn = node_barn_get(node);
	uint32_t n = 0;

	for (uint32_t i = 0; barn && i < barn->size; i++) {
		struct node_place at = barn->at[i];
		struct slab_object o;

		if (n < want) {
			slab_set(arena, at.word, SLAB_OUT);
			STEP(GRANT_MARKED);
			places[n++] = at.place;
		} else if (slab_find(arena, l->cache, at.place, &o)) {
			node_put_free(arena, node, o.slab, o.word, discard);
		}
	}
	if (barn)
		node_sheaf_free(node, barn);
	return n;
}

/* Entries of a sheaf: size is in and out. */
static void
write_entries(struct sheaf *sheaf, const uint32_t *places, uint32_t n, uint32_t *size)
{
	/* Popped from the end: the lowest place comes out first. */
	for (uint32_t i = 0; i < n; i++)
		atomic_write(&sheaf->entry[*size + i], places[n - 1 - i]);
	STEP(GRANT_WRITTEN);
	*size += n;
	/* order: SHEAF_SIZE release - entries are written below it */
	atomic_write_release(&sheaf->size, *size);
	STEP(GRANT_SIZED);
}

/* From what is set aside for the client, without list_lock; but a whole sheaf of the barn is better, since it goes as it is. */
static void
fill_from_stash(struct lending *l, struct sheaf *sheaf, uint32_t *size)
{
	struct node *node = &l->cache->nodes[l->nodes[0]];
	uint32_t places[LAYOUT_MAX_SHEAF], n;

	if (!l->stash || l->stash->size == 0 || (l->capacity == l->cache->capacity && atomic_read(&node->n_full)))
		return;
	if (!MUTANT(STASH_UNLOCKED))
		pthread_mutex_lock(&l->stash->lock);
	n = stash_take(l->stash, places, l->capacity);
	write_entries(sheaf, places, n, size);
	if (!MUTANT(STASH_UNLOCKED))
		pthread_mutex_unlock(&l->stash->lock);
	atomic_add(&node->n_sheaves_granted, 1);
}

/*
 * From what is resident on the node: size is in and out.  A whole sheaf as it is, else from the slabs; sheaves are opened rather than slabs
 * carved.  fresh: a slab just carved (0: none); it joins in the same hold, so that nobody else takes it first.
 */
static void
fill_resident(struct lending *l, struct node *node, uint32_t fresh, struct sheaf *sheaf, uint32_t *size)
{
	struct arena *arena = l->session->arena;
	uint32_t places[LAYOUT_MAX_SHEAF], n = 0, want = l->want - *size;
	struct node_discard discard = {0};

	node_lock(node);
	if (fresh)
		node_add_slab(arena, node, fresh);
	if (*size == 0 && l->capacity == l->cache->capacity)
		n = open_barn_sheaf(l, node, places, want, &discard);
	if (n == 0) {
		n = node_take_free(arena, node, places, want);
		if (l->stash && node->index == l->stash->node)
			l->room -= stash_restock(l->stash, l->session, node, l->room - n);
	}
	while (n < want && node->first_full)
		n += open_barn_sheaf(l, node, places + n, want - n, &discard);
	write_entries(sheaf, places, n, size);
	session_drew(l->session, l->cache, n, (int64_t)n * l->cache->object_bytes);
	l->room -= n;
	quota_granted(l->session, (uint64_t)n * l->cache->object_bytes);
	if (n && *size == n)
		atomic_add(&node->n_sheaves_granted, 1);
	node_unlock(node);
	note_elsewhere(l, node, n);
	node_discard(arena, &discard);
}

/* Carves one slab on the nearest node that has memory, of those that may serve the client; 0: there is none. */
static uint32_t
carve(struct lending *l, struct node **nodep)
{
	struct arena *arena = l->session->arena;

	l->r = -EDQUOT;
	if (!quota_may_carve(l->session, (uint64_t)LAYOUT_PAGE_BYTES << l->cache->order))
		return 0;
	for (unsigned i = 0; i < l->n_nodes; i++) {
		struct node *node = &l->cache->nodes[l->nodes[i]];
		uint32_t slab;

		l->r = slab_new(arena, l->cache, node->index, &slab);
		if (l->r < 0)
			continue;
		l->fresh -= arena->slabs[slab].n_objects < l->fresh ? arena->slabs[slab].n_objects : l->fresh;
		*nodep = node;
		return slab;
	}
	return 0;
}

/* Objects for one slot, up to its capacity. Returns how many. */
static uint32_t
fill(struct lending *l, uint32_t slot)
{
	struct sheaf *sheaf = session_sheaf(l->session, slot);
	struct node *node = &l->cache->nodes[l->nodes[0]];
	uint32_t size = 0, fresh;

	if (atomic_read(&sheaf->size) != 0)
		grant_take_back(l->session, slot, false);
	/* Touched here, so that no page fault falls under the lock. */
	atomic_write(&sheaf->size, 0);
	fill_from_stash(l, sheaf, &size);
	l->want = l->room < l->capacity - size ? size + (uint32_t)l->room : l->capacity;
	if (size < l->want)
		fill_resident(l, node, 0, sheaf, &size);
	while (size < l->want) {
		if (!l->has_looked) {
			l->has_looked = true;
			session_for_each(l->session->arena, l->session, l->cache, grant_flush);
			fill_resident(l, node, 0, sheaf, &size);
		} else if (l->fresh && (fresh = carve(l, &node)) != 0) {
			fill_resident(l, node, fresh, sheaf, &size);
		} else if ((size > 0 && !l->is_all_or_none) || l->r == 0 || l->n_granted) {
			break; /* a part of a sheaf, or fewer sheaves, rather than more memory */
		} else if (!l->is_ahead && recall_relieve(l->session, l->cache, &l->relieved)) {
			l->stash = NULL; /* no time to set anything aside */
			l->fresh = l->fresh ? l->fresh : l->capacity;
			for (unsigned i = 0; i < l->n_nodes && size < l->want; i++)
				fill_resident(l, &l->cache->nodes[l->nodes[i]], 0, sheaf, &size);
		} else {
			break;
		}
	}
	return size;
}

static uint64_t
carved_objects(struct cache *cache)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < cache->n_nodes; i++)
		n += atomic_read(&cache->nodes[i].n_objects);
	return n;
}

/* Sheaves that a refill may bring, on top of what lies there: one at least if somebody waits. */
static uint32_t
fair_sheaves(struct session *session, struct cache *cache, bool is_ahead)
{
	uint64_t n = atomic_read(&cache->n_openers) + !atomic_read(&cache->n_openers), few = FAIR_BYTES / (n * n);
	uint64_t many = carved_objects(cache) * cache->object_bytes / FAIR_SHARE / n;
	uint64_t fair = (few > many ? few : many) / ((uint64_t)cache->capacity * cache->object_bytes);
	uint32_t n_there = barn_count(atomic_read(&session_cache(session, cache->id)->full));

	fair = fair > n_there ? fair - n_there : !is_ahead;
	return fair < MAX_SHEAVES ? (uint32_t)fair : MAX_SHEAVES;
}

/* Begins the sentence with what is in the way of the other nodes' memory; its length. */
static size_t
explain_node(const struct lending *l, char *why, size_t why_size)
{
	const struct arena *arena = l->session->arena;

	if (l->n_nodes == l->cache->n_nodes)
		return 0;
	return (size_t)snprintf(why, why_size, "node %u alone may serve this client (node-policy=strict in [arena %s]): ",
		arena->topology.os_node[l->nodes[0]], arena->name);
}

static int
explain_shortage(const struct lending *l, char *why, size_t why_size)
{
	size_t used = explain_node(l, why, why_size);
	struct arena *arena = l->session->arena;
	char note[sizeof arena->page_note], top[STATS_TOP_BYTES] = "";
	uint64_t idle_bytes;
	const struct session *idlest = recall_idlest(arena, &idle_bytes);

	pthread_mutex_lock(&arena->ledger_lock);
	memcpy(note, arena->page_note, sizeof note);
	pthread_mutex_unlock(&arena->ledger_lock);
	why += used;
	why_size -= used;
	if (l->r == -ENOSPC)
		stats_top_holder(arena, top, sizeof top);
	if (l->r == -ENOSPC && idlest)
		snprintf(why, why_size, "arena '%s' is full: its limit is %llu bytes (--arena-size); client %u (pid %d, '%s') keeps most idle, %llu bytes%s%s",
			arena->name, (unsigned long long)arena->options.limit_bytes, idlest->id, idlest->pid, idlest->label,
			(unsigned long long)idle_bytes, *top ? "; " : "", top);
	else if (l->r == -ENOSPC)
		snprintf(why, why_size, "arena '%s' is full: its limit is %llu bytes (--arena-size), and nobody keeps anything idle%s%s", arena->name,
			(unsigned long long)arena->options.limit_bytes, *top ? "; " : "", top);
	else if (l->r == -EDQUOT)
		snprintf(why, why_size, "what is left of arena '%s' is kept for clients that have less than client-min, %llu bytes", arena->name,
			(unsigned long long)arena->options.client_min);
	else
		snprintf(why, why_size, "no memory for cache '%s': %s", l->cache->name, l->r == -EOVERFLOW ? "the word table is full" : note);
	return -ENOMEM;
}

/* Carves a run into an empty slot, on the nearest node that has one. */
static bool
carve_run(struct lending *l, uint32_t n_pages, uint32_t slot)
{
	struct sheaf *sheaf = session_sheaf(l->session, slot);
	struct arena *arena = l->session->arena;

	l->r = -EDQUOT;
	if (!quota_may_carve(l->session, (uint64_t)n_pages * LAYOUT_PAGE_BYTES))
		return false;
	for (unsigned i = 0; i < l->n_nodes; i++) {
		struct node *node = &l->cache->nodes[l->nodes[i]];
		uint32_t slab;

		l->r = slab_new_run(arena, l->cache, node->index, n_pages, &slab);
		if (l->r < 0)
			continue;
		node_lock(node);
		node_add_run(arena, node, slab);
		atomic_write(&sheaf->entry[0], slab_place(arena, l->cache, slab, 0));
		STEP(GRANT_WRITTEN);
		session_drew(l->session, l->cache, 1, (int64_t)n_pages * LAYOUT_PAGE_BYTES);
		quota_granted(l->session, (uint64_t)n_pages * LAYOUT_PAGE_BYTES);
		/* order: SHEAF_SIZE release - the entry is written below it */
		atomic_write_release(&sheaf->size, 1);
		STEP(GRANT_SIZED);
		atomic_add(&node->n_sheaves_granted, 1);
		node_unlock(node);
		note_elsewhere(l, node, 1);
		return true;
	}
	return false;
}

/* A run for the application, in a sheaf of its own; before ENOMEM everything idle is called in. */
static int
lend_run(struct lending *l, uint32_t n_pages, struct grant *grant, char *why, size_t why_size)
{
	struct arena *arena = l->session->arena;
	size_t used;
	int32_t slot;

	if (n_pages == 0) {
		snprintf(why, why_size, "cache '%s' has runs of pages: slabc_malloc() makes them", l->cache->name);
		return -EINVAL;
	}
	/* What can never be is no reason to call in what others have idle. */
	if ((uint64_t)n_pages * LAYOUT_PAGE_BYTES > arena->options.limit_bytes) {
		snprintf(why, why_size, "%u pages are more than arena '%s' may have: its limit is %llu bytes (--arena-size)", n_pages, arena->name,
			(unsigned long long)arena->options.limit_bytes);
		return -ENOMEM;
	}
	if (quota_room(l->session, (uint64_t)n_pages * LAYOUT_PAGE_BYTES, (uint64_t)n_pages * LAYOUT_PAGE_BYTES, true, why, why_size) == 0)
		return -EDQUOT;
	slot = session_slot_get(l->session, l->cache, 1);
	if (slot < 0) {
		snprintf(why, why_size, "the session has lent all its %d sheaves", LAYOUT_MAX_SLOTS);
		return slot;
	}
	if (atomic_read(&session_sheaf(l->session, (uint32_t)slot)->size) != 0)
		grant_take_back(l->session, (uint32_t)slot, false);
	atomic_write(&session_sheaf(l->session, (uint32_t)slot)->size, 0);
	while (!carve_run(l, n_pages, (uint32_t)slot)) {
		if (recall_relieve(l->session, l->cache, &l->relieved))
			continue;
		session_slot_put(l->session, (uint32_t)slot);
		if (l->r != -ENOSPC)
			return explain_shortage(l, why, why_size);
		used = explain_node(l, why, why_size);
		snprintf(why + used, why_size - used, "arena '%s' has no %u pages side by side left: its limit is %llu bytes (--arena-size), %llu are committed",
			arena->name, n_pages, (unsigned long long)arena->options.limit_bytes,
			(unsigned long long)atomic_read(&arena->committed_bytes));
		return -ENOMEM;
	}
	hand_out(l->session, l->cache, (uint32_t)slot, true, false);
	*grant = (struct grant){.n_sheaves = 1, .n_objects = 1, .slot = (uint32_t)slot};
	return 0;
}

/* Slots for objects to come. */
static int
lend_empty(struct session *session, struct cache *cache, uint32_t want, struct grant *grant, char *why, size_t why_size)
{
	do {
		int32_t slot = session_slot_lend(session, cache, cache->capacity);

		if (slot < 0 && grant->n_sheaves == 0) {
			snprintf(why, why_size, "the session has lent all its %d sheaves", LAYOUT_MAX_SLOTS);
			return slot;
		}
		if (slot < 0)
			break;
		atomic_write(&session_sheaf(session, (uint32_t)slot)->size, 0);
		hand_out(session, cache, (uint32_t)slot, false, true);
		grant->n_sheaves++;
		grant->slot = (uint32_t)slot;
	} while (grant->n_sheaves < want);
	return 0;
}

/* What the client's quota leaves, into l->room; 0: nothing is to be lent, and no error. */
static int
find_room(struct lending *l, uint32_t want, struct grant *grant, char *why, size_t why_size)
{
	uint64_t bytes = l->cache->object_bytes, least = l->is_all_or_none ? l->capacity * bytes : bytes;
	uint64_t most = ((uint64_t)want * l->capacity + (l->stash ? l->cache->cpu_partial : 0)) * bytes;

	l->room = quota_room(l->session, least, most, false, why, why_size) / bytes;
	if (l->room > 0 || l->is_ahead)
		return 0;
	/* What was asked for ahead comes first. */
	if (!l->is_all_or_none && barn_count(atomic_read(&session_cache(l->session, l->cache->id)->full)) > 0) {
		grant->n_sheaves = 1;
		return 0;
	}
	l->room = quota_room(l->session, least, most, true, why, why_size) / bytes;
	return l->room > 0 ? 0 : -EDQUOT;
}

int
grant_refill(struct session *session, struct cache *cache, const struct grant_request *request, struct grant *grant, char *why,
	size_t why_size)
{
	struct arena *arena = session->arena;
	bool to_app = request->capacity != 0;
	int r;
	uint32_t want = request->n_sheaves < MAX_SHEAVES ? request->n_sheaves : MAX_SHEAVES;
	uint64_t share = carved_objects(cache) / CARVE_SHARE; /* objects */
	struct lending l = {
		.session = session,
		.cache = cache,
		.capacity = to_app ? request->capacity : cache->capacity,
		.is_all_or_none = to_app,
		.is_ahead = request->is_ahead,
		.nodes = arena->topology.order[topology_node_of_os_node(&arena->topology, request->os_node)],
		.n_nodes = arena->options.is_node_strict ? 1 : cache->n_nodes,
	};

	if (l.capacity > LAYOUT_MAX_SHEAF) {
		snprintf(why, why_size, "a sheaf of %u objects is above the limit of %d", l.capacity, LAYOUT_MAX_SHEAF);
		return -EINVAL;
	}
	if (request->n_pages && !(cache->flags & LAYOUT_CACHE_RUNS)) {
		snprintf(why, why_size, "cache '%s' has no runs of pages", cache->name);
		return -EINVAL;
	}
	l.fresh = to_app || share < (uint64_t)l.capacity * CARVE_MIN_SHEAVES ? (uint64_t)l.capacity * CARVE_MIN_SHEAVES : share;
	*grant = (struct grant){0};
	grant_flush(session, cache);
	if (want == 0)
		return lend_empty(session, cache, request->n_empty < MAX_SHEAVES ? request->n_empty : MAX_SHEAVES, grant, why, why_size);
	if (cache->flags & LAYOUT_CACHE_RUNS)
		return lend_run(&l, request->n_pages, grant, why, why_size);
	if (!to_app) {
		uint32_t fair = fair_sheaves(session, cache, request->is_ahead);

		want = want < fair ? want : fair;
		if (want == 0)
			return 0;
	}
	l.stash = stash_get(session, cache, &cache->nodes[l.nodes[0]]);
	r = find_room(&l, want, grant, why, why_size);
	if (r < 0 || l.room == 0)
		return r;
	do {
		int32_t slot = session_slot_get(session, cache, l.capacity);
		uint32_t n;

		if (slot < 0 && grant->n_sheaves == 0) {
			snprintf(why, why_size, "the session has lent all its %d sheaves", LAYOUT_MAX_SLOTS);
			return slot;
		}
		if (slot < 0)
			break;
		n = fill(&l, (uint32_t)slot);
		if (n < (to_app ? l.capacity : 1)) {
			if (n)
				grant_take_back(session, (uint32_t)slot, false);
			session_slot_put(session, (uint32_t)slot);
			if (grant->n_sheaves == 0)
				return explain_shortage(&l, why, why_size);
			break;
		}
		hand_out(session, cache, (uint32_t)slot, to_app, false);
		l.n_granted = ++grant->n_sheaves;
		grant->n_objects += n;
		grant->slot = (uint32_t)slot;
	} while (grant->n_sheaves < want && !to_app && l.room > 0);
	return 0;
}
