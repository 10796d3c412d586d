/* SPDX-License-Identifier: Apache-2.0 */
#include "server/log.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/step.h"

/* Globals, as standard error is one. */
static int max_level = LOG_LEVEL_INFO; /* atomic */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void
log_set_level(enum log_level level)
{
	atomic_write(&max_level, (int)level);
}

void
log_line(enum log_level level, const char *format, ...)
{
	struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
	char line[1024];
	size_t used = 0;
	va_list args;
	int n;

	if ((int)level > atomic_read(&max_level))
		return;
	if (getenv("JOURNAL_STREAM"))
		used = (size_t)snprintf(line, sizeof line, "<%d>", level);
	used += (size_t)snprintf(line + used, sizeof line - used, "slabd: ");
	va_start(args, format);
	n = vsnprintf(line + used, sizeof line - used - 1, format, args);
	va_end(args);
	used = n < 0 ? used : used + (size_t)n;
	if (used > sizeof line - 2)
		used = sizeof line - 2;
	/* What came from clients must not break the line. */
	for (size_t i = 0; i < used; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[used++] = '\n';
	/*
	 * A full or closed log must not stop slabd: the line is dropped (main ignores SIGPIPE).  One thread at a time, so that no other takes the room
	 * that poll() has seen.
	 */
	if (!MUTANT(LOG_UNLOCKED))
		pthread_mutex_lock(&lock);
	if (poll(&ready, 1, 0) == 1) {
		STEP(LOG_READY);
		if (write(STDERR_FILENO, line, used) < 0)
			used = 0;
	}
	if (!MUTANT(LOG_UNLOCKED))
		pthread_mutex_unlock(&lock);
}
