/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rule of design.md, section 5, that has a mutant, played in C: kept, and broken (tests/model has the proofs, shm/step.h the names).
 *
 *   test_mutants                 every story, unmutated, under CUnit: all must pass
 *   test_mutants --mutant=NAME   the stories that are to notice NAME, each in a process of its own.  One line a story:
 *                                "NAME caught by STORY: what was seen", or MISSED, or CRASHED
 *                                exit status 1: all caught it; 0: one missed it; 2: one crashed or could not be played
 *   test_mutants --story=NAME    one story, unmutated
 *   test_mutants --list          the mutants
 *
 * No interleaving is hoped for: at a step (shm/step.h) the other party acts, in a thread of its own, or a child is killed or left there.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CUnit/Basic.h>

#include "tests/steps_rig.h"

enum { MUTANT_S = 50 };

/* Last: a step that nobody comes to any more guards nothing. */
void
it_has_met_every_step(void)
{
	enum step unmet = rig_first_unmet();

	HOLDS(unmet == STEP_COUNT, "no story came to %s", unmet < STEP_COUNT ? step_names[unmet] : "");
}

/* Stories and what they are to notice */

struct story {
	const char *name;
	void (*play)(void);
	enum mutant notices[4]; /* MUTANT_NONE ends it */
};

static const struct story stories[] = {
#define STORY(name, ...) {#name, name, {__VA_ARGS__}},
#include "tests/steps_stories.def"
};
enum { N_STORIES = sizeof(stories) / sizeof(stories[0]), N_NOTICES = sizeof(stories[0].notices) / sizeof(stories[0].notices[0]) };

static bool
notices(const struct story *story, enum mutant mutant)
{
	for (unsigned i = 0; i < N_NOTICES; i++)
		if (story->notices[i] == mutant)
			return true;
	return false;
}

/* The story, with the rule broken, in a process of its own.  As main() then. */
static int
play_broken(const struct story *story, enum mutant mutant)
{
	const char *name = step_mutant_names[mutant];
	char seen[RIG_SENTENCE_BYTES + 1];
	int report[2], status;
	ssize_t n;
	pid_t pid;

	fflush(NULL);
	if (pipe(report) < 0 || (pid = fork()) < 0)
		return 2;
	if (pid == 0) {
		close(report[0]);
		rig_report_fd = report[1];
		step_mutant = mutant;
		alarm(MUTANT_S);
		story->play();
		_exit(0);
	}
	close(report[1]);
	waitpid(pid, &status, 0);
	/* Children of its own may still hold the other end: what there is to read is there. */
	n = WIFEXITED(status) && WEXITSTATUS(status) ? read(report[0], seen, RIG_SENTENCE_BYTES) : 0;
	close(report[0]);
	seen[n > 0 ? n : 0] = '\0';
	seen[strcspn(seen, "\n")] = '\0';
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && seen[0]) {
		printf("%s caught by %s: %s\n", name, story->name, seen);
		return 1;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		printf("%s MISSED by %s\n", name, story->name);
		return 0;
	}
	printf("%s CRASHED %s: %s%s\n", name, story->name, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "", seen);
	return 2;
}

static int
play_mutant(const char *name)
{
	enum mutant mutant = MUTANT_NONE;
	int result = -1;

	for (int m = MUTANT_NONE + 1; m < MUTANT_COUNT; m++)
		if (strcmp(step_mutant_names[m], name) == 0)
			mutant = (enum mutant)m;
	if (mutant == MUTANT_NONE) {
		fprintf(stderr, "there is no mutant '%s'\n", name);
		return 2;
	}
	for (unsigned i = 0; i < N_STORIES; i++) {
		int r = notices(&stories[i], mutant) ? play_broken(&stories[i], mutant) : -1;

		/* The worst counts: crashed, missed, caught, none. */
		if (r == 2 || (r == 0 && result != 2) || (r == 1 && result == -1))
			result = r;
	}
	if (result == -1)
		printf("%s MISSED: no story is to notice it\n", name);
	return result == -1 ? 0 : result;
}

static int
play_unmutated(const char *only)
{
	CU_pSuite suite;
	unsigned n_failed;

	if (CU_initialize_registry() != CUE_SUCCESS)
		return 2;
	suite = CU_add_suite("mutants, unmutated", NULL, NULL);
	for (unsigned i = 0; suite && i < N_STORIES; i++)
		if ((!only || strcmp(only, stories[i].name) == 0) && !CU_add_test(suite, stories[i].name, stories[i].play))
			suite = NULL;
	if (!suite)
		return 2;
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failed = CU_get_number_of_failures();
	CU_cleanup_registry();
	return n_failed ? 1 : 0;
}

int
main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && strncmp(argv[1], "--mutant=", 9) == 0)
		return play_mutant(argv[1] + 9);
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (int m = MUTANT_NONE + 1; m < MUTANT_COUNT; m++)
			puts(step_mutant_names[m]);
		return 0;
	}
	if (argc > 2 || (argc == 2 && strncmp(argv[1], "--story=", 8) != 0)) {
		fprintf(stderr, "usage: %s [--mutant=NAME | --story=NAME | --list]\n", argv[0]);
		return 2;
	}
	alarm(4 * MUTANT_S); /* a sanitizer's build on a busy machine */
	return play_unmutated(argc == 2 ? argv[1] + 8 : NULL);
}
