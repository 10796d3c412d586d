/* SPDX-License-Identifier: Apache-2.0 */
/* The table of roots: order, bound, weakness, and who waits for a name. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "server/arena.h"
#include "server/cache.h"
#include "server/root.h"
#include "shm/word.h"

CU_pSuite test_root_suite(void);

enum { N_OBJECTS = 4 };

/* An arena with some objects that client 5 holds, shared. */
struct world {
	struct arena *arena;
	char why[256];
	uint32_t words[N_OBJECTS];
	uint64_t refs[N_OBJECTS];
};

static void
world_init(struct world *w)
{
	const struct arena_options options = {.name = "default", .limit_bytes = 8 << 20, .page_kind = LADDER_4K};
	const struct cache_options cache_options = {.name = "k", .size = 64};
	struct cache *k;
	uint32_t slab;

	*w = (struct world){0};
	CU_ASSERT_EQUAL_FATAL(arena_new(&w->arena, &options, w->why, sizeof w->why), 0);
	CU_ASSERT_EQUAL_FATAL(cache_open(w->arena, &cache_options, &k, w->why, sizeof w->why), 0);
	CU_ASSERT_EQUAL_FATAL(slab_new(w->arena, k, 0, &slab), 0);
	for (uint32_t i = 0; i < N_OBJECTS; i++) {
		uint32_t place = slab_place(w->arena, k, slab, i), word;
		struct slab_object o;

		CU_ASSERT_FATAL(slab_find(w->arena, k, place, &o));
		w->words[i] = o.word;
		word = (i + 1) * WORD_GENERATION_ONE | WORD_SHARED | 5;
		w->arena->words[o.word] = word;
		w->refs[i] = ref_make(w->arena, place, word);
	}
}

static int
publish(struct world *w, const char *name, int i, bool may_replace)
{
	return root_publish(w->arena, name, w->refs[i], may_replace, w->why, sizeof w->why);
}

static void
free_object(struct world *w, int i)
{
	w->arena->words[w->words[i]] = word_cleared(w->arena->words[w->words[i]]);
}

/* A name stands for one reference; it is taken only by who says so; what is there goes once. */
static void
test_publish_lookup(void)
{
	struct world w;
	uint64_t ref;

	world_init(&w);
	CU_ASSERT_FALSE(root_lookup(w.arena, "a", &ref));
	CU_ASSERT_EQUAL(publish(&w, "a", 0, false), 0);
	CU_ASSERT_EQUAL(publish(&w, "a", 1, false), -EEXIST);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "SLABC_REPLACE"));
	CU_ASSERT(root_lookup(w.arena, "a", &ref) && ref == w.refs[0]);
	CU_ASSERT_EQUAL(publish(&w, "a", 1, true), 0);
	CU_ASSERT(root_lookup(w.arena, "a", &ref) && ref == w.refs[1]);
	CU_ASSERT(root_unpublish(w.arena, "a"));
	CU_ASSERT_FALSE(root_unpublish(w.arena, "a"));
	CU_ASSERT_FALSE(root_lookup(w.arena, "a", &ref));
	arena_free(w.arena);
}

/* A root goes with its object: freed, used anew, or on a page in another life. Its name is free then. */
static void
test_weak(void)
{
	struct ref_object o;
	char name[ROOT_NAME_BYTES];
	struct world w;
	uint64_t ref;

	world_init(&w);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(publish(&w, (const char *[]){"freed", "anew", "closing"}[i], i, false), 0);
	CU_ASSERT_EQUAL(publish(&w, "stays", 3, false), 0);
	free_object(&w, 0);
	w.arena->words[w.words[1]] += WORD_GENERATION_ONE;
	w.arena->words[w.words[2]] = word_with(w.arena->words[w.words[2]], 5, WORD_CLOSING);
	CU_ASSERT_FALSE(root_lookup(w.arena, "freed", &ref));
	CU_ASSERT_FALSE(root_lookup(w.arena, "anew", &ref));
	CU_ASSERT_FALSE(root_unpublish(w.arena, "closing"));
	CU_ASSERT_EQUAL(publish(&w, "anew", 3, false), 0);
	CU_ASSERT_EQUAL(publish(&w, "x", 1, false), -ESTALE);
	CU_ASSERT(root_lookup(w.arena, "stays", &ref));
	/* The page in another life. */
	w.arena->page_map[(uint32_t)w.refs[3] >> LAYOUT_PLACE_PAGE_SHIFT].incarnation++;
	CU_ASSERT_FALSE(root_next(w.arena, "", "", name, &ref, &o));
	/* A listing that met stale ones has swept them out. */
	CU_ASSERT_EQUAL(root_count(w.arena), 0);
	arena_free(w.arena);
}

/* Only what others may take can be named. */
static void
test_not_shared(void)
{
	struct world w;

	world_init(&w);
	w.arena->words[w.words[0]] = word_with(w.arena->words[w.words[0]], 5, WORD_OWNED);
	CU_ASSERT_EQUAL(publish(&w, "a", 0, false), -EINVAL);
	CU_ASSERT_EQUAL(root_publish(w.arena, "a", 0, false, w.why, sizeof w.why), -ESTALE);
	CU_ASSERT_EQUAL(root_publish(w.arena, "a", UINT64_MAX, false, w.why, sizeof w.why), -ESTALE);
	CU_ASSERT_EQUAL(root_publish(w.arena, "a", w.refs[1] + 1, false, w.why, sizeof w.why), -ESTALE);
	CU_ASSERT_EQUAL(root_count(w.arena), 0);
	arena_free(w.arena);
}

/* In the order of bytes, by prefix, from any name on, whether that is there or not. */
static void
test_order(void)
{
	static const char *const names[] = {"b", "a", "\xff", "a/2", "a/1", "a/10", "ab", "\x01", "a/"};
	static const char *const in_order[] = {"\x01", "a", "a/", "a/1", "a/10", "a/2", "ab", "b", "\xff"};
	enum { N = sizeof names / sizeof names[0] };
	char name[ROOT_NAME_BYTES] = "";
	struct ref_object o;
	struct world w;
	uint64_t ref;

	world_init(&w);
	for (int i = 0; i < N; i++)
		CU_ASSERT_EQUAL(publish(&w, names[i], i % N_OBJECTS, false), 0);
	for (int i = 0; i < N; i++) {
		CU_ASSERT(root_next(w.arena, "", name, name, &ref, &o));
		CU_ASSERT_STRING_EQUAL(name, in_order[i]);
	}
	CU_ASSERT_FALSE(root_next(w.arena, "", name, name, &ref, &o));
	name[0] = '\0';
	for (int i = 2; i < 6; i++) {
		CU_ASSERT(root_next(w.arena, "a/", name, name, &ref, &o));
		CU_ASSERT_STRING_EQUAL(name, in_order[i]);
	}
	CU_ASSERT_FALSE(root_next(w.arena, "a/", name, name, &ref, &o));
	CU_ASSERT(root_next(w.arena, "a", "a/11", name, &ref, &o));
	CU_ASSERT_STRING_EQUAL(name, "a/2");
	CU_ASSERT_FALSE(root_next(w.arena, "a/", "b", name, &ref, &o));
	CU_ASSERT_FALSE(root_next(w.arena, "c", "", name, &ref, &o));
	arena_free(w.arena);
}

/* The table is bounded, and stale roots do not fill it. */
static void
test_bound(void)
{
	struct world w;
	char name[32];

	world_init(&w);
	for (unsigned i = 0; i < ROOT_MAX; i++) {
		snprintf(name, sizeof name, "root-%u", i * 2654435761u);
		if (publish(&w, name, i % 2, false) != 0)
			CU_FAIL("publishing below the bound");
	}
	CU_ASSERT_EQUAL(publish(&w, "one more", 2, false), -ENOSPC);
	CU_ASSERT_PTR_NOT_NULL(strstr(w.why, "65536"));
	free_object(&w, 0);
	CU_ASSERT_EQUAL(publish(&w, "one more", 2, false), 0);
	CU_ASSERT_EQUAL(root_count(w.arena), ROOT_MAX / 2 + 1);
	arena_free(w.arena);
}

static bool
is_told(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 1;
}

/* Who waits for a name is told of that name, once; who does not wait any more is not. */
static void
test_watch(void)
{
	struct root_watch watches[3] = {{.name = "a"}, {.name = "a"}, {.name = "b"}};
	int pairs[3][2];
	struct world w;
	uint64_t ref = 0;

	world_init(&w);
	for (int i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[i]), 0);
		watches[i].fd = pairs[i][0];
		CU_ASSERT_FALSE(root_watch(w.arena, &watches[i], &ref));
	}
	root_unwatch(w.arena, &watches[1]);
	CU_ASSERT_EQUAL(publish(&w, "a", 0, false), 0);
	CU_ASSERT(is_told(pairs[0][1]) && !is_told(pairs[1][1]) && !is_told(pairs[2][1]));
	CU_ASSERT_EQUAL(publish(&w, "a", 1, true), 0);
	CU_ASSERT_FALSE(is_told(pairs[0][1]));
	root_unwatch(w.arena, &watches[0]);
	CU_ASSERT(root_watch(w.arena, &watches[0], &ref) && ref == w.refs[1]);
	root_unwatch(w.arena, &watches[2]);
	CU_ASSERT_PTR_NULL(w.arena->roots.first_watch);
	for (int i = 0; i < 3; i++) {
		close(pairs[i][0]);
		close(pairs[i][1]);
	}
	arena_free(w.arena);
}

CU_pSuite
test_root_suite(void)
{
	CU_pSuite suite = CU_add_suite("root", NULL, NULL);

	CU_ADD_TEST(suite, test_publish_lookup);
	CU_ADD_TEST(suite, test_weak);
	CU_ADD_TEST(suite, test_not_shared);
	CU_ADD_TEST(suite, test_order);
	CU_ADD_TEST(suite, test_bound);
	CU_ADD_TEST(suite, test_watch);
	return suite;
}
