/* SPDX-License-Identifier: Apache-2.0 */
/* To be loaded before libc: the clocks that can be set jump by years, back and forth, from one look to the next (tests/it_alive.c). */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { JUMP_S = 300000000 };

static time_t
jump(void)
{
	static unsigned n_looks;
	unsigned n = __atomic_fetch_add(&n_looks, 1, __ATOMIC_RELAXED);

	return n % 2 ? JUMP_S : -JUMP_S;
}

int
clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
		t->tv_sec += jump();
	return r;
}

int
gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now = {0};
	int r = clock_gettime(CLOCK_REALTIME, &now);

	(void)zone;
	*t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return r;
}

time_t
time(time_t *p)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_REALTIME, &now);
	if (p)
		*p = now.tv_sec;
	return now.tv_sec;
}
