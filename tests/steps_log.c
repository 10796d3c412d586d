/* SPDX-License-Identifier: Apache-2.0 */
/* The log: however many write to it, no thread waits for its reader. */
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "server/log.h"
#include "tests/steps_rig.h"

/* Lines of so many bytes that all do not fit what poll() calls writable, a page. */
enum { N_THREADS = 6, PIPE_BYTES = 4096, WAIT_MS = 200, WAIT_S = 5 };

static uint32_t n_ready;

/* A thread has seen that there is room; the others see that too, if they are let, for which it waits no longer than this. */
static void
gather(enum step step)
{
	static const struct timespec pause = {.tv_nsec = 1000000};

	if (step != STEP_LOG_READY)
		return;
	atomic_add(&n_ready, 1);
	for (int i = 0; i < WAIT_MS && atomic_read(&n_ready) < N_THREADS; i++)
		nanosleep(&pause, NULL);
}

static void *
log_one(void *arg)
{
	log_line(LOG_LEVEL_WARNING, "%0900d", 0);
	return arg;
}

/* Standard error is a pipe that nobody reads.  There was room when the threads looked, and not for all of them. */
void
it_full_log_blocks_nobody(void)
{
	int pipes[2], before = dup(STDERR_FILENO);
	pthread_t threads[N_THREADS];
	uint32_t n_back = 0;
	struct timespec t;

	NEED(before >= 0 && pipe2(pipes, O_CLOEXEC) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, PIPE_BYTES) == PIPE_BYTES, "no pipe");
	NEED(dup2(pipes[1], STDERR_FILENO) == STDERR_FILENO, "standard error stays what it is");
	n_ready = 0;
	rig_always(gather);
	for (int i = 0; i < N_THREADS; i++)
		NEED(pthread_create(&threads[i], NULL, log_one, NULL) == 0, "no thread");
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += WAIT_S;
	for (int i = 0; i < N_THREADS; i++)
		n_back += pthread_timedjoin_np(threads[i], NULL, &t) == 0;
	rig_always(NULL);
	dup2(before, STDERR_FILENO);
	close(before);
	NEED(n_ready > 0, "nothing was logged");
	HOLDS(n_back == N_THREADS, "%u of %u threads that log wait for somebody to read", N_THREADS - n_back, N_THREADS);
	close(pipes[0]);
	close(pipes[1]);
}
