/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's rack: sheaves in hand beside main and spare, those with objects and those without, each kind a stack.
 *
 *     main, spare  <-->  rack  <-- some at a time -->  process barn
 *
 * Between rack and barn sheaves go by the half rack, at most CLIENT_RACK_BATCH: one compare-and-swap of the list for all of them.  Whoever would
 * find nothing in the barn comes first: a handler that interrupted the library, another thread; so a sheaf that is put down goes to the barn as
 * long as that has none of its kind, and at most half of what lies there is taken, and one.
 *
 * The sheaves are the thread's (holder THREAD), open (sheaf_open()), and not entered: slabd recalls them as it does main and spare.  One that is revoked stays
 * until its holder word says that slabd has it, and is then let go of.  The stacks themselves are private, and touched from inside the library
 * only; after a kill slabd finds the sheaves by their slots (I2).
 */
#include "client/internal.h"

enum { RACK_WORDS = 8 };

static uint32_t
limit_of(const struct slabc_cache *k, enum rack_kind kind)
{
	return atomic_read(kind == RACK_FULL ? &k->rack_full : &k->rack_empty);
}

static inline void
push(struct rack *r, uint32_t slot, struct sheaf *s)
{
	uint32_t n = r->n;

	r->n_fresh = n < r->n_fresh ? n : r->n_fresh;
	r->sheaf[n] = s;
	r->slot[n] = (uint16_t)slot;
	r->n = n + 1;
	STEP(RACK_PUT);
}

/* Takes entry i out; the topmost takes its place. */
static void
remove_entry(struct rack *r, uint32_t i)
{
	r->n--;
	r->sheaf[i] = r->sheaf[r->n];
	r->slot[i] = r->slot[r->n];
}

/* The newest that can be used. */
static int32_t
take(struct slabc_cache *k, const struct thread_block *tb, struct rack *r, struct sheaf **sheafp)
{
	for (uint32_t i = r->n; i-- > 0;) {
		struct sheaf *s = r->sheaf[i];
		uint32_t slot = r->slot[i];
		int32_t n = sheaf_look(s);

		if (n < 0 && atomic_read(&k->c->slots[slot].holder) == thread_holder(tb))
			continue;
		remove_entry(r, i);
		STEP(RACK_TAKEN);
		if (n >= 0) {
			*sheafp = s;
			return (int32_t)slot;
		}
		sheaf_let_go(k, slot);
	}
	return CLIENT_NO_SLOT;
}

/* Moves some from the barn to r, which has none that can be used.  false: there are none. */
static bool
fill(struct slabc_cache *k, const struct thread_block *tb, struct rack *r, enum rack_kind kind)
{
	uint64_t *head = kind == RACK_FULL ? &k->shown->full : &k->shown->empty;
	uint32_t limit = limit_of(k, kind), want = barn_count(atomic_read(head)) / 2 + 1, n;
	bool is_fresh;

	/* One is for use at once. */
	if (want > limit / 2 + 1)
		want = limit / 2 + 1;
	if (want > CLIENT_RACK_BATCH)
		want = CLIENT_RACK_BATCH;
	/* What slabd is about to take lies there still. */
	if (want > CLIENT_RACK + 1 - r->n)
		want = CLIENT_RACK + 1 - r->n;
	n = want ? barn_get_some(k, head, thread_holder(tb), want, r->slot + r->n, r->sheaf + r->n, &is_fresh) : 0;
	r->n += n;
	r->n_fresh = n && is_fresh ? r->n : 0;
	if (kind == RACK_FULL)
		atomic_write(&k->shown->n_barn_gets, atomic_read(&k->shown->n_barn_gets) + n);
	STEP(RACK_FILLED);
	return r->n > 0;
}

/* What another client has used lies in its processor's cache: objects and words are asked for while the sheaf before this one is used. */
static void
prefetch(const struct slabc_cache *k, const struct sheaf *s)
{
	uint32_t n = atomic_read(&s->size);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = atomic_read(&s->entry[i]);

		atomic_prefetch_write(k->v.base + ((uint64_t)place << LAYOUT_PLACE_SHIFT));
		/* Neighbours have their words in one line. */
		if (i % RACK_WORDS == 0 && !k->is_wordless)
			atomic_prefetch_write(sheaf_word(&k->v, place));
	}
}

static void
prefetch_next(const struct slabc_cache *k, const struct rack *r)
{
	if (r->n > 0 && r->n <= r->n_fresh)
		prefetch(k, r->sheaf[r->n - 1]);
}

int32_t
rack_get(struct slabc_cache *k, struct thread_block *tb, enum rack_kind kind, struct sheaf **sheafp)
{
	struct rack *r = &tb->rack[k->v.index][kind];
	int32_t slot = r->n > 0 ? take(k, tb, r, sheafp) : CLIENT_NO_SLOT;

	if (slot == CLIENT_NO_SLOT && fill(k, tb, r, kind)) {
		slot = take(k, tb, r, sheafp);
		if (kind == RACK_FULL)
			cache_ask_ahead(k, r->n);
	}
	if (kind == RACK_FULL)
		prefetch_next(k, r);
	return slot;
}

/*
 * Moves `used`, which the thread no longer uses, and the newest of kind `want` past each other, where no more is to be done than that: no sheaf is
 * revoked, or of another size than now, there is room, and the barn has of its kind.  Else CLIENT_NO_SLOT.
 */
static inline __attribute__((always_inline)) int32_t
exchange(struct slabc_cache *k, struct thread_block *tb, enum rack_kind want, uint32_t used_slot, struct sheaf *used, struct sheaf **sheafp)
{
	enum rack_kind kind = want == RACK_FULL ? RACK_EMPTY : RACK_FULL;
	struct rack *from = &tb->rack[k->v.index][want], *to = &tb->rack[k->v.index][kind];
	uint64_t head = atomic_read(kind == RACK_FULL ? &k->shown->full : &k->shown->empty);
	uint32_t n = from->n;
	struct sheaf *s;

	if (n == 0 || to->n >= limit_of(k, kind) || barn_count(head) == 0 || cache_has_news(k))
		return CLIENT_NO_SLOT;
	n--;
	s = from->sheaf[n];
	if (!sheaf_is_plain(k, s) || (want == RACK_FULL) != (atomic_read(&s->size) > 0))
		return CLIENT_NO_SLOT;
	from->n = n;
	STEP(RACK_TAKEN);
	push(to, used_slot, used);
	if (want == RACK_FULL)
		prefetch_next(k, from);
	*sheafp = s;
	return from->slot[n];
}

static inline __attribute__((always_inline)) bool
change_main(struct slabc_cache *k, struct thread_block *tb, enum rack_kind want)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->spare, *old = tb->main[k->v.index];
	int32_t slot = t->spare_slot;
	uint32_t n;

	if (!s || !sheaf_is_plain(k, s) || !sheaf_is_plain(k, old))
		return false;
	n = atomic_read(&s->size);
	if (want == RACK_FULL ? n == 0 : n >= atomic_read(&k->capacity))
		slot = exchange(k, tb, want, (uint32_t)slot, s, &s);
	if (slot == CLIENT_NO_SLOT)
		return false;
	t->spare = old;
	t->spare_slot = t->main_slot;
	t->main_slot = (int16_t)slot;
	atomic_write(&tb->main[k->v.index], s);
	STEP(SWAP);
	return true;
}

bool
rack_change_for_alloc(struct slabc_cache *k, struct thread_block *tb)
{
	return change_main(k, tb, RACK_FULL);
}

bool
rack_change_for_free(struct slabc_cache *k, struct thread_block *tb)
{
	return change_main(k, tb, RACK_EMPTY);
}

/* Half goes to the barn, or to slabd: the newer one, so that the barn, which is a stack too, gives it back first. */
static void
give_half(struct slabc_cache *k, const struct thread_block *tb, struct rack *r, bool is_wanted)
{
	uint32_t n = r->n / 2 + 1 < CLIENT_RACK_BATCH ? r->n / 2 + 1 : CLIENT_RACK_BATCH;

	r->n -= n;
	STEP(RACK_GIVEN);
	barn_put_some(k, n, r->slot + r->n, r->sheaf + r->n, thread_holder(tb), is_wanted);
}

void
rack_put(struct slabc_cache *k, struct thread_block *tb, uint32_t slot, struct sheaf *s)
{
	int32_t n = sheaf_look(s);
	enum rack_kind kind = n > 0 ? RACK_FULL : RACK_EMPTY;
	struct rack *r = &tb->rack[k->v.index][kind];
	uint32_t limit;

	cache_learn(k);
	limit = limit_of(k, kind);
	if (r->n > 0 && r->n >= limit)
		give_half(k, tb, r, true);
	if (n < 0 || limit == 0 || k->c->slots[slot].capacity != atomic_read(&k->capacity) ||
		barn_count(atomic_read(kind == RACK_FULL ? &k->shown->full : &k->shown->empty)) == 0) {
		barn_put(k, slot, s, thread_holder(tb));
		return;
	}
	push(r, slot, s);
}

void
rack_put_back(struct slabc_cache *k, struct thread_block *tb, uint32_t slot, struct sheaf *s)
{
	struct rack *r = &tb->rack[k->v.index][RACK_FULL];

	if (r->n >= CLIENT_RACK_BATCH)
		give_half(k, tb, r, false);
	if (limit_of(k, RACK_FULL) < CLIENT_RACK_BATCH || sheaf_look(s) <= 0) {
		barn_return(k, slot, s, thread_holder(tb));
		return;
	}
	push(r, slot, s);
}

void
rack_drop(struct slabc_cache *k, struct thread_block *tb, bool is_forgotten)
{
	for (enum rack_kind kind = RACK_FULL; kind <= RACK_EMPTY; kind++) {
		struct rack *r = &tb->rack[k->v.index][kind];

		while (r->n > 0) {
			r->n--;
			if (!is_forgotten)
				barn_put(k, r->slot[r->n], r->sheaf[r->n], thread_holder(tb));
		}
		r->n_fresh = 0;
	}
}
