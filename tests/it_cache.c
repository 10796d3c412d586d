/* SPDX-License-Identifier: Apache-2.0 */
/* Caches: what an opening refuses and how it says so, alignment, contents, bulk calls, prefilled sheaves, and the knobs that change the
 * paths. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

CU_pSuite it_cache_suite(void);

static bool
last_error_has(const char *text)
{
	return strstr(slabc_last_error(), text) != NULL;
}

static int
try_cache(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *options)
{
	struct slabc_cache *k = NULL;
	int r = slabc_cache_open(c, name, size, options, &k);

	if (r == 0)
		slabc_cache_close(k);
	return r;
}

/* A cache opened again must match in size, align and flags; the refusal names both. */
static void
it_opened_again_with_other_properties(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "first"), *other = harness_open(h, "second");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k;
	char gets[128];

	options.align = 64;
	options.flags = SLABC_RECLAIM;
	REQUIRE(slabc_cache_open(c, "k", 100, &options, &k) == 0);
	CHECK(try_cache(other, "k", 100, &options) == 0);
	CHECK(try_cache(other, "k", 101, &options) == -EEXIST);
	CHECK(last_error_has("size 100,") && last_error_has("size 101,") && last_error_has("'k'"));
	options.align = 128;
	CHECK(try_cache(other, "k", 100, &options) == -EEXIST);
	CHECK(last_error_has("align 64,") && last_error_has("align 128,"));
	options.align = 64;
	options.flags = SLABC_SHARED;
	CHECK(try_cache(other, "k", 100, &options) == -EEXIST);
	CHECK(last_error_has("flags SLABC_RECLAIM;") && last_error_has("flags SLABC_SHARED") && last_error_has("slabctl destroy k"));
	/* Size 0 takes what is there. */
	CHECK(try_cache(other, "k", 0, NULL) == 0);
	/* A later opener's knobs are ignored, and logged. */
	options.flags = SLABC_RECLAIM;
	options.sheaf_capacity = 777;
	CHECK(try_cache(other, "k", 100, &options) == 0);
	CHECK(harness_cache(h, "k").capacity < 777);
	CHECK(harness_log_count(h, "knobs of a later opener are ignored") == 1);
	/* With who asked, and both values; what is the same is none. */
	snprintf(gets, sizeof gets, "client %u (pid %d, 'second') gets sheaf_capacity %u, not 777", slabc_client_id(other), getpid(),
		harness_cache(h, "k").capacity);
	CHECK(EVENTUALLY(harness_log_count(h, gets) == 1));
	options.sheaf_capacity = harness_cache(h, "k").capacity;
	CHECK(try_cache(other, "k", 100, &options) == 0);
	CHECK(harness_log_count(h, "knobs of a later opener are ignored") == 1);
	/* SLABC_NOWAIT is the opener's own. */
	options.flags = SLABC_RECLAIM | SLABC_NOWAIT;
	CHECK(try_cache(other, "k", 100, &options) == 0);
	slabc_close(other);
	slabc_close(c);
}

/* Each limit is refused under its own errno, in a sentence that names field and limit. */
static void
it_limits_are_named(void)
{
	static const struct {
		size_t off;
		uint32_t value;
		const char *field;
	} knobs[] = {
		{offsetof(struct slabc_cache_options, sheaf_capacity), 1021, "sheaf_capacity"},
		{offsetof(struct slabc_cache_options, sheaf_round_up), 2, "sheaf_round_up"},
		{offsetof(struct slabc_cache_options, barn_full), (1u << 20) + 1, "barn_full"},
		{offsetof(struct slabc_cache_options, min_partial), (1u << 20) + 1, "min_partial"},
		{offsetof(struct slabc_cache_options, min_order), 5, "min_order"},
		{offsetof(struct slabc_cache_options, max_order), 5, "max_order"},
		{offsetof(struct slabc_cache_options, min_objects), 4097, "min_objects"},
		{offsetof(struct slabc_cache_options, cpu_partial), 65537, "cpu_partial"},
		{offsetof(struct slabc_cache_options, barn_empty), 16385, "barn_empty"},
		{offsetof(struct slabc_cache_options, policy), 3, "policy"},
		{offsetof(struct slabc_cache_options, align), 3, "align"},
		{offsetof(struct slabc_cache_options, align), 8192, "align"},
		{offsetof(struct slabc_cache_options, flags), 0x100, "flags"},
	};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "limits");
	char name[49];

	CHECK(try_cache(c, "nothing", 0, NULL) == -ENOENT);
	CHECK(last_error_has("'nothing'"));
	CHECK(try_cache(c, "large", SLABC_MAX_OBJECT_BYTES + 1, NULL) == -EINVAL);
	CHECK(last_error_has("32769") && last_error_has("32768"));
	CHECK(try_cache(c, "largest", SLABC_MAX_OBJECT_BYTES, NULL) == 0);
	memset(name, 'n', 48);
	name[48] = '\0';
	CHECK(try_cache(c, name, 64, NULL) == -ENAMETOOLONG);
	CHECK(last_error_has("47"));
	name[47] = '\0';
	CHECK(try_cache(c, name, 64, NULL) == 0);
	CHECK(try_cache(c, "", 64, NULL) == -EINVAL);
	for (unsigned i = 0; i < sizeof knobs / sizeof knobs[0]; i++) {
		struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;

		memcpy((char *)&options + knobs[i].off, &knobs[i].value, sizeof knobs[i].value);
		CHECK(try_cache(c, "knobs", 64, &options) == -EINVAL);
		CHECK(last_error_has(knobs[i].field));
	}
	/* None of them has left a cache behind. */
	CHECK(harness_status(h).n_caches == 2);
	slabc_close(c);
}

/* 511 caches; the next one is refused, and those that are there still open. */
static void
it_too_many_caches(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "many");
	char name[16];

	for (int i = 0; i < LAYOUT_MAX_CACHES - 1; i++) {
		snprintf(name, sizeof name, "k%d", i);
		CHECK(try_cache(c, name, 64, NULL) == 0);
	}
	CHECK(try_cache(c, "one more", 64, NULL) == -ENOSPC);
	CHECK(last_error_has("511"));
	CHECK(try_cache(c, "k510", 64, NULL) == 0);
	slabc_close(c);
}

/* The same cache opened again in a session is the same handle, and lives until it was closed as often. */
static void
it_same_handle_is_counted(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "counted");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	void *p;

	CHECK(harness_open_cache(c, "k", 64, 0) == k);
	CHECK(harness_cache(h, "k").n_openers == 1);
	slabc_cache_close(k);
	REQUIRE((p = slabc_alloc(k)) != NULL);
	slabc_free(k, p);
	CHECK(harness_cache(h, "k").n_openers == 1);
	slabc_cache_close(k);
	slabc_cache_close(NULL);
	/* With the last one everything idle goes back. */
	CHECK(harness_cache(h, "k").n_openers == 0);
	CHECK(harness_cache(h, "k").n_out == 0);
	k = harness_open_cache(c, "k", 64, 0);
	CHECK(slabc_alloc(k) != NULL);
	slabc_close(c);
}

enum { N_PROPERTY = 40 };

/* Objects of one size and align: where they lie, that they do not overlap, that all of each can be used. */
static void
check_alignment(struct slabc *c, size_t size, size_t align)
{
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	unsigned char *p[N_PROPERTY];
	struct slabc_cache *k;
	char name[32];
	bool ok = true;

	snprintf(name, sizeof name, "%zu/%zu", size, align);
	options.align = align;
	options.max_order = 1;
	REQUIRE(slabc_cache_open(c, name, size, &options, &k) == 0);
	for (int i = 0; i < N_PROPERTY; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		ok = ok && (uintptr_t)p[i] % align == 0;
		memset(p[i], i + 1, size);
	}
	for (int i = 0; i < N_PROPERTY; i++)
		ok = ok && p[i][0] == i + 1 && p[i][size / 2] == i + 1 && p[i][size - 1] == i + 1;
	if (!CHECK(ok))
		fprintf(stderr, "    size %zu, align %zu\n", size, align);
	for (int i = 0; i < N_PROPERTY; i++)
		slabc_free(k, p[i]);
	slabc_cache_close(k);
}

/* Any size with any power-of-two alignment up to a page. */
static void
it_any_size_any_alignment(void)
{
	static const size_t sizes[] = {1, 7, 8, 9, 24, 63, 64, 65, 100, 1000, 2040, 2048, 4095, 4096};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "aligned");
	unsigned seed = harness_seed();

	for (size_t align = 8; align <= 4096; align *= 2) {
		for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			check_alignment(c, sizes[i], align);
		for (unsigned i = 0; i < 20; i++)
			check_alignment(c, 4 * (size_t)(rand_r(&seed) % 1024) + 2, align); /* an even size, none of those above */
	}
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(c);
}

/* What is written into an object stays there, and nowhere else, while others are allocated and freed. */
static void
it_contents_are_independent(void)
{
	enum { N = 2000 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "contents");
	struct slabc_cache *k = harness_open_cache(c, "k", 72, 0);
	static unsigned char *p[N];
	unsigned seed = harness_seed(), n_bad = 0;

	for (int i = 0; i < N; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < N; i++)
			memset(p[i], i * 7 + round, 72);
		for (int i = 0; i < N / 2; i++) {
			int j = rand_r(&seed) % N;

			slabc_free(k, p[j]);
			REQUIRE((p[j] = slabc_alloc(k)) != NULL);
			memset(p[j], j * 7 + round, 72);
		}
		for (int i = 0; i < N; i++)
			for (int j = 0; j < 72; j++)
				n_bad += p[i][j] != (unsigned char)(i * 7 + round);
	}
	CHECK(n_bad == 0);
	slabc_close(c);
}

/* slabc_zalloc() is zero also where somebody wrote before. */
static void
it_zalloc_is_zero_after_reuse(void)
{
	enum { N = 500 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "zero");
	struct slabc_cache *k = harness_open_cache(c, "k", 200, 0);
	unsigned char *p[N];
	unsigned n_bad = 0;

	for (int i = 0; i < N; i++) {
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
		memset(p[i], 0xff, 200);
	}
	for (int i = 0; i < N; i++)
		slabc_free(k, p[i]);
	for (int i = 0; i < N; i++) {
		REQUIRE((p[i] = slabc_zalloc(k)) != NULL);
		for (int j = 0; j < 200; j++)
			n_bad += p[i][j] != 0;
	}
	CHECK(n_bad == 0);
	slabc_close(c);
}

/* Allocates until it cannot; returns how many. */
static unsigned
exhaust(struct slabc_cache *k, void **pv, unsigned max)
{
	unsigned n = 0;

	errno = 0;
	while (n < max && (pv[n] = slabc_alloc(k)))
		n++;
	CHECK(n < max && errno == ENOMEM);
	return n;
}

/* A bulk allocation that does not fit leaves nothing allocated, and the arena as it was. */
static void
it_bulk_is_all_or_nothing(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	struct slabc *c = harness_open(h, "bulk");
	struct slabc_cache *k = harness_open_cache(c, "k", 4096, 0);
	void *pv[1000];

	CHECK(slabc_alloc_bulk(k, 0, pv) == 0);
	CHECK(slabc_alloc_bulk(k, 1000, pv) == -ENOMEM);
	CHECK(last_error_has("--arena-size"));
	CHECK(harness_audit(h).n_held == 0);
	CHECK(slabc_alloc_bulk(k, 400, pv) == 0);
	for (int i = 0; i < 400; i++)
		memset(pv[i], i, 4096);
	CHECK(harness_audit(h).n_held == 400);
	CHECK(slabc_alloc_bulk(k, 400, pv + 400) == -ENOMEM);
	CHECK(harness_audit(h).n_held == 400);
	slabc_free_bulk(k, 400, pv);
	CHECK(harness_audit(h).n_held == 0);
	CHECK(slabc_alloc_bulk(k, 500, pv) == 0);
	slabc_free_bulk(k, 500, pv);
	slabc_close(c);
}

/* slabc_free_bulk() ignores NULLs, refuses a pointer that comes twice, and frees the rest. */
static void
it_bulk_free_with_duplicates(void)
{
	enum { N = 300 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "duplicates");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0);
	void *pv[N + 3];

	REQUIRE(slabc_alloc_bulk(k, N, pv) == 0);
	pv[N] = pv[0]; /* far from its twin */
	pv[N + 1] = NULL;
	pv[N + 2] = pv[N - 1]; /* near */
	errno = 0;
	slabc_free_bulk(k, N + 3, pv);
	CHECK(errno == EINVAL);
	CHECK(harness_client(h, getpid()).n_double_frees == 2);
	CHECK(harness_audit(h).n_held == 0);
	CHECK(harness_audit(h).n_doubled == 0);
	CHECK(harness_audit(h).n_lost == 0);
	pv[0] = NULL;
	errno = 77;
	slabc_free_bulk(k, 1, pv);
	slabc_free_bulk(k, 0, pv);
	CHECK(errno == 77);
	REQUIRE(slabc_alloc_bulk(k, N, pv) == 0);
	slabc_free_bulk(k, N, pv);
	CHECK(errno == 77);
	slabc_close(c);
}

static void
exhaust_and_stay(struct peer *me, void *arg)
{
	struct harness *h = arg;
	struct slabc *c = harness_open(h, "hog");
	struct slabc_cache *k = harness_open_cache(c, "k", 1024, 0);
	static void *pv[4096];

	peer_await(me, 'g');
	exhaust(k, pv, 4096);
	peer_tell(me, 'f');
	peer_await(me, 'e');
}

/* The n objects of a prefilled sheaf cannot fail, whoever takes the rest of the arena meanwhile; then NULL, never the cache. */
static void
it_prefilled_cannot_fail(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=2M");
	pid_t hog = harness_spawn(h, exhaust_and_stay, h);
	struct slabc *c = harness_open(h, "careful");
	struct slabc_cache *k = harness_open_cache(c, "k", 1024, 0);
	struct slabc_sheaf *small, *large, *none = NULL;
	void *p;

	REQUIRE((small = slabc_prefill(k, 5)) != NULL);
	REQUIRE((large = slabc_prefill(k, 500)) != NULL);
	peer_tell(harness_peer(h, hog), 'g');
	peer_await(harness_peer(h, hog), 'f');
	for (int i = 0; i < 500; i++) {
		REQUIRE((p = slabc_alloc_from(k, large)) != NULL);
		memset(p, i, 1024);
	}
	errno = 0;
	CHECK(slabc_alloc_from(k, large) == NULL);
	CHECK(errno != 0);
	for (int i = 0; i < 5; i++)
		CHECK(slabc_alloc_from(k, small) != NULL);
	/* A refill that fails leaves the sheaf as it is. */
	CHECK(slabc_refill(k, &large, 600) == -ENOMEM);
	CHECK(large != NULL);
	CHECK(slabc_refill(k, &none, 600) == -ENOMEM && none == NULL);
	errno = 0;
	CHECK(slabc_prefill(k, 600) == NULL && errno == ENOMEM);
	CHECK(slabc_alloc_from(k, large) == NULL);
	slabc_return(k, large);
	slabc_return(k, small);
	slabc_return(k, NULL);
	harness_kill(h, hog, SIGKILL);
	harness_wait_reaped(h, hog);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
	CHECK(harness_audit(h).n_doubled == 0);
}

/* Up to 1,020 objects; a refill tops it up; what is returned is whole again. */
static void
it_prefill_refill_return(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "prefill");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, 0), *other = harness_open_cache(c, "other", 64, 0);
	struct slabc_sheaf *s;

	errno = 0;
	CHECK(slabc_prefill(k, 0) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(slabc_prefill(k, SLABC_MAX_PREFILL + 1) == NULL && errno == EINVAL);
	CHECK(last_error_has("1020"));
	for (int round = 0; round < 3; round++) {
		static const unsigned sizes[] = {1, 10, 60, 61, 500, SLABC_MAX_PREFILL};

		for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
			unsigned n = sizes[i];

			errno = 77;
			REQUIRE((s = slabc_prefill(k, n)) != NULL);
			CHECK(errno == 77);
			for (unsigned j = 0; j < n / 2; j++)
				slabc_free(k, slabc_alloc_from(k, s));
			CHECK(slabc_refill(k, &s, n) == 0);
			CHECK(slabc_alloc_from(other, s) == NULL);
			CHECK(slabc_refill(k, &s, SLABC_MAX_PREFILL + 1) == -EINVAL);
			for (unsigned j = 0; j < n; j++) {
				void *p = slabc_alloc_from(k, s);

				REQUIRE(p != NULL);
				slabc_free(k, p);
			}
			slabc_return(k, s);
		}
	}
	CHECK(harness_cache(h, "k").n_app == 0);
	CHECK(harness_cache(h, "k").n_allocated == 0);
	slabc_cache_close(k);
	CHECK(harness_cache(h, "k").n_out == 0);
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(c);
}

/* The address in `to`'s mapping of what lies at p in `from`'s: both map the arena's places in the same order. */
static void *
across(struct slabc *from, struct slabc *to, struct slabc_cache *k, void *p)
{
	char *known = slabc_alloc(k), *there;

	REQUIRE(known != NULL);
	there = slabc_deref(to, slabc_ref_of(from, known));
	REQUIRE(there != NULL);
	slabc_free(k, known);
	return there + ((char *)p - known);
}

/* Objects of a SLABC_SHARED cache are shared from birth: another client may free one by pointer though nobody made a reference. */
static void
it_shared_from_birth(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "a"), *b = harness_open(h, "b");
	struct slabc_cache *ka = harness_open_cache(a, "shared", 64, SLABC_SHARED), *kb = harness_open_cache(b, "shared", 64, SLABC_SHARED);
	struct slabc_cache *oa = harness_open_cache(a, "owned", 64, 0), *ob = harness_open_cache(b, "owned", 64, 0);
	void *p = slabc_alloc(ka), *q = slabc_alloc(oa);

	errno = 0;
	slabc_free(kb, across(a, b, ka, p));
	CHECK(errno == 0);
	CHECK(slabc_cache_shrink(kb) == 0); /* takes effect */
	slabc_free(ka, p);
	CHECK(errno == EINVAL);
	errno = 0;
	slabc_free(ob, across(a, b, oa, q));
	CHECK(errno == EINVAL);
	errno = 0;
	slabc_free(oa, q);
	CHECK(errno == 0);
	CHECK(harness_audit(h).n_held == 0);
	slabc_close(a);
	slabc_close(b);
}

/* SLABC_NOWAIT never waits: EAGAIN at first, and soon it works. */
static void
it_nowait_does_not_wait(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "nowait");
	struct slabc_cache *k = harness_open_cache(c, "k", 64, SLABC_NOWAIT);
	void *p;

	errno = 0;
	CHECK(slabc_alloc(k) == NULL && errno == EAGAIN);
	CHECK(last_error_has("on its way"));
	CHECK(EVENTUALLY((p = slabc_alloc(k)) != NULL));
	/* Slabd stopped: still no waiting. */
	CHECK(kill(h->slabd, SIGSTOP) == 0);
	for (int i = 0; i < 100000 && (p = slabc_alloc(k)); i++)
		continue;
	CHECK(p == NULL && errno == EAGAIN);
	CHECK(kill(h->slabd, SIGCONT) == 0);
	CHECK(EVENTUALLY((p = slabc_alloc(k)) != NULL));
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* Without sheaves nothing is kept idle, by clients or by slabd's barn. */
static void
it_no_sheaves(void)
{
	enum { N = 200 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc *c = harness_open(h, "single");
	struct proto_caches_reply cache;
	struct slabc_sheaf *s;
	struct slabc_cache *k;
	void *p[N];

	options.sheaf_capacity = SLABC_SHEAVES_NONE;
	REQUIRE(slabc_cache_open(c, "k", 64, &options, &k) == 0);
	for (int i = 0; i < N; i++)
		REQUIRE((p[i] = slabc_alloc(k)) != NULL);
	cache = harness_cache(h, "k");
	CHECK(cache.capacity == 0);
	CHECK(cache.n_out == N && cache.n_allocated == N);
	for (int i = 0; i < N; i += 2)
		slabc_free(k, p[i]);
	CHECK(harness_cache(h, "k").n_out == N / 2);
	CHECK(harness_cache(h, "k").n_node_barn == 0);
	errno = 0;
	slabc_free(k, p[0]);
	CHECK(errno == EINVAL);
	/* Sheaves for the application are there all the same. */
	REQUIRE((s = slabc_prefill(k, 30)) != NULL);
	for (int i = 0; i < 30; i++)
		CHECK(slabc_alloc_from(k, s) != NULL);
	slabc_return(k, s);
	for (int i = 1; i < N; i += 2)
		slabc_free(k, p[i]);
	CHECK(harness_cache(h, "k").n_out == 30);
	CHECK(slabc_alloc_bulk(k, 50, p) == 0);
	slabc_free_bulk(k, 50, p);
	CHECK(harness_cache(h, "k").n_out == 30);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/*
 * policy slob, beside slub with slabs of the same size: of a heap of which nine objects in ten were freed, what is allocated next lies in
 * the lowest places, so that it needs fewer pages as it goes on.
 */
static void
it_slob_packs(void)
{
	enum { N = 3000, LIVE = N / 10 };
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "packs");
	struct slabc_cache_options options[2] = {SLABC_CACHE_OPTIONS_INIT, SLABC_CACHE_OPTIONS_INIT};
	uint64_t n_slabs[2];
	static void *p[N];

	options[0].policy = SLABC_POLICY_SLOB;
	options[1].sheaf_capacity = SLABC_SHEAVES_NONE;
	options[1].min_partial = options[1].max_order = SLABC_KNOB_NONE;
	for (int i = 0; i < 2; i++) {
		unsigned n = N, seed = 20;
		struct slabc_cache *k;

		REQUIRE(slabc_cache_open(c, i ? "slub" : "slob", 256, &options[i], &k) == 0);
		REQUIRE(slabc_alloc_bulk(k, N, p) == 0);
		for (int round = 0; round < 40; round++) {
			while (n > LIVE - LIVE / 8) {
				unsigned j = (unsigned)rand_r(&seed) % n;

				slabc_free(k, p[j]);
				p[j] = p[--n];
			}
			while (n < LIVE)
				REQUIRE((p[n++] = slabc_alloc(k)) != NULL);
		}
		CHECK(strcmp(harness_cache(h, i ? "slub" : "slob").policy, i ? "slub" : "slob") == 0);
		n_slabs[i] = harness_cache(h, i ? "slub" : "slob").n_slabs;
		slabc_free_bulk(k, n, p);
		CHECK(harness_cache(h, i ? "slub" : "slob").n_slabs == 0);
	}
	CHECK(n_slabs[0] * 3 < n_slabs[1] * 2);
	slabc_close(c);
	CHECK(harness_audit(h).n_lost == 0);
}

/* --profile=tiny: no sheaves, order at most 1, no empty slab kept. */
static void
it_profile_tiny(void)
{
	static const size_t sizes[] = {8, 64, 256, 700, 2000};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --profile=tiny");
	struct slabc *c = harness_open(h, "tiny");

	CHECK(strcmp(harness_status(h).profile, "tiny") == 0);
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		struct proto_caches_reply cache;
		struct slabc_cache *k;
		char name[16];
		void *p[100];

		snprintf(name, sizeof name, "k%zu", sizes[i]);
		k = harness_open_cache(c, name, sizes[i], 0);
		for (int j = 0; j < 100; j++)
			REQUIRE((p[j] = slabc_alloc(k)) != NULL);
		cache = harness_cache(h, name);
		CHECK(cache.capacity == 0);
		CHECK(cache.order <= 1);
		CHECK(cache.min_partial == 0);
		CHECK(cache.n_out == 100);
		for (int j = 0; j < 100; j++)
			slabc_free(k, p[j]);
		cache = harness_cache(h, name);
		CHECK(cache.n_out == 0);
		CHECK(cache.n_slabs == 0);
	}
	CHECK(harness_status(h).committed_bytes == 0);
	slabc_close(c);
}

CU_pSuite
it_cache_suite(void)
{
	CU_pSuite suite = harness_suite("cache");

	CU_ADD_TEST(suite, it_opened_again_with_other_properties);
	CU_ADD_TEST(suite, it_limits_are_named);
	CU_ADD_TEST(suite, it_too_many_caches);
	CU_ADD_TEST(suite, it_same_handle_is_counted);
	CU_ADD_TEST(suite, it_any_size_any_alignment);
	CU_ADD_TEST(suite, it_contents_are_independent);
	CU_ADD_TEST(suite, it_zalloc_is_zero_after_reuse);
	CU_ADD_TEST(suite, it_bulk_is_all_or_nothing);
	CU_ADD_TEST(suite, it_bulk_free_with_duplicates);
	CU_ADD_TEST(suite, it_prefilled_cannot_fail);
	CU_ADD_TEST(suite, it_prefill_refill_return);
	CU_ADD_TEST(suite, it_shared_from_birth);
	CU_ADD_TEST(suite, it_nowait_does_not_wait);
	CU_ADD_TEST(suite, it_no_sheaves);
	CU_ADD_TEST(suite, it_slob_packs);
	CU_ADD_TEST(suite, it_profile_tiny);
	return suite;
}
