/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's sheaves: allocation, and room for frees.
 *
 * Layers, fastest first: main sheaf, spare sheaf, rack, process barn, slabd.  Main and spare are the thread's (holder THREAD + number); they are
 * touched only between busy = 1 and busy = 0, since a signal handler, or slabd after a revocation, may want the same sheaf.  A sheaf is put
 * in main's place before the old one is handed on, so a handler always finds a usable main, a busy one, or none.
 *
 * Nested calls (thread_enter() said no) take no lock, send nothing and wait for nobody: they borrow a sheaf of the process barn for one
 * object.
 */
#include "client/internal.h"

#include <string.h>

/* In an arena of several nodes both kinds of sheaf are slow at first. */
static __attribute__((noinline)) void *
alloc_noded(struct slabc_cache *k, struct sheaf *s)
{
	void *p = k->mark & SHEAF_NODED ? sheaf_take(k, s) : NULL;

	return p ? p : thread_alloc_slow(k);
}

CLIENT_HOT void *
slabc_alloc(struct slabc_cache *k)
{
	void *p = sheaf_alloc(&k->v, tls.main[k->v.index]);

	return __builtin_expect(p != NULL, 1) ? p : alloc_noded(k, tls.main[k->v.index]);
}

void *
slabc_zalloc(struct slabc_cache *k)
{
	void *p = slabc_alloc(k);

	return p ? memset(p, 0, k->v.object_bytes) : NULL;
}

/* Sheaves of the thread */

uint32_t
thread_limit(const struct slabc_cache *k, const struct sheaf *s)
{
	if (s == &no_sheaf || atomic_read(&s->floor) == SHEAF_REVOKED)
		return 0;
	return k->is_single ? 1 : atomic_read(&s->limit);
}

static bool
has_room(const struct slabc_cache *k, struct sheaf *s)
{
	int32_t n = sheaf_look(s);

	return n >= 0 && (uint32_t)n < thread_limit(k, s);
}

/* Main and spare change places. */
static void
swap_spare(struct slabc_cache *k, struct thread_block *tb)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->spare;
	int32_t slot = t->spare_slot;

	t->spare_slot = t->main_slot;
	t->spare = t->main_slot == CLIENT_NO_SLOT ? NULL : tb->main[k->v.index];
	t->main_slot = slot;
	atomic_write(&tb->main[k->v.index], s);
	STEP(SWAP);
}

/*
 * A new main sheaf.  The old one becomes the spare, and the old spare goes on; not the old one itself, which a call that we interrupted, being a handler,
 * may have been about to enter: it stays the thread's.  Unless slabd is about to take the spare.
 */
static void
put_main(struct slabc_cache *k, struct thread_block *tb, int32_t slot, struct sheaf *s)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *going = tb->main[k->v.index];
	int32_t going_slot = t->main_slot;

	t->main_slot = slot;
	atomic_write(&tb->main[k->v.index], s);
	if (!k->is_single && going_slot != CLIENT_NO_SLOT && !(t->spare && sheaf_look(t->spare) < 0)) {
		struct sheaf *old_main = going;
		int32_t old_slot = going_slot;

		going = t->spare;
		going_slot = t->spare_slot;
		t->spare = old_main;
		t->spare_slot = old_slot;
	}
	if (going_slot != CLIENT_NO_SLOT)
		rack_put(k, tb, (uint32_t)going_slot, going);
}

static int
check_deadline(const struct slabc_cache *k, int64_t *deadlinep)
{
	int64_t deadline = session_deadline(k->c, deadlinep);

	if (deadline == CLIENT_FOR_EVER || session_now_ns() < deadline)
		return 0;
	return error_set(ETIMEDOUT, "cache '%s': no sheaf was to be had within timeout_ms %d; raise struct slabc_options' timeout_ms",
		k->name, k->c->timeout_ms);
}

/* Main is revoked: slabd is about to take it, finds it busy and lets it be, has taken it, or was killed in between. */
static int
wait_revoked(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int r;

	if (sheaf_forget(k, thread_holder(tb), &tb->main[k->v.index], &t->main_slot, &no_sheaf))
		return 0;
	r = check_deadline(k, deadlinep);
	if (r == 0)
		sheaf_pause();
	return r;
}

/* The spare, unless slabd has taken it or is about to; NULL: none that can be used. */
static struct sheaf *
look_at_spare(struct slabc_cache *k, struct thread_block *tb, int32_t *np)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->spare;

	if (!s)
		return NULL;
	*np = sheaf_look(s);
	if (*np >= 0)
		return s;
	sheaf_forget(k, thread_holder(tb), &t->spare, &t->spare_slot, NULL);
	return NULL;
}

/* Allocation */

bool
thread_drop_top(struct slabc_cache *k, struct sheaf *s)
{
	bool is_dropped = false;
	uint32_t n;

	if (s == &no_sheaf || k->is_wordless)
		return false;
	sheaf_enter(s);
	n = atomic_read(&s->size);
	if (n > atomic_read(&s->floor) && (atomic_read(sheaf_word(&k->v, atomic_read(&s->entry[n - 1]))) & WORD_LOW_MASK) != 0) {
		/* order: SHEAF_SIZE release - as in sheaf_pop(): the word names who has it */
		atomic_write_release(&s->size, n - 1);
		count_one(&k->shown->n_dropped);
		is_dropped = true;
	}
	sheaf_leave(s);
	return is_dropped;
}

/* Main gives way to a sheaf with objects that the process has.  false: there is none. */
static bool
fetch_now(struct slabc_cache *k, struct thread_block *tb)
{
	struct sheaf *s;
	int32_t slot, n;

	if (rack_change_for_alloc(k, tb))
		return true;
	if (look_at_spare(k, tb, &n) && n > 0) {
		swap_spare(k, tb);
		return true;
	}
	slot = rack_get(k, tb, RACK_FULL, &s);
	if (slot == CLIENT_NO_SLOT)
		return false;
	put_main(k, tb, slot, s);
	return true;
}

int
thread_fetch(struct slabc_cache *k, struct thread_block *tb, uint32_t *n_droppedp, int64_t *deadlinep)
{
	int32_t n;
	int r;

	while ((n = sheaf_look(tb->main[k->v.index])) != 0) {
		if (n > 0 && !thread_drop_top(k, tb->main[k->v.index]))
			return 0;
		if (n > 0 && ++*n_droppedp > atomic_read(&k->capacity))
			return error_set(EIO,
				"cache '%s': %u sheaf entries in a row were owned already; some client of the arena writes words it "
				"should not",
				k->name, *n_droppedp);
		if (n < 0) {
			r = wait_revoked(k, tb, deadlinep);
			if (r < 0)
				return r;
		}
	}
	foreign_flush_old(k, tb);
	while (!fetch_now(k, tb)) {
		r = check_deadline(k, deadlinep);
		if (r == 0)
			r = cache_refill(k, session_deadline(k->c, deadlinep));
		if (r < 0)
			return r;
	}
	return 0;
}

int
thread_alloc_one(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, void **pp)
{
	uint32_t n_dropped = 0;

	for (;;) {
		int r;

		*pp = sheaf_take(k, tb->main[k->v.index]);
		if (*pp)
			return 0;
		r = thread_fetch(k, tb, &n_dropped, deadlinep);
		if (r < 0)
			return r;
	}
}

void
thread_lend_back(struct slabc_cache *k, uint32_t slot, struct sheaf *s)
{
	struct layout_slot *slots = k->c->slots;
	bool is_returned;
	uint32_t size;

	sheaf_enter(s);
	size = atomic_read(&s->size);
	is_returned = k->is_single && size > 0;
	barn_hand(&slots[slot], is_returned ? LAYOUT_HOLDER_RETURNED : LAYOUT_HOLDER_BARN);
	STEP(BARN_HANDED);
	barn_push(is_returned ? &k->shown->returned : size > 0 ? &k->shown->full : &k->shown->empty, slots, slot);
}

static void *
nested_alloc(struct slabc_cache *k)
{
	struct sheaf *s;
	int32_t slot;
	void *p = NULL;

	count_one(&k->shown->n_nested);
	/*
	 * Not as the thread's: nobody could wait here for slabd to take it, or to let it be.  Nothing in the midst of the thread's first call: the
	 * handler could not give it back, there being nowhere to put the free off.
	 */
	slot = tls.block ? barn_get(k, &k->shown->full, LAYOUT_HOLDER_BORROWED, &s) : CLIENT_NO_SLOT;
	if (slot != CLIENT_NO_SLOT) {
		p = sheaf_take(k, s);
		thread_lend_back(k, (uint32_t)slot, s);
	}
	if (!p)
		return error_null(
			error_set(EAGAIN, "allocation in a signal handler that interrupted the library, and the process barn is empty"));
	return p;
}

void *
thread_alloc_slow(struct slabc_cache *k)
{
	struct thread_block *tb = thread_enter_quick(k);
	int error = errno, r;
	int64_t deadline = 0;
	void *p = NULL;

	if (tb) {
		if (sheaf_look(tb->main[k->v.index]) == 0 && fetch_now(k, tb))
			p = sheaf_take(k, tb->main[k->v.index]);
		thread_leave();
		errno = error;
		if (p)
			return p;
	}
	r = cache_usable(k);
	if (r < 0)
		return error_null(r);
	if (!thread_enter(k))
		return nested_alloc(k);
	r = thread_get(k, &tb);
	if (r == 0) {
		thread_drain(tb);
		owed_pay(k, tb);
		r = thread_alloc_one(k, tb, &deadline, &p);
	}
	thread_leave();
	if (r < 0)
		return error_null(r);
	errno = error;
	return p;
}

/* Room for frees */

enum { FREES_UNASKED = 64 };

/* An empty sheaf from the barn, or from slabd. 0, *slotp CLIENT_NO_SLOT: another thread was faster. */
static int
find_empty(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, int32_t *slotp, struct sheaf **sheafp)
{
	int r;

	*slotp = rack_get(k, tb, RACK_EMPTY, sheafp);
	if (*slotp != CLIENT_NO_SLOT)
		return 0;
	/* Frees can do without slabd. */
	r = session_is_silent(k->c) ? error_set(ETIMEDOUT, "slabd has not answered since a request was given up") : check_deadline(k, deadlinep);
	if (r == 0)
		r = cache_lend(k, session_deadline(k->c, deadlinep));
	if (r == 0)
		*slotp = rack_get(k, tb, RACK_EMPTY, sheafp);
	return r;
}

bool
thread_get_empty(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, struct sheaf **sheafp, int16_t *slotp)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	int32_t slot = CLIENT_NO_SLOT;

	if (t->n_unasked > 0) {
		t->n_unasked--;
		slot = rack_get(k, tb, RACK_EMPTY, sheafp);
	} else if (find_empty(k, tb, deadlinep, &slot, sheafp) < 0) {
		t->n_unasked = FREES_UNASKED;
	}
	*slotp = (int16_t)slot;
	if (slot == CLIENT_NO_SLOT)
		return false;
	/* The list is a hint. */
	if (atomic_read(&(*sheafp)->size) == 0)
		return true;
	barn_put(k, (uint32_t)slot, *sheafp, thread_holder(tb));
	return false;
}

/* An empty sheaf; failing that, one that is not full. */
static int
find_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, int32_t *slotp, struct sheaf **sheafp)
{
	int r = find_empty(k, tb, deadlinep, slotp, sheafp);

	/* Where another thread was faster the caller comes again. */
	if (r == 0)
		return 0;
	*slotp = rack_get(k, tb, RACK_FULL, sheafp);
	if (*slotp != CLIENT_NO_SLOT && has_room(k, *sheafp))
		return 0;
	if (*slotp != CLIENT_NO_SLOT)
		barn_put(k, (uint32_t)*slotp, *sheafp, thread_holder(tb));
	return r;
}

/* The spare, if there is room in it, takes main's place. */
static bool
swap_for_room(struct slabc_cache *k, struct thread_block *tb)
{
	struct sheaf *s;
	int32_t n;

	if (k->is_single || !(s = look_at_spare(k, tb, &n)) || (uint32_t)n >= thread_limit(k, s))
		return false;
	swap_spare(k, tb);
	return true;
}

bool
thread_make_room_now(struct slabc_cache *k, struct thread_block *tb)
{
	struct sheaf *s = tb->main[k->v.index];
	int32_t n = sheaf_look(s), slot;

	if (n < 0)
		return false;
	if ((uint32_t)n < thread_limit(k, s) || rack_change_for_free(k, tb) || swap_for_room(k, tb))
		return true;
	slot = rack_get(k, tb, RACK_EMPTY, &s);
	if (slot != CLIENT_NO_SLOT)
		put_main(k, tb, slot, s);
	return slot != CLIENT_NO_SLOT;
}

int
thread_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep)
{
	foreign_flush_old(k, tb);
	for (;;) {
		struct sheaf *s = tb->main[k->v.index];
		int32_t slot;
		int r = 0;

		if (has_room(k, s))
			return 0;
		if (sheaf_look(s) < 0) {
			r = wait_revoked(k, tb, deadlinep);
		} else if (!swap_for_room(k, tb)) {
			r = find_room(k, tb, deadlinep, &slot, &s);
			if (r == 0 && slot != CLIENT_NO_SLOT)
				put_main(k, tb, slot, s);
		}
		if (r < 0)
			return r;
	}
}

int
thread_settle(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = tb->main[k->v.index];
	int32_t slot = t->main_slot;
	union proto_request request;
	union proto_reply reply;

	if (!k->is_single || slot == CLIENT_NO_SLOT)
		return 0;
	atomic_write(&tb->main[k->v.index], &no_sheaf);
	t->main_slot = CLIENT_NO_SLOT;
	if (!barn_put(k, (uint32_t)slot, s, thread_holder(tb)))
		return 0;
	/* The object lies where slabd finds it, whether this message arrives or not. */
	atomic_write(&k->n_unrung, 0);
	request.flush = (struct proto_flush_request){.cache = k->v.cache, .n_sheaves = 1};
	if (session_is_silent(k->c))
		session_post(k->c, PROTO_OP_FLUSH, &request);
	else
		session_call(k->c, PROTO_OP_FLUSH, &request, &reply, session_deadline(k->c, deadlinep));
	return 0;
}
