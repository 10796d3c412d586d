/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles, and the sheaves that go between a process's threads, its barn and slabd.
 *
 * A handle stands for (session, cache, SLABC_NOWAIT or not) and is counted; it has one of 1,024 indexes of the process, by which threads
 * find their sheaf.  Opening and closing are serial in a session (slabc.opening), so that a closing cannot overtake an opening on the
 * socket.
 *
 * A sheaf changes hands by its holder word (I2), whole, with every word in it clear (I1).  Who hands a sheaf on, slabd too, leaves it busy, so
 * that a revocation that comes too late, or too early, meets it busy; who takes one makes it usable (sheaf_open()).
 */
#include "client/internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FULL = LAYOUT_MAX_SLOTS / 2, MAX_LEND_ASK = 64 };

/* A barn that grew shrinks, by half at a time, when no refill was wanted for so long. */
#define KEEP_NS INT64_C(10000000000)

static uint64_t indexes_used[CLIENT_MAX_HANDLES / 64]; /* library_lock */

/* Sheaves */

void
sheaf_open(const struct slabc_cache *k, struct sheaf *s, uint32_t slot)
{
	atomic_write(&s->floor, 0);
	/* Without sheaves every free is slow: it gives back at once. */
	atomic_write(&s->limit, k->is_single ? 0 : atomic_read(&k->c->slots[slot].capacity));
	atomic_write_release(&s->busy, k->mark);
}

/* Makes a slot that was on a list holder's, and its sheaf usable. NULL: it is another's by now, or makes no sense. */
static struct sheaf *
barn_open(struct slabc_cache *k, uint32_t slot, uint32_t holder, bool *is_freshp)
{
	struct layout_slot *slots = k->c->slots;
	struct sheaf *s;

	STEP(BARN_TAKEN);
	if (!barn_take(&slots[slot], LAYOUT_HOLDER_BARN, holder))
		return NULL;
	s = mapping_sheaf(k->c, slot);
	if (!s || atomic_read(&slots[slot].cache) != k->v.cache || atomic_read(&s->size) > atomic_read(&slots[slot].capacity)) {
		barn_hand(&slots[slot], LAYOUT_HOLDER_RETURNED);
		return NULL;
	}
	*is_freshp = atomic_read(&s->limit) == 0;
	STEP(BARN_OPENING);
	sheaf_open(k, s, slot);
	STEP(BARN_OPENED);
	return s;
}

uint32_t
barn_get_some(struct slabc_cache *k, uint64_t *head, uint32_t holder, uint32_t want, uint16_t *slots, struct sheaf **sheaves, bool *is_freshp)
{
	for (uint32_t tries = 0; tries < LAYOUT_MAX_SLOTS; tries++) {
		/* All of slots[] is mapped; a slot that slabd made this instant may be above n_slots as read here. */
		uint32_t n_popped = barn_pop_some(head, k->c->slots, LAYOUT_MAX_SLOTS, want, slots), n = 0;

		if (n_popped == 0)
			break;
		for (uint32_t i = 0; i < n_popped; i++) {
			slots[n] = slots[i];
			sheaves[n] = barn_open(k, slots[i], holder, is_freshp);
			n += sheaves[n] != NULL;
		}
		if (n > 0)
			return n;
	}
	return 0;
}

int32_t
barn_get(struct slabc_cache *k, uint64_t *head, uint32_t holder, struct sheaf **sheafp)
{
	bool is_fresh;
	uint16_t slot;

	return barn_get_some(k, head, holder, 1, &slot, sheafp, &is_fresh) > 0 ? slot : CLIENT_NO_SLOT;
}

/* Knobs */

/* Sheaves of a kind in a thread's rack: of what a process may keep of these (max_cached, barn_empty) a quarter at most. */
static uint32_t
rack_limit(uint64_t sheaf_bytes, uint32_t max_kept)
{
	uint64_t n = CLIENT_RACK_BYTES / sheaf_bytes < max_kept / 4 ? CLIENT_RACK_BYTES / sheaf_bytes : max_kept / 4;

	return n < CLIENT_RACK ? (uint32_t)n : CLIENT_RACK;
}

static void
set_knobs(struct slabc_cache *k, uint32_t capacity, uint64_t max_full, uint32_t max_empty)
{
	uint32_t full = max_full == 0 ? 1 : max_full < MAX_FULL ? (uint32_t)max_full : MAX_FULL;

	atomic_write(&k->capacity, capacity);
	atomic_write(&k->max_full, full);
	atomic_write(&k->max_ask, full < 4 ? 1 : full / 4 < CLIENT_MAX_ASK ? full / 4 : CLIENT_MAX_ASK);
	atomic_write(&k->max_empty, k->is_single ? 1 : max_empty);
	atomic_write(&k->rack_full, k->is_single ? 0 : rack_limit((uint64_t)capacity * k->v.object_bytes, full));
	atomic_write(&k->rack_empty, k->is_single ? 0 : rack_limit((uint64_t)capacity * k->v.object_bytes, max_empty < full ? max_empty : full));
}

static uint32_t
default_keep(const struct slabc_cache *k)
{
	uint64_t keep = CLIENT_KEEP_BYTES / ((uint64_t)k->capacity * k->v.object_bytes);

	return keep == 0 ? 1 : keep < k->max_full ? (uint32_t)keep : k->max_full;
}

/* The knobs have been tuned.  Sheaves of the old size go on in use, and back to slabd when they are put down (barn_put()). */
void
cache_learn_now(struct slabc_cache *k)
{
	uint64_t now = atomic_read(&k->c->caches[k->v.cache].knobs), before = atomic_read(&k->knobs);
	uint32_t capacity = now & 0xffff, max_full;
	uint64_t keep;

	if (now == before || k->is_single || capacity == 0 || capacity > LAYOUT_MAX_SHEAF || !atomic_cas(&k->knobs, &before, now))
		return;
	keep = (uint64_t)atomic_read(&k->keep) * atomic_read(&k->capacity) / capacity;
	set_knobs(k, capacity, now >> 16 & 0xffff, now >> 32 & 0xffff);
	/* The next refill asks by the new limit. */
	if (atomic_read(&k->ask) > atomic_read(&k->max_ask))
		atomic_write(&k->ask, atomic_read(&k->max_ask));
	max_full = atomic_read(&k->max_full);
	atomic_write(&k->keep, keep == 0 ? 1 : keep < max_full ? (uint32_t)keep : max_full);
}

/* Sheaves between hands */

/* n more were given back: tells slabd, without waiting, when that is enough. */
static void
ring(struct slabc_cache *k, uint32_t n_more)
{
	uint32_t n = atomic_add(&k->n_unrung, n_more) + n_more, ask = atomic_read(&k->ask);
	union proto_request request;

	if (n < CLIENT_BELL_SHEAVES && n < atomic_read(&k->max_full) / 2 &&
		(uint64_t)n * atomic_read(&k->capacity) * k->v.object_bytes < CLIENT_BELL_BYTES)
		return;
	request.flush = (struct proto_flush_request){.cache = k->v.cache, .n_sheaves = atomic_swap(&k->n_unrung, 0)};
	if (request.flush.n_sheaves == 0)
		return;
	atomic_write(&k->ask, ask > 1 ? ask / 2 : 1);
	session_post(k->c, PROTO_OP_FLUSH, &request);
}

void
sheaf_pause(void)
{
	static const struct timespec pause = {.tv_nsec = 50000};

	nanosleep(&pause, NULL);
}

void
slot_give_back(struct slabc *c, uint32_t cache, uint32_t slot, uint32_t holder)
{
	if (barn_take(&c->slots[slot], holder, LAYOUT_HOLDER_RETURNED))
		barn_push(&c->session_caches[cache].returned, c->slots, slot);
}

void
sheaf_let_go(struct slabc_cache *k, uint32_t slot)
{
	slot_give_back(k->c, k->v.cache, slot, LAYOUT_HOLDER_RECALLED);
}

/*
 * Has slabd taken a revoked sheaf, and read all that it reads of it?  Of an unsettled one it reads the record too, which is the thread's: by the
 * size, since SHEAF_UNSETTLED may be there again, put back by a thread that entered the sheaf while slabd took that away.
 */
static bool
is_gone(const struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder)
{
	if (atomic_read(&k->c->slots[slot].holder) == holder)
		return false;
	/* order: TAKEN acquire - pairs with grant_take_back(), as the size below: the record's words were read */
	return !(atomic_read_acquire(&s->busy) & SHEAF_UNSETTLED) || atomic_read_acquire(&s->size) == 0 || MUTANT(RECORD_REUSED);
}

bool
sheaf_forget(struct slabc_cache *k, uint32_t holder, struct sheaf **sheafp, int16_t *slotp, struct sheaf *none)
{
	uint32_t slot = (uint32_t)*slotp;

	if (!is_gone(k, slot, *sheafp, holder))
		return false;
	/* Forgotten first: once let go of, it may be another thread's. */
	*slotp = CLIENT_NO_SLOT;
	atomic_write(sheafp, none);
	sheaf_let_go(k, slot);
	return true;
}

bool
sheaf_shut(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder)
{
	for (uint32_t tries = 0; tries < CLIENT_REVOKED_TRIES; tries++) {
		sheaf_enter(s);
		if (atomic_read(&s->floor) != SHEAF_REVOKED)
			return true;
		sheaf_leave(s);
		if (is_gone(k, slot, s, holder)) {
			sheaf_let_go(k, slot);
			return false;
		}
		sheaf_pause();
	}
	return false;
}

/* Hands a sheaf that is shut back to slabd. */
static bool
give_back(struct slabc_cache *k, uint32_t slot, uint32_t holder)
{
	struct layout_slot *slots = k->c->slots;

	if (!barn_take(&slots[slot], holder, LAYOUT_HOLDER_RETURNED))
		return false;
	STEP(FLUSH_HANDED);
	barn_push(&k->shown->returned, slots, slot);
	count_one(&k->shown->n_flushes);
	ring(k, 1);
	return true;
}

bool
barn_return(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder)
{
	return sheaf_shut(k, slot, s, holder) && give_back(k, slot, holder);
}

/* Is there room in the process barn for n sheaves more, with objects or without? */
static bool
barn_has_room(const struct slabc_cache *k, uint32_t size, uint32_t n)
{
	uint32_t there = barn_count(atomic_read(size > 0 ? &k->shown->full : &k->shown->empty));

	if (size > 0)
		return !k->is_single && there + n <= atomic_read(&k->keep);
	return there + n <= atomic_read(&k->max_empty);
}

/* What the barn has beyond the limit, as after a tuning, goes back.  Slabd has called it in; what was put down meanwhile by the old knobs is left. */
static void
drop_surplus(struct slabc_cache *k)
{
	for (uint32_t i = 0; i < MAX_FULL && barn_count(atomic_read(&k->shown->full)) > atomic_read(&k->max_full); i++) {
		struct sheaf *s;
		int32_t slot = barn_get(k, &k->shown->full, LAYOUT_HOLDER_BORROWED, &s);

		if (slot == CLIENT_NO_SLOT || !barn_return(k, (uint32_t)slot, s, LAYOUT_HOLDER_BORROWED))
			return;
	}
}

bool
barn_put(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder)
{
	struct layout_session_cache *shown = k->shown;
	struct layout_slot *slots = k->c->slots;
	uint32_t size;

	if (!sheaf_shut(k, slot, s, holder))
		return false;
	cache_learn(k);
	drop_surplus(k);
	size = atomic_read(&s->size);
	if (slots[slot].capacity == atomic_read(&k->capacity) && barn_has_room(k, size, 1)) {
		if (!barn_take(&slots[slot], holder, LAYOUT_HOLDER_BARN))
			return false;
		STEP(BARN_HANDED);
		barn_push(size > 0 ? &shown->full : &shown->empty, slots, slot);
		if (size > 0)
			count_one(&shown->n_barn_puts);
		return true;
	}
	if (size > 0)
		atomic_write(&k->has_flushed, 1);
	return give_back(k, slot, holder);
}

void
barn_put_some(struct slabc_cache *k, uint32_t n, const uint16_t *some, struct sheaf *const *sheaves, uint32_t holder, bool is_wanted)
{
	struct layout_session_cache *shown = k->shown;
	struct layout_slot *slots = k->c->slots;
	uint32_t size = atomic_read(&sheaves[0]->size), first = 0, last = 0, n_handed = 0;
	bool is_kept = is_wanted && barn_has_room(k, size, n);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = some[i];

		if (slots[slot].capacity != atomic_read(&k->capacity)) {
			barn_put(k, slot, sheaves[i], holder);
			continue;
		}
		if (!sheaf_shut(k, slot, sheaves[i], holder))
			continue;
		barn_link(slots, slot, first);
		if (!barn_take(&slots[slot], holder, is_kept ? LAYOUT_HOLDER_BARN : LAYOUT_HOLDER_RETURNED))
			continue;
		if (is_kept)
			STEP(BARN_HANDED);
		else
			STEP(FLUSH_HANDED);
		last = n_handed++ == 0 ? slot : last;
		first = slot;
	}
	if (n_handed == 0)
		return;
	barn_push_chain(!is_kept ? &shown->returned : size > 0 ? &shown->full : &shown->empty, slots, first, last, n_handed);
	if (is_kept) {
		if (size > 0)
			atomic_write(&shown->n_barn_puts, atomic_read(&shown->n_barn_puts) + n_handed);
		return;
	}
	if (size > 0)
		atomic_write(&k->has_flushed, 1);
	atomic_write(&shown->n_flushes, atomic_read(&shown->n_flushes) + n_handed);
	ring(k, n_handed);
}

/* Requests */

/* That member alone is written: the union is as large as its largest, and a stack that has gone cold is what a refill pays for. */
static void
refill_request(union proto_request *request, const struct slabc_cache *k, uint32_t n_sheaves, uint32_t capacity)
{
	unsigned cpu, node = 0;

	if (k->mark & SHEAF_NODED)
		getcpu(&cpu, &node);
	request->refill = (struct proto_refill_request){.cache = k->v.cache, .n_sheaves = n_sheaves, .capacity = capacity, .node = node};
}

/*
 * Fewer when they went unused: half for each KEEP_NS that no refill was wanted, and half when slabd has called in what lay in the barn.  Once more each time, since the refill at hand doubles it again.
 */
static void
ask_less(struct slabc_cache *k, int64_t unasked_ns)
{
	uint32_t ask = atomic_read(&k->ask);

	if (unasked_ns > KEEP_NS)
		ask = unasked_ns / KEEP_NS < 31 ? ask >> (unasked_ns / KEEP_NS + 1) : 0;
	else if (atomic_read(&k->shown->n_granted) == UINT32_MAX)
		ask /= 4;
	else
		return;
	atomic_write(&k->ask, ask > 1 ? ask : 1);
}

/* Full sheaves that threads have taken from the barn more than they have put there. */
static int64_t
net_use(const struct slabc_cache *k)
{
	return (int64_t)(atomic_read(&k->shown->n_barn_gets) - atomic_read(&k->shown->n_barn_puts));
}

/*
 * What was given back is wanted again: the program allocates and frees more at a time than was kept.  And what was not wanted for long is
 * forgotten.
 */
static void
note_regret(struct slabc_cache *k)
{
	uint32_t keep = atomic_read(&k->keep), max_full = atomic_read(&k->max_full), least = default_keep(k);
	int64_t now = session_now_ns();

	ask_less(k, now - atomic_read(&k->asked_ns));
	if (now - atomic_read(&k->asked_ns) > KEEP_NS)
		keep = keep / 2 > least ? keep / 2 : least;
	atomic_write(&k->asked_ns, now);
	atomic_write(&k->net_asked, net_use(k));
	if (atomic_read(&k->has_flushed) != 0)
		keep = keep < max_full / 2 ? keep * 2 : max_full;
	atomic_write(&k->has_flushed, 0);
	atomic_write(&k->keep, keep);
}

/* Each refill asks for twice as much as the one before it; ring() and ask_less() take that back. */
static void
ask_more(struct slabc_cache *k, uint32_t ask)
{
	uint32_t max_ask = atomic_read(&k->max_ask);

	count_one(&k->shown->n_refills);
	atomic_write(&k->ask, ask * 2 < max_ask ? ask * 2 : max_ask);
}

void
cache_ask_ahead(struct slabc_cache *k, uint32_t n_in_hand)
{
	uint32_t ask, n_granted = atomic_read(&k->shown->n_granted);
	union proto_request request;

	cache_learn(k);
	if (n_granted < CLIENT_MIN_AHEAD || k->is_single || barn_count(atomic_read(&k->shown->full)) + n_in_hand > n_granted / 2)
		return;
	/* Half of what the last one brought is used up: else the program's objects swing about what it has. */
	if (net_use(k) - atomic_read(&k->net_asked) < n_granted / 2 || atomic_swap(&k->shown->is_refilling, 1))
		return;
	note_regret(k);
	ask = atomic_read(&k->ask);
	refill_request(&request, k, ask, 0);
	if (session_post(k->c, PROTO_OP_REFILL, &request))
		ask_more(k, ask);
	else
		atomic_write(&k->shown->is_refilling, 0);
}

int
cache_refill(struct slabc_cache *k, int64_t deadline)
{
	union proto_request request;
	union proto_reply reply;
	int r;

	cache_learn(k);
	note_regret(k);
	/* What is on its way is there first: it only has to be waited for. */
	refill_request(&request, k, k->is_single || atomic_read(&k->shown->is_refilling) ? 1 : atomic_read(&k->ask), 0);
	if (k->is_nowait)
		return session_refill_nowait(k->c, &request);
	r = session_call(k->c, PROTO_OP_REFILL, &request, &reply, deadline);
	if (r < 0)
		return r;
	if (reply.refill.n_sheaves == 0)
		return error_set(ENOMEM, "slabd has no object of cache '%s' to give, and says no more", k->name);
	count_one(&k->shown->n_waits);
	ask_more(k, atomic_read(&k->ask));
	return 0;
}

int
cache_lend(struct slabc_cache *k, int64_t deadline)
{
	union proto_request request;
	union proto_reply reply;
	uint32_t ask, most;

	cache_learn(k);
	refill_request(&request, k, 0, 0);
	ask = atomic_read(&k->lend_ask);
	/* What is not used at once lies in the barn. */
	most = atomic_read(&k->max_empty) < MAX_LEND_ASK ? atomic_read(&k->max_empty) : MAX_LEND_ASK;
	request.refill.n_empty = k->is_single || most == 0 ? 1 : ask < most ? ask : most;
	atomic_write(&k->lend_ask, ask * 2 < MAX_LEND_ASK ? ask * 2 : MAX_LEND_ASK);
	return session_call(k->c, PROTO_OP_REFILL, &request, &reply, deadline);
}

int
cache_prefill(struct slabc_cache *k, uint32_t n, uint32_t n_pages, uint32_t *slotp, int64_t deadline)
{
	union proto_request request;
	union proto_reply reply;
	struct layout_slot *slot;
	struct sheaf *s;
	int r;

	refill_request(&request, k, 1, n);
	request.refill.n_pages = n_pages;
	r = session_call(k->c, PROTO_OP_REFILL, &request, &reply, deadline);
	if (r < 0)
		return r;
	slot = &k->c->slots[reply.refill.slot];
	/* order: HOLDER acquire - pairs with slabd's barn_hand() of the sheaf it filled */
	if (atomic_read_acquire(&slot->holder) != LAYOUT_HOLDER_APP)
		return error_set(EIO, "slabd names a sheaf, slot %u, that it has not given", reply.refill.slot);
	s = mapping_sheaf(k->c, reply.refill.slot);
	if (!s || slot->cache != k->v.cache || atomic_read(&s->size) < n || atomic_read(&s->size) > slot->capacity)
		return error_set(EIO, "slabd gave a sheaf, slot %u, without %u objects", reply.refill.slot, n);
	count_one(&k->shown->n_refills);
	*slotp = reply.refill.slot;
	return 0;
}

/* Handles */

/* library_lock held. */
static int
take_index(uint32_t *indexp)
{
	for (uint32_t i = 0; i < CLIENT_MAX_HANDLES / 64; i++) {
		if (~indexes_used[i] != 0) {
			uint32_t bit = (uint32_t)__builtin_ctzll(~indexes_used[i]);

			indexes_used[i] |= UINT64_C(1) << bit;
			*indexp = i * 64 + bit;
			return 0;
		}
	}
	return error_set(ENOSPC, "this process has its %d open caches: close some", CLIENT_MAX_HANDLES);
}

void
handle_free(struct slabc_cache *k)
{
	thread_forget_deferred(k);
	owed_forget(k);
	indexes_used[k->v.index / 64] &= ~(UINT64_C(1) << (k->v.index % 64));
	free(k);
}

/* Fills in what slabd answered. */
static int
handle_init(struct slabc_cache *k, struct slabc *c, const char *name, const struct proto_cache_open_reply *reply)
{
	uint32_t id = reply->cache, recip = id ? atomic_read(&c->caches[id].recip) : 0;
	uint64_t expected = 1; /* of a cache of runs */

	if (reply->object_bytes > 0 && !(reply->flags & LAYOUT_CACHE_RUNS))
		expected = ((UINT64_C(1) << 32) + reply->object_bytes - 1) / reply->object_bytes;
	if (reply->object_bytes == 0 || recip != expected)
		return error_set(EPROTO, "slabd describes cache '%s' in two ways", name);
	k->v = (struct sheaf_view){.base = c->base,
		.span = c->span,
		.pages = c->pages,
		.words = c->words,
		.recip = recip,
		.me = c->me,
		.object_bytes = reply->object_bytes,
		.cache = (uint16_t)id};
	k->v.birth = WORD_GENERATION_ONE + c->me + (reply->flags & SLABC_SHARED ? WORD_SHARED : WORD_OWNED);
	k->c = c;
	k->shown = &c->session_caches[id];
	k->flags = reply->flags;
	k->is_single = reply->capacity == 0;
	k->is_wordless = reply->flags & SLABC_NO_OWNER;
	k->slot_bytes = reply->object_bytes;
	k->debug = reply->flags & LAYOUT_CACHE_DEBUG_ALL;
	if (k->debug && !debug_init(k, atomic_read(&c->caches[id].object_size), reply->object_bytes))
		return error_set(EPROTO, "slabd describes debug cache '%s' in a way that cannot be", name);
	k->mark = (k->is_wordless ? SHEAF_WORDLESS : k->debug ? SHEAF_DEBUG : 0) | (c->arena->n_nodes > 1 ? SHEAF_NODED : 0);
	k->is_plain = !k->is_single && !k->debug && !(k->mark & SHEAF_NODED);
	/* In a debug cache the free itself says what is wrong with it. */
	k->is_late = !k->is_single && !k->debug && !(reply->flags & (SLABC_NO_OWNER | SLABC_RECLAIM));
	set_knobs(k, k->is_single ? 1 : reply->capacity, reply->max_cached / ((uint64_t)(k->is_single ? 1 : reply->capacity) * reply->object_bytes),
		reply->barn_empty);
	k->knobs = atomic_read(&c->caches[id].knobs);
	k->keep = default_keep(k);
	k->ask = 1;
	k->lend_ask = 1;
	strncpy(k->name, name, sizeof(k->name) - 1);
	return 0;
}

/* opening held.  Finds or makes the handle for slabd's answer, and counts it. */
static int
handle_get(struct slabc *c, const char *name, const struct proto_cache_open_reply *reply, bool is_nowait, struct slabc_cache **kp)
{
	struct slabc_cache *k, *fresh = aligned_alloc(64, (sizeof(*fresh) + 63) & ~(size_t)63); /* the hot part is in its first lines */
	int r;

	if (!fresh)
		return error_set(ENOMEM, "no memory for a handle of cache '%s'", name);
	memset(fresh, 0, sizeof(*fresh));
	r = handle_init(fresh, c, name, reply);
	if (r < 0) {
		free(fresh);
		return r;
	}
	fresh->is_nowait = is_nowait;
	pthread_mutex_lock(&library_lock);
	for (k = c->handles[reply->cache]; k && k->is_nowait != is_nowait; k = k->next)
		;
	if (!k) {
		r = take_index(&fresh->v.index);
		if (r == 0) {
			k = fresh;
			fresh = NULL;
			k->next = c->handles[reply->cache];
			c->handles[reply->cache] = k;
		}
	}
	if (k) {
		k->n_opens++;
		*kp = k;
	}
	pthread_mutex_unlock(&library_lock);
	free(fresh);
	return r;
}

static int
copy_options(union proto_request *request, const char *name, size_t size, const struct slabc_cache_options *opt, bool *is_nowaitp)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;
	struct proto_cache_open_request *q = &request->cache_open;

	if (opt) {
		int r = options_read(&o, sizeof(o), opt);

		if (r < 0)
			return r;
	}
	if (!name || !*name)
		return error_set(EINVAL, "name of a cache: 1 to %zu bytes", sizeof(q->name) - 1);
	if (strlen(name) >= sizeof(q->name))
		return error_set(ENAMETOOLONG, "name of a cache: %zu bytes, at most %zu", strlen(name), sizeof(q->name) - 1);
	if (o.flags & ~(SLABC_RECLAIM | SLABC_SHARED | SLABC_NOWAIT | SLABC_NO_OWNER | SLABC_DEBUG))
		return error_set(EINVAL,
			"cache '%s': flags 0x%x, of which 0x%x are none of SLABC_RECLAIM, SLABC_SHARED, SLABC_NOWAIT, SLABC_NO_OWNER, SLABC_DEBUG",
			name, o.flags, o.flags & ~(SLABC_RECLAIM | SLABC_SHARED | SLABC_NOWAIT | SLABC_NO_OWNER | SLABC_DEBUG));
	if (o.debug & ~(SLABC_DEBUG_SANITY | SLABC_DEBUG_RED_ZONE | SLABC_DEBUG_POISON | SLABC_DEBUG_USER) || (o.debug && !(o.flags & SLABC_DEBUG)))
		return error_set(EINVAL, "cache '%s': debug 0x%x: SLABC_DEBUG_ constants, with SLABC_DEBUG in flags", name, o.debug);
	strcpy(q->name, name);
	q->size = size;
	q->align = o.align;
	/* The opener's own: slabd need not know. */
	*is_nowaitp = o.flags & SLABC_NOWAIT;
	q->flags = (o.flags & ~SLABC_NOWAIT) | o.debug << LAYOUT_CACHE_DEBUG_SHIFT;
	q->sheaf_capacity = o.sheaf_capacity;
	q->sheaf_round_up = o.sheaf_round_up;
	q->barn_full = o.barn_full;
	q->min_partial = o.min_partial;
	q->min_order = o.min_order;
	q->max_order = o.max_order;
	q->min_objects = o.min_objects;
	q->max_cached = o.max_cached;
	q->cpu_partial = o.cpu_partial;
	q->policy = o.policy;
	q->barn_empty = o.barn_empty;
	return 0;
}

/* Only from inside. flags: beyond opt's. */
static int
cache_open(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *opt, uint32_t flags, struct slabc_cache **kp)
{
	union proto_request request = {0};
	union proto_reply reply;
	bool is_nowait = false;
	int64_t deadline = 0;
	int r = session_writable(c);

	if (r == 0)
		r = copy_options(&request, name, size, opt, &is_nowait);
	if (r < 0)
		return r;
	request.cache_open.flags |= flags;
	pthread_mutex_lock(&c->opening);
	r = session_call(c, PROTO_OP_CACHE_OPEN, &request, &reply, session_deadline(c, &deadline));
	if (r == 0)
		r = handle_get(c, name, &reply.cache_open, is_nowait, kp);
	pthread_mutex_unlock(&c->opening);
	return r;
}

int
slabc_cache_open(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *opt, struct slabc_cache **kp)
{
	int error = errno, r;

	if (!thread_enter(NULL))
		return error_set(EAGAIN, "slabc_cache_open() in a signal handler that interrupted the library");
	r = cache_open(c, name, size, opt, 0, kp);
	thread_leave();
	if (r == 0)
		errno = error;
	return r;
}

/* Makes an opened handle the session's own, which closing leaves; another thread's opening of the same one may stand instead. */
static void
own_set(struct slabc *c, struct slabc_cache *k)
{
	struct slabc_cache *unset = NULL;

	/* order: OWN release - the handle is complete */
	if (atomic_cas(&c->own[k->v.cache], &unset, k))
		return;
	pthread_mutex_lock(&library_lock);
	k->n_opens--;
	pthread_mutex_unlock(&library_lock);
}

int
cache_own_named(
	struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *opt, uint32_t flags, struct slabc_cache **kp)
{
	int r = cache_open(c, name, size, opt, flags, kp);

	if (r == 0)
		own_set(c, *kp);
	return r;
}

int
cache_own(struct slabc *c, uint32_t id, struct slabc_cache **kp)
{
	/* order: OWN acquire - pairs with own_set() */
	struct slabc_cache *k = atomic_read_acquire(&c->own[id]);
	char name[sizeof(c->caches[0].name)];
	int r;

	if (k) {
		*kp = k;
		return 0;
	}
	memcpy(name, c->caches[id].name, sizeof(name));
	name[sizeof(name) - 1] = '\0';
	r = cache_open(c, name, 0, NULL, 0, &k);
	if (r < 0)
		return r;
	if (k->v.cache != id)
		return error_set(EPROTO, "slabd has another cache '%s' than it shows", name);
	own_set(c, k);
	*kp = k;
	return 0;
}

/* Everything idle in the process barn goes back. */
static void
flush_list(struct slabc_cache *k, uint64_t *head)
{
	struct layout_slot *slots = k->c->slots;

	for (uint32_t tries = 0; tries < LAYOUT_MAX_SLOTS; tries++) {
		int32_t i = barn_pop(head, slots, LAYOUT_MAX_SLOTS);

		if (i < 0)
			return;
		if (!barn_take(&slots[i], LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_RETURNED))
			continue;
		STEP(FLUSH_HANDED);
		barn_push(&k->shown->returned, slots, (uint32_t)i);
		count_one(&k->shown->n_flushes);
	}
}

/* library_lock held.  Takes the handle from its chain; true: it was the last of its cache. */
static bool
unchain(struct slabc_cache *k)
{
	struct slabc_cache **linkp = &k->c->handles[k->v.cache];

	while (*linkp != k)
		linkp = &(*linkp)->next;
	*linkp = k->next;
	return !k->c->handles[k->v.cache];
}

/* No thread has a sheaf of it, and slabd knows nothing of it. */
static void
close_destroyed(struct slabc_cache *k)
{
	struct slabc_cache **linkp = &k->c->destroyed;

	pthread_mutex_lock(&library_lock);
	if (--k->n_opens == 0) {
		while (*linkp != k)
			linkp = &(*linkp)->next;
		*linkp = k->next;
		handle_free(k);
	}
	pthread_mutex_unlock(&library_lock);
}

void
cache_drop_idle(struct slabc_cache *k, bool is_all_threads)
{
	pthread_mutex_lock(&library_lock);
	for (struct thread_block *tb = library_threads; tb; tb = tb->next)
		if (is_all_threads || tb == tls.block)
			if (tb->cache[k->v.index].k == k)
				thread_drop(tb, k->v.index, false);
	flush_list(k, &k->shown->full);
	flush_list(k, &k->shown->empty);
	pthread_mutex_unlock(&library_lock);
}

void
cache_settle(struct slabc_cache *k)
{
	pthread_mutex_lock(&library_lock);
	for (struct thread_block *tb = library_threads; tb; tb = tb->next)
		if (tb->cache[k->v.index].k == k)
			foreign_flush(k, tb, &tb->cache[k->v.index]);
	pthread_mutex_unlock(&library_lock);
}

void
cache_bury(struct slabc *c, uint32_t id)
{
	struct slabc_cache *k;

	pthread_mutex_lock(&library_lock);
	if (c->own[id])
		c->own[id]->n_opens--;
	/* The size classes' among them. */
	for (unsigned i = 0; i <= CLIENT_N_CLASSES; i++)
		if (c->sized[i] && c->sized[i] == c->own[id])
			atomic_write(&c->sized[i], NULL);
	atomic_write(&c->own[id], NULL);
	while ((k = c->handles[id])) {
		c->handles[id] = k->next;
		atomic_write(&k->is_destroyed, 1);
		thread_forget_deferred(k);
		owed_forget(k);
		k->next = c->destroyed;
		c->destroyed = k;
		/* The session's own. */
		if (k->n_opens == 0) {
			c->destroyed = k->next;
			handle_free(k);
		}
	}
	pthread_mutex_unlock(&library_lock);
}

int
cache_usable(const struct slabc_cache *k)
{
	if (atomic_read(&k->is_destroyed))
		return error_set(ENOENT, "cache '%s' was destroyed (slabc_cache_destroy): its handle can only be closed", k->name);
	return session_usable(k->c);
}

static void
cache_close(struct slabc_cache *k)
{
	union proto_request request = {.cache_close = {.cache = k->v.cache}};
	struct slabc *c = k->c;
	bool is_own = c->own[k->v.cache] == k, is_last = false;
	int64_t deadline = 0;
	union proto_reply reply;

	if (k->is_destroyed) {
		close_destroyed(k);
		return;
	}
	thread_drain_all(c, k);
	pthread_mutex_lock(&library_lock);
	if (--k->n_opens <= is_own) {
		/* slabc_free_ref() and slabc_mfree() in other threads may be at work on a handle of the session's own. */
		for (struct thread_block *tb = library_threads; tb; tb = tb->next)
			if (!is_own || tb == tls.block)
				thread_drop(tb, k->v.index, false);
		if (!is_own)
			is_last = unchain(k);
		if (is_own || is_last) {
			flush_list(k, &k->shown->full);
			flush_list(k, &k->shown->empty);
		}
		if (!is_own)
			handle_free(k);
	}
	pthread_mutex_unlock(&library_lock);
	if (is_last)
		session_call(c, PROTO_OP_CACHE_CLOSE, &request, &reply, session_deadline(c, &deadline));
}

void
slabc_cache_close(struct slabc_cache *k)
{
	struct slabc *c;
	int error = errno;

	if (!k || !thread_enter(k))
		return;
	c = k->c;
	pthread_mutex_lock(&c->opening);
	if (!c->is_forked) {
		cache_close(k);
	} else {
		pthread_mutex_lock(&library_lock);
		if (--k->n_opens == 0 && !k->is_destroyed) {
			unchain(k);
			handle_free(k);
		}
		pthread_mutex_unlock(&library_lock);
	}
	pthread_mutex_unlock(&c->opening);
	thread_leave();
	errno = error;
}
