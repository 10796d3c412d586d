/* SPDX-License-Identifier: Apache-2.0 */
/* server/arena: when the kernel is asked to make transparent huge pages. */
#include <CUnit/CUnit.h>

#include "server/arena.h"
#include "tests/skip.h"

CU_pSuite test_collapse_suite(void);

enum { N = 3, UNIT_ORDER = 9 };

static const uint64_t unit_bytes = (uint64_t)LAYOUT_PAGE_BYTES << UNIT_ORDER;

static struct arena *
make(uint64_t reserve)
{
	const struct arena_options options = {
		.name = "collapse", .limit_bytes = 8 * unit_bytes, .reserve_bytes = reserve, .page_kind = LADDER_THP | LADDER_4K};
	struct arena *arena;
	char why[256];

	CU_ASSERT_EQUAL_FATAL(arena_new(&arena, &options, why, sizeof why), 0);
	return arena;
}

/* Who commits asks for nothing: that is left to arena_collapse(), which begins one unit in any case and no other when its time is over. */
static void
test_commit_asks_for_no_huge_page(void)
{
	struct arena *arena = make(0);
	uint32_t pages[N];

	CU_ASSERT(arena_has_thp(arena));
	for (int i = 0; i < N; i++)
		CU_ASSERT_EQUAL(arena_pages_alloc(arena, 0, UNIT_ORDER, &pages[i]), 0);
	CU_ASSERT_EQUAL(arena->committed_bytes, N * unit_bytes);
	CU_ASSERT_EQUAL(arena->thp_bytes, 0);
	/* One that is given back waits no more. */
	arena_pages_free(arena, pages[0], UNIT_ORDER);
	CU_ASSERT(arena_collapse(arena, 0));
	if (arena->thp_bytes == 0) {
		skip("the kernel makes no transparent huge page of a memfd here: %s", arena->page_note);
		arena_free(arena);
		return;
	}
	CU_ASSERT_EQUAL(arena->thp_bytes, unit_bytes);
	CU_ASSERT(!arena_collapse(arena, UINT64_MAX / 2));
	CU_ASSERT_EQUAL(arena->thp_bytes, (N - 1) * unit_bytes);
	CU_ASSERT_EQUAL(arena->committed_bytes, (N - 1) * unit_bytes);
	CU_ASSERT(!arena_collapse(arena, UINT64_MAX / 2));
	for (int i = 1; i < N; i++)
		arena_pages_free(arena, pages[i], UNIT_ORDER);
	CU_ASSERT_EQUAL(arena->thp_bytes, 0);
	arena_free(arena);
}

/* What is committed before anybody may come is huge from the start. */
static void
test_reserve_is_huge_from_the_start(void)
{
	struct arena *arena = make(2 * unit_bytes);

	if (arena->thp_bytes == 0)
		skip("the kernel makes no transparent huge page of a memfd here: %s", arena->page_note);
	else
		CU_ASSERT_EQUAL(arena->thp_bytes, 2 * unit_bytes);
	CU_ASSERT(!arena_collapse(arena, 0));
	arena_free(arena);
}

/* While units come or go nobody collapses one, and while one is collapsed none goes. */
static void
test_units_stay_while_they_are_collapsed(void)
{
	struct arena *arena = make(0);
	struct pages *pages = &arena->segments[0].pages;
	uint32_t page;

	CU_ASSERT_EQUAL(arena_pages_alloc(arena, 0, UNIT_ORDER, &page), 0);
	CU_ASSERT(pages_try_hold(pages));
	CU_ASSERT(!pages_try_hold(pages));
	CU_ASSERT(!arena_collapse(arena, UINT64_MAX / 2) && arena->thp_bytes == 0);
	arena_pages_free(arena, page, UNIT_ORDER);
	CU_ASSERT_EQUAL(arena->committed_bytes, unit_bytes);
	pages_let_go(pages);
	CU_ASSERT_EQUAL(arena->committed_bytes, 0);
	CU_ASSERT(pages_check(pages));
	arena_free(arena);
}

CU_pSuite
test_collapse_suite(void)
{
	CU_pSuite suite = CU_add_suite("collapse", NULL, NULL);

	CU_ADD_TEST(suite, test_commit_asks_for_no_huge_page);
	CU_ADD_TEST(suite, test_reserve_is_huge_from_the_start);
	CU_ADD_TEST(suite, test_units_stay_while_they_are_collapsed);
	return suite;
}
