/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the unit tests, a suite a module: all, or those named on the command line. */
#include <stdio.h>
#include <string.h>

#include <CUnit/Basic.h>

#include "tests/skip.h"

CU_pSuite test_geometry_suite(void);
CU_pSuite test_bitset_suite(void);
CU_pSuite test_pages_suite(void);
CU_pSuite test_words_suite(void);
CU_pSuite test_topology_suite(void);
CU_pSuite test_segment_suite(void);
CU_pSuite test_codec_suite(void);
CU_pSuite test_channel_suite(void);
CU_pSuite test_barn_suite(void);
CU_pSuite test_node_suite(void);
CU_pSuite test_cache_suite(void);
CU_pSuite test_grant_suite(void);
CU_pSuite test_grant_nodes_suite(void);
CU_pSuite test_grant_hostile_suite(void);
CU_pSuite test_reaper_suite(void);
CU_pSuite test_peer_suite(void);
CU_pSuite test_ladder_suite(void);
CU_pSuite test_collapse_suite(void);
CU_pSuite test_profile_suite(void);
CU_pSuite test_access_suite(void);
CU_pSuite test_root_suite(void);
CU_pSuite test_debug_suite(void);
CU_pSuite test_readers_suite(void);
CU_pSuite test_stash_suite(void);
CU_pSuite test_repair_suite(void);

static int
is_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return 1;
	return argc < 2;
}

int
main(int argc, char **argv)
{
	static CU_pSuite (*const suites[])(void) = {test_geometry_suite, test_bitset_suite, test_pages_suite, test_words_suite,
		test_topology_suite, test_segment_suite, test_codec_suite, test_channel_suite, test_barn_suite, test_node_suite,
		test_cache_suite, test_grant_suite, test_grant_nodes_suite, test_grant_hostile_suite, test_stash_suite, test_repair_suite, test_reaper_suite, test_ladder_suite,
		test_collapse_suite,
		test_profile_suite, test_access_suite, test_peer_suite, test_root_suite, test_readers_suite, test_debug_suite};
	unsigned n_failures;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++) {
		CU_pSuite suite = suites[i]();

		if (!suite)
			return 1;
		CU_set_suite_active(suite, is_wanted(suite->pName, argc, argv) ? CU_TRUE : CU_FALSE);
	}
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	skip_print();
	CU_cleanup_registry();
	return n_failures ? 1 : 0;
}
