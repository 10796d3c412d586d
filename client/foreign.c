/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's foreign sheaf: objects of other clients, freed here by pointer, and claimed later in a batch (design.md, I1b;
 * tests/model/foreign_sheaf.pml).  A claim in each free would be a locked instruction that waits for the word's cache line.
 *
 *     foreign sheaf   | place | place | place |     busy: SHEAF_UNSETTLED; layout_slot.next: the record's slot + 1
 *     record          | word  | word  | word  |     each as it was read at the free; size 0, busy for good
 *
 * Settling, in the order of the stores:
 *   each word by compare-and-swap from exactly the recorded one to (me, CLOSING, same generation); whose claim is lost goes out of the
 * sheaf, THEN one store makes it an ordinary sheaf, THEN its words are cleared, THEN it changes hands. So at any instant slabd can tell
 * from the sheaf alone what is to be done for a client that died: unsettled, each entry whose word is the recorded one or a claim of this
 * client's in the same life; settled, each as in any other sheaf.
 *
 * A claim is lost to whoever adopted or freed the object since, and not tried again: the adopter keeps it.  The loser is a double free,
 * counted and reported when it is found out.
 *
 * The record is the thread's (holder THREAD, busy, so that no revocation takes it) and serves one foreign sheaf after the other; but of one that
 * slabd has taken not before that is empty, since so far slabd reads it.
 */
#include "client/internal.h"

#include <time.h>

/* Two rules broken at will: the claim from the word as it is, and tried again like one made in the free. */
static bool
claim_wrongly(const struct slabc_cache *k, uint32_t *word, uint32_t recorded)
{
	uint32_t w = atomic_read(word);

	if (MUTANT(MINE_IS_CLAIMED) && w == word_with(recorded, k->v.me, WORD_CLOSING))
		return true;
	if (!MUTANT(CLAIM_AS_NOW) && !(MUTANT(LOSER_RETRIES) && word_generation(w) == word_generation(recorded)))
		return false;
	return sheaf_is_foreign(&k->v, w) && atomic_cas(word, &w, word_with(w, k->v.me, WORD_CLOSING));
}

static bool
claim(const struct slabc_cache *k, uint32_t *word, uint32_t recorded)
{
	uint32_t w = recorded;

	STEP(CLAIM_READ);
	if (!atomic_cas(word, &w, word_with(recorded, k->v.me, WORD_CLOSING)))
		return claim_wrongly(k, word, recorded);
	STEP(CLAIM_MADE);
	return true;
}

/* A sheaf that is being settled; it is busy. */
struct settling {
	struct slabc_cache *k;
	struct sheaf *s;
	struct sheaf *record;
	uint32_t *word[LAYOUT_MAX_SHEAF]; /* of its entries */
};

/*
 * Takes entry i out, whose claim is lost; those above it are claimed, and the topmost takes its place.  A tombstone first, so that no place
 * ever stands beside another object's word; a claimed entry may be there twice: slabd finds its word clear the second time.
 */
static void
bury(struct settling *g, uint32_t i)
{
	uint32_t top = atomic_read(&g->s->size) - 1;

	if (i != top) {
		/* Releases for the compiler's sake: who reads this reads it of a dead client. */
		atomic_write_release(&g->s->entry[i], SHEAF_TOMBSTONE);
		STEP(SETTLE_LOST);
		atomic_write_release(&g->record->entry[i], atomic_read(&g->record->entry[top]));
		atomic_write_release(&g->s->entry[i], atomic_read(&g->s->entry[top]));
		g->word[i] = g->word[top];
		STEP(SETTLE_MOVED);
	}
	/* order: SHEAF_SIZE release - the entry that has moved is in its place */
	atomic_write_release(&g->s->size, top);
}

/* Makes the claims, from the top. */
static void
claim_all(struct settling *g)
{
	uint32_t n = atomic_read(&g->s->size), n_lost = 0;
	struct slabc_cache *k = g->k;

	for (uint32_t i = n; i-- > 0;) {
		uint32_t place = atomic_read(&g->s->entry[i]);

		g->word[i] = sheaf_word(&k->v, place);
		if (claim(k, g->word[i], atomic_read(&g->record->entry[i])))
			continue;
		bury(g, i);
		n_lost++;
		thread_fault(k, FAULT_DOUBLE, k->v.base + ((uint64_t)place << LAYOUT_PLACE_SHIFT));
	}
	if (n > n_lost)
		atomic_add(&k->shown->n_foreign_frees, n - n_lost);
}

static void
clear_all(struct settling *g)
{
	uint32_t n = atomic_read(&g->s->size);

	for (uint32_t i = 0; i < n; i++) {
		/* order: WORD release - the object is in an ordinary sheaf before its word is clear */
		atomic_write_release(g->word[i], word_cleared(atomic_read(&g->record->entry[i])));
		if (i == 0)
			STEP(SETTLE_CLEARING);
	}
}

/* Makes it an ordinary sheaf with clear words. */
static void
settle(struct settling *g)
{
	claim_all(g);
	STEP(SETTLE_DECIDED);
	if (MUTANT(CLEAR_UNSETTLED))
		clear_all(g);
	/* order: SETTLED release - every entry is claimed before they count as places */
	atomic_write_release(&g->s->busy, SHEAF_BUSY);
	STEP(SETTLE_SETTLED);
	if (!MUTANT(CLEAR_UNSETTLED) && !MUTANT(HAND_OVER_BEFORE_CLEAR))
		clear_all(g);
}

/* Two rules broken at will: the sheaf changes hands before its claims are made, or its words cleared. */
static void
hand_over_first(struct settling *g, struct thread_block *tb, uint32_t slot)
{
	if (MUTANT(HAND_OVER_BEFORE_CLEAR))
		settle(g);
	atomic_write_release(&g->s->busy, SHEAF_BUSY);
	barn_put(g->k, slot, g->s, thread_holder(tb));
	if (MUTANT(HAND_OVER_UNSETTLED))
		claim_all(g);
	clear_all(g);
}

/* Has it objects of other nodes than the thread's?  Then nobody is to allocate from it here. */
static bool
has_away(const struct slabc_cache *k, const struct thread_cache *t, struct sheaf *s)
{
	uint32_t n = k->mark & SHEAF_NODED ? atomic_read(&s->size) : 0;

	while (n > 0 && !node_is_away(k, t, atomic_read(&s->entry[n - 1])))
		n--;
	return n > 0;
}

void
foreign_flush(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t)
{
	uint32_t slot = (uint32_t)t->foreign_slot;
	struct sheaf *s = t->foreign;
	struct settling g;

	if (!s)
		return;
	g.k = k;
	g.s = s;
	g.record = t->record;
	/* A handler must not find it. */
	atomic_write(&t->foreign, (struct sheaf *)NULL);
	t->foreign_slot = CLIENT_NO_SLOT;
	/* Else slabd revoked it, and makes the claims; should it never end with that, nobody ever writes into the record again. */
	if (!sheaf_shut(k, slot, s, thread_holder(tb))) {
		uint32_t holder = atomic_read(&k->c->slots[slot].holder);

		if (holder == LAYOUT_HOLDER_RECALLED || holder == thread_holder(tb)) {
			t->record = NULL;
			t->record_slot = CLIENT_NO_SLOT;
		}
		return;
	}
	if (MUTANT(HAND_OVER_UNSETTLED) || MUTANT(HAND_OVER_BEFORE_CLEAR)) {
		hand_over_first(&g, tb, slot);
		return;
	}
	settle(&g);
	/* Who frees what others make hardly wants it himself. */
	if (has_away(k, t, s)) {
		barn_return(k, slot, s, thread_holder(tb));
		return;
	}
	/* Of the cache's kind again. */
	atomic_write(&s->busy, k->mark | SHEAF_BUSY);
	if (barn_count(atomic_read(&k->shown->full)) > atomic_read(&k->keep) / 8)
		rack_put_back(k, tb, slot, s);
	else
		rack_put(k, tb, slot, s);
}

static uint16_t
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint16_t)now.tv_sec;
}

void
foreign_flush_old(struct slabc_cache *k, struct thread_block *tb)
{
	struct thread_cache *t = &tb->cache[k->v.index];

	if (t->foreign && (uint16_t)(now_s() - t->opened_s) >= FOREIGN_MAX_AGE_S)
		foreign_flush(k, tb, t);
}

static void
drop_record(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t)
{
	struct sheaf *record = t->record;
	int32_t slot = t->record_slot;

	t->record = NULL;
	t->record_slot = CLIENT_NO_SLOT;
	if (record)
		barn_put(k, (uint32_t)slot, record, thread_holder(tb));
}

void
foreign_drop(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t)
{
	foreign_flush(k, tb, t);
	drop_record(k, tb, t);
}

/* A record with room for what fits a sheaf of that capacity. */
static bool
get_record(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t, uint32_t capacity, int64_t *deadlinep)
{
	struct sheaf *record;
	int16_t slot;

	if (t->record && k->c->slots[t->record_slot].capacity >= capacity)
		return true;
	drop_record(k, tb, t);
	if (!thread_get_empty(k, tb, deadlinep, &record, &slot))
		return false;
	/* For good: nobody pops, pushes or takes it. */
	atomic_write(&record->busy, SHEAF_BUSY);
	t->record = record;
	t->record_slot = slot;
	/* Capacities differ while they are tuned: then it may still be too small. */
	return k->c->slots[slot].capacity >= capacity;
}

static void
foreign_open(struct slabc_cache *k, struct thread_cache *t, struct sheaf *s, int16_t slot)
{
	atomic_write(&k->c->slots[slot].next, (uint32_t)t->record_slot + 1);
	/* order: SETTLED release - it is empty, and names its record, before it is unsettled */
	atomic_write_release(&s->busy, SHEAF_UNSETTLED);
	STEP(FOREIGN_OPENED);
	t->opened_s = now_s();
	t->foreign_slot = slot;
	atomic_write(&t->foreign, s);
}

static bool
foreign_new(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t, int64_t *deadlinep)
{
	struct sheaf *s;
	int16_t slot;

	if (!thread_get_empty(k, tb, deadlinep, &s, &slot))
		return false;
	if (!get_record(k, tb, t, k->c->slots[slot].capacity, deadlinep)) {
		barn_put(k, (uint32_t)slot, s, thread_holder(tb));
		return false;
	}
	foreign_open(k, t, s, slot);
	return true;
}

bool
foreign_change_now(struct slabc_cache *k, struct thread_block *tb)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->foreign;
	int32_t slot;

	/* A handler may have come in between the free's look and ours. */
	if (!s || !t->record || !sheaf_is_plain(k, s))
		return false;
	slot = rack_get(k, tb, RACK_EMPTY, &s);
	if (slot == CLIENT_NO_SLOT)
		return false;
	foreign_flush(k, tb, t);
	/* By their slots: what sheaves have now may have been tuned meanwhile. */
	if (!t->record || k->c->slots[t->record_slot].capacity < k->c->slots[slot].capacity || !sheaf_is_plain(k, s) ||
		atomic_read(&s->size) != 0) {
		barn_put(k, (uint32_t)slot, s, thread_holder(tb));
		return false;
	}
	foreign_open(k, t, s, (int16_t)slot);
	return true;
}

bool
foreign_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->foreign;

	if (s && sheaf_look(s) < 0) {
		/* Revoked, and slabd is about to take it, or at its record still. Who frees need not wait for that. */
		if (!sheaf_forget(k, thread_holder(tb), &t->foreign, &t->foreign_slot, NULL))
			return false;
	} else if (s && (uint32_t)sheaf_look(s) < atomic_read(&s->limit)) {
		return true;
	} else {
		foreign_flush(k, tb, t);
	}
	return foreign_new(k, tb, t, deadlinep);
}
