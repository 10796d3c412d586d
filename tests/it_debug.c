/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug caches: each kind of fault is found, and told with client, thread and call sites, by slabc_last_error() and in slabd's log; the object is
 * left alone; what a client does to the bytes around objects harms no other; and slabctl leaks names who holds most, and from where.
 *
 * Call sites are those of the functions here that do not inline: a site names the program and an offset, which must lie within the function.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/harness.h"

CU_pSuite it_debug_suite(void);

enum { SIZE = 60, BIG = 16384 };

/* Keeps a call from being the last thing a function does, which would leave no frame. */
#define NO_TAIL_CALL() __asm__ volatile("" ::: "memory")

__attribute__((noinline)) static char *
make_object(struct slabc_cache *k)
{
	char *p = slabc_alloc(k);

	NO_TAIL_CALL();
	return p;
}

__attribute__((noinline)) static int
drop_object(struct slabc_cache *k, void *p)
{
	errno = 0;
	slabc_free(k, p);
	NO_TAIL_CALL();
	return errno;
}

__attribute__((noinline)) static int
drop_object_again(struct slabc_cache *k, void *p)
{
	errno = 0;
	slabc_free(k, p);
	NO_TAIL_CALL();
	return errno + 0 * (int)sizeof(k);
}

static unsigned
my_tid(void)
{
	return (unsigned)syscall(SYS_gettid);
}

__attribute__((noinline)) static char *
leak_object(struct slabc_cache *k)
{
	char *p = slabc_alloc(k);

	NO_TAIL_CALL();
	return p;
}

/* Bytes of one of these, at most: inlined calls make them large. */
static size_t
room_of(const void *function)
{
	const void *const all[] = {(const void *)make_object, (const void *)drop_object, (const void *)drop_object_again, (const void *)leak_object};
	uintptr_t from = (uintptr_t)function, room = 0x800;

	for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
		if ((uintptr_t)all[i] > from && (uintptr_t)all[i] - from < room)
			room = (uintptr_t)all[i] - from;
	return room;
}

/* Does text have, behind `what`, "at NAME+0xOFFSET" of that function? */
static bool
has_site(const char *text, const char *what, const void *function)
{
	const char *at = strstr(text, what), *plus;
	size_t off;
	Dl_info info;

	at = at ? strstr(at, " at ") : NULL;
	plus = at ? strstr(at, "+0x") : NULL;
	if (!plus || !dladdr(function, &info))
		return false;
	off = strtoul(plus + 1, NULL, 16);
	return off - (size_t)((const char *)function - (const char *)info.dli_fbase) < room_of(function);
}

static bool
has_words(const char *text, const char *format, ...)
{
	char words[256];
	va_list args;

	va_start(args, format);
	vsnprintf(words, sizeof words, format, args);
	va_end(args);
	if (!strstr(text, words))
		printf("no \"%s\" in \"%s\"\n", words, text);
	return strstr(text, words) != NULL;
}

/* The line of slabd's log with this text; "": none yet. */
static const char *
log_line_with(const struct harness *h, const char *text)
{
	static char line[2048];
	FILE *log = fopen(h->log, "re");

	while (log && fgets(line, sizeof line, log))
		if (strstr(line, text)) {
			fclose(log);
			return line;
		}
	if (log)
		fclose(log);
	return "";
}

static struct slabc_cache *
open_debug(struct slabc *c, const char *name, size_t size, unsigned flags, uint32_t debug)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;

	options.flags = flags | SLABC_DEBUG;
	options.debug = debug;
	REQUIRE(slabc_cache_open(c, name, size, &options, &k) == 0);
	return k;
}

/* What both the caller and the log's reader are told of this thread, and of who had the object. */
static void
check_told(const struct harness *h, struct slabc *c, const char *fault, const void *where)
{
	const char *line;
	char text[64];

	snprintf(text, sizeof text, "thread %u", my_tid());
	CHECK(has_words(slabc_last_error(), "%s", text) && has_site(slabc_last_error(), text, where));
	CHECK(has_words(slabc_last_error(), "allocated by client %u, thread %u", slabc_client_id(c), my_tid()));
	CHECK(has_site(slabc_last_error(), "; allocated by", (const void *)make_object));
	CHECK(EVENTUALLY(harness_log_count(h, fault) > 0));
	line = log_line_with(h, fault);
	CHECK(has_words(line, "client %u (pid %d", slabc_client_id(c), (int)getpid()));
	CHECK(has_words(line, "%s", text) && has_site(line, text, where));
	CHECK(has_site(line, "; allocated by", (const void *)make_object));
}

/* A second free says who freed it first, and where; and a third is told too, not only each power of two. */
static void
it_double_free(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "twice");
	struct slabc_cache *k = open_debug(c, "d", SIZE, 0, 0);
	char *p = make_object(k);

	REQUIRE(p != NULL);
	CHECK(drop_object(k, p) == 0);
	CHECK(drop_object_again(k, p) == EINVAL);
	check_told(h, c, "an object freed twice", (const void *)drop_object_again);
	CHECK(has_words(slabc_last_error(), "freed by client %u, thread %u", slabc_client_id(c), my_tid()));
	CHECK(has_site(slabc_last_error(), "; freed by", (const void *)drop_object));
	CHECK(has_site(log_line_with(h, "an object freed twice"), "; freed by", (const void *)drop_object));
	for (int i = 0; i < 4; i++)
		CHECK(drop_object_again(k, p) == EINVAL);
	CHECK(EVENTUALLY(harness_log_count(h, "an object freed twice") == 5));
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
}

/* One byte behind, and one before: the free is refused and the object still held; and it is told once. */
static void
it_overrun_and_underrun(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "runner");
	struct slabc_cache *k = open_debug(c, "d", SIZE, SLABC_RECLAIM, 0);
	char *p = make_object(k);

	REQUIRE(p != NULL);
	p[SIZE] = 1;
	CHECK(drop_object(k, p) == EINVAL);
	CHECK(has_words(slabc_last_error(), "somebody wrote behind it") && has_words(slabc_last_error(), "byte 60 of 60 is 0x01"));
	check_told(h, c, "bytes written behind an object", (const void *)drop_object);
	CHECK(harness_client(h, getpid()).n_held == 1);
	CHECK(harness_client(h, getpid()).n_faults == 1);
	CHECK(drop_object(k, p) == 0);
	CHECK(harness_client(h, getpid()).n_held == 0);
	p = make_object(k);
	p[-1] = 2;
	CHECK(drop_object(k, p) == EINVAL);
	CHECK(has_words(slabc_last_error(), "somebody wrote before it") && has_words(slabc_last_error(), "byte -1 of 60 is 0x02"));
	check_told(h, c, "bytes written before an object", (const void *)drop_object);
	CHECK(drop_object(k, p) == 0);
	slabc_close(c);
}

/* Every object of some slabs, the first of each included, whatever their size and alignment; also what one call frees many of, and a reference. */
static void
it_red_zones_everywhere(void)
{
	static const struct {
		size_t size, align;
	} kinds[] = {{1, 0}, {8, 8}, {64, 64}, {100, 0}, {2000, 0}, {4096, 4096}, {16, 4096}, {SLABC_MAX_OBJECT_BYTES, 4096}};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc *c = harness_open(h, "everywhere");

	for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
		struct slabc_cache *k;
		char name[8], *p[40];
		size_t size = kinds[i].size;

		snprintf(name, sizeof name, "k%u", i);
		options.align = kinds[i].align;
		options.flags = SLABC_DEBUG;
		options.debug = SLABC_DEBUG_RED_ZONE | SLABC_DEBUG_POISON;
		REQUIRE(slabc_cache_open(c, name, size, &options, &k) == 0);
		REQUIRE(slabc_alloc_bulk(k, 40, (void **)p) == 0);
		for (int j = 0; j < 40; j++) {
			CHECK((uintptr_t)p[j] % (kinds[i].align ? kinds[i].align : 8) == 0);
			CHECK((unsigned char)p[j][0] == 0x5a && (unsigned char)p[j][size - 1] == 0x5a);
			memset(p[j], j, size);
		}
		for (int j = 0; j < 40; j++) {
			p[j][j % 2 ? -16 : (long)size] ^= 0x10;
			CHECK(j % 3 ? drop_object(k, p[j]) == EINVAL : slabc_free_ref(c, slabc_ref_of(c, p[j])) == -EINVAL);
			for (size_t at = 0; at < size; at += size < 16 ? 1 : size / 16)
				CHECK(p[j][at] == j);
		}
		errno = 0;
		p[7][size] = 1;
		slabc_free_bulk(k, 40, (void **)p);
		CHECK(errno == EINVAL && has_words(slabc_last_error(), "somebody wrote behind it"));
		CHECK(harness_client(h, getpid()).n_held == 1);
		CHECK(drop_object(k, p[7]) == 0);
		CHECK((unsigned char)p[7][size - 1] == 0xa5 && (size == 1 || (unsigned char)p[7][0] == 0x6b));
	}
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
}

/* A write after the free is found by the next allocation, which says who freed the object; the program goes on with it. */
static void
it_use_after_free(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "late");
	struct slabc_cache *k = open_debug(c, "d", SIZE, 0, 0);
	char *p = make_object(k), *again;

	CHECK(drop_object(k, p) == 0);
	p[12] = 'A';
	again = make_object(k);
	CHECK(again == p && (unsigned char)p[12] == 0x5a);
	CHECK(has_words(slabc_last_error(), "somebody wrote into it after it was freed"));
	CHECK(has_words(slabc_last_error(), "byte 12 of 60 is 0x41"));
	check_told(h, c, "bytes written into a free object", (const void *)make_object);
	CHECK(has_site(slabc_last_error(), "; freed by", (const void *)drop_object));
	CHECK(drop_object(k, again) == 0);
	/* It was put right: nothing is told again. */
	CHECK(drop_object(k, make_object(k)) == 0);
	CHECK(harness_client(h, getpid()).n_faults == 1);
	slabc_close(c);
}

static void *
write_and_end(void *arg)
{
	char *p = make_object(arg);

	drop_object(arg, p);
	p[3] = 'B';
	return NULL;
}

/* The end of a thread looks at what it gives back. */
static void
it_use_after_free_at_thread_exit(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "ending");
	struct slabc_cache *k = open_debug(c, "d", SIZE, 0, 0);
	pthread_t thread;
	const char *line;

	REQUIRE(pthread_create(&thread, NULL, write_and_end, k) == 0);
	pthread_join(thread, NULL);
	CHECK(EVENTUALLY(harness_log_count(h, "bytes written into a free object") == 1));
	line = log_line_with(h, "bytes written into a free object");
	CHECK(has_words(line, "byte 3 of 60 is 0x42, found when it was given back"));
	CHECK(has_site(line, "; freed by", (const void *)drop_object));
	slabc_close(c);
}

static void
it_wild_and_misaligned_frees(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "wild");
	struct slabc_cache *k = open_debug(c, "d", SIZE, 0, 0), *other = harness_open_cache(c, "other", SIZE, 0);
	char *p = make_object(k), *q = slabc_alloc(other), text[32];
	int local;

	snprintf(text, sizeof text, "thread %u", my_tid());
	CHECK(drop_object(k, p + 8) == EINVAL);
	check_told(h, c, "a free inside an object", (const void *)drop_object);
	/* Its red zones and the record are no objects either. */
	for (int i = -16; i < 400; i += 8)
		CHECK(i == 0 || drop_object(k, p + i) == EINVAL);
	CHECK(drop_object(k, q) == EINVAL && has_words(slabc_last_error(), "it is no object of this cache"));
	CHECK(has_site(slabc_last_error(), text, (const void *)drop_object));
	CHECK(drop_object(k, &local) == EINVAL && has_site(slabc_last_error(), text, (const void *)drop_object));
	CHECK(EVENTUALLY(has_site(log_line_with(h, "a free of what is no object of the cache"), text, (const void *)drop_object)));
	CHECK(drop_object(k, p) == 0);
	slabc_free(other, q);
	slabc_close(c);
}

/* Any place may be asked for; of what is left over at the end of a slab no record is read: it would lie in pages that are not there. */
static void
it_any_place_is_looked_at_safely(void)
{
	enum { UNIT_BYTES = 65536 }; /* committed at once */
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=4M");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "prober");
	struct slabc_cache *k;
	char *first = NULL;
	int n = 0, n_freed = 0;

	options.flags = SLABC_DEBUG;
	options.debug = SLABC_DEBUG_USER;
	options.sheaf_capacity = SLABC_SHEAVES_NONE;
	REQUIRE(slabc_cache_open(c, "d", 1000, &options, &k) == 0);
	/* Slabs up to the end of what is committed. */
	for (; harness_cache(h, "d").n_pages < UNIT_BYTES / 4096; n++) {
		char *p = make_object(k);

		REQUIRE(p != NULL);
		first = first && first < p ? first : p;
	}
	REQUIRE(harness_status(h).bytes_4k == UNIT_BYTES);
	for (size_t at = 0; at < UNIT_BYTES + 4096; at += 8)
		n_freed += drop_object(k, (char *)((uintptr_t)first & ~(uintptr_t)4095) + at) == 0;
	CHECK(n_freed == n);
	CHECK(harness_status(h).bytes_4k == UNIT_BYTES);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
}

static void
allocate_and_wait(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "maker");
	struct slabc_cache *k = open_debug(c, "shared", SIZE, 0, 0);
	char *p = make_object(k);
	slabc_ref ref = slabc_ref_of(c, p);
	uint32_t id = slabc_client_id(c), tid = my_tid();

	peer_put(me, &ref, sizeof ref);
	peer_put(me, &id, sizeof id);
	peer_put(me, &tid, sizeof tid);
	peer_await(me, 'e');
	slabc_close(c);
}

/* One client allocates, a second frees; a third's double free names both. */
static void
it_three_clients_are_told_apart(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	pid_t maker = harness_spawn(h, allocate_and_wait, h);
	struct slabc *c[2] = {harness_open(h, "freer"), harness_open(h, "third")};
	struct slabc_cache *k[2] = {open_debug(c[0], "shared", SIZE, 0, 0), harness_open_cache(c[1], "shared", SIZE, 0)};
	uint32_t id, tid;
	slabc_ref ref;
	void *p, *third;

	peer_get(harness_peer(h, maker), &ref, sizeof ref);
	peer_get(harness_peer(h, maker), &id, sizeof id);
	peer_get(harness_peer(h, maker), &tid, sizeof tid);
	p = slabc_deref(c[0], ref);
	third = slabc_deref(c[1], ref);
	REQUIRE(p != NULL && third != NULL && third != p);
	CHECK(drop_object(k[0], p) == 0);
	CHECK(slabc_deref(c[1], ref) == NULL && errno == ESTALE);
	CHECK(drop_object_again(k[1], third) == EINVAL);
	CHECK(has_words(slabc_last_error(), "freed by client %u, thread %u", slabc_client_id(c[0]), my_tid()));
	CHECK(has_words(slabc_last_error(), "allocated by client %u, thread %u", id, tid));
	CHECK(has_site(slabc_last_error(), "; allocated by", (const void *)make_object));
	peer_tell(harness_peer(h, maker), 'e');
	harness_join(h, maker);
	slabc_close(c[0]);
	slabc_close(c[1]);
	CHECK(harness_audit(h).n_lost == 0);
}

/* Which checks are made is the cache's: an opener who asks for none makes them, and one who asks where there are none does not. */
static void
it_openers_act_alike(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd_config("[arena]\nsize = 16M\npage-kind = 4k\ndebug = FZ,message,malloc.*\n");
	struct slabc *c = harness_open(h, "alike");
	struct slabc_cache *k = harness_open_cache(c, "message", SIZE, 0), *plain = harness_open_cache(c, "plain", SIZE, 0);
	struct slabc_cache *wishes = open_debug(c, "plain", SIZE, 0, SLABC_DEBUG_USER);
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	char *p = make_object(k);

	CHECK(harness_cache(h, "message").flags == (LAYOUT_CACHE_DEBUG | LAYOUT_CACHE_SANITY | LAYOUT_CACHE_RED_ZONE));
	CHECK(harness_cache(h, "message").object_bytes > SIZE + 16 && harness_cache(h, "message").object_size == SIZE);
	CHECK(harness_cache(h, "plain").flags == 0 && harness_cache(h, "plain").object_bytes == 64);
	CHECK(wishes == plain);
	CHECK(harness_log_count(h, "is there already, without SLABC_DEBUG") == 1);
	p[SIZE] = 1;
	CHECK(drop_object(k, p) == EINVAL && drop_object(k, p) == 0);
	p = slabc_malloc(c, 1000);
	CHECK(p && slabc_usable_size(c, p) == 1024);
	memset(p, 1, 1024);
	CHECK((p = slabc_realloc(c, p, 1024)) != NULL);
	p[1024] = 1;
	errno = 0;
	slabc_mfree(c, p);
	CHECK(errno == EINVAL);
	p[1023] = 1;
	errno = 0;
	slabc_mfree(c, p);
	CHECK(errno == 0);
	p = slabc_malloc(c, 100000);
	CHECK(p && slabc_usable_size(c, p) >= 100000);
	slabc_mfree(c, p);
	options.flags = SLABC_DEBUG | SLABC_NO_OWNER;
	CHECK(slabc_cache_open(c, "no", SIZE, &options, &k) == -ENOTSUP);
	options.flags = 0;
	options.debug = SLABC_DEBUG_USER;
	CHECK(slabc_cache_open(c, "no", SIZE, &options, &k) == -EINVAL);
	options.flags = SLABC_DEBUG;
	options.debug = 16;
	CHECK(slabc_cache_open(c, "no", SIZE, &options, &k) == -EINVAL);
	slabc_close(c);
}

/* All that can be done with objects: references, orphans, prefilled sheaves, no sheaves at all. */
static void
use_up(struct harness *h, const char *name, uint32_t capacity, uint32_t policy)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c[2] = {harness_open(h, "first"), harness_open(h, "second")};
	struct slabc_cache *k[2];
	struct slabc_sheaf *s;
	char *p[300];
	slabc_ref ref[300], orphan = 0;
	int n = 0;

	options.flags = SLABC_DEBUG;
	options.sheaf_capacity = capacity;
	options.policy = policy;
	for (int i = 0; i < 2; i++)
		REQUIRE(slabc_cache_open(c[i], name, SIZE, &options, &k[i]) == 0);
	REQUIRE((s = slabc_prefill(k[0], 50)) != NULL);
	for (int i = 0; i < 300; i++) {
		p[i] = i < 50 ? slabc_alloc_from(k[0], s) : i < 100 ? slabc_zalloc(k[0]) : slabc_alloc(k[0]);
		REQUIRE(p[i] != NULL);
		CHECK(p[i][SIZE - 1] == (i >= 50 && i < 100 ? 0 : 0x5a));
		memset(p[i], i, SIZE);
		REQUIRE((ref[i] = slabc_ref_of(c[0], p[i])) != 0);
	}
	slabc_return(k[0], s);
	for (int i = 0; i < 100; i++) {
		char *q = slabc_adopt(c[1], ref[i]);

		REQUIRE(q != NULL && *q == (char)i);
		CHECK(drop_object(k[1], q) == 0);
	}
	slabc_close(c[0]);
	for (;;) {
		char *q;

		orphan = slabc_next_orphan(k[1], orphan);
		if (!orphan)
			break;
		q = slabc_adopt_orphan(c[1], orphan);
		REQUIRE(q != NULL && *q == q[SIZE - 1]);
		CHECK(n % 2 ? drop_object(k[1], q) == 0 : slabc_free_ref(c[1], orphan) == 0);
		n++;
	}
	CHECK(n == 200);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0 && harness_audit(h).n_held == 0);
	slabc_close(c[1]);
	CHECK(harness_log_count(h, "bytes written") == 0);
}

static void
it_all_calls(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");

	use_up(h, "sheaves", 0, 0);
	use_up(h, "none", SLABC_SHEAVES_NONE, 0);
	use_up(h, "packed", 0, SLABC_POLICY_SLOB);
}

static void
churn(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "churn");
	/* All checks; and objects whose poison takes so long that most kills fall in the midst of it. */
	struct slabc_cache *ks[2] = {open_debug(c, "d", SIZE, SLABC_RECLAIM | SLABC_SHARED, 0),
		open_debug(c, "big", BIG, SLABC_RECLAIM, SLABC_DEBUG_SANITY | SLABC_DEBUG_RED_ZONE | SLABC_DEBUG_POISON)};
	char *p[50];

	peer_tell(me, 'r');
	for (int round = 0;; round++) {
		struct slabc_cache *k = ks[round % 2];
		size_t size = round % 2 ? BIG : SIZE;

		for (int i = 0; i < 50; i++) {
			REQUIRE((p[i] = make_object(k)) != NULL);
			p[i][0] = p[i][size - 1] = (char)i;
		}
		for (int i = 0; i < 50; i++) {
			CHECK(p[i][0] == i && p[i][size - 1] == i);
			CHECK(drop_object(k, p[i]) == 0);
		}
	}
}

/* Killed at any instant, half-poisoned objects included: nothing is lost, and nobody is told of a fault that there was not. */
static void
it_killed_at_any_instant(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned seed = harness_seed();
	pid_t witness = harness_spawn(h, churn, h);

	peer_await(harness_peer(h, witness), 'r');
	for (int i = 0; i < 30; i++) {
		pid_t pid = harness_spawn(h, churn, h);
		int64_t until = harness_now_ns() + rand_r(&seed) % 10 * 1000000;

		peer_await(harness_peer(h, pid), 'r');
		while (harness_now_ns() < until)
			continue;
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	}
	CHECK(kill(witness, 0) == 0 && harness_client(h, witness).n_faults == 0);
	harness_kill(h, witness, SIGKILL);
	harness_wait_reaped(h, witness);
	CHECK(harness_log_count(h, "bytes written") == 0 && harness_log_count(h, "such faults") == 0);
	CHECK(harness_audit(h).n_out == harness_audit(h).n_in_sheaves);
}

/* Runs slabctl; its output. */
static char *
ctl(const struct harness *h, const char *command, const char *argument)
{
	static char out[65536];
	char program[256], option[128], words[2][64], *argv[] = {program, option, words[0], argument ? words[1] : NULL, NULL};

	snprintf(program, sizeof program, "%s", harness_path("SLABCTL"));
	snprintf(option, sizeof option, "--socket=%s", h->socket);
	snprintf(words[0], sizeof words[0], "%s", command);
	snprintf(words[1], sizeof words[1], "%s", argument ? argument : "");
	CHECK(harness_run(argv, NULL, out, sizeof out) == 0);
	return out;
}

/* A client writes at random around its objects, and into free ones: slabd, the others and slabctl go on, and the records lead nobody astray. */
static void
it_hostile_metadata(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	unsigned seed = harness_seed();
	struct slabc *c[2] = {harness_open(h, "hostile"), harness_open(h, "honest")};
	struct slabc_cache *k[2] = {open_debug(c[0], "d", SIZE, SLABC_SHARED, 0), open_debug(c[1], "d", SIZE, SLABC_SHARED, 0)};
	uint32_t slot = harness_cache(h, "d").object_bytes;

	for (int round = 0; round < 200; round++) {
		char *bad[30], *good[30];

		for (int i = 0; i < 30; i++) {
			REQUIRE((bad[i] = make_object(k[0])) != NULL && (good[i] = make_object(k[1])) != NULL);
			memset(good[i], i, SIZE);
		}
		/* All of the slot but honest objects: the bytes behind each of its own. */
		for (int i = 0; i < 30; i++)
			for (uint32_t at = SIZE; at + 16 < slot; at++)
				if (round % 2 || rand_r(&seed) % 8 == 0)
					bad[i][at] = (char)rand_r(&seed);
		if (round % 50 == 0)
			CHECK(strstr(ctl(h, "leaks", "d"), "honest") != NULL);
		for (int i = 0; i < 30; i++) {
			while (drop_object(k[0], bad[i]) != 0)
				REQUIRE(errno == EINVAL);
			CHECK(good[i][0] == i && good[i][SIZE - 1] == i);
			if (drop_object(k[1], good[i]) != 0)
				CHECK(drop_object(k[1], good[i]) == 0);
			for (uint32_t at = 0; at + 16 < slot; at += 1 + (uint32_t)rand_r(&seed) % 64)
				bad[i][at] = (char)rand_r(&seed);
		}
	}
	CHECK(harness_client_id(h, slabc_client_id(c[0])).n_faults > 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c[0]);
	slabc_close(c[1]);
	CHECK(harness_status(h).n_caches == 1);
}

static void
keep_idle(struct peer *me, void *arg)
{
	struct slabc_cache *k = open_debug(harness_open(arg, "keeper"), "d", BIG, 0, 0);
	void *pv[100];
	size_t n = 0;

	while (n < 100 && (pv[n] = make_object(k)) != NULL)
		n++;
	CHECK(n > 50 && n < 100 && errno == ENOMEM);
	slabc_free_bulk(k, n, pv);
	peer_tell(me, 'i');
	peer_await(me, 'e');
}

/* What lies idle in the sheaves of a sleeping thread is called in as of any other cache; and its poison is looked at by who gets it. */
static void
it_idle_objects_are_called_in(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	pid_t keeper = harness_spawn(h, keep_idle, h);
	struct slabc_cache *k;
	struct slabc *c;
	int n = 0;

	peer_await(harness_peer(h, keeper), 'i');
	c = harness_open(h, "next");
	k = open_debug(c, "d", BIG, 0, 0);
	while (n < 100 && make_object(k) != NULL)
		n++;
	/* All of them, but for what is in slabd's hands at that moment. */
	CHECK(n > 50 && (uint64_t)n == harness_cache(h, "d").n_objects);
	CHECK(harness_log_count(h, "bytes written") == 0);
	peer_tell(harness_peer(h, keeper), 'e');
	harness_join(h, keeper);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
}

enum { N_SIGNALS = 3000 };

static struct slabc_cache *handler_cache;
static volatile sig_atomic_t n_handled, n_handler_bad;
static void *volatile handler_holds;

static void
allocate_in_handler(int sig)
{
	int error = errno;

	(void)sig;
	if (handler_holds) {
		slabc_free(handler_cache, handler_holds);
		handler_holds = NULL;
	} else {
		handler_holds = slabc_alloc(handler_cache);
		n_handler_bad += !handler_holds && errno != EAGAIN;
	}
	n_handled++;
	errno = error;
}

/* Signal handlers that allocate and free, also when they interrupt the making of a call site. */
static void
it_signal_handlers(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "handlers");
	struct sigaction action = {.sa_handler = allocate_in_handler, .sa_flags = SA_RESTART}, old;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec often = {{0, 50000}, {0, 50000}};
	timer_t timer;
	bool ok = true;

	handler_cache = open_debug(c, "d", SIZE, 0, 0);
	handler_holds = NULL;
	n_handled = n_handler_bad = 0;
	CHECK(sigaction(SIGUSR1, &action, &old) == 0);
	REQUIRE(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
	while (ok && n_handled < N_SIGNALS) {
		char *p = make_object(handler_cache);

		ok = p != NULL;
		if (ok)
			memset(p, 7, SIZE);
		ok = ok && drop_object(handler_cache, p) == 0;
	}
	timer_delete(timer);
	CHECK(sigaction(SIGUSR1, &old, NULL) == 0);
	CHECK(ok && n_handler_bad == 0);
	slabc_free(handler_cache, handler_holds);
	CHECK(EVENTUALLY(harness_client(h, getpid()).n_held == 0));
	CHECK(harness_log_count(h, "bytes written") == 0);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
}

/* leaks */

struct hoard {
	struct harness *h;
	const char *label;
	int n; /* objects of the debug cache; a third as many of the plain one. -1: as many as there are */
};

static void
hoard(struct peer *me, void *arg)
{
	const struct hoard *hoard = arg;
	struct slabc *c = harness_open(hoard->h, hoard->label);
	struct slabc_cache *k = open_debug(c, "leaky", 256, SLABC_RECLAIM, 0), *plain = harness_open_cache(c, "plain", 64, SLABC_RECLAIM);

	for (int i = 0; i < hoard->n || hoard->n < 0; i++) {
		char *p = i % 4 ? leak_object(k) : make_object(k);

		if (!p)
			break;
	}
	for (int i = 0; i < hoard->n / 3; i++)
		REQUIRE(slabc_alloc(plain) != NULL);
	if (hoard->n < 0) {
		uint32_t id = slabc_client_id(c);
		char label[64];

		/* Who asks is told who has it all. */
		CHECK(errno == ENOMEM);
		snprintf(label, sizeof label, "client %u (pid %d, '%s') holds most", id, (int)getpid(), hoard->label);
		CHECK(strstr(slabc_last_error(), label) && strstr(slabc_last_error(), "of cache 'leaky'; see slabctl leaks"));
	}
	peer_tell(me, 'h');
	peer_await(me, 'e');
	slabc_close(c);
}

/* Of a line of leaks: bytes, objects; its rest. */
static bool
read_leak(const char *line, unsigned long long *bytesp, unsigned long long *np)
{
	return sscanf(line, "%llu %llu", bytesp, np) == 2;
}

/* Three clients hold unlike much: the one with most, its larger call site first; and all counts are right. */
static void
it_leaks_names_the_top_holder(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=16M");
	struct hoard hoards[3] = {{h, "little", 40}, {h, "most", 400}, {h, "middle", 120}};
	unsigned long long bytes, n, last = ~0ull, sum = 0;
	pid_t pid[3];
	char *line, site[1024];
	int lines = 0;

	for (int i = 0; i < 3; i++) {
		pid[i] = harness_spawn(h, hoard, &hoards[i]);
		peer_await(harness_peer(h, pid[i]), 'h');
	}
	line = ctl(h, "leaks", NULL);
	line = strchr(line, '\n') + 1;
	CHECK(strstr(line, "leaky") && read_leak(line, &bytes, &n) && n == 300);
	for (char *next; *line; line = next, lines++) {
		char where[16];

		next = strchr(line, '\n') + 1;
		next[-1] = '\0';
		REQUIRE(read_leak(line, &bytes, &n));
		CHECK(bytes <= last);
		last = bytes;
		sum += n;
		snprintf(where, sizeof where, " %d  %s", (int)pid[1], "most");
		if (lines == 0) {
			CHECK(strstr(line, where) && strstr(line, "live") && bytes == 300ull * harness_cache(h, "leaky").object_bytes);
			snprintf(site, sizeof site, "first at %s", strstr(line, "live") ? strstr(line, "live") : "");
			CHECK(has_site(site, "first", (const void *)leak_object));
		}
		if (strstr(line, "plain"))
			CHECK(strcmp(line + strlen(line) - 1, "-") == 0);
	}
	/* Two sites of each client, and the plain cache. */
	CHECK(lines == 9 && sum == 560 + 560 / 3);
	line = ctl(h, "leaks", "plain");
	CHECK(!strstr(line, "leaky") && strstr(line, "most"));
	for (int i = 0; i < 3; i++) {
		peer_tell(harness_peer(h, pid[i]), 'e');
		harness_join(h, pid[i]);
	}
	CHECK(strchr(ctl(h, "leaks", NULL), '\n')[1] == '\0');
}

/* A class is exhausted: the error names process and cache, and leaks the call site. */
static void
it_exhaustion_names_the_top_holder(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct hoard hoards[3] = {{h, "little", 40}, {h, "some", 80}, {h, "all", -1}};
	pid_t pid[3];

	for (int i = 0; i < 3; i++) {
		pid[i] = harness_spawn(h, hoard, &hoards[i]);
		peer_await(harness_peer(h, pid[i]), 'h');
	}
	for (int i = 0; i < 3; i++) {
		char *line = strchr(ctl(h, "leaks", NULL), '\n') + 1, where[32];

		snprintf(where, sizeof where, " %d  all", (int)pid[2]);
		*strchr(line, '\n') = '\0';
		CHECK(strstr(line, where) && strstr(line, "leaky") && strstr(line, "  it") && strstr(line, "+0x"));
	}
	for (int i = 0; i < 3; i++) {
		peer_tell(harness_peer(h, pid[i]), 'e');
		harness_join(h, pid[i]);
	}
}

CU_pSuite
it_debug_suite(void)
{
	CU_pSuite suite = harness_suite("debug");

	CU_ADD_TEST(suite, it_double_free);
	CU_ADD_TEST(suite, it_overrun_and_underrun);
	CU_ADD_TEST(suite, it_red_zones_everywhere);
	CU_ADD_TEST(suite, it_use_after_free);
	CU_ADD_TEST(suite, it_use_after_free_at_thread_exit);
	CU_ADD_TEST(suite, it_wild_and_misaligned_frees);
	CU_ADD_TEST(suite, it_any_place_is_looked_at_safely);
	CU_ADD_TEST(suite, it_three_clients_are_told_apart);
	CU_ADD_TEST(suite, it_openers_act_alike);
	CU_ADD_TEST(suite, it_all_calls);
	CU_ADD_TEST(suite, it_killed_at_any_instant);
	CU_ADD_TEST(suite, it_hostile_metadata);
	CU_ADD_TEST(suite, it_idle_objects_are_called_in);
	CU_ADD_TEST(suite, it_signal_handlers);
	CU_ADD_TEST(suite, it_leaks_names_the_top_holder);
	CU_ADD_TEST(suite, it_exhaustion_names_the_top_holder);
	return suite;
}
