/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: open, close, and what a fork does to them.
 *
 * A session's memory belongs to whoever called slabc_open(); the list of sessions, with its threads and handles, is guarded by
 * library_lock.
 *
 * Fork: the parent goes on.  In the child every session of the list is marked forked before anything else runs there: the calling thread
 * has no block and so no sheaf, each slow path looks at the mark, and nothing touches a session segment, which the child does not have.
 */
#include "client/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/membarrier.h>

#include "shm/segment.h"

enum { DEFAULT_TIMEOUT_MS = 1000, BYE_MS = 100 };

pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
struct slabc *library_sessions;

static __thread char last_error[CLIENT_SENTENCE_BYTES] __attribute__((tls_model("initial-exec")));
static bool is_fork_locked; /* library_lock is held over a fork */

int
error_set(int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	return -error;
}

void
error_add(const char *format, ...)
{
	size_t n = strlen(last_error);
	va_list args;

	va_start(args, format);
	vsnprintf(last_error + n, sizeof(last_error) - n, format, args);
	va_end(args);
}

void *
error_null(int r)
{
	errno = -r;
	return NULL;
}

const char *
slabc_last_error(void)
{
	return last_error;
}

int
session_usable(const struct slabc *c)
{
	if (atomic_read(&c->is_forked))
		return error_set(ENOTCONN, "this session is the parent process's: open one of your own after fork()");
	if (atomic_read(&c->is_stale))
		return error_set(ESTALE, "slabd has this session no more: it was restarted, and began empty; close the session and open a new one");
	return 0;
}

int
session_writable(const struct slabc *c)
{
	if (c->is_readonly)
		return error_set(EACCES, "this session was opened with SLABC_RDONLY");
	return session_usable(c);
}

static void
fork_prepare(void)
{
	/* A handler that forks amid a call of its own thread may find the lock held by that call. */
	if (tls.in_library)
		return;
	pthread_mutex_lock(&library_lock);
	is_fork_locked = true;
}

static void
fork_parent(void)
{
	if (tls.in_library || !is_fork_locked)
		return;
	is_fork_locked = false;
	pthread_mutex_unlock(&library_lock);
}

static void
fork_child(void)
{
	for (struct slabc *c = library_sessions; c; c = c->next) {
		atomic_write(&c->is_forked, 1);
		atomic_write(&c->is_reader, 0);
		pthread_mutex_init(&c->requests, NULL);
		pthread_mutex_init(&c->opening, NULL);
	}
	thread_forget_all();
	if (is_fork_locked && !tls.in_library)
		pthread_mutex_unlock(&library_lock);
	else
		pthread_mutex_init(&library_lock, NULL);
	is_fork_locked = false;
}

/* At load: pthread_atfork() and the first thread-specific keys need memory, which a signal handler must not ask for. */
static int library_error;
__attribute__((constructor)) static void
library_load(void)
{
	library_error = pthread_atfork(fork_prepare, fork_parent, fork_child);
	if (library_error == 0)
		library_error = thread_key_make();
}

/* Bytes of an options struct of the far future; what claims more was never initialised. */
enum { MAX_OPTIONS = 4096 };

int
options_read(void *to, size_t size, const void *from)
{
	const unsigned char *bytes = from;
	size_t given;

	memcpy(&given, from, sizeof(given));
	if (given < sizeof(given) || given > MAX_OPTIONS)
		return error_set(EINVAL, "size %zu of an options struct: start from its _INIT", given);
	for (size_t i = size; i < given; i++)
		if (bytes[i] != 0)
			return error_set(
				EINVAL, "byte %zu of an options struct is set, which this library (" SLABC_VERSION ") does not know", i);
	memcpy(to, from, given < size ? given : size);
	return 0;
}

static int
check_options(struct slabc_options *o, const struct slabc_options *opt, const char **sourcep)
{
	int r;

	if (opt) {
		r = options_read(o, sizeof(*o), opt);
		if (r < 0)
			return r;
	}
	if (o->flags & ~SLABC_RDONLY)
		return error_set(EINVAL, "flags 0x%x: SLABC_RDONLY is the only one", o->flags);
	if (o->timeout_ms < -1)
		return error_set(EINVAL, "timeout_ms %d: -1 (for ever), 0 (%d), or more", o->timeout_ms, DEFAULT_TIMEOUT_MS);
	*sourcep = "options.socket";
	if (!o->socket) {
		o->socket = getenv("SLABD_SOCKET");
		*sourcep = "$SLABD_SOCKET";
	}
	if (!o->socket || !*o->socket) {
		o->socket = SLABC_DEFAULT_SOCKET;
		*sourcep = "the default; $SLABD_SOCKET is not set";
	}
	if (!o->arena)
		o->arena = SLABC_DEFAULT_ARENA;
	if (strlen(o->arena) >= sizeof(((struct proto_attach_request *)NULL)->arena))
		return error_set(EINVAL, "arena: a name of at most 63 bytes");
	if (!o->label)
		o->label = program_invocation_short_name;
	if (o->timeout_ms == 0)
		o->timeout_ms = DEFAULT_TIMEOUT_MS;
	return 0;
}

static int
attach(struct slabc *c, const struct slabc_options *o, uint64_t nonce, int64_t deadline)
{
	union proto_request request = {.attach = {.flags = o->flags | (c->is_recallable ? PROTO_ATTACH_RECALLABLE : 0), .nonce = nonce}};
	union proto_reply reply;
	int fds[PROTO_MAX_FDS];
	unsigned n_fds = PROTO_MAX_FDS;
	int r;

	snprintf(request.attach.arena, sizeof(request.attach.arena), "%s", o->arena);
	snprintf(request.attach.label, sizeof(request.attach.label), "%s", o->label);
	r = session_call_fds(c, PROTO_OP_ATTACH, &request, &reply, fds, &n_fds, deadline);
	if (r == -ENOSPC)
		return -EUSERS; /* TOO_MANY: of an ATTACH, clients */
	if (r < 0)
		return r;
	c->me = reply.attach.client;
	c->id = reply.attach.client_id;
	c->token = reply.attach.token;
	snprintf(c->path, sizeof(c->path), "%s", o->socket);
	snprintf(c->arena_name, sizeof(c->arena_name), "%s", o->arena);
	return mapping_attach(c, &reply.attach, fds, n_fds);
}

static void
session_free(struct slabc *c)
{
	mapping_drop(c);
	session_disconnect(c);
	pthread_mutex_destroy(&c->requests);
	pthread_mutex_destroy(&c->opening);
	free(c);
}

/* -ENOTCONN: slabd has ended in the midst of it, and another may be there in a moment. */
static int
try_open(struct slabc *c, const struct slabc_options *o, const char *source, int64_t deadline)
{
	uint64_t nonce = 0;
	int r = session_connect(c, o->socket, source, deadline);

	if (r == 0)
		r = session_hello(c, &nonce, deadline);
	if (r == 0)
		return attach(c, o, nonce, deadline);
	return r;
}

static int
session_open(struct slabc **cp, const struct slabc_options *opt)
{
	struct slabc_options o = {0};
	struct slabc *c;
	int64_t deadline = 0;
	uint32_t pause_us = 0;
	const char *source = "";
	int r = check_options(&o, opt, &source);

	if (r < 0)
		return r;
	if (library_error)
		return error_set(library_error, "the library could not be set up: %s", strerror(library_error));
	c = calloc(1, sizeof(*c));
	if (!c)
		return error_set(ENOMEM, "no memory for a session");
	c->fd = -1;
	c->timeout_ms = o.timeout_ms;
	c->is_readonly = o.flags & SLABC_RDONLY;
	pthread_mutex_init(&c->requests, NULL);
	pthread_mutex_init(&c->opening, NULL);
	/* So that slabd's membarrier, before it takes a thread's sheaf, reaches this process's threads. Where it may not be had slabd takes none. */
	c->is_recallable = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;

	session_deadline(c, &deadline);
	do
		r = try_open(c, &o, source, deadline);
	while (r == -ENOTCONN && session_rest(c, &pause_us, deadline));
	if (r < 0) {
		session_free(c);
		return r;
	}
	pthread_mutex_lock(&library_lock);
	c->next = library_sessions;
	library_sessions = c;
	pthread_mutex_unlock(&library_lock);
	*cp = c;
	return 0;
}

int
slabc_open(struct slabc **cp, const struct slabc_options *opt)
{
	int error = errno, r;

	if (!thread_enter(NULL))
		return error_set(EAGAIN, "slabc_open() in a signal handler that interrupted the library");
	r = session_open(cp, opt);
	thread_leave();
	if (r == 0)
		errno = error;
	return r;
}

/* library_lock held: nobody uses the session's sheaves and handles any more. */
static void
forget_session(struct slabc *c)
{
	for (struct slabc **cp = &library_sessions; *cp; cp = &(*cp)->next) {
		if (*cp == c) {
			*cp = c->next;
			break;
		}
	}
	while (c->destroyed) {
		struct slabc_cache *k = c->destroyed;

		c->destroyed = k->next;
		handle_free(k);
	}
	for (uint32_t id = 0; id < LAYOUT_MAX_CACHES; id++) {
		while (c->handles[id]) {
			struct slabc_cache *k = c->handles[id];

			c->handles[id] = k->next;
			for (struct thread_block *tb = library_threads; tb; tb = tb->next)
				thread_drop(tb, k->v.index, true);
			handle_free(k);
		}
	}
}

void
slabc_close(struct slabc *c)
{
	union proto_request request = {0};
	union proto_reply reply;
	int64_t bye_deadline;
	int error = errno;

	if (!c || !thread_enter(NULL))
		return;
	if (!c->is_forked && !c->is_readonly)
		thread_drain_all(c, NULL);
	pthread_mutex_lock(&library_lock);
	forget_session(c);
	pthread_mutex_unlock(&library_lock);
	/* Before slabd hears of it: whoever still maps its session segment has not ended its session. */
	mapping_drop_session(c);
	if (!c->is_forked && !c->is_stale) {
		bye_deadline = session_now_ns() + BYE_MS * INT64_C(1000000);
		session_call(c, PROTO_OP_BYE, &request, &reply, bye_deadline);
	}
	session_free(c);
	thread_leave();
	errno = error;
}

uint32_t
slabc_client_id(struct slabc *c)
{
	return c->id;
}
