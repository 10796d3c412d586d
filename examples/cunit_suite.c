/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUnit suite of a program that keeps its jobs in shared memory, with a slabd of its own: no root, no service, no clean-up.
 *
 *     slabd --ephemeral -- ./cunit_suite       slabd runs the suite, and ends with it
 *     ./cunit_suite                            the suite starts slabd (from PATH), which ends with it, however it ends
 */
#include <slabclient.h>

#include <CUnit/Basic.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SUITE_ALARM_S 10
#define SUITE_JOB_BYTES 120

extern char **environ;

/* The program under test: two functions of it. */

struct job {
	unsigned n_bytes;
	char text[SUITE_JOB_BYTES];
};

static struct job *
job_new(struct slabc_cache *jobs, const char *text)
{
	struct job *job = slabc_alloc(jobs);

	if (job)
		job->n_bytes = (unsigned)snprintf(job->text, sizeof(job->text), "%s", text);
	return job;
}

static void
job_free(struct slabc_cache *jobs, struct job *job)
{
	slabc_free(jobs, job);
}

/* The suite's slabd, unless it is run by one: 0, or -1. */

static pid_t slabd; /* 0: none of ours */

static int
suite_start(void)
{
	char *argv[] = {"slabd", "--ephemeral", NULL}, line[256], *path;
	posix_spawn_file_actions_t actions;
	FILE *output;
	int fds[2], r;

	if (getenv("SLABD_SOCKET"))
		return 0;
	if (pipe(fds) < 0 || posix_spawn_file_actions_init(&actions) != 0)
		return -1;
	posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&actions, fds[0]);
	posix_spawn_file_actions_addclose(&actions, fds[1]);
	r = posix_spawnp(&slabd, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	output = r == 0 ? fdopen(fds[0], "r") : NULL;
	if (!output) {
		close(fds[0]);
		fprintf(stderr, "cunit_suite: slabd: %s\n", strerror(r ? r : errno));
		return -1;
	}
	/* SLABD_SOCKET=/tmp/slabd-ephemeral.Xq3v9T/sock, and nothing more. If it could not start it has said why on standard error. */
	r = fgets(line, sizeof(line), output) && (path = strchr(line, '=')) != NULL ? 0 : -1;
	fclose(output);
	if (r < 0)
		return -1;
	path[strcspn(path, "\n")] = '\0';
	return setenv("SLABD_SOCKET", path + 1, 1);
}

static int
suite_stop(void)
{
	int status = 0;

	if (slabd && (kill(slabd, SIGTERM) < 0 || waitpid(slabd, &status, 0) < 0))
		return -1;
	return status;
}

/* Around each test: a session, and at its end nothing may be held. */

static struct slabc *session;
static struct slabc_cache *jobs;

static void
test_open(void)
{
	CU_ASSERT_FATAL(slabc_open(&session, NULL) == 0);
	CU_ASSERT_FATAL(slabc_cache_open(session, "jobs", sizeof(struct job), NULL, &jobs) == 0);
}

static void
test_close(void)
{
	struct slabc_stats stats = SLABC_STATS_INIT;

	CU_ASSERT(slabc_get_stats(session, &stats) == 0);
	CU_ASSERT_EQUAL(stats.bytes_held, 0);
	CU_ASSERT_EQUAL(stats.n_bad_frees, 0);
	slabc_close(session);
}

/* Tests */

static void
test_job_keeps_its_text(void)
{
	struct job *job = job_new(jobs, "sweep the yard");

	CU_ASSERT_PTR_NOT_NULL_FATAL(job);
	CU_ASSERT_STRING_EQUAL(job->text, "sweep the yard");
	job_free(jobs, job);
}

/* What a test would leak shows in bytes_held: test_close() looks after each of them. */
static void
test_leak_would_show(void)
{
	struct slabc_stats stats = SLABC_STATS_INIT;
	struct job *job = job_new(jobs, "never done");

	CU_ASSERT_PTR_NOT_NULL_FATAL(job);
	CU_ASSERT(slabc_get_stats(session, &stats) == 0);
	CU_ASSERT(stats.bytes_held >= sizeof(*job));
	job_free(jobs, job);
}

/* In a child, with a session of its own: killed with a job in its hands. */
static void
worker_die(void)
{
	struct slabc_cache *mine;
	struct slabc *c;

	alarm(SUITE_ALARM_S);
	if (slabc_open(&c, NULL) == 0 && slabc_cache_open(c, "jobs", 0, NULL, &mine) == 0 && job_new(mine, "half done"))
		kill(getpid(), SIGKILL);
	_exit(EXIT_FAILURE);
}

/* A worker that dies loses no job: it is an orphan, which another takes over. */
static void
test_job_outlives_its_worker(void)
{
	static const struct timespec pause = {.tv_nsec = 1000000};
	struct job *job = NULL;
	slabc_ref ref = 0;
	int status = 0;
	pid_t worker = fork();

	CU_ASSERT_FATAL(worker >= 0);
	if (worker == 0)
		worker_die();
	CU_ASSERT(waitpid(worker, &status, 0) == worker);
	CU_ASSERT_FATAL(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* slabd hears of the death a moment after us. */
	for (int i = 0; i < SUITE_ALARM_S * 1000 && !(ref = slabc_next_orphan(jobs, 0)); i++)
		nanosleep(&pause, NULL);
	job = slabc_adopt_orphan(session, ref);
	CU_ASSERT_PTR_NOT_NULL_FATAL(job);
	CU_ASSERT_STRING_EQUAL(job->text, "half done");
	job_free(jobs, job);
}

int
main(void)
{
	unsigned n_failures;
	CU_pSuite suite;

	if (CU_initialize_registry() != CUE_SUCCESS)
		return EXIT_FAILURE;
	suite = CU_add_suite_with_setup_and_teardown("jobs", suite_start, suite_stop, test_open, test_close);
	if (!suite || !CU_ADD_TEST(suite, test_job_keeps_its_text) || !CU_ADD_TEST(suite, test_leak_would_show) ||
		!CU_ADD_TEST(suite, test_job_outlives_its_worker))
		return EXIT_FAILURE;
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	n_failures = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	CU_cleanup_registry();
	return n_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
