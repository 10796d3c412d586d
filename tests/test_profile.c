/* SPDX-License-Identifier: Apache-2.0 */
/* server/profile: the golden numbers of each profile, and how `server` grows. */
#include <string.h>

#include <CUnit/CUnit.h>

#include "server/profile.h"

CU_pSuite test_profile_suite(void);

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* The three that do not grow, on any machine. */
static void
test_golden(void)
{
	static const struct {
		uint32_t n_cpus;
		uint64_t bytes;
	} machines[] = {{1, 2 * MIB}, {2, GIB}, {224, 32 * GIB}};

	for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
		struct profile d = profile_of(ARENA_PROFILE_DEFAULT, machines[i].n_cpus, machines[i].bytes);
		struct profile k = profile_of(ARENA_PROFILE_KERNEL, machines[i].n_cpus, machines[i].bytes);
		struct profile t = profile_of(ARENA_PROFILE_TINY, machines[i].n_cpus, machines[i].bytes);

		CU_ASSERT(!d.is_sheafless && !k.is_sheafless && t.is_sheafless);
		CU_ASSERT(!d.is_kernel_capacity && k.is_kernel_capacity && !t.is_kernel_capacity);
		CU_ASSERT(d.capacity_factor == 1 && k.capacity_factor == 1);
		CU_ASSERT(d.max_order == 3 && k.max_order == 3 && t.max_order == 1);
		CU_ASSERT(d.min_partial_min == 5 && d.min_partial_max == 10 && k.min_partial_min == 5 && k.min_partial_max == 10);
		CU_ASSERT(t.min_partial_max == 0);
		CU_ASSERT(d.barn_full == 0 && d.barn_bytes == 16 * MIB && k.barn_full == 10);
		CU_ASSERT(d.barn_empty == 0 && k.barn_empty == 10);
		CU_ASSERT(d.max_cached == 32 * MIB);
		CU_ASSERT(d.cpu_partial_factor == 0 && k.cpu_partial_factor == 1 && t.cpu_partial_factor == 0);
	}
}

/* Scale 1 + min(log2 CPUs, log2(arena / 256 MiB)), 1 to 8: with little of either the default's size, never above eightfold. */
static void
test_server_grows(void)
{
	static const struct {
		uint32_t n_cpus;
		uint64_t bytes;
		uint32_t scale;
	} cases[] = {{1, 32 * GIB, 1}, {224, 64 * MIB, 1}, {2, GIB, 2}, {16, GIB, 3}, {16, 4 * GIB, 5}, {64, 8 * GIB, 6},
		{224, 32 * GIB, 8}, {4096, 1024 * GIB, 8}};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct profile s = profile_of(ARENA_PROFILE_SERVER, cases[i].n_cpus, cases[i].bytes);

		CU_ASSERT_EQUAL(s.capacity_factor, cases[i].scale);
		CU_ASSERT_EQUAL(s.partial_factor, cases[i].scale);
		CU_ASSERT_EQUAL(s.cpu_partial_factor, cases[i].scale);
		CU_ASSERT_EQUAL(s.barn_bytes, cases[i].scale * 16 * MIB);
		CU_ASSERT_EQUAL(s.barn_empty, 0);
		CU_ASSERT_EQUAL(s.max_cached, cases[i].scale * 32 * MIB);
		CU_ASSERT(s.max_order == 4 && s.min_partial_min == 5 && s.min_partial_max == 64 && s.objects_factor == 2);
	}
}

static void
test_profile_names(void)
{
	static const char *const names[] = {"default", "kernel", "tiny", "server"};

	for (int i = 0; i < 4; i++) {
		CU_ASSERT_EQUAL(profile_parse(names[i]), i);
		CU_ASSERT_STRING_EQUAL(profile_name((enum arena_profile)i), names[i]);
		CU_ASSERT_PTR_NOT_NULL(strstr(PROFILE_ALLOWED, names[i]));
	}
	CU_ASSERT_EQUAL(profile_parse("fast"), -1);
}

CU_pSuite
test_profile_suite(void)
{
	CU_pSuite suite = CU_add_suite("profile", NULL, NULL);

	CU_ADD_TEST(suite, test_golden);
	CU_ADD_TEST(suite, test_server_grows);
	CU_ADD_TEST(suite, test_profile_names);
	return suite;
}
