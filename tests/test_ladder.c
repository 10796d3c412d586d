/* SPDX-License-Identifier: Apache-2.0 */
/* server/ladder: which lists of page kinds are ladders, and what they are called. */
#include <string.h>

#include <CUnit/CUnit.h>

#include "server/ladder.h"

CU_pSuite test_ladder_suite(void);

/* Every set of rungs has a name that is parsed back to it, and fits. */
static void
test_names_are_parsed_back(void)
{
	char name[LADDER_NAME_BYTES];

	for (unsigned ladder = 0; ladder < 16; ladder++) {
		memset(name, 'x', sizeof name);
		ladder_name(ladder, name);
		CU_ASSERT_PTR_NOT_NULL(memchr(name, '\0', sizeof name));
		CU_ASSERT_EQUAL(ladder_parse(name), (int)ladder);
	}
	ladder_name(LADDER_1G | LADDER_HUGE | LADDER_THP | LADDER_4K, name);
	CU_ASSERT_STRING_EQUAL(name, "1g,huge,thp,4k");
	ladder_name(LADDER_DEFAULT, name);
	CU_ASSERT_STRING_EQUAL(name, "auto");
}

/* From the largest down, each once, separated by commas; blanks do not matter. */
static void
test_what_is_no_ladder(void)
{
	static const char *const bad[] = {
		"", ",", "huge,", ",huge", "huge,,4k", "4k,huge", "thp,thp", "auto,4k", "huge 4k", "large", "hug", "huge4k", "HUGE"};

	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		CU_ASSERT_EQUAL(ladder_parse(bad[i]), -1);
	CU_ASSERT_EQUAL(ladder_parse(" huge ,  4k "), LADDER_HUGE | LADDER_4K);
	CU_ASSERT_EQUAL(ladder_parse("1g,4k"), LADDER_1G | LADDER_4K);
}

/* The default never takes a page of 1 GiB: those must be asked for. */
static void
test_default_has_no_giant(void)
{
	CU_ASSERT_EQUAL(LADDER_AUTO & LADDER_1G, 0);
}

CU_pSuite
test_ladder_suite(void)
{
	CU_pSuite suite = CU_add_suite("ladder", NULL, NULL);

	CU_ADD_TEST(suite, test_names_are_parsed_back);
	CU_ADD_TEST(suite, test_what_is_no_ladder);
	CU_ADD_TEST(suite, test_default_has_no_giant);
	return suite;
}
