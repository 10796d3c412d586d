/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients against a real slabd (design.md, I8).
 *
 * Each hostile process has a session by raw packets, and two threads: one writes values, random ones and such as are nearly right, into whatever a client may
 * write (session segment, object words, objects), the other sends requests that are valid but for what they mean, rings doorbells, tries what may be done to
 * the descriptors, and once in a while sends nonsense.  Where it can it is another user than slabd.  Evicted or hung up on, it comes again.
 *
 * Meanwhile:  in another arena   an honest program checks every object; no call fails, and the audit, again and again, finds nothing
 *             in the same arena  an honest program may find its objects and words spoilt and calls refused; each call comes back soon, its session stays and is
 *                                not blamed for what only its own process can do
 *             slabd              lives, answers within a bound, is idle when nothing is asked of it, has named the hostile ones and evicted them
 * Afterwards the hostile ones are killed, and a cache made then in the spoilt arena is as sound as any.
 *
 * usage: fuzz_client [--seconds=15] [--seed=N] [--max-faults=100]
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CUnit/Basic.h>

#include "proto/codec.h"
#include "shm/word.h"
#include "tests/harness.h"

enum {
	N_HOSTILE = 2,
	NOBODY = 65534,
	BURST = 256, /* writes, then a moment in which slabd meets them */
	PAUSE_US = 50,
	N_NAMES = 4,  /* of caches; the honest one has the first two open too */
	MAX_SLOT = 512, /* of the slots that it scribbles at most */
	N_TABLE = 512, /* objects of the honest ones */
	/*
	 * A call of an honest program, or a question to slabd: what slabd works meanwhile, for whomever, which no other program of the machine makes longer; and
	 * what passes, on a machine that does other things too.
	 */
	MAX_WORK_MS = 3000,
	MAX_CALL_MS = 20000,
	MAX_IDLE_WORK_MS = 200, /* in a second in which nothing is asked */
};

static const char *const names[N_NAMES] = {"same", "reclaim", "wordless", "hostile"};
static const size_t sizes[N_NAMES] = {64, 200, 256, 1024};
static const unsigned flags[N_NAMES] = {0, SLABC_RECLAIM, SLABC_NO_OWNER, SLABC_SHARED};

static unsigned seconds = 15, max_faults = 100;
static uint64_t seed;

/* What the processes tell each other. */
static struct told {
	bool is_over; /* atomic */
	uint64_t n_writes[N_HOSTILE], n_requests[N_HOSTILE], n_sessions[N_HOSTILE];
	uint64_t n_calls[2], n_refused[2], n_spoilt[2], longest_ns[2], most_work_ns[2]; /* of the honest: in the other arena, in the same */
} *told;

/* Of slabd. */
static clockid_t work_clock;

struct span {
	int64_t start_ns;
	int64_t work_ns;
};

static int64_t
work_now_ns(void)
{
	struct timespec t;

	REQUIRE(clock_gettime(work_clock, &t) == 0);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static struct span
span_begin(void)
{
	return (struct span){.start_ns = harness_now_ns(), .work_ns = work_now_ns()};
}

/* Neither may be longer than it may be; the longest are kept. */
static void
span_end(const struct span *begun, uint64_t *longest_nsp, uint64_t *most_work_nsp)
{
	uint64_t took = (uint64_t)(harness_now_ns() - begun->start_ns), work = (uint64_t)(work_now_ns() - begun->work_ns);

	*longest_nsp = took > *longest_nsp ? took : *longest_nsp;
	*most_work_nsp = work > *most_work_nsp ? work : *most_work_nsp;
	CHECK(took < MAX_CALL_MS * UINT64_C(1000000));
	CHECK(work < MAX_WORK_MS * UINT64_C(1000000));
}

static uint64_t
random_of(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* The hostile process */

struct hostile {
	struct harness *h;
	unsigned number;
	struct raw raw;
	uint32_t caches[N_NAMES]; /* ids */
	char *data;               /* of the first segment */
	uint64_t data_bytes, n_words;
	uint64_t state[2]; /* of the two threads */
	bool is_over;      /* atomic: the session */
};

/* A place in a page of one of the arena's caches, mostly; mostly where an object starts. */
static uint32_t
choose_place(const struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state);
	uint32_t page = (uint32_t)(r >> 8) % (me->raw.arena->n_pages ? me->raw.arena->n_pages : 1), cache, bytes;

	if (r % 16 == 0)
		return (uint32_t)random_of(state);
	/* Low pages are the ones in use. */
	if (r % 16 < 14)
		page %= 1024;
	cache = me->raw.pages[page].cache;
	bytes = cache < LAYOUT_MAX_CACHES ? me->raw.caches[cache].object_bytes : 0;
	return (page << LAYOUT_PLACE_PAGE_SHIFT) +
	       (bytes ? (uint32_t)(r >> 40) % (LAYOUT_PAGE_BYTES / bytes + 1) * (bytes >> LAYOUT_PLACE_SHIFT) : (uint32_t)(r >> 40) % 512);
}

/* NULL: it would lie outside the table. */
static uint32_t *
word_of(const struct hostile *me, uint32_t place)
{
	uint32_t number = place >> LAYOUT_PLACE_PAGE_SHIFT;
	const struct layout_page *page;
	uint64_t x;

	if (number >= me->raw.arena->n_pages)
		return NULL;
	page = &me->raw.pages[number];
	if (page->cache == 0 || page->cache >= LAYOUT_MAX_CACHES)
		return NULL;
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * me->raw.caches[page->cache].recip + page->prod;
	return x >> 32 < me->n_words ? &me->raw.words[x >> 32] : NULL;
}

/* A word that could be: of who is there, in any state, of this life or the next. */
static uint32_t
choose_word(const struct hostile *me, uint64_t *state)
{
	static const uint32_t states[] = {WORD_OWNED, WORD_SHARED, WORD_CLOSING, WORD_STATE_MASK};
	uint64_t r = random_of(state);
	uint32_t *word = word_of(me, choose_place(me, state)), w = word ? atomic_read(word) : (uint32_t)random_of(state);
	const uint32_t owners[] = {0, me->raw.attach.client, 1 + (uint32_t)(r >> 8) % 8, WORD_ORPHAN, (uint32_t)(r >> 8) & WORD_OWNER_MASK};

	return word_with(w + (r >> 32 & 1) * WORD_GENERATION_ONE, owners[r % 5], states[r >> 4 & 3]);
}

static uint64_t
choose_value(const struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state);
	uint32_t slot = (uint32_t)(r >> 8) % MAX_SLOT;

	switch (r % 12) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX;
	case 2:
		return random_of(state);
	case 3: /* a slot, and one off */
		return slot;
	case 4: /* a list's head, with a count that it may not have */
		return (r >> 32) << 32 | (r >> 20 & 0xff) << 16 | slot;
	case 5:
		return choose_place(me, state);
	case 6:
		return choose_word(me, state);
	case 7:
		return r >> 8 & 31; /* a holder, or marks in busy */
	case 8:
		return LAYOUT_HOLDER_THREAD + (r >> 8 & 7);
	case 9: /* a size, and one off */
		return me->raw.slots[slot].capacity + (r >> 20) % 3 - 1;
	case 10:
		return me->caches[r >> 8 & 3];
	default:
		return LAYOUT_MAX_SLOTS + (r >> 8) % 3 - 1;
	}
}

static void
write_list(struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state);
	uint32_t cache = r % 8 ? me->caches[r >> 4 & 3] : (uint32_t)(r >> 4) % LAYOUT_MAX_CACHES;
	uint64_t *list = (uint64_t *)(void *)(me->raw.session + LAYOUT_SESSION_CACHES_OFF + cache * sizeof(struct layout_session_cache));

	/* Mostly the three heads. */
	atomic_write(&list[r >> 16 & 1 ? (r >> 20) % 3 : (r >> 20) % (sizeof(struct layout_session_cache) / 8)], choose_value(me, state));
}

static void
write_slot(struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state);
	struct layout_slot *slot = &me->raw.slots[(r >> 8) % MAX_SLOT];
	uint32_t value = (uint32_t)choose_value(me, state);

	switch (r % 8) {
	case 0:
	case 1:
	case 2:
		atomic_write(&slot->holder, value);
		break;
	case 3:
	case 4: /* also to itself */
		atomic_write(&slot->next, r >> 32 & 1 ? value : (uint32_t)(slot - me->raw.slots) + 1);
		break;
	case 5:
		atomic_write(&slot->off, value);
		break;
	case 6:
		atomic_write(&slot->capacity, (uint16_t)value);
		break;
	default:
		atomic_write(&slot->cache, (uint16_t)value);
	}
}

static void
write_sheaf(struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state);
	uint64_t off = (uint64_t)atomic_read(&me->raw.slots[(r >> 8) % MAX_SLOT].off) * LAYOUT_SLOT_UNIT;
	struct sheaf *sheaf;

	if (off < LAYOUT_SESSION_SHEAVES_OFF || off > LAYOUT_SESSION_BYTES - LAYOUT_PAGE_BYTES)
		off = LAYOUT_SESSION_SHEAVES_OFF + (r >> 24) % 4096 * LAYOUT_SLOT_UNIT;
	sheaf = (struct sheaf *)(void *)(me->raw.session + off);
	switch (r % 8) {
	case 0:
		atomic_write(&sheaf->busy, (uint32_t)choose_value(me, state));
		break;
	case 1:
		atomic_write(&sheaf->floor, (uint32_t)choose_value(me, state));
		break;
	case 2:
		atomic_write(&sheaf->limit, (uint32_t)choose_value(me, state));
		break;
	case 3:
	case 4:
		atomic_write(&sheaf->size, (uint32_t)choose_value(me, state));
		break;
	default:
		atomic_write(&sheaf->entry[(r >> 40) % (r & 8 ? 28 : LAYOUT_MAX_SHEAF)], r >> 60 ? choose_place(me, state) : (uint32_t)choose_value(me, state));
	}
}

static void
write_word(struct hostile *me, uint64_t *state)
{
	uint32_t *word = word_of(me, choose_place(me, state));

	if (word)
		atomic_write(word, choose_word(me, state));
}

static void
write_object(struct hostile *me, uint64_t *state)
{
	uint64_t off = (uint64_t)choose_place(me, state) << LAYOUT_PLACE_SHIFT;

	/* What slabd has committed, so that the machine's memory stays out of it. */
	if (off < me->data_bytes && me->raw.pages[off >> LAYOUT_PAGE_SHIFT].cache)
		atomic_write((uint64_t *)(void *)(me->data + off), random_of(state));
}

static void
write_anywhere(struct hostile *me, uint64_t *state)
{
	uint64_t r = random_of(state), bytes = r % 4 ? LAYOUT_SESSION_SHEAVES_OFF + (256u << 10) : LAYOUT_SESSION_BYTES;

	atomic_write((uint32_t *)(void *)(me->raw.session + (r >> 8) % bytes / 4 * 4), (uint32_t)choose_value(me, state));
}

static void *
scribble(void *arg)
{
	static void (*const writers[])(struct hostile *me, uint64_t *state) = {
		write_list, write_list, write_slot, write_slot, write_sheaf, write_sheaf, write_sheaf, write_word, write_object, write_anywhere};
	const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
	struct hostile *me = arg;
	uint64_t *state = &me->state[1];

	while (!atomic_read(&me->is_over) && !atomic_read(&told->is_over)) {
		for (int i = 0; i < BURST; i++)
			writers[random_of(state) % (sizeof writers / sizeof writers[0])](me, state);
		atomic_add(&told->n_writes[me->number], BURST);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* What may not be done to a descriptor is refused; what may be is done. */
static void
try_descriptors(struct hostile *me, uint64_t *state)
{
	static const int seals[] = {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE};
	uint64_t r = random_of(state);
	unsigned i = (unsigned)(r >> 8) % me->raw.n_fds;
	int fd = me->raw.fds[i];

	switch (r % 6) {
	case 0:
		/* The session's own takes some, of which only it has the harm. */
		CHECK(fcntl(fd, F_ADD_SEALS, seals[(r >> 16) % 5]) < 0 || i == 2);
		break;
	case 1:
		CHECK(ftruncate(fd, (off_t)(r >> 16 & 0xffffff)) < 0);
		break;
	case 2:
		/* Holes: in the arena segment none; elsewhere it spoils its own arena. */
		CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)((r >> 16 & 0xff) << 12), LAYOUT_PAGE_BYTES) < 0 || i != 0);
		break;
	case 3:
		CHECK(fchmod(fd, 0777) < 0 || geteuid() == 0);
		break;
	case 4:
		fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND);
		lseek(fd, (off_t)(r >> 16 & 0xffff), SEEK_SET);
		break;
	default:
		CHECK(pwrite(me->raw.fds[0], &r, sizeof r, 0) < 0);
	}
}

/* Its arguments: whatever the session may ask for, in its own arena. */
static enum proto_op
choose_request(const struct hostile *me, uint64_t *state, union proto_request *q)
{
	uint64_t r = random_of(state), at = random_of(state);
	uint32_t cache = r >> 60 ? me->caches[r >> 8 & 3] : (uint32_t)(r >> 8) % LAYOUT_MAX_CACHES, place = choose_place(me, state);
	uint32_t *word = word_of(me, place);
	uint64_t ref = r >> 56 & 3 ? (uint64_t)1 << 56 | (uint64_t)me->raw.pages[place >> LAYOUT_PLACE_PAGE_SHIFT < me->raw.arena->n_pages
								? place >> LAYOUT_PLACE_PAGE_SHIFT : 0].incarnation << 48 |
					       (uint64_t)(word ? word_generation(atomic_read(word)) : 0) << 32 | place
				   : random_of(state);

	*q = (union proto_request){0};
	switch (r % 20) {
	case 0:
		q->cache_open.size = sizes[r >> 8 & 3];
		q->cache_open.flags = flags[r >> 8 & 3];
		strcpy(q->cache_open.name, names[r >> 8 & 3]);
		return PROTO_OP_CACHE_OPEN;
	case 1:
		q->cache_close.cache = cache;
		return PROTO_OP_CACHE_CLOSE;
	case 2:
		q->next_orphan.cache = cache;
		q->next_orphan.after = at;
		return PROTO_OP_NEXT_ORPHAN;
	case 3:
		q->adopt_orphan.ref = ref;
		return PROTO_OP_ADOPT_ORPHAN;
	case 4:
		q->give.ref = ref;
		q->give.client_id = 1u << 14 | (1 + (uint32_t)(at % 8));
		return PROTO_OP_GIVE;
	case 5:
		q->publish.ref = ref;
		q->publish.flags = 1;
		snprintf(q->publish.name, sizeof q->publish.name, "root %u", (unsigned)(at % 8));
		return PROTO_OP_PUBLISH;
	case 6:
		snprintf(q->lookup.name, sizeof q->lookup.name, "root %u", (unsigned)(at % 8));
		return PROTO_OP_LOOKUP;
	case 7:
		q->shrink.cache = cache;
		return PROTO_OP_SHRINK;
	case 8:
		q->fault.cache = cache;
		q->fault.kind = (uint32_t)(at % 12);
		q->fault.place = at;
		return PROTO_OP_FAULT;
	case 9:
		return PROTO_OP_SESSION_STATS;
	case 10:
		q->tune.cache = me->caches[3];
		q->tune.set = (uint32_t)(at % 64);
		q->tune.sheaf_capacity = (uint32_t)(at >> 8) % 64;
		q->tune.max_cached = at >> 16 & 0xfffff;
		return PROTO_OP_TUNE;
	case 11:
	case 12:
	case 13:
		q->flush.cache = cache;
		q->flush.n_sheaves = (uint32_t)at;
		return PROTO_OP_FLUSH;
	default:
		q->refill.cache = cache;
		q->refill.n_sheaves = (uint32_t)(at % (at >> 60 ? 8 : 1024));
		q->refill.n_empty = (uint32_t)(at >> 16) % 64;
		q->refill.capacity = at >> 32 & 3 ? 0 : (uint32_t)(at >> 40) % (LAYOUT_MAX_SHEAF + 1);
		q->refill.node = (uint32_t)(at >> 50) % 4;
		return PROTO_OP_REFILL;
	}
}

/* false: the session has ended. */
static bool
request_something(struct hostile *me)
{
	uint64_t *state = &me->state[0], r = random_of(state);
	union proto_request request;
	union proto_reply reply;
	enum proto_op op;

	if (r % 64 == 0)
		try_descriptors(me, state);
	/* None of the protocol's: the connection ends. */
	if (r % 4096 == 1) {
		send(me->raw.fd, &r, sizeof r, MSG_NOSIGNAL);
		return false;
	}
	op = choose_request(me, state, &request);
	atomic_add(&told->n_requests[me->number], 1);
	/* A doorbell that wants no answer. */
	if (r % 8 == 2)
		return raw_send(me->raw.fd, op, 0, &request) == 0;
	return raw_call(me->raw.fd, op, &request, &reply, NULL) >= 0;
}

static void
one_session(struct hostile *me)
{
	struct stat st;
	pthread_t thread;
	void *map;

	raw_attach_with(&me->raw, me->h->socket, "hostile", PROTO_ATTACH_RECALLABLE);
	me->n_words = me->raw.attach.words_bytes / sizeof(uint32_t);
	for (unsigned i = 0; i < N_NAMES; i++)
		me->caches[i] = raw_cache_open(&me->raw, names[i], sizes[i], flags[i]);
	REQUIRE(fstat(me->raw.fds[3], &st) == 0);
	me->data_bytes = (uint64_t)st.st_size;
	map = mmap(NULL, me->data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, me->raw.fds[3], 0);
	REQUIRE(map != MAP_FAILED);
	me->data = map;
	me->is_over = false;
	REQUIRE(pthread_create(&thread, NULL, scribble, me) == 0);
	while (!atomic_read(&told->is_over) && request_something(me))
		;
	atomic_write(&me->is_over, true);
	pthread_join(thread, NULL);
	munmap(map, me->data_bytes);
	raw_detach(&me->raw);
	atomic_add(&told->n_sessions[me->number], 1);
}

static void
be_hostile(struct peer *peer, void *arg)
{
	struct hostile me = *(struct hostile *)arg;

	if (geteuid() == 0)
		REQUIRE(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
	for (int i = 0; i < 2; i++)
		me.state[i] = (seed + me.number * 2 + (unsigned)i + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	while (!atomic_read(&told->is_over))
		one_session(&me);
	peer_tell(peer, 'd');
	peer_await(peer, 'e');
}

/* The honest programs */

struct object {
	uint64_t *at;
	uint64_t stamp;
};

struct honest {
	struct harness *h;
	bool is_same; /* arena */
};

/* One step: frees an object, or allocates one. */
static void
turn(struct object *o, struct slabc_cache *k, bool is_same, size_t n_words, uint64_t r)
{
	struct span begun = span_begin();

	errno = 0;
	if (o->at) {
		for (size_t i = 0; i < n_words; i++) {
			if (o->at[i] == o->stamp + i)
				continue;
			CHECK(is_same);
			told->n_spoilt[is_same]++;
			break;
		}
		slabc_free(k, o->at);
		o->at = NULL;
		CHECK(errno == 0 || is_same);
	} else {
		o->at = slabc_alloc(k);
		CHECK(o->at || is_same);
		o->stamp = r;
		for (size_t i = 0; o->at && i < n_words; i++)
			o->at[i] = r + i;
	}
	if (errno) {
		/* The session is its own, whatever is done to the arena. */
		CHECK(errno != ENOTCONN && errno != ETIMEDOUT && errno != EPROTO);
		told->n_refused[is_same]++;
	}
	told->n_calls[is_same]++;
	span_end(&begun, &told->longest_ns[is_same], &told->most_work_ns[is_same]);
}

static void
be_honest(struct peer *peer, void *arg)
{
	const struct honest *task = arg;
	struct slabc_options options = SLABC_OPTIONS_INIT;
	struct slabc_cache_options ko[2] = {SLABC_CACHE_OPTIONS_INIT, SLABC_CACHE_OPTIONS_INIT};
	struct object table[2][N_TABLE] = {{{0}}};
	uint64_t state = (seed + 100 + task->is_same) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	struct slabc_cache *k[2];
	struct slabc *c;

	options.socket = task->h->socket;
	options.arena = task->is_same ? "default" : "other";
	options.label = task->is_same ? "honest" : "elsewhere";
	options.timeout_ms = MAX_CALL_MS;
	REQUIRE(slabc_open(&c, &options) == 0);
	for (int i = 0; i < 2; i++) {
		ko[i].flags = flags[i];
		REQUIRE(slabc_cache_open(c, names[i], sizes[i], &ko[i], &k[i]) == 0);
	}
	peer_tell(peer, 's');
	while (!atomic_read(&told->is_over)) {
		for (int i = 0; i < 1000; i++) {
			uint64_t r = random_of(&state);

			turn(&table[r & 1][(r >> 8) % N_TABLE], k[r & 1], task->is_same, sizes[r & 1] / 8, r);
		}
		/* So that slabd is asked again. */
		if (random_of(&state) % 16 == 0)
			slabc_cache_shrink(k[0]);
	}
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < N_TABLE; j++)
			if (table[i][j].at)
				turn(&table[i][j], k[i], task->is_same, sizes[i] / 8, 0);
	/* The id tells that it is the session that it began with. */
	CHECK(slabc_client_id(c) != 0);
	slabc_close(c);
	peer_tell(peer, 'd');
}

/* The test */

static struct proto_audit_reply
audit_of(struct harness *h, const char *arena)
{
	union proto_request request = {0};
	union proto_reply reply = {0};

	strcpy(request.audit.arena, arena);
	CHECK(harness_ask(h, PROTO_OP_AUDIT, &request, &reply) == PROTO_STATUS_OK);
	CHECK(reply.audit.n_objects == reply.audit.n_free + reply.audit.n_barn + reply.audit.n_out);
	return reply.audit;
}

static struct proto_arenas_reply
arena_after(struct harness *h, uint32_t after)
{
	union proto_request request = {.arenas = {.after = after}};
	union proto_reply reply = {0};

	CHECK(harness_ask(h, PROTO_OP_ARENAS, &request, &reply) == PROTO_STATUS_OK);
	return reply.arenas;
}

/* Asks what monitors ask. */
static void
watch(struct harness *h, int64_t until, uint64_t *longest_nsp, uint64_t *most_work_nsp)
{
	while (harness_now_ns() < until) {
		const struct timespec pause = {.tv_nsec = 20000000};
		struct span begun = span_begin();
		struct proto_audit_reply audit;

		harness_status(h);
		span_end(&begun, longest_nsp, most_work_nsp);
		audit = audit_of(h, "other");
		CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
		audit_of(h, "default");
		for (unsigned i = 0; i < N_NAMES; i++)
			harness_cache(h, names[i]);
		harness_client(h, getpid());
		nanosleep(&pause, NULL);
	}
}

/* The arena is spoilt, but what is made in it from now on is not. */
static void
work_afterwards(struct harness *h)
{
	struct slabc *c = harness_open(h, "afterwards");
	struct slabc_cache *k = harness_open_cache(c, "afterwards", 512, 0);
	struct object table[N_TABLE] = {{0}};
	uint64_t state = seed | 1;
	struct proto_audit_reply audit;

	for (int i = 0; i < 20000; i++) {
		uint64_t r = random_of(&state);

		turn(&table[r % N_TABLE], k, false, 512 / 8, r);
	}
	audit = harness_audit_cache(h, "afterwards");
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0);
	slabc_close(c);
}

static void
it_hostile_clients_harm_their_arena_alone(void)
{
	struct honest tasks[2] = {{.is_same = false}, {.is_same = true}};
	struct hostile hostile = {0};
	pid_t pids[N_HOSTILE], honest[2];
	struct proto_audit_reply audit;
	uint64_t longest = 0, most_work = 0, n_writes = 0, n_requests = 0, n_sessions = 0;
	char config[512];
	struct harness *h;
	int64_t work;

	alarm(seconds + 2 * HARNESS_TIMEOUT_S);
	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	REQUIRE(told != MAP_FAILED);
	snprintf(config, sizeof config,
		"[slabd]\nthreads = 2\nidle-after = 1\nsocket-mode = 0666\n[arena]\nsize = 64M\npage-kind = 4k\nmode = 0666\nmax-faults = %u\n"
		"client-max = 24M\nmax-orphans = 8M\n[arena other]\nsize = 64M\npage-kind = 4k\n",
		max_faults);
	h = harness_slabd_config(config);
	REQUIRE(clock_getcpuclockid(h->slabd, &work_clock) == 0);
	for (int i = 0; i < 2; i++) {
		tasks[i].h = h;
		honest[i] = harness_spawn(h, be_honest, &tasks[i]);
		peer_await(harness_peer(h, honest[i]), 's');
	}
	hostile.h = h;
	for (; hostile.number < N_HOSTILE; hostile.number++)
		pids[hostile.number] = harness_spawn(h, be_hostile, &hostile);
	watch(h, harness_now_ns() + (int64_t)seconds * 1000000000, &longest, &most_work);
	CHECK(harness_log_count(h, "'honest') is evicted") == 0);
	atomic_write(&told->is_over, true);
	for (int i = 0; i < 2; i++) {
		peer_await(harness_peer(h, honest[i]), 'd');
		harness_join(h, honest[i]);
	}
	for (int i = 0; i < N_HOSTILE; i++) {
		peer_await(harness_peer(h, pids[i]), 'd');
		harness_kill(h, pids[i], SIGKILL);
		harness_wait_reaped(h, pids[i]);
		n_writes += told->n_writes[i];
		n_requests += told->n_requests[i];
		n_sessions += told->n_sessions[i];
	}
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	/* Nothing is asked of it: no loop goes on. */
	work = work_now_ns();
	nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	CHECK(work_now_ns() - work < MAX_IDLE_WORK_MS * INT64_C(1000000));
	CHECK(n_writes > 0 && n_requests > 0 && told->n_calls[0] > 0 && told->n_calls[1] > 0);
	CHECK(harness_log_count(h, "'hostile'): ") > 0);
	CHECK(max_faults == 0 || harness_log_count(h, "'hostile') is evicted") > 0);
	audit = audit_of(h, "other");
	CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0 && audit.n_out == 0);
	work_afterwards(h);
	printf("\n    %llu writes, %llu requests, %llu sessions, %llu of them evicted\n", (unsigned long long)n_writes, (unsigned long long)n_requests,
		(unsigned long long)n_sessions, (unsigned long long)arena_after(h, 0).n_evicted);
	for (int i = 0; i < 2; i++)
		printf("    honest %s: %llu calls, %llu refused, %llu objects spoilt, the longest %.1f ms, slabd at work for %.1f ms at most\n",
			i ? "in the same arena" : "elsewhere", (unsigned long long)told->n_calls[i], (unsigned long long)told->n_refused[i],
			(unsigned long long)told->n_spoilt[i], (double)told->longest_ns[i] / 1e6, (double)told->most_work_ns[i] / 1e6);
	printf("    monitors: the longest answer %.1f ms, slabd at work for %.1f ms ", (double)longest / 1e6, (double)most_work / 1e6);
	harness_free(h);
	munmap(told, sizeof *told);
}

static bool
parse(const char *argument)
{
	unsigned long long n;

	if (sscanf(argument, "--seconds=%u", &seconds) == 1 || sscanf(argument, "--max-faults=%u", &max_faults) == 1)
		return true;
	if (sscanf(argument, "--seed=%llu", &n) != 1)
		return false;
	seed = n;
	return true;
}

int
main(int argc, char **argv)
{
	unsigned n_failures;
	CU_pSuite suite;

	for (int i = 1; i < argc; i++) {
		if (!parse(argv[i])) {
			fprintf(stderr, "usage: %s [--seconds=N] [--seed=N] [--max-faults=N]\n", argv[0]);
			return 2;
		}
	}
	if (!seed)
		seed = harness_seed();
	else
		printf("seed %llu\n", (unsigned long long)seed);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	suite = harness_suite("fuzz client");
	CU_ADD_TEST(suite, it_hostile_clients_harm_their_arena_alone);
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	CU_cleanup_registry();
	return n_failures > 0;
}
