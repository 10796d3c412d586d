/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: slabd's readers of what a client may write.
 *
 * The input is a play: a header byte that sets up an arena without sockets, then steps.  A step writes into the hostile session's segment or into the word
 * table, where it likes or at a field that matters, a raw value or one chosen to be nearly right; or has slabd work: grant, take back, call in, recall, decay,
 * shrink, tune, audit, count, adopt, give, publish, reap.  An honest session has work done in between.
 *
 * Whatever was written: nothing is read or written outside (the sanitizers look), nothing goes on for ever (the fuzzer's time limit), the ledger is in
 * order, the audit comes to its end, and the honest session keeps its slots, sheaves no larger than they may be, and a clean record.
 */
#include <pthread.h>
#include <string.h>

#include "server/audit.h"
#include "server/clock.h"
#include "server/grant.h"
#include "server/log.h"
#include "server/orphan.h"
#include "server/reaper.h"
#include "server/recall.h"
#include "server/root.h"
#include "server/stats.h"
#include "shm/barn.h"
#include "tests/fuzz/fuzz.h"

enum {
	N_CACHES = 5,
	HOSTILE = 0,
	HONEST = 1,
	N_SESSIONS = 2,
	N_HELD = 32,   /* objects */
	N_SHEAVES = 8, /* of the honest one */
	ME = LAYOUT_HOLDER_THREAD,
	LIMIT_BYTES = 4 << 20,
	MAX_STEPS = 512,
};

static const struct cache_options caches[N_CACHES] = {
	{.name = "plain", .size = 64},
	{.name = "reclaim", .size = 200, .flags = LAYOUT_CACHE_RECLAIM, .cpu_partial = 60},
	{.name = "wordless", .size = 256, .flags = LAYOUT_CACHE_NO_OWNER},
	{.name = "shared", .size = 4096, .flags = LAYOUT_CACHE_SHARED, .sheaf_capacity = 4},
	{.name = "runs", .size = LAYOUT_PAGE_BYTES, .flags = LAYOUT_CACHE_RUNS},
};

struct play {
	const uint8_t *at, *end;
	struct arena *arena;
	struct session *sessions[N_SESSIONS];
	struct cache *caches[N_CACHES];
	/* The honest one's: slots that its thread has, by cache 0 only; and objects of them. */
	uint32_t slots[N_SHEAVES];
	unsigned n_slots;
	uint32_t held[N_HELD];
	unsigned n_held;
	bool is_evicted; /* the hostile one has made too many faults */
	char why[512];
};

static uint8_t
take_8(struct play *p)
{
	return p->at < p->end ? *p->at++ : 0;
}

static uint32_t
take_32(struct play *p)
{
	uint32_t x = 0;

	for (int i = 0; i < 4; i++)
		x |= (uint32_t)take_8(p) << 8 * i;
	return x;
}

static uint64_t
take_64(struct play *p)
{
	uint64_t low = take_32(p);

	return low | (uint64_t)take_32(p) << 32;
}

/* Two nodes, one CPU each. */
static bool
has_memory(uint32_t os_node)
{
	return os_node < 2;
}

static int
distance(uint32_t from, uint32_t to)
{
	return from == to ? 10 : 20;
}

static int
node_of_cpu(uint32_t cpu)
{
	return (int)cpu;
}

static const struct topology_source two_nodes = {
	.n_os_nodes = 2, .n_os_cpus = 2, .has_memory = has_memory, .distance = distance, .node_of_cpu = node_of_cpu};

static void
open_session(struct play *p, unsigned i)
{
	const struct session_who who = {.pid = 1, .label = i == HOSTILE ? "hostile" : "honest", .is_recallable = true};

	FUZZ_CHECK(session_new(&p->sessions[i], p->arena, &who, p->why, sizeof p->why) == 0);
	pthread_rwlock_rdlock(&p->arena->sessions_lock);
	for (unsigned k = 0; k < N_CACHES; k++)
		session_set_open(p->sessions[i], p->caches[k], true);
	pthread_rwlock_unlock(&p->arena->sessions_lock);
}

/* As slabd does: what is asked for here is done when nobody is at work on the session. */
static void
evict(void *ctx, const struct session *session)
{
	struct play *p = ctx;

	FUZZ_CHECK(session == p->sessions[HOSTILE]);
	p->is_evicted = true;
}

static void
begin(struct play *p)
{
	uint8_t how = take_8(p);
	const struct arena_options options = {
		.name = "default",
		.limit_bytes = LIMIT_BYTES,
		.page_kind = LADDER_4K,
		.profile = how & 1 ? ARENA_PROFILE_KERNEL : ARENA_PROFILE_DEFAULT,
		.client_max = how & 2 ? 256 << 10 : 0,
		.user_max = how & 4 ? 512 << 10 : 0,
		.client_min = how & 8 ? 64 << 10 : 0,
		.max_orphans = how & 16 ? 16 << 10 : 0,
		.source = how & 32 ? &two_nodes : NULL,
		.max_faults = how & 64 ? 20 : 0,
	};

	FUZZ_CHECK(arena_new(&p->arena, &options, p->why, sizeof p->why) == 0);
	p->arena->evict = evict;
	p->arena->evict_ctx = p;
	for (unsigned k = 0; k < N_CACHES; k++)
		FUZZ_CHECK(cache_open(p->arena, &caches[k], &p->caches[k], p->why, sizeof p->why) == 0);
	for (unsigned i = 0; i < N_SESSIONS; i++)
		open_session(p, i);
}

/* What a request holds. */
static struct session *
lock(struct play *p, unsigned i)
{
	pthread_rwlock_rdlock(&p->arena->sessions_lock);
	pthread_mutex_lock(&p->sessions[i]->work);
	return p->sessions[i];
}

static void
unlock(struct play *p, unsigned i)
{
	pthread_mutex_unlock(&p->sessions[i]->work);
	pthread_rwlock_unlock(&p->arena->sessions_lock);
}

static struct cache *
take_cache(struct play *p)
{
	return p->caches[take_8(p) % N_CACHES];
}

/* What a hostile client can find: places in its own sheaves and the honest one's, and such as are nobody's. */
static uint32_t
take_place(struct play *p)
{
	uint8_t how = take_8(p), i = take_8(p);
	const struct session *s = p->sessions[how % N_SESSIONS];
	uint32_t slot;

	if (how >= 0xf0)
		return take_32(p);
	if (how >= 0xe0)
		return (uint32_t)i << LAYOUT_PLACE_PAGE_SHIFT;
	if (how >= 0xc0 && p->n_held)
		return p->held[i % p->n_held];
	if (!s->n_slots)
		return 0;
	slot = i % s->n_slots;
	return session_sheaf(s, slot)->entry[take_8(p) % (s->slots[slot].capacity + 1u)];
}

static uint32_t *
word_of(struct play *p, uint32_t place)
{
	for (unsigned k = 0; k < N_CACHES; k++) {
		struct slab_object o;

		if (slab_find(p->arena, p->caches[k], place, &o))
			return &p->arena->words[o.word];
	}
	return NULL;
}

static uint32_t
take_word(struct play *p)
{
	static const uint32_t states[] = {WORD_OWNED, WORD_SHARED, WORD_CLOSING, WORD_STATE_MASK};
	uint8_t how = take_8(p);
	const uint32_t owners[] = {0, p->sessions[HOSTILE]->client, p->sessions[HONEST]->client, WORD_ORPHAN};
	uint32_t *word = word_of(p, take_place(p)), w = word ? *word : take_32(p);

	return word_with(w + (how >> 4 & 1) * WORD_GENERATION_ONE, owners[how % 4], states[how / 4 % 4]);
}

/* A value that could nearly be one. */
static uint64_t
take_value(struct play *p)
{
	const struct session *s = p->sessions[HOSTILE];
	uint8_t how = take_8(p);

	switch (how % 12) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX;
	case 2:
		return take_32(p);
	case 3:
		return take_64(p);
	case 4: /* a slot, or one that is not there */
		return take_8(p) % (s->n_slots + 2u);
	case 5: /* a list's head */
		return (uint64_t)(how / 12 ? how : 1) << 16 | (take_8(p) % (s->n_slots + 2u));
	case 6:
		return take_place(p);
	case 7:
		return take_word(p);
	case 8:
		return take_8(p) % 20; /* a holder */
	case 9: /* a size, or one too many */
		return s->n_slots ? s->slots[take_8(p) % s->n_slots].capacity + (uint64_t)(how / 12 % 3) - 1 : 0;
	case 10:
		return take_8(p) % 32; /* marks in busy */
	default:
		return SHEAF_TOMBSTONE - how / 12;
	}
}

static void
write_list(struct play *p)
{
	struct layout_session_cache *lists = session_cache(p->sessions[HOSTILE], take_cache(p)->id);
	uint64_t *const at[] = {&lists->full, &lists->empty, &lists->returned, &lists->n_double_frees, &lists->n_foreign_frees, &lists->n_refills};
	uint8_t which = take_8(p);

	if (which >= 0xf0)
		lists->is_refilling = (uint32_t)take_value(p);
	else if (which >= 0xe0)
		lists->n_granted = (uint32_t)take_value(p);
	else
		*at[which % 6] = take_value(p);
}

static void
write_slot(struct play *p)
{
	struct session *s = p->sessions[HOSTILE];
	struct layout_slot *slot = &session_slots(s)[take_8(p) % (s->n_slots + 1u)];
	uint8_t which = take_8(p);
	uint32_t value = (uint32_t)take_value(p);

	switch (which % 5) {
	case 0:
		slot->holder = value;
		break;
	case 1:
		slot->next = value;
		break;
	case 2:
		slot->off = value;
		break;
	case 3:
		slot->capacity = (uint16_t)value;
		break;
	case 4:
		slot->cache = (uint16_t)value;
		break;
	}
}

static void
write_sheaf(struct play *p)
{
	struct session *s = p->sessions[HOSTILE];
	uint32_t slot;
	struct sheaf *sheaf;
	uint8_t which;

	if (!s->n_slots)
		return;
	slot = take_8(p) % s->n_slots;
	sheaf = session_sheaf(s, slot);
	which = take_8(p);
	switch (which % 8) {
	case 0:
		sheaf->busy = (uint32_t)take_value(p);
		break;
	case 1:
		sheaf->floor = (uint32_t)take_value(p);
		break;
	case 2:
		sheaf->limit = (uint32_t)take_value(p);
		break;
	case 3:
	case 4:
		sheaf->size = (uint32_t)take_value(p);
		break;
	default:
		sheaf->entry[which / 8 % (s->slots[slot].capacity + 1u)] = (uint32_t)take_value(p);
	}
}

/* Anywhere at all, so many bytes. */
static void
write_raw(struct play *p)
{
	char *map = p->sessions[HOSTILE]->map;
	size_t n = take_8(p), off = take_32(p);

	/* Mostly where something lies. */
	off %= off & 1u << 31 ? LAYOUT_SESSION_BYTES : LAYOUT_SESSION_SHEAVES_OFF + (64u << 10);
	for (size_t i = 0; i < n && off + i < LAYOUT_SESSION_BYTES; i++)
		map[off + i] = (char)take_8(p);
}

static void
write_word(struct play *p)
{
	uint32_t *word = word_of(p, take_place(p)), value = take_word(p);

	if (word)
		*word = value;
}

static void
refill(struct play *p, unsigned i)
{
	struct cache *k = take_cache(p);
	uint8_t how = take_8(p), n = take_8(p);
	const struct grant_request request = {
		.n_sheaves = how & 1 ? n % 8 : n,
		.n_empty = how & 2 ? n % 16 : 0,
		.capacity = how & 4 ? (k->flags & LAYOUT_CACHE_RUNS ? 1 : 1 + n % 64) : 0,
		.os_node = how >> 3 & 1,
		.n_pages = k->flags & LAYOUT_CACHE_RUNS ? n : 0,
		.is_ahead = how & 16,
	};
	struct session *s = lock(p, i);
	struct grant grant;

	if (grant_refill(s, k, &request, &grant, p->why, sizeof p->why) == 0)
		FUZZ_CHECK(grant.n_sheaves == 0 || grant.slot < s->n_slots);
	unlock(p, i);
}

/* The honest thread takes a sheaf of the first cache, and objects out of it. */
static void
honest_alloc(struct play *p)
{
	struct session *s = p->sessions[HONEST];
	struct layout_slot *shown = session_slots(s);
	struct sheaf *sheaf;
	int32_t slot;

	if (p->n_slots < N_SHEAVES) {
		slot = barn_pop(&session_cache(s, p->caches[0]->id)->full, shown, s->n_slots);
		if (slot >= 0 && barn_take(&shown[slot], LAYOUT_HOLDER_BARN, ME)) {
			p->slots[p->n_slots++] = (uint32_t)slot;
			session_sheaf(s, (uint32_t)slot)->floor = 0;
			session_sheaf(s, (uint32_t)slot)->limit = s->slots[slot].capacity;
			session_sheaf(s, (uint32_t)slot)->busy = 0;
		}
	}
	if (p->n_slots == 0)
		return;
	slot = (int32_t)p->slots[take_8(p) % p->n_slots];
	sheaf = session_sheaf(s, (uint32_t)slot);
	while (p->n_held < N_HELD && sheaf->floor == 0 && sheaf->size > 0) {
		uint32_t place = sheaf->entry[sheaf->size - 1], *word = word_of(p, place);

		/* One whose word is owned already is dropped. */
		if (word && !(*word & WORD_LOW_MASK)) {
			*word = word_with(*word + WORD_GENERATION_ONE, s->client, WORD_OWNED);
			p->held[p->n_held++] = place;
		}
		sheaf->size--;
	}
}

static void
honest_free(struct play *p)
{
	struct session *s = p->sessions[HONEST];

	for (unsigned i = 0; i < p->n_slots && p->n_held; i++) {
		struct sheaf *sheaf = session_sheaf(s, p->slots[i]);

		while (p->n_held && sheaf->floor == 0 && sheaf->size < sheaf->limit) {
			uint32_t place = p->held[--p->n_held], *word = word_of(p, place);

			if (!word || word_owner(*word) != s->client)
				continue; /* the hostile one has it now, or wrote so */
			sheaf->entry[sheaf->size++] = place;
			*word = word_cleared(*word);
		}
	}
}

/* And gives its sheaves back, recalled ones too. */
static void
honest_return(struct play *p)
{
	struct session *s = p->sessions[HONEST];
	struct layout_slot *shown = session_slots(s);

	while (p->n_slots) {
		uint32_t slot = p->slots[--p->n_slots];

		barn_hand(&shown[slot], LAYOUT_HOLDER_RETURNED);
		barn_push(&session_cache(s, p->caches[0]->id)->returned, shown, slot);
	}
	lock(p, HONEST);
	grant_flush(s, p->caches[0]);
	unlock(p, HONEST);
}

static void
close_and_open(struct play *p)
{
	struct cache *k = take_cache(p);
	struct session *s = lock(p, HOSTILE);

	grant_close(s, k);
	session_set_open(s, k, false);
	session_set_open(s, k, true);
	unlock(p, HOSTILE);
}

static void
relieve(struct play *p)
{
	unsigned i = take_8(p) % N_SESSIONS, stage = 0;
	struct cache *k = take_cache(p);
	struct session *s = lock(p, i);

	/* The pauses of a patient one are not for here. */
	p->arena->refused_ns = clock_now_ns();
	for (unsigned n = 0; n < 3 && recall_relieve(s, k, &stage); n++)
		;
	unlock(p, i);
}

static void
decay(struct play *p)
{
	pthread_rwlock_rdlock(&p->arena->sessions_lock);
	for (int i = 0; i <= RECALL_TICKS + 1; i++)
		recall_decay(p->arena);
	pthread_rwlock_unlock(&p->arena->sessions_lock);
}

static void
shrink(struct play *p)
{
	unsigned i = take_8(p) % N_SESSIONS;
	struct cache *k = take_cache(p);
	struct session *s = lock(p, i);

	recall_shrink(p->arena, s, k);
	grant_trim(s, k);
	unlock(p, i);
}

static void
tune(struct play *p)
{
	struct cache *k = take_cache(p);
	const struct cache_tuning tuning = {
		.set = take_8(p) % (CACHE_TUNE_ALL + 1),
		.sheaf_capacity = take_8(p),
		.barn_full = take_8(p) % 8,
		.min_partial = take_8(p) % 4,
		.max_cached = (uint64_t)take_8(p) << 10,
		.cpu_partial = take_8(p),
		.barn_empty = take_8(p) % 8,
	};

	pthread_rwlock_wrlock(&p->arena->sessions_lock);
	cache_tune(k, &tuning, p->why, sizeof p->why);
	pthread_rwlock_unlock(&p->arena->sessions_lock);
}

static void
audit(struct play *p)
{
	struct audit found;

	FUZZ_CHECK(audit_run(p->arena, 0, &found) == 0);
	FUZZ_CHECK(found.n_objects == found.n_free + found.n_barn + found.n_out);
}

static void
count_all(struct play *p)
{
	struct proto_caches_reply cache = {0};
	struct proto_clients_reply client = {0};
	struct proto_session_stats_reply own;
	uint64_t bytes;
	uint32_t after = 0;

	for (; cache.cache || !after; after++)
		stats_cache(p->arena, cache.cache, &cache);
	stats_client(p->arena, 0, 0, &client);
	stats_session(p->sessions[HOSTILE], 0, &own);
	pthread_rwlock_rdlock(&p->arena->sessions_lock);
	recall_idlest(p->arena, &bytes);
	FUZZ_CHECK(bytes <= LIMIT_BYTES * 64ull);
	pthread_rwlock_unlock(&p->arena->sessions_lock);
}

static void
use_reference(struct play *p)
{
	uint8_t how = take_8(p);
	uint32_t place = take_place(p), *word = word_of(p, place);
	uint64_t ref = how & 1 && word ? ref_make(p->arena, place, *word) : take_64(p), next;
	struct session *s = lock(p, HOSTILE);

	switch (how / 2 % 5) {
	case 0:
		orphan_next(p->arena, take_cache(p), take_64(p), &ref, &next);
		break;
	case 1:
		orphan_adopt(s, ref, p->why, sizeof p->why);
		break;
	case 2:
		orphan_give(s, ref, p->sessions[HONEST]->id, p->why, sizeof p->why);
		break;
	case 3:
		root_publish(p->arena, "root", ref, how & 64, p->why, sizeof p->why);
		break;
	case 4:
		root_lookup(p->arena, "root", &ref);
		break;
	}
	unlock(p, HOSTILE);
}

static void
reap(struct play *p, unsigned i)
{
	reaper_reap(p->sessions[i]);
	if (i == HONEST)
		p->n_slots = p->n_held = 0;
	else
		p->is_evicted = false;
	open_session(p, i);
}

static void
step(struct play *p)
{
	uint8_t what = take_8(p);

	switch (what % 24) {
	case 0:
	case 1:
		write_list(p);
		break;
	case 2:
	case 3:
		write_slot(p);
		break;
	case 4:
	case 5:
	case 6:
		write_sheaf(p);
		break;
	case 7:
		write_raw(p);
		break;
	case 8:
		write_word(p);
		break;
	case 9:
	case 10:
		refill(p, HOSTILE);
		break;
	case 11:
		refill(p, HONEST);
		break;
	case 12: {
		struct cache *k = take_cache(p);

		grant_flush(lock(p, HOSTILE), k);
		unlock(p, HOSTILE);
		break;
	}
	case 13:
		honest_alloc(p);
		break;
	case 14:
		honest_free(p);
		break;
	case 15:
		honest_return(p);
		break;
	case 16:
		close_and_open(p);
		break;
	case 17:
		relieve(p);
		break;
	case 18:
		decay(p);
		break;
	case 19:
		shrink(p);
		break;
	case 20:
		if (what / 24 % 2)
			tune(p);
		else
			audit(p);
		break;
	case 21:
		count_all(p);
		break;
	case 22:
		use_reference(p);
		break;
	case 23:
		if (what / 24 < 4)
			reap(p, HOSTILE);
		else if (what / 24 < 7)
			reap(p, HONEST);
		else
			session_resume(p->sessions[HOSTILE]);
		break;
	}
}

/* slabd's side: nodes against slabs and bits, barn sheaves against bits. */
static void
check_node(const struct arena *arena, const struct node *node)
{
	uint64_t n_slabs = 0, n_partial = 0, n_objects = 0, n_free = 0, n_barn = 0, n_listed = 0, n_in_sheaves = 0;

	for (uint32_t number = 1; number <= arena->n_slabs; number++) {
		const struct slab *slab = &arena->slabs[number];
		uint32_t n_free_here = 0;

		if (slab->cache != node->cache->id || slab->node != node->index)
			continue;
		for (uint32_t i = 0; i < slab->n_objects; i++) {
			n_free_here += slab_get(arena, slab->first_word + i) == SLAB_FREE;
			n_barn += slab_get(arena, slab->first_word + i) == SLAB_BARN;
		}
		FUZZ_CHECK(slab->n_free == n_free_here);
		n_slabs++;
		n_partial += n_free_here > 0;
		n_objects += slab->n_objects;
		n_free += n_free_here;
	}
	for (uint32_t number = node->first_partial; number && n_listed <= n_partial; number = arena->slabs[number].next)
		n_listed++;
	for (const struct node_sheaf *sheaf = node->first_full; sheaf; sheaf = sheaf->next) {
		n_in_sheaves += sheaf->size;
		for (uint32_t i = 0; i < sheaf->size; i++)
			FUZZ_CHECK(slab_get(arena, sheaf->at[i].word) == SLAB_BARN);
	}
	FUZZ_CHECK(node->n_slabs == n_slabs && node->n_objects == n_objects && node->n_free == n_free);
	FUZZ_CHECK(node->n_partial == n_partial && n_listed == n_partial);
	FUZZ_CHECK(node->n_barn == n_barn && n_in_sheaves == n_barn);
}

/* The ledger's slots lie one after the other; the free ones are listed once each. */
static void
check_session(const struct session *s)
{
	uint32_t end = LAYOUT_SESSION_SHEAVES_OFF, n_free = 0, n_listed = 0;

	for (uint32_t slot = 0; slot < s->n_slots; slot++) {
		const struct session_slot *own = &s->slots[slot];

		FUZZ_CHECK(own->off >= end && own->off + own->bytes <= LAYOUT_SESSION_BYTES);
		FUZZ_CHECK(sheaf_bytes(own->capacity) <= own->bytes);
		end = own->off + own->bytes;
		n_free += own->cache == 0;
	}
	for (unsigned size = 0; size < SESSION_SLOT_SIZES; size++)
		for (uint32_t slot = s->free_slots[size]; slot && n_listed <= n_free; slot = s->slots[slot - 1].next, n_listed++)
			FUZZ_CHECK(s->slots[slot - 1].cache == 0);
	FUZZ_CHECK(n_listed == n_free);
}

static void
check(struct play *p)
{
	const struct session *honest = p->sessions[HONEST];

	for (unsigned k = 0; k < N_CACHES; k++)
		for (unsigned i = 0; i < p->caches[k]->n_nodes; i++)
			check_node(p->arena, &p->caches[k]->nodes[i]);
	FUZZ_CHECK(words_check(&p->arena->words_runs));
	for (unsigned i = 0; i < p->arena->n_segments; i++)
		FUZZ_CHECK(pages_check(&p->arena->segments[i].pages));
	FUZZ_CHECK(p->arena->committed_bytes <= p->arena->options.limit_bytes);
	for (unsigned i = 0; i < N_SESSIONS; i++)
		check_session(p->sessions[i]);
	for (uint32_t slot = 0; slot < honest->n_slots; slot++)
		if (honest->slots[slot].cache)
			FUZZ_CHECK(session_sheaf(honest, slot)->size <= honest->slots[slot].capacity);
	/* What others can spoil is counted too, but not as its own doing. */
	FUZZ_CHECK(honest->n_own_faults == 0);
	for (unsigned i = 0; i < p->n_slots; i++)
		FUZZ_CHECK(honest->slots[p->slots[i]].cache == p->caches[0]->id);
	audit(p);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct play p = {.at = data, .end = data + size};

	log_set_level(LOG_LEVEL_ERROR);
	begin(&p);
	for (int i = 0; i < MAX_STEPS && p.at < p.end; i++) {
		step(&p);
		if (p.is_evicted)
			reap(&p, HOSTILE);
	}
	check(&p);
	for (unsigned i = 0; i < N_SESSIONS; i++)
		reaper_reap(p.sessions[i]);
	for (unsigned k = 0; k < N_CACHES; k++)
		for (unsigned i = 0; i < p.caches[k]->n_nodes; i++)
			check_node(p.arena, &p.caches[k]->nodes[i]);
	arena_free(p.arena);
	return 0;
}
