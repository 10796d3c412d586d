/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fail_at.so, to be preloaded: see fail_at.h.
 *
 * What libc calls within itself passes by, but for malloc() and its like.  Functions that may run before the constructor look theirs up when they are first
 * called; malloc() and its like, which dlsym() needs, take glibc's own names.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tests/fail_at.h"

static struct fail_at *at;

static bool
fails(enum fail_call call)
{
	uint32_t n;

	if (at)
		__atomic_add_fetch(&at->n_calls[call], 1, __ATOMIC_SEQ_CST);
	if (!at || __atomic_load_n(&at->call, __ATOMIC_SEQ_CST) != call)
		return false;
	n = __atomic_add_fetch(&at->n_seen, 1, __ATOMIC_SEQ_CST);
	if (n < at->k || (n > at->k && !at->is_lasting))
		return false;
	__atomic_add_fetch(&at->n_failed, 1, __ATOMIC_SEQ_CST);
	errno = at->error;
	return true;
}

__attribute__((constructor)) static void
begin(void)
{
	const char *path = getenv("FAIL_AT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (map != MAP_FAILED)
		at = map;
}

/* One function: its parameters, and how it is called and fails. */
#define WRAP(type, name, parameters, arguments, failure)                                                                                   \
	type name parameters;                                                                                                              \
	type name parameters                                                                                                               \
	{                                                                                                                                  \
		static type(*real) parameters;                                                                                             \
                                                                                                                                           \
		if (fails(FAIL_##name))                                                                                                    \
			return failure;                                                                                                    \
		if (!real)                                                                                                                 \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                                                         \
		return real arguments;                                                                                                     \
	}

WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1)
WRAP(int, fallocate, (int fd, int mode, off_t off, off_t n), (fd, mode, off, n), -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), -1)
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), -1)
WRAP(int, fstat, (int fd, struct stat *st), (fd, st), -1)
WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t off), (p, n, prot, flags, fd, off), MAP_FAILED)
WRAP(int, munmap, (void *p, size_t n), (p, n), -1)
WRAP(int, madvise, (void *p, size_t n, int advice), (p, n, advice), -1)
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), -1)
WRAP(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), -1)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), -1)
WRAP(int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), -1)
WRAP(int, listen, (int fd, int n), (fd, n), -1)
WRAP(int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags), -1)
WRAP(int, getsockopt, (int fd, int level, int name, void *to, socklen_t *n), (fd, level, name, to, n), -1)
WRAP(int, poll, (struct pollfd *p, nfds_t n, int ms), (p, n, ms), -1)
WRAP(int, pipe2, (int fds[2], int flags), (fds, flags), -1)
WRAP(int, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds), -1)
WRAP(int, dup3, (int from, int to, int flags), (from, to, flags), -1)
WRAP(int, epoll_create1, (int flags), (flags), -1)
WRAP(int, epoll_ctl, (int fd, int op, int of, struct epoll_event *e), (fd, op, of, e), -1)
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags), -1)
WRAP(int, eventfd, (unsigned n, int flags), (n, flags), -1)
WRAP(ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), -1)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *arg), (t, a, f, arg), errno)
WRAP(int, sd_pid_notify_with_fds, (pid_t pid, int unset, const char *state, const int *fds, unsigned n), (pid, unset, state, fds, n), -errno)

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *
malloc(size_t n)
{
	return fails(FAIL_malloc) ? NULL : __libc_malloc(n);
}

void *
calloc(size_t n, size_t size)
{
	return fails(FAIL_calloc) ? NULL : __libc_calloc(n, size);
}

void *
realloc(void *p, size_t n)
{
	return fails(FAIL_realloc) ? NULL : __libc_realloc(p, n);
}

int
posix_memalign(void **pp, size_t align, size_t n)
{
	if (fails(FAIL_posix_memalign))
		return errno;
	*pp = __libc_memalign(align, n);
	return *pp ? 0 : ENOMEM;
}

int
open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails(FAIL_open) ? -1 : openat(AT_FDCWD, path, flags, mode);
}

int
fcntl(int fd, int command, ...)
{
	static int (*real)(int, int, ...);
	va_list args;
	void *arg;

	va_start(args, command);
	arg = va_arg(args, void *);
	va_end(args);
	if (fails(FAIL_fcntl))
		return -1;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fcntl");
	return real(fd, command, arg);
}

static enum fail_call
call_of(long number)
{
	switch (number) {
	case SYS_pidfd_open:
		return FAIL_pidfd_open;
	case SYS_membarrier:
		return FAIL_membarrier;
	case SYS_set_mempolicy:
		return FAIL_set_mempolicy;
	case SYS_get_mempolicy:
		return FAIL_get_mempolicy;
	case SYS_move_pages:
		return FAIL_move_pages;
	default:
		return FAIL_COUNT;
	}
}

long
syscall(long number, ...)
{
	static long (*real)(long, ...);
	va_list args;
	long a[6];

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (fails(call_of(number)))
		return -1;
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
