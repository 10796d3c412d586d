/* SPDX-License-Identifier: Apache-2.0 */
/* The malloc family: sizes, alignment, runs of pages, realloc, frees of any object, and that runs die and come back like other objects. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/harness.h"

CU_pSuite it_sized_suite(void);

enum { PAGE = LAYOUT_PAGE_BYTES, MIB = 1 << 20 };

static bool
last_error_has(const char *text)
{
	return strstr(slabc_last_error(), text) != NULL;
}

/* Bytes that depend on where they lie and on seed. */
static void
fill(void *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)p)[i] = (unsigned char)(i * 7 + (i >> 8) + seed);
}

static bool
is_filled(const void *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)p)[i] != (unsigned char)(i * 7 + (i >> 8) + seed))
			return false;
	return true;
}

/* Kmalloc's table, spelled out. */
static size_t
expected_class(size_t n)
{
	static const size_t classes[] = {8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192};

	for (unsigned i = 0; i < sizeof classes / sizeof classes[0]; i++)
		if (n <= classes[i])
			return classes[i];
	return (n + PAGE - 1) / PAGE * PAGE;
}

static size_t
expected_align(size_t class)
{
	size_t bit = class & -class;

	return bit < PAGE ? bit : PAGE;
}

/* Allocates n bytes, uses all of them; NULL and a failed check if something is not as it should be. */
static unsigned char *
take(struct slabc *c, size_t n)
{
	unsigned char *p = slabc_malloc(c, n);
	size_t class = expected_class(n);
	bool ok = p && slabc_usable_size(c, p) == class && (uintptr_t)p % expected_align(class) == 0;

	if (!CHECK(ok)) {
		fprintf(stderr, "    size %zu at %p, usable %zu: %s\n", n, (void *)p, p ? slabc_usable_size(c, p) : 0, slabc_last_error());
		return NULL;
	}
	fill(p, class, (unsigned)n);
	return p;
}

/* Each size up to 8,192 comes from kmalloc's class for it, larger ones are whole pages; aligned; no two overlap; all of it can be used. */
static void
it_sizes_are_kmallocs(void)
{
	enum { N = 8300 };
	static unsigned char *p[N];
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=256M");
	struct slabc *c = harness_open(h, "sizes");
	bool ok = true;
	char name[32];

	for (size_t n = 0; n < N; n++)
		REQUIRE((p[n] = take(c, n)) != NULL);
	for (size_t n = 0; n < N; n++)
		ok = ok && is_filled(p[n], expected_class(n), (unsigned)n);
	CHECK(ok);
	for (size_t n = 8; n <= 8192; n *= 2) {
		snprintf(name, sizeof name, "malloc.%zu", n);
		CHECK(harness_cache(h, name).object_bytes == n);
		CHECK(harness_cache(h, name).align == (n < PAGE ? n : PAGE));
	}
	CHECK(harness_cache(h, "malloc.96").align == 32 && harness_cache(h, "malloc.192").align == 64);
	CHECK(harness_cache(h, "malloc.192").n_allocated == 192 - 128);
	CHECK(harness_cache(h, "malloc.large").n_allocated == N - 8193);
	CHECK(harness_cache(h, "malloc.large").n_pages == (N - 8193) * 3);
	CHECK(harness_status(h).n_caches == 14);
	for (size_t n = 0; n < N; n++) {
		errno = 0;
		slabc_mfree(c, p[n]);
		ok = ok && errno == 0;
	}
	CHECK(ok);
	CHECK(harness_cache(h, "malloc.large").n_pages == 0 && harness_cache(h, "malloc.large").n_out == 0);
	CHECK(harness_cache(h, "malloc.192").n_allocated == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* memalign: the smallest class that suffices for both; alignments that are none are EINVAL. */
static void
it_memalign(void)
{
	static const size_t sizes[] = {0, 1, 8, 9, 31, 33, 65, 96, 97, 129, 192, 193, 1000, 4096, 4097, 8192, 8193, 50000};
	static const size_t wrong[] = {0, 3, 24, 8192, 4097, (size_t)1 << 63};
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "aligned");

	for (size_t align = 1; align <= 4096; align *= 2) {
		for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
			size_t n = sizes[i], class;
			void *p = slabc_memalign(c, align, n);

			for (class = expected_class(n); class <= 8192 && expected_align(class) < align; class = expected_class(class + 1))
				continue;
			if (!CHECK(p && (uintptr_t)p % align == 0 && slabc_usable_size(c, p) == class))
				fprintf(stderr, "    align %zu, size %zu\n", align, n);
			slabc_mfree(c, p);
		}
	}
	for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		errno = 0;
		CHECK(slabc_memalign(c, wrong[i], 64) == NULL && errno == EINVAL);
		CHECK(last_error_has("4096"));
	}
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* Nothing of nothing: unique pointers for 0 bytes, ENOMEM for what cannot be, NULL freed and grown. */
static void
it_edges(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=16M");
	struct slabc *c = harness_open(h, "edges");
	size_t sizes[] = {(size_t)PTRDIFF_MAX + 1, SIZE_MAX, SIZE_MAX - PAGE + 2, (size_t)1 << 40, 17 * MIB};
	unsigned char *p, *q, *dirty;

	p = slabc_malloc(c, 0);
	q = slabc_malloc(c, 0);
	CHECK(p != NULL && q != NULL && p != q);
	slabc_mfree(c, p);
	errno = EBADF;
	slabc_mfree(c, q);
	slabc_mfree(c, NULL);
	CHECK(errno == EBADF); /* a free that succeeds keeps it */
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		errno = 0;
		CHECK(slabc_malloc(c, sizes[i]) == NULL && errno == ENOMEM);
		CHECK(*slabc_last_error() != '\0');
		errno = 0;
		CHECK(slabc_realloc(c, NULL, sizes[i]) == NULL && errno == ENOMEM);
	}
	CHECK(last_error_has("limit"));
	errno = 0;
	CHECK(slabc_calloc(c, SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
	CHECK(slabc_calloc(c, (size_t)1 << 32, (size_t)1 << 32) == NULL);
	/* calloc zeroes also what had been written: small and large. */
	for (size_t n = 100; n < 200000; n *= 40) {
		REQUIRE((dirty = slabc_malloc(c, n)) != NULL);
		memset(dirty, 0xff, n);
		slabc_mfree(c, dirty);
		REQUIRE((p = slabc_calloc(c, n / 4, 4)) != NULL);
		CHECK(p[0] == 0 && memcmp(p, p + 1, n / 4 * 4 - 1) == 0);
		slabc_mfree(c, p);
	}
	REQUIRE((p = slabc_realloc(c, NULL, 100)) != NULL);
	CHECK(slabc_usable_size(c, p) == 128);
	CHECK(slabc_realloc(c, p, 0) == NULL);
	errno = 0;
	CHECK(slabc_usable_size(c, p) == 0 && errno == EINVAL); /* it was freed */
	errno = 0;
	CHECK(slabc_realloc(c, p, 10) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(slabc_usable_size(c, &sizes) == 0 && errno == EINVAL);
	errno = 0;
	CHECK(slabc_usable_size(c, NULL) == 0 && errno == EINVAL);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* In place while the class or run holds it; moved, with all its bytes, when not; where that fails the old one stays. */
static void
it_realloc(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=16M");
	struct slabc *c = harness_open(h, "realloc");
	unsigned char *p = slabc_malloc(c, 100), *q;
	size_t n = 100;

	REQUIRE(p != NULL);
	fill(p, n, 3);
	CHECK(slabc_realloc(c, p, 128) == p);
	CHECK(slabc_realloc(c, p, 1) == p); /* never into a smaller class */
	CHECK(slabc_usable_size(c, p) == 128);
	/* Up through all classes and into runs. */
	while (n < 3 * MIB) {
		size_t more = n * 2 + 1;

		REQUIRE((q = slabc_realloc(c, p, more)) != NULL);
		CHECK(is_filled(q, n, 3));
		CHECK(q != p && slabc_usable_size(c, q) == expected_class(more));
		CHECK(slabc_usable_size(c, p) == 0); /* the old one is free */
		p = q;
		n = more;
		fill(p, n, 3);
	}
	CHECK(slabc_realloc(c, p, n + 1) == p);
	CHECK(slabc_realloc(c, p, n / 2 + 2 * PAGE) == p); /* a run keeps what is not twice too much */
	REQUIRE((q = slabc_realloc(c, p, n / 2 - PAGE)) != NULL);
	CHECK(q != p && slabc_usable_size(c, q) == expected_class(n / 2 - PAGE));
	CHECK(is_filled(q, n / 2 - PAGE, 3));
	CHECK(harness_cache(h, "malloc.large").n_pages == expected_class(n / 2 - PAGE) / PAGE);
	/* More than there is: the old one stays, and shrinking needs no memory. */
	errno = 0;
	CHECK(slabc_realloc(c, q, 15 * MIB) == NULL && errno == ENOMEM);
	CHECK(is_filled(q, n / 2 - PAGE, 3));
	REQUIRE((p = slabc_realloc(c, q, 10000)) != NULL);
	CHECK(is_filled(p, 10000, 3));
	slabc_mfree(c, p);
	CHECK(harness_cache(h, "malloc.large").n_pages == 0);
	/* A run that should shrink, and there is nowhere to move it, stays. */
	p = slabc_malloc(c, 10 * MIB);
	q = slabc_malloc(c, 5 * MIB);
	REQUIRE(p != NULL && q != NULL);
	errno = 0;
	CHECK(slabc_realloc(c, p, 4 * MIB) == p && errno == 0);
	slabc_mfree(c, p);
	slabc_mfree(c, q);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* A run may be as large as the segment, spans units of both kinds of page, is committed while it is there, and calls in what is idle. */
static void
fill_with_runs(const char *arguments, bool is_huge)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", arguments);
	struct slabc *c = harness_open(h, "runs"), *idle = harness_open(h, "idle");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	static void *pv[15000];
	struct slabc_cache *k;
	unsigned char *p, *q;

	options.barn_full = 1 << 20;
	options.max_cached = 8 * MIB;
	REQUIRE(slabc_cache_open(idle, "k", 1024, &options, &k) == 0);
	CHECK(slabc_alloc_bulk(k, 15000, pv) == 0);
	slabc_free_bulk(k, 15000, pv);
	CHECK(harness_status(h).committed_bytes >= 14 * MIB && harness_cache(h, "k").n_allocated == 0);
	/* 14 of 16 MiB: only if the other client's idle objects are called in, which were freed in the order of their places. */
	REQUIRE((p = slabc_malloc(c, 14 * MIB - 5)) != NULL);
	CHECK(slabc_usable_size(c, p) == 14 * MIB);
	fill(p, 14 * MIB, 1);
	CHECK(harness_status(h).committed_bytes >= 14 * MIB && harness_status(h).committed_bytes <= 16 * MIB);
	if (is_huge)
		CHECK(harness_status(h).bytes_huge >= 14 * MIB);
	errno = 0;
	CHECK(slabc_malloc(c, 3 * MIB) == NULL && errno == ENOMEM);
	CHECK(last_error_has("arena-size"));
	REQUIRE((q = slabc_malloc(c, 100000)) != NULL);
	CHECK(q + 102400 <= p || p + 14 * MIB <= q);
	memset(q, 0xff, 102400);
	CHECK(is_filled(p, 14 * MIB, 1));
	slabc_mfree(c, p);
	slabc_mfree(c, q);
	CHECK(harness_cache(h, "malloc.large").n_out == 0);
	CHECK(harness_status(h).committed_bytes <= 4 * MIB);
	/* And again, many times: nothing is worn out. */
	for (int i = 0; i < 20; i++) {
		REQUIRE((p = slabc_malloc(c, (size_t)(2 + i % 10) * MIB + (size_t)i * 5000)) != NULL);
		p[0] = 1;
		slabc_mfree(c, p);
	}
	slabc_close(idle);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
	CHECK(harness_status(h).committed_bytes == 0);
}

static void
it_runs_fill_the_arena(void)
{
	fill_with_runs("--page-kind=4k --arena-size=16M", false);
}

static void
it_runs_of_huge_pages(void)
{
	if (hugepages_take(8))
		fill_with_runs("--page-kind=huge --arena-size=16M", true);
}

/* All threads start with the same sizes at once: each cache is opened once, and nothing is mixed up. */
enum { N_THREADS = 6, N_EACH = 400 };

static void *
allocate_all_sizes(void *arg)
{
	struct slabc *c = arg;
	unsigned char *p[40];
	bool ok = true;

	for (int round = 0; round < N_EACH / 40; round++) {
		for (unsigned i = 0; i < 40; i++) {
			size_t n = (size_t)1 << (i % 14);

			p[i] = slabc_malloc(c, n);
			ok = ok && p[i];
			if (p[i])
				fill(p[i], n, i);
		}
		for (unsigned i = 0; i < 40; i++) {
			ok = ok && p[i] && is_filled(p[i], (size_t)1 << (i % 14), i);
			slabc_mfree(c, p[i]);
		}
	}
	return ok ? c : NULL;
}

static void
it_threads_start_together(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "threads");
	pthread_t threads[N_THREADS];
	void *ok;

	for (int i = 0; i < N_THREADS; i++)
		REQUIRE(pthread_create(&threads[i], NULL, allocate_all_sizes, c) == 0);
	for (int i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], &ok);
		CHECK(ok != NULL);
	}
	CHECK(harness_cache(h, "malloc.64").n_openers == 1);
	CHECK(harness_cache(h, "malloc.64").n_allocated == 0);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	slabc_close(c);
	CHECK(harness_cache(h, "malloc.64").n_openers == 0);
	CHECK(harness_audit(h).n_out == 0);
}

/* Lets the session's frees of others' objects in the cache take effect. */
static void
settle_by_name(struct slabc *c, const char *name)
{
	struct slabc_cache *k;

	if (!name)
		return;
	REQUIRE(slabc_cache_open(c, name, 0, NULL, &k) == 0);
	CHECK(slabc_cache_shrink(k) == 0);
	slabc_cache_close(k);
}

/* mfree takes any object of any cache, whoever made it and whatever the session has open; it refuses what slabc_free() refuses. */
static void
it_mfree_of_anything(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *a = harness_open(h, "maker"), *b = harness_open(h, "taker");
	struct slabc_cache *plain = harness_open_cache(a, "plain", 100, 0), *reclaim = harness_open_cache(a, "reclaim", 64, SLABC_RECLAIM);
	struct slabc_cache *bare = harness_open_cache(a, "bare", 64, SLABC_NO_OWNER);
	struct {
		void *p;
		slabc_ref ref;
	} made[] = {{slabc_alloc(plain), 0}, {slabc_malloc(a, 3000), 0}, {slabc_malloc(a, 70000), 0}, {slabc_alloc(bare), 0}};
	static const char *const late[] = {"plain", "malloc.4096", NULL}; /* where the free takes effect later */
	unsigned char *p, *q, *seen;
	slabc_ref ref = 0;

	for (unsigned i = 0; i < 4; i++) {
		REQUIRE(made[i].p != NULL && (made[i].ref = slabc_ref_of(a, made[i].p)) != 0);
		REQUIRE((p = slabc_deref(b, made[i].ref)) != NULL);
		CHECK(slabc_usable_size(b, p) == slabc_usable_size(a, made[i].p));
		errno = 0;
		slabc_mfree(b, p);
		CHECK(errno == 0);
		if (i == 3)
			break;
		settle_by_name(b, late[i]);
		CHECK(slabc_deref(a, made[i].ref) == NULL && errno == ESTALE);
		errno = 0;
		slabc_mfree(a, made[i].p);
		CHECK(errno == EINVAL);
	}
	CHECK(harness_cache(h, "plain").n_allocated == 0 && harness_cache(h, "malloc.large").n_out == 0 &&
		harness_cache(h, "bare").n_allocated == 0);
	/* Another's unshared object, found by its distance from a shared one; another's in a SLABC_RECLAIM cache. */
	p = slabc_malloc(a, 20000);
	q = slabc_alloc(reclaim);
	REQUIRE(p != NULL && q != NULL && (ref = slabc_ref_of(a, q)) != 0);
	REQUIRE((seen = slabc_deref(b, ref)) != NULL);
	for (int i = 0; i < 2; i++) {
		unsigned char *others = i ? seen : seen + (p - q);

		errno = 0;
		slabc_mfree(b, others);
		CHECK(errno == EINVAL);
		errno = 0;
		CHECK(slabc_realloc(b, others, 10) == NULL && errno == EINVAL);
		CHECK(slabc_usable_size(b, others) == (i ? 64 : 20480));
	}
	CHECK(slabc_deref(a, ref) == q);
	/* Inside a run, in its first page and in a later one; no object at all. */
	errno = 0;
	slabc_mfree(a, p + 8);
	CHECK(errno == EINVAL && slabc_usable_size(a, p + 8) == 0);
	errno = 0;
	slabc_mfree(a, p + 2 * PAGE);
	CHECK(errno == EINVAL && slabc_usable_size(a, p + 2 * PAGE) == 0);
	errno = 0;
	slabc_mfree(a, &p);
	CHECK(errno == EINVAL);
	CHECK(last_error_has("no object of this arena"));
	CHECK(slabc_usable_size(a, p) == 20480);
	slabc_mfree(a, p);
	/* None of its pages is anything any more. */
	for (int i = 0; i < 5; i++) {
		errno = 0;
		slabc_mfree(a, p + i * PAGE);
		CHECK(errno == EINVAL);
	}
	CHECK(EVENTUALLY(harness_client_id(h, slabc_client_id(a)).n_faults > 0));
	/* What was freed twice may have had no page any more the second time. */
	CHECK(harness_client_id(h, slabc_client_id(a)).n_wild_frees + harness_client_id(h, slabc_client_id(a)).n_double_frees == 2 + 5 + 2);
	CHECK(harness_client_id(h, slabc_client_id(a)).n_wild_frees >= 2 + 5);
	CHECK(harness_client_id(h, slabc_client_id(a)).n_misaligned_frees == 2);
	CHECK(harness_client_id(h, slabc_client_id(b)).n_refused_frees == 2);
	slabc_close(b);
	slabc_close(a);
}

/* A free of what is an object of no cache is a fault of the client like another: counted, logged at each power of two, and not forgotten
 * with it. */
static void
it_wild_mfree_is_counted(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "wild");
	uint32_t id = slabc_client_id(c);
	char on_stack[64];

	for (int i = 0; i < 20; i++) {
		errno = 0;
		slabc_mfree(c, on_stack);
		CHECK(errno == EINVAL);
	}
	CHECK(harness_client_id(h, id).n_wild_frees == 20 && harness_client_id(h, id).n_faults == 20);
	CHECK(harness_status(h).n_faults == 20);
	CHECK(EVENTUALLY(
		harness_log_count(
			h, "'wild'): a free of what is no object of the arena, at an address outside the arena; 16 of the kind") == 1));
	CHECK(harness_log_count(h, "a free of what is no object") == 5);
	slabc_close(c);
	CHECK(EVENTUALLY(harness_status(h).n_sessions == 0));
	CHECK(harness_status(h).n_faults == 20 && harness_status(h).n_ended_ever == 1);
}

/* A program may open a class's cache itself, and close it: the family goes on. Runs are had from slabc_malloc() only. */
static void
it_class_caches_are_caches(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "both");
	struct slabc_cache_options options = SLABC_CACHE_OPTIONS_INIT;
	struct slabc_cache *k, *runs;
	void *p, *q;

	p = slabc_malloc(c, 60);
	q = slabc_malloc(c, 60000);
	REQUIRE(p != NULL && q != NULL);
	options.align = 64;
	REQUIRE(slabc_cache_open(c, "malloc.64", 64, &options, &k) == 0);
	slabc_free(k, p);
	slabc_cache_close(k);
	REQUIRE((p = slabc_malloc(c, 60)) != NULL);
	REQUIRE(slabc_cache_open(c, "malloc.large", 0, NULL, &runs) == 0);
	errno = 0;
	CHECK(slabc_alloc(runs) == NULL && errno == EINVAL);
	CHECK(last_error_has("slabc_malloc"));
	CHECK(slabc_prefill(runs, 1) == NULL && errno == EINVAL);
	CHECK(slabc_alloc_bulk(runs, 2, (void *[2]){0}) == -EINVAL);
	errno = 0;
	slabc_free(runs, q);
	CHECK(errno == 0);
	slabc_cache_close(runs);
	REQUIRE((q = slabc_malloc(c, 60000)) != NULL);
	options.flags = 0x10; /* what makes a cache of runs is not for programs */
	CHECK(slabc_cache_open(c, "mine", 4096, &options, &k) == -EINVAL);
	slabc_close(c);
	CHECK(harness_audit(h).n_orphans == 2 && harness_audit(h).n_lost == 0);
}

/* A class's cache may be destroyed like any other when none of its objects is in use; the next allocation makes it again. */
static void
it_destroyed_class_comes_back(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "again");
	void *p, *q;

	p = slabc_malloc(c, 60);
	q = slabc_malloc(c, 60000);
	REQUIRE(p != NULL && q != NULL);
	CHECK(slabc_cache_destroy(c, "malloc.64") == -EBUSY);
	CHECK(slabc_cache_destroy(c, "malloc.large") == -EBUSY);
	slabc_mfree(c, p);
	slabc_mfree(c, q);
	CHECK(slabc_cache_destroy(c, "malloc.64") == 0);
	CHECK(slabc_cache_destroy(c, "malloc.large") == 0);
	CHECK(harness_status(h).n_caches == 0);
	errno = 0;
	slabc_mfree(c, p);
	CHECK(errno == EINVAL);
	q = slabc_malloc(c, 60000);
	p = slabc_malloc(c, 60);
	REQUIRE(p != NULL && q != NULL);
	CHECK(slabc_usable_size(c, p) == 64 && slabc_usable_size(c, q) == 61440);
	slabc_mfree(c, p);
	slabc_mfree(c, q);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* A name of the family's that is taken by another cache is an error that says so. */
static void
it_name_is_taken(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "taken");

	harness_open_cache(c, "malloc.64", 65, 0);
	errno = 0;
	CHECK(slabc_malloc(c, 64) == NULL && errno == EEXIST);
	CHECK(last_error_has("malloc.64"));
	CHECK(slabc_malloc(c, 65) != NULL);
	slabc_close(c);
}

/* Holds a run and a small object, shared; says where, and waits to be killed. */
static void
hold_and_wait(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "holder");
	unsigned char *p = slabc_malloc(c, 5 * MIB), *q = slabc_malloc(c, 500);
	slabc_ref refs[2];

	CHECK(p && q);
	fill(p, 5 * MIB, 9);
	fill(q, 500, 9);
	refs[0] = slabc_ref_of(c, p);
	refs[1] = slabc_ref_of(c, q);
	CHECK(slabc_malloc(c, 100000) != NULL); /* not shared */
	peer_put(me, refs, sizeof refs);
	peer_await(me, 'x');
}

/* A run outlives the process that made it, whole, and is adopted, measured and freed in another; one by reference; none is lost. */
static void
it_runs_outlive_their_maker(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	struct slabc *c = harness_open(h, "heir");
	pid_t maker = harness_spawn(h, hold_and_wait, h);
	struct proto_clients_reply dead;
	slabc_ref refs[2];
	unsigned char *p;
	uint32_t id;

	peer_get(harness_peer(h, maker), refs, sizeof refs);
	CHECK(harness_client(h, maker).bytes_held == 5 * MIB + 102400 + 512);
	id = harness_client(h, maker).client_id;
	harness_kill(h, maker, SIGKILL);
	harness_wait_reaped(h, maker);
	dead = harness_client_id(h, id);
	CHECK(dead.n_orphans == 3 && dead.bytes_orphans == 5 * MIB + 102400 + 512 && dead.n_held == 0 && dead.bytes_held == 0 &&
		dead.pid == (uint32_t)maker);
	CHECK(harness_cache(h, "malloc.large").n_pages == 5 * MIB / PAGE + 25);
	REQUIRE((p = slabc_adopt(c, refs[0])) != NULL);
	CHECK(slabc_usable_size(c, p) == 5 * MIB && is_filled(p, 5 * MIB, 9));
	errno = 0;
	slabc_mfree(c, p);
	CHECK(errno == 0);
	CHECK(slabc_deref(c, refs[0]) == NULL && errno == ESTALE);
	CHECK(slabc_free_ref(c, refs[0]) == -ESTALE);
	CHECK(slabc_free_ref(c, refs[1]) == 0);
	CHECK(harness_cache(h, "malloc.large").n_pages == 25);
	CHECK(harness_audit(h).n_orphans == 1 && harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	/* The next run lies where the last one was: its references are others. */
	REQUIRE((p = slabc_malloc(c, 5 * MIB)) != NULL);
	CHECK(slabc_deref(c, refs[0]) == NULL);
	slabc_close(c);
}

/* Allocates and frees runs until it is killed. */
static void
churn_runs(struct peer *me, void *arg)
{
	struct slabc *c = harness_open(arg, "churn");
	unsigned seed = (unsigned)getpid();
	void *p[4] = {0};

	peer_tell(me, 'r');
	for (;;) {
		unsigned i = (unsigned)rand_r(&seed) % 4;

		slabc_mfree(c, p[i]);
		p[i] = slabc_malloc(c, 8193 + (size_t)rand_r(&seed) % 100000);
		if (p[i])
			memset(p[i], 1, 8193);
	}
}

/* Killed at any instant, a maker of runs leaves at most the four it held; what slabd had carved for it is back. */
static void
it_killed_among_runs(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=64M");
	unsigned seed = harness_seed();
	struct proto_audit_reply audit;

	for (int i = 0; i < 20; i++) {
		pid_t pid = harness_spawn(h, churn_runs, h);
		int64_t until = harness_now_ns() + rand_r(&seed) % 20 * 1000000;

		peer_await(harness_peer(h, pid), 'r');
		while (harness_now_ns() < until)
			continue;
		harness_kill(h, pid, SIGKILL);
		harness_wait_reaped(h, pid);
		audit = harness_audit(h);
		CHECK(audit.n_lost == 0 && audit.n_doubled == 0 && audit.n_undecided == 0);
		CHECK(audit.n_out == audit.n_orphans && audit.n_orphans <= (uint64_t)(i + 1) * 5);
	}
	CHECK(harness_cache(h, "malloc.large").n_pages > 0);
}

static void
call_in_child(struct slabc *c, void *p)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		bool ok = true;

		errno = 0;
		ok = ok && slabc_malloc(c, 64) == NULL && errno == ENOTCONN;
		errno = 0;
		ok = ok && slabc_malloc(c, 333) == NULL && errno == ENOTCONN; /* a class not opened before */
		errno = 0;
		ok = ok && slabc_malloc(c, 100000) == NULL && errno == ENOTCONN;
		errno = 0;
		slabc_mfree(c, p);
		ok = ok && errno == ENOTCONN;
		errno = 0;
		ok = ok && slabc_realloc(c, p, 1000) == NULL && errno == ENOTCONN;
		_exit(ok ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* In a forked child every call is ENOTCONN; in a read-only session what writes is EACCES, and what measures works. */
static void
it_forked_and_read_only(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k");
	struct slabc *c = harness_open(h, "parent"), *reader;
	struct slabc_options options = SLABC_OPTIONS_INIT;
	void *p = slabc_malloc(c, 64), *q = slabc_malloc(c, 100000), *seen;

	call_in_child(c, p);
	call_in_child(c, q);
	options.socket = h->socket;
	options.flags = SLABC_RDONLY;
	REQUIRE(slabc_open(&reader, &options) == 0);
	errno = 0;
	CHECK(slabc_malloc(reader, 64) == NULL && errno == EACCES);
	errno = 0;
	CHECK(slabc_calloc(reader, 1, 100000) == NULL && errno == EACCES);
	REQUIRE((seen = slabc_deref(reader, slabc_ref_of(c, q))) != NULL);
	CHECK(slabc_usable_size(reader, seen) == 102400);
	errno = 0;
	slabc_mfree(reader, seen);
	CHECK(errno == EACCES);
	errno = 0;
	CHECK(slabc_realloc(reader, seen, 100) == NULL && errno == EACCES);
	slabc_close(reader);
	slabc_mfree(c, p);
	slabc_mfree(c, q);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0);
}

/* 20,000 random calls against what each object should hold. */
static void
storm(const char *arguments)
{
	enum { N = 300 };
	static struct {
		unsigned char *p;
		size_t n;
		unsigned seed;
	} held[N];
	CLEANUP(harness_free) struct harness *h = harness_slabd("%s", arguments);
	struct slabc *c = harness_open(h, "storm");
	unsigned seed = harness_seed();
	bool ok = true;

	memset(held, 0, sizeof held);
	for (unsigned i = 0; i < 20000 && ok; i++) {
		unsigned at = (unsigned)rand_r(&seed) % N;
		size_t n = (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 700 : rand_r(&seed) % 8 ? 9000 : 200000), kept;
		unsigned char *p;

		switch (rand_r(&seed) % 3) {
		case 0:
			ok = is_filled(held[at].p, held[at].n, held[at].seed);
			slabc_mfree(c, held[at].p);
			held[at].p = NULL;
			held[at].n = 0;
			break;
		default:
			p = slabc_realloc(c, held[at].p, n + 1);
			kept = held[at].n < n + 1 ? held[at].n : n + 1;
			ok = p && is_filled(p, kept, held[at].seed) && slabc_usable_size(c, p) >= n + 1;
			held[at].p = p;
			held[at].n = n + 1;
			held[at].seed = i;
			if (p)
				fill(p, n + 1, i);
		}
	}
	CHECK(ok);
	CHECK(harness_audit(h).n_lost == 0 && harness_audit(h).n_doubled == 0);
	for (unsigned i = 0; i < N; i++)
		slabc_mfree(c, held[i].p);
	slabc_close(c);
	CHECK(harness_audit(h).n_out == 0 && harness_status(h).committed_bytes == 0);
}

static void
it_random_calls(void)
{
	storm("--page-kind=4k --arena-size=128M");
}

/* Without sheaves, and with other barns, the same. */
static void
it_random_calls_in_other_profiles(void)
{
	storm("--page-kind=4k --arena-size=128M --profile=tiny");
	storm("--page-kind=4k --arena-size=128M --profile=kernel");
}

static enum proto_status
refill(struct raw *raw, uint32_t cache, uint32_t capacity, uint32_t n_pages, char *sentence)
{
	union proto_request request = {.refill = {.cache = cache, .n_sheaves = 1, .capacity = capacity, .n_pages = n_pages}};
	union proto_reply reply;

	return (enum proto_status)raw_call(raw->fd, PROTO_OP_REFILL, &request, &reply, sentence);
}

/* What no library asks for is refused by name, and calls nothing in. */
static void
it_strange_requests(void)
{
	CLEANUP(harness_free) struct harness *h = harness_slabd("--page-kind=4k --arena-size=16M");
	struct slabc *c = harness_open(h, "idle");
	union proto_request open = {.cache_open = {.name = "odd", .size = 64, .flags = LAYOUT_CACHE_RUNS | LAYOUT_CACHE_RECLAIM}};
	char sentence[PROTO_SENTENCE_BYTES];
	uint32_t runs, plain;
	struct raw raw;
	uint64_t n_idle;
	void *p[2000];

	for (int i = 0; i < 2000; i++)
		REQUIRE((p[i] = slabc_malloc(c, 64)) != NULL);
	for (int i = 0; i < 2000; i++)
		slabc_mfree(c, p[i]);
	n_idle = harness_cache(h, "malloc.64").n_process_barn;
	CHECK(n_idle > 0);
	raw_attach(&raw, h->socket, "strange");
	runs = raw_cache_open(&raw, "runs", 4096, LAYOUT_CACHE_RUNS);
	plain = raw_cache_open(&raw, "plain", 64, 0);
	CHECK(raw_call(raw.fd, PROTO_OP_CACHE_OPEN, &open, &(union proto_reply){0}, sentence) == PROTO_STATUS_INVALID);
	CHECK(refill(&raw, runs, 1, 0, sentence) == PROTO_STATUS_INVALID);
	CHECK(refill(&raw, runs, 0, 0, sentence) == PROTO_STATUS_INVALID);
	CHECK(refill(&raw, plain, 1, 3, sentence) == PROTO_STATUS_INVALID);
	CHECK(strstr(sentence, "'plain'") != NULL);
	CHECK(refill(&raw, runs, 1, LAYOUT_MAX_PAGES, sentence) == PROTO_STATUS_NO_MEMORY);
	CHECK(refill(&raw, runs, 1020, 4097, sentence) == PROTO_STATUS_NO_MEMORY);
	/* Of the other client's idle objects none was called in for that. */
	CHECK(harness_cache(h, "malloc.64").n_process_barn == n_idle);
	CHECK(refill(&raw, runs, 1, 4000, sentence) == PROTO_STATUS_OK);
	CHECK(harness_cache(h, "runs").n_pages == 4000);
	raw_detach(&raw);
	CHECK(EVENTUALLY(harness_cache(h, "runs").n_pages == 0));
	CHECK(harness_audit(h).n_lost == 0);
	slabc_close(c);
}

CU_pSuite
it_sized_suite(void)
{
	CU_pSuite suite = harness_suite("sized");

	CU_ADD_TEST(suite, it_sizes_are_kmallocs);
	CU_ADD_TEST(suite, it_memalign);
	CU_ADD_TEST(suite, it_edges);
	CU_ADD_TEST(suite, it_realloc);
	CU_ADD_TEST(suite, it_runs_fill_the_arena);
	CU_ADD_TEST(suite, it_runs_of_huge_pages);
	CU_ADD_TEST(suite, it_threads_start_together);
	CU_ADD_TEST(suite, it_mfree_of_anything);
	CU_ADD_TEST(suite, it_wild_mfree_is_counted);
	CU_ADD_TEST(suite, it_class_caches_are_caches);
	CU_ADD_TEST(suite, it_destroyed_class_comes_back);
	CU_ADD_TEST(suite, it_name_is_taken);
	CU_ADD_TEST(suite, it_runs_outlive_their_maker);
	CU_ADD_TEST(suite, it_killed_among_runs);
	CU_ADD_TEST(suite, it_forked_and_read_only);
	CU_ADD_TEST(suite, it_random_calls);
	CU_ADD_TEST(suite, it_random_calls_in_other_profiles);
	CU_ADD_TEST(suite, it_strange_requests);
	return suite;
}
