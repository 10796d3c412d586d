/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shortage on order: the k-th call of one function of libc fails, in a process that has fail_at.so preloaded.
 *
 * The order lies in a memfd of the test process, mapped by both; $FAIL_AT_FILE names it (/proc/PID/fd/N).  So one slabd serves many orders, and what is over is
 * over: fail_none().  Calls are counted from the order on, by all threads and children that have the memfd mapped.
 */
#ifndef SLAB_TESTS_FAIL_AT_H
#define SLAB_TESTS_FAIL_AT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* X(name); those below syscall are its numbers. */
#define FAIL_CALLS(X)                                                                                                                      \
	X(memfd_create) X(fallocate) X(ftruncate) X(fchmod) X(fcntl) X(fstat) X(mmap) X(munmap) X(madvise) X(malloc) X(calloc) X(realloc)  \
	X(posix_memalign) X(open) X(fopen) X(read) X(write) X(sendmsg) X(recvmsg) X(socket) X(connect) X(bind) X(listen) X(accept4)         \
	X(getsockopt) X(poll) X(pipe2) X(socketpair) X(dup3) X(epoll_create1) X(epoll_ctl) X(timerfd_create) X(eventfd) X(getrandom)       \
	X(pthread_create) X(sd_pid_notify_with_fds) X(pidfd_open) X(membarrier) X(set_mempolicy) X(get_mempolicy) X(move_pages)

enum fail_call {
	FAIL_NOTHING,
#define X(name) FAIL_##name,
	FAIL_CALLS(X)
#undef X
	FAIL_COUNT
};

static const char *const fail_names[] = {
	"nothing",
#define X(name) #name,
	FAIL_CALLS(X)
#undef X
};

struct fail_at {
	uint32_t call; /* enum fail_call; FAIL_NOTHING: none fails */
	uint32_t of_worker; /* what becomes call when the worker's job begins, or FAIL_NOTHING */
	uint32_t k;    /* from 1 */
	int32_t error; /* errno */
	uint32_t is_lasting; /* it, and all after it */
	uint32_t n_seen; /* calls of that function, and of them those that failed */
	uint32_t n_failed;
	uint32_t n_calls[FAIL_COUNT + 1]; /* of each function since the order, or since the worker's job began; the last: others by syscall() */
	char said[1024]; /* by the worker, of what went wrong */
};

static inline void
fail_none(struct fail_at *at)
{
	__atomic_store_n(&at->call, FAIL_NOTHING, __ATOMIC_SEQ_CST);
}

static inline void
fail_order(struct fail_at *at, enum fail_call call, uint32_t k, int error, bool is_lasting)
{
	fail_none(at);
	at->of_worker = FAIL_NOTHING;
	at->said[0] = '\0';
	at->k = k;
	at->error = error;
	at->is_lasting = is_lasting;
	at->n_seen = at->n_failed = 0;
	memset(at->n_calls, 0, sizeof at->n_calls);
	__atomic_store_n(&at->call, call, __ATOMIC_SEQ_CST);
}

#endif
