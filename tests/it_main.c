/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the integration tests: all, or the suites named on the command line. From the root of the tree, or with $SLABD, $SLABCTL,
 * $SLABCLIENT_LIB. */
#include <stdio.h>
#include <string.h>

#include <CUnit/Basic.h>

#include "tests/harness.h"

CU_pSuite it_session_suite(void);
CU_pSuite it_cache_suite(void);
CU_pSuite it_foreign_suite(void);
CU_pSuite it_free_suite(void);
CU_pSuite it_death_suite(void);
CU_pSuite it_memory_suite(void);
CU_pSuite it_hostile_suite(void);
CU_pSuite it_evict_suite(void);
CU_pSuite it_spoil_suite(void);
CU_pSuite it_daemon_suite(void);
CU_pSuite it_audit_suite(void);
CU_pSuite it_turns_suite(void);
CU_pSuite it_repair_suite(void);
CU_pSuite it_root_suite(void);
CU_pSuite it_orphan_suite(void);
CU_pSuite it_admin_suite(void);
CU_pSuite it_config_suite(void);
CU_pSuite it_access_suite(void);
CU_pSuite it_arenas_suite(void);
CU_pSuite it_pages_suite(void);
CU_pSuite it_readers_suite(void);
CU_pSuite it_numa_suite(void);
CU_pSuite it_sized_suite(void);
CU_pSuite it_flags_suite(void);
CU_pSuite it_ctl_suite(void);
CU_pSuite it_refill_suite(void);
CU_pSuite it_threads_suite(void);
CU_pSuite it_pipe_suite(void);
CU_pSuite it_ephemeral_suite(void);
CU_pSuite it_recall_suite(void);
CU_pSuite it_debug_suite(void);
CU_pSuite it_adopt_suite(void);
CU_pSuite it_silent_suite(void);
CU_pSuite it_shortage_suite(void);
CU_pSuite it_alive_suite(void);
CU_pSuite it_process_suite(void);
CU_pSuite it_refusal_suite(void);
CU_pSuite it_drain_suite(void);
CU_pSuite it_adopt_long_suite(void);

static const struct {
	const char *name;
	CU_pSuite (*make)(void);
} suites[] = {
	{"session", it_session_suite},
	{"cache", it_cache_suite},
	{"foreign", it_foreign_suite},
	{"free", it_free_suite},
	{"death", it_death_suite},
	{"memory", it_memory_suite},
	{"hostile", it_hostile_suite},
	{"evict", it_evict_suite},
	{"spoil", it_spoil_suite},
	{"daemon", it_daemon_suite},
	{"audit", it_audit_suite},
	{"turns", it_turns_suite},
	{"repair", it_repair_suite},
	{"root", it_root_suite},
	{"orphan", it_orphan_suite},
	{"admin", it_admin_suite},
	{"config", it_config_suite},
	{"access", it_access_suite},
	{"arenas", it_arenas_suite},
	{"pages", it_pages_suite},
	{"readers", it_readers_suite},
	{"numa", it_numa_suite},
	{"sized", it_sized_suite},
	{"flags", it_flags_suite},
	{"ctl", it_ctl_suite},
	{"refill", it_refill_suite},
	{"threads", it_threads_suite},
	{"pipe", it_pipe_suite},
	{"ephemeral", it_ephemeral_suite},
	{"recall", it_recall_suite},
	{"debug", it_debug_suite},
	{"adopt", it_adopt_suite},
	{"silent", it_silent_suite},
	{"shortage", it_shortage_suite},
	{"alive", it_alive_suite},
	{"process", it_process_suite},
	{"refusal", it_refusal_suite},
	{"drain", it_drain_suite},
	{"adopt-long", it_adopt_long_suite},
};

static int
is_wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return 1;
	/* What takes minutes is asked for by name. */
	return argc < 2 && !strstr(name, "-long");
}

int
main(int argc, char **argv)
{
	unsigned n_failures, n_made = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++)
		if (is_wanted(suites[i].name, argc, argv) && suites[i].make())
			n_made++;
	if (n_made == 0) {
		fputs("no such suite; there are:", stderr);
		for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++)
			fprintf(stderr, " %s", suites[i].name);
		fputc('\n', stderr);
		return 1;
	}
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	skip_print();
	CU_cleanup_registry();
	return n_failures ? 1 : 0;
}
