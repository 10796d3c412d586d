/* SPDX-License-Identifier: Apache-2.0 */
#include "server/slabd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "server/adopt.h"
#include "server/clock.h"
#include "server/conn.h"
#include "server/inspect.h"
#include "server/listener.h"
#include "server/log.h"
#include "server/reaper.h"
#include "server/recall.h"
#include "server/sweep.h"
#include "server/task.h"

/* Descriptors of slabd's own: in all, of a thread, of an arena with its segments. */
enum { FILES = 32, FILES_OF_THREAD = 8, FILES_OF_ARENA = 16 };

/* What other threads ask of the loop. */
static void
on_wake(evutil_socket_t fd, short what, void *ctx)
{
	struct loop *loop = ctx;
	struct loop_message m;

	(void)what;
	while (read(fd, &m, sizeof m) == (ssize_t)sizeof m) {
		if (m.fd < 0 && m.client_id)
			conn_evict(loop, &m);
		else if (m.fd < 0)
			event_base_loopbreak(loop->base);
		else if (m.client_id)
			conn_take_up(loop, &m);
		else
			conn_new(loop, m.fd);
	}
}

static int
loop_init(struct loop *loop, struct slabd *slabd)
{
	struct event_config *config;

	loop->slabd = slabd;
	if (pipe2(loop->pipe, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	config = event_config_new();
	if (!config)
		return -ENOMEM;
	event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	loop->base = event_base_new_with_config(config);
	event_config_free(config);
	if (!loop->base)
		return -ENOMEM;
	loop->wake = event_new(loop->base, loop->pipe[0], EV_READ | EV_PERSIST, on_wake, loop);
	return !loop->wake || event_add(loop->wake, NULL) < 0 ? -ENOMEM : 0;
}

static void
loop_deinit(struct loop *loop)
{
	struct loop_message m;

	while (loop->conns)
		conn_free(loop->conns);
	while (loop->pipe[1] > 0 && read(loop->pipe[0], &m, sizeof m) == (ssize_t)sizeof m)
		if (m.fd >= 0)
			close(m.fd);
	task_deinit(loop);
	sweep_deinit(loop);
	if (loop->wake)
		event_free(loop->wake);
	if (loop->base)
		event_base_free(loop->base);
	if (loop->pipe[1] > 0) {
		close(loop->pipe[0]);
		close(loop->pipe[1]);
	}
}

/* false: the loop is behind by a pipe's worth of connections.  So few bytes to a pipe are written whole or not at all. */
static bool
loop_send(struct loop *loop, const struct loop_message *message)
{
	return write(loop->pipe[1], message, sizeof *message) == (ssize_t)sizeof *message;
}

bool
slabd_resume(struct slabd *slabd, unsigned loop, const struct loop_message *message)
{
	return loop < slabd->n_loops && loop_send(&slabd->loops[loop], message);
}

/* If the loop is behind, the session's next faults tell it again. */
static void
evict(void *ctx, const struct session *session)
{
	const struct loop_message message = {.fd = -1, .client_id = session->id, .arena = session->arena};
	struct slabd *slabd = ctx;

	loop_send(&slabd->loops[session->loop], &message);
}

void
slabd_accept(struct slabd *slabd, int fd)
{
	const struct loop_message message = {.fd = fd};
	struct loop *best = &slabd->loops[0];

	for (unsigned i = 1; i < slabd->n_loops; i++)
		if (atomic_read(&slabd->loops[i].n_conns) < atomic_read(&best->n_conns))
			best = &slabd->loops[i];
	if (best == &slabd->loops[0] || !loop_send(best, &message))
		conn_new(&slabd->loops[0], fd);
}

/* A tick of what clients keep idle. */
static void
on_decay(evutil_socket_t fd, short what, void *ctx)
{
	struct slabd *slabd = ctx;

	(void)fd;
	(void)what;
	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		pthread_rwlock_rdlock(&slabd->arenas[i]->sessions_lock);
		recall_decay(slabd->arenas[i]);
		pthread_rwlock_unlock(&slabd->arenas[i]->sessions_lock);
	}
}

static int
set_decay(struct slabd *slabd, uint32_t idle_after_s)
{
	uint64_t tick_us = (uint64_t)idle_after_s * 1000000 / RECALL_TICKS;
	struct timeval tick = {.tv_sec = (time_t)(tick_us / 1000000), .tv_usec = (suseconds_t)(tick_us % 1000000)};

	if (!slabd->decay)
		slabd->decay = event_new(slabd->loops[0].base, -1, EV_PERSIST, on_decay, slabd);
	if (!slabd->decay)
		return -ENOMEM;
	slabd->options.idle_after_s = idle_after_s;
	event_del(slabd->decay);
	return idle_after_s && event_add(slabd->decay, &tick) < 0 ? -ENOMEM : 0;
}

/* So much of loop 0 may go into collapsing at a time, and a fifth of its time in all; what one unit takes is the kernel's affair. */
enum { COLLAPSE_NS = 5000000, COLLAPSE_PAUSES = 4, COLLAPSE_MIN_US = 10000, COLLAPSE_IDLE_US = 500000 };

static void
wait_collapse(struct slabd *slabd, uint64_t us)
{
	struct timeval wait = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};

	event_add(slabd->collapse, &wait);
}

/* Between requests: whoever asks meanwhile waits for one unit. */
static void
on_collapse(evutil_socket_t fd, short what, void *ctx)
{
	struct slabd *slabd = ctx;
	uint64_t start = clock_now_ns(), pause_us;
	bool is_more = false;

	(void)fd;
	(void)what;
	for (unsigned i = 0; i < slabd->n_arenas && !is_more; i++)
		is_more = arena_collapse(slabd->arenas[i], COLLAPSE_NS);
	pause_us = (clock_now_ns() - start) / 1000 * COLLAPSE_PAUSES;
	if (pause_us < (is_more ? COLLAPSE_MIN_US : COLLAPSE_IDLE_US))
		pause_us = is_more ? COLLAPSE_MIN_US : COLLAPSE_IDLE_US;
	wait_collapse(slabd, pause_us);
}

static int
begin_collapse(struct slabd *slabd)
{
	bool has_thp = false;

	for (unsigned i = 0; i < slabd->n_arenas; i++)
		has_thp = has_thp || arena_has_thp(slabd->arenas[i]);
	if (!has_thp)
		return 0;
	slabd->collapse = event_new(slabd->loops[0].base, -1, 0, on_collapse, slabd);
	if (!slabd->collapse)
		return -ENOMEM;
	wait_collapse(slabd, COLLAPSE_IDLE_US);
	return 0;
}

/* One descriptor a connection, two a session, and its segments: as many as the hard limit lets; and at least what slabd itself needs. */
static int
raise_file_limit(const struct slabd_options *options, char *why, size_t why_size)
{
	uint64_t least = FILES + (uint64_t)options->n_threads * FILES_OF_THREAD + (uint64_t)options->n_arenas * FILES_OF_ARENA;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= least)
		return 0;
	snprintf(why, why_size, "RLIMIT_NOFILE lets slabd have %llu descriptors; with %u threads and %u arenas it needs %llu before any client comes: raise "
				"LimitNOFILE= or ulimit -Hn",
		(unsigned long long)limit.rlim_cur, options->n_threads, options->n_arenas, (unsigned long long)least);
	return -EMFILE;
}

/* Does the kernel have SO_PEERPIDFD (Linux 6.5)? */
static bool
has_peerpidfd(void)
{
	int pair[2], pidfd = -1;
	socklen_t length = sizeof pidfd;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return false;
	if (getsockopt(pair[0], SOL_SOCKET, CONN_SO_PEERPIDFD, &pidfd, &length) < 0)
		pidfd = -1;
	close(pair[0]);
	close(pair[1]);
	if (pidfd >= 0)
		close(pidfd);
	return pidfd >= 0;
}

/* The dead one's sessions: who is dead too is reaped, the living may come back. */
static int
take_sessions(struct slabd *slabd, struct arena *arena)
{
	struct session *session;
	int pidfd, r = 0;

	while ((session = adopt_next_session(arena, &pidfd)) && r == 0) {
		struct pollfd p = {.fd = pidfd, .events = POLLIN};

		if (session->state != SESSION_DYING && poll(&p, 1, 0) == 0) {
			r = conn_adopt(&slabd->loops[0], session, pidfd);
			continue;
		}
		close(pidfd);
		reaper_reap(session);
	}
	return r;
}

static int
option_of(const struct slabd *slabd, const struct arena *arena)
{
	for (unsigned i = 0; i < slabd->options.n_arenas; i++)
		if (strcmp(slabd->options.arenas[i].name, arena->name) == 0)
			return (int)i;
	return -1;
}

/* An arena as another slabd left it keeps its size and so on: somebody uses it. Who may do what in it is as the settings have it now. */
static void
settle_arena(struct arena *arena, const struct arena_options *options)
{
	const struct arena_options *old = &arena->options;

	if (arena_rounds_to(options) != old->limit_bytes || options->reserve_bytes != old->reserve_bytes || options->page_kind != old->page_kind ||
		options->profile != old->profile)
		log_warning("arena '%s' was adopted with the size, reserve, page-kind and profile that it had; those of the settings wait until it is empty "
			    "when slabd starts",
			arena->name);
	memcpy(arena->options.debug, options->debug, sizeof arena->options.debug);
	arena_set_access(arena, options);
}

/* Has it the settings' size and so on, or anybody who needs it as it is? */
static bool
is_wanted(struct arena *arena, const struct arena_options *options)
{
	const struct arena_options *old = &arena->options;
	uint64_t n_out = 0;

	for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id))
		for (unsigned i = 0; i < cache->n_nodes; i++)
			n_out += cache->nodes[i].n_objects - cache->nodes[i].n_free;
	return n_out > 0 || arena->n_sessions > 0 ||
	       (arena_rounds_to(options) == old->limit_bytes && options->reserve_bytes == old->reserve_bytes && options->page_kind == old->page_kind &&
		       options->profile == old->profile);
}

static void
drop_arena(struct slabd *slabd, struct arena *arena)
{
	for (unsigned i = 0; i < arena->n_segments; i++)
		store_drop(&slabd->store, store_name(arena->store_number, STORE_DATA, i).text, 1);
	store_drop(&slabd->store, store_name(arena->store_number, STORE_ARENA, 0).text, 1);
	store_drop(&slabd->store, store_name(arena->store_number, STORE_WORDS, 0).text, 1);
	store_drop(&slabd->store, store_name(arena->store_number, STORE_LEDGER, 0).text, 1);
	for (struct session *s = arena->first_session; s; s = s->next)
		store_drop(&slabd->store, store_name(arena->store_number, STORE_SESSION, s->client).text, s->is_readonly ? 1 : 2);
	adopt_leave(arena);
}

/* One that was left, and verified.  It becomes the arena of its name. */
static int
take_arena(struct slabd *slabd, struct arena *arena, unsigned number, uint64_t start_ns)
{
	int i, r = adopt_carry_out(arena, &slabd->store, number, start_ns);

	if (r < 0) {
		adopt_leave(arena);
		return r;
	}
	i = option_of(slabd, arena);
	if (i < 0 || slabd->arenas[i]) {
		log_warning("arena '%s' was left by a dead slabd, and is not in the settings: it is given up", arena->name);
		drop_arena(slabd, arena);
		return 0;
	}
	r = take_sessions(slabd, arena);
	if (r < 0) {
		adopt_leave(arena);
		return r;
	}
	if (!is_wanted(arena, &slabd->options.arenas[i])) {
		log_notice("arena '%s' is empty, and made anew by the settings", arena->name);
		drop_arena(slabd, arena);
		return 0;
	}
	settle_arena(arena, &slabd->options.arenas[i]);
	slabd->arenas[i] = arena;
	return 0;
}

/* Verifies all that was left, before any of it is changed; or, may_adopt false, only has it seen.  0, SLABD_E_REFUSED or a negative errno. */
static int
verify_arenas(struct slabd *slabd, bool may_adopt, struct arena **verified, char *why, size_t why_size)
{
	char failed[256];
	int r = may_adopt ? 0 : SLABD_E_REFUSED;

	slabd->inspections = calloc(STORE_MAX_ARENAS, sizeof *slabd->inspections);
	if (!slabd->inspections)
		return -ENOMEM;
	for (unsigned number = 0; number < STORE_MAX_ARENAS; number++) {
		struct inspection *inspection = &slabd->inspections[slabd->n_inspections];
		int adopted = -EBUSY;

		if (!store_has_left(&slabd->store, number, 0))
			continue;
		inspect_begin(inspection, &slabd->store, number);
		if (may_adopt)
			adopted = adopt_arena(&verified[number], &slabd->store, number, failed, sizeof failed);
		inspect_end(inspection, !may_adopt ? why : adopted < 0 ? failed : NULL);
		inspection->found.arena = ++slabd->n_inspections;
		if (adopted == -ENOMEM)
			return adopted;
		if (adopted < 0 && r == 0) {
			r = SLABD_E_REFUSED;
			snprintf(why, why_size, "arena '%s' (number %u in the store) is not adopted: %s", *inspection->found.name ? inspection->found.name : "?",
				number, failed);
		}
	}
	return r;
}

/* All that a dead slabd left, if this one may. */
static int
take_arenas(struct slabd *slabd, char *why, size_t why_size)
{
	struct arena *verified[STORE_MAX_ARENAS] = {0};
	uint64_t start_ns = clock_now_ns();
	int writer = 0, r;

	if (slabd->store.n_left == 0 && !store_is_on(&slabd->store))
		return 0;
	r = store_claim(&slabd->store, &writer);
	if (r == -EBUSY) {
		snprintf(why, why_size, "nothing is adopted: slabd %d, which has the ledgers, is alive", writer);
		return verify_arenas(slabd, false, verified, why, why_size);
	}
	for (unsigned number = 0; slabd->options.starts_empty && number < STORE_MAX_ARENAS; number++)
		store_drop_left(&slabd->store, number, 0);
	r = slabd->options.starts_empty ? 0 : verify_arenas(slabd, true, verified, why, why_size);
	for (unsigned number = 0; number < STORE_MAX_ARENAS; number++) {
		if (r != 0)
			adopt_leave(verified[number]);
		else if (verified[number])
			r = take_arena(slabd, verified[number], number, start_ns);
	}
	return r;
}

/* A number for a new arena that nothing in the store has. */
static unsigned
free_number(const struct slabd *slabd)
{
	unsigned number = 0;

	for (unsigned i = 0; i < slabd->options.n_arenas; i++) {
		if (!store_has_left(&slabd->store, number, 0) && (!slabd->arenas[i] || !slabd->arenas[i]->store || slabd->arenas[i]->store_number != number))
			continue;
		number++;
		i = (unsigned)-1;
	}
	return number;
}

static int
make_arena(struct slabd *slabd, unsigned i, char *why, size_t why_size)
{
	int r;

	sd_notifyf(0, "STATUS=Making arena '%s', reserve %llu bytes", slabd->options.arenas[i].name,
		(unsigned long long)slabd->options.arenas[i].reserve_bytes);
	r = arena_new(&slabd->arenas[i], &slabd->options.arenas[i], why, why_size);
	if (r < 0 || !store_is_on(&slabd->store))
		return r;
	r = adopt_keep_arena(slabd->arenas[i], &slabd->store, free_number(slabd));
	if (r == -EUSERS)
		snprintf(why, why_size, "arena '%s': the descriptor store is full", slabd->arenas[i]->name);
	return r == -ENOTCONN ? 0 : r;
}

/* What libevent has to say is said as the rest is. */
static void
on_libevent(int severity, const char *message)
{
	log_line(severity >= EVENT_LOG_ERR ? LOG_LEVEL_ERROR : severity == EVENT_LOG_WARN ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "libevent: %s", message);
}

int
slabd_new(struct slabd **slabdp, const struct slabd_options *options, char *why, size_t why_size)
{
	struct slabd *slabd = calloc(1, sizeof *slabd);
	int r = 0;

	snprintf(why, why_size, "no memory or no descriptors for slabd");
	if (!slabd)
		return -ENOMEM;
	slabd->options = *options;
	event_set_log_callback(on_libevent);
	if (options->log_level)
		log_set_level((enum log_level)options->log_level);
	/* First: where descriptors run out libevent ends the process. */
	r = raise_file_limit(options, why, why_size);
	strangers_init(&slabd->strangers);
	pthread_mutex_init(&slabd->drain_lock, NULL);
	slabd->options.is_old_kernel = options->is_old_kernel || !has_peerpidfd();
	slabd->started_ns = clock_now_ns();
	if (r == 0)
		r = store_init(&slabd->store);
	for (; slabd->n_loops < options->n_threads && r == 0; slabd->n_loops++)
		r = loop_init(&slabd->loops[slabd->n_loops], slabd);
	if (r == 0)
		r = set_decay(slabd, options->idle_after_s);
	/* The socket first: who is second on it must not commit memory. */
	if (r == 0)
		r = listener_new(&slabd->listener, slabd, options, why, why_size);
	if (r == 0)
		r = take_arenas(slabd, why, why_size);
	if (r == SLABD_E_REFUSED && store_is_on(&slabd->store)) {
		slabd->is_refused = true;
		snprintf(slabd->why, sizeof slabd->why, "%s", why);
		r = 0;
	}
	for (unsigned i = 0; i < options->n_arenas && r == 0 && !slabd->is_refused; i++)
		if (!slabd->arenas[i])
			r = make_arena(slabd, i, why, why_size);
	slabd->n_arenas = slabd->is_refused ? 0 : options->n_arenas;
	for (unsigned i = 0; i < slabd->n_arenas && r == 0; i++) {
		slabd->arenas[i]->evict = evict;
		slabd->arenas[i]->evict_ctx = slabd;
	}
	if (r == 0)
		r = begin_collapse(slabd);
	if (r != 0) {
		slabd_free(slabd);
		return r;
	}
	*slabdp = slabd;
	return 0;
}

/* Ready is a slabd that refuses, too: the service manager shall keep it, and what it holds for it, until somebody has looked. */
void
slabd_notify(struct slabd *slabd)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < slabd->n_arenas; i++)
		bytes += slabd->arenas[i]->options.limit_bytes;
	if (slabd->is_refused)
		sd_notifyf(0, "READY=1\nSTATUS=Serving nobody (slabctl inspect): %s", slabd->why);
	else
		sd_notifyf(0, "READY=1\nSTATUS=%s %u arena%s, %llu bytes", atomic_read(&slabd->n_drains) ? "Draining" : "Serving", slabd->n_arenas,
			slabd->n_arenas == 1 ? "" : "s", (unsigned long long)bytes);
}

/* Says what of the settings the running slabd cannot follow. */
__attribute__((format(printf, 2, 3))) static unsigned
needs_restart(bool differs, const char *format, ...)
{
	char what[128];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof what, format, args);
	va_end(args);
	if (differs)
		log_warning("reload: %s: that takes a restart", what);
	return differs;
}

static unsigned
reload_arena(struct arena *arena, const struct arena_options *new)
{
	const struct arena_options *old = &arena->options;
	unsigned n = needs_restart(arena_rounds_to(new) != old->limit_bytes, "the size of arena '%s' has changed", arena->name) +
		     needs_restart(new->reserve_bytes != old->reserve_bytes, "the reserve of arena '%s' has changed", arena->name) +
		     needs_restart(new->page_kind != old->page_kind, "the page-kind of arena '%s' has changed", arena->name) +
		     needs_restart(new->profile != old->profile, "the profile of arena '%s' has changed", arena->name) +
		     needs_restart(strcmp(new->debug, old->debug) != 0, "debug of arena '%s' has changed", arena->name);

	if (new->access.owner != old->access.owner || new->access.group != old->access.group || new->access.mode != old->access.mode)
		log_notice("reload: arena '%s' has owner %s, group %s, mode %04o for new sessions", arena->name, new->access.owner_name,
			new->access.group_name, new->access.mode);
	arena_set_access(arena, new);
	return n;
}

static void
reload(struct slabd *slabd)
{
	const struct slabd_options *old = &slabd->options, *new;
	unsigned n_restart;
	char why[640];

	if (old->reread(old->reread_ctx, &new, why, sizeof why) < 0) {
		log_error("reload: %s; the settings stay as they are", why);
		return;
	}
	if (new->log_level)
		log_set_level((enum log_level) new->log_level);
	if (set_decay(slabd, new->idle_after_s) < 0)
		log_error("reload: no memory for idle-after");
	n_restart = needs_restart(new->n_threads != old->n_threads, "threads has changed") +
		    needs_restart(strcmp(new->socket, old->socket) != 0, "socket has changed") +
		    needs_restart(new->socket_mode != old->socket_mode, "socket-mode has changed") +
		    needs_restart(new->has_socket_group != old->has_socket_group || new->socket_group != old->socket_group,
			    "socket-group has changed");
	for (unsigned i = 0; i < new->n_arenas; i++) {
		struct arena *arena = slabd_arena(slabd, new->arenas[i].name);

		n_restart += arena ? reload_arena(arena, &new->arenas[i]) : needs_restart(true, "arena '%s' is new", new->arenas[i].name);
	}
	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		unsigned j = 0;

		while (j < new->n_arenas && strcmp(new->arenas[j].name, slabd->arenas[i]->name) != 0)
			j++;
		n_restart += needs_restart(j == new->n_arenas, "arena '%s' is in the settings no more", slabd->arenas[i]->name);
	}
	log_notice("reload: done; %u settings wait for a restart", n_restart);
}

static void
on_signal(evutil_socket_t sig, short what, void *ctx)
{
	struct slabd *slabd = ctx;

	(void)what;
	log_notice("signal %d: stopping", (int)sig);
	slabd->outcome = slabd->is_refused ? SLABD_E_REFUSED : 0;
	sd_notify(0, "STOPPING=1");
	slabd_stop(slabd);
}

static void
on_hangup(evutil_socket_t sig, short what, void *ctx)
{
	struct slabd *slabd = ctx;

	(void)sig;
	(void)what;
	if (slabd->is_refused) {
		log_notice("the next slabd tries again");
		slabd->outcome = SLABD_E_AGAIN;
		slabd_stop(slabd);
		return;
	}
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)clock_now_ns() / 1000);
	reload(slabd);
	slabd_notify(slabd);
}

static void
on_first_turn(evutil_socket_t fd, short what, void *ctx)
{
	struct slabd *slabd = ctx;

	(void)fd;
	(void)what;
	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		const struct arena_options *o = &slabd->arenas[i]->options;
		int error = atomic_read(&slabd->arenas[i]->recall_error);
		char pages[LADDER_NAME_BYTES];

		ladder_name(o->page_kind, pages);
		log_notice("%s: serving arena '%s', %llu bytes, pages %s, %u threads, profile %s, owner %s, group %s, mode %04o",
			SLABD_VERSION, o->name, (unsigned long long)o->limit_bytes, pages, slabd->n_loops, profile_name(o->profile),
			o->access.owner_name, o->access.group_name, o->access.mode);
		if (error)
			log_warning("arena '%s': membarrier: %s; what clients' threads keep idle cannot be taken back", o->name,
				strerror(error));
	}
	if (slabd->is_refused)
		log_error("slabd does not adopt, and serves nobody: %s. slabctl inspect says more; SIGHUP tries again; a stop, or --start-empty, gives up "
			  "what the dead slabd left",
			slabd->why);
	slabd_notify(slabd);
}

static void *
loop_thread(void *ctx)
{
	struct loop *loop = ctx;

	event_base_dispatch(loop->base);
	return NULL;
}

struct arena *
slabd_arena(struct slabd *slabd, const char *name)
{
	struct arena *only = slabd->n_arenas == 1 ? slabd->arenas[0] : NULL;

	for (unsigned i = 0; i < slabd->n_arenas; i++)
		if (strcmp(slabd->arenas[i]->name, *name ? name : "default") == 0)
			return slabd->arenas[i];
	return *name ? NULL : only;
}

int
slabd_run(struct slabd *slabd)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	struct event *events[3] = {0};
	unsigned n_started = 1;
	sigset_t all, before;
	int r = 0;

	/* Signals are loop 0's. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	for (; n_started < slabd->n_loops && r == 0; n_started++)
		r = pthread_create(&slabd->loops[n_started].thread, NULL, loop_thread, &slabd->loops[n_started]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		n_started--;
	for (unsigned i = 0; slabd->options.has_signals && r == 0 && i < sizeof signals / sizeof signals[0]; i++) {
		if (signals[i] == SIGHUP && !slabd->options.reread)
			continue;
		events[i] = evsignal_new(slabd->loops[0].base, signals[i], signals[i] == SIGHUP ? on_hangup : on_signal, slabd);
		r = !events[i] || event_add(events[i], NULL) < 0 ? ENOMEM : 0;
	}
	/* In the loop's first turn: who hears that slabd is ready is answered at once. */
	if (r == 0 && event_base_once(slabd->loops[0].base, -1, EV_TIMEOUT, on_first_turn, slabd, NULL) < 0)
		r = ENOMEM;
	if (r)
		slabd_stop(slabd);
	event_base_dispatch(slabd->loops[0].base);
	for (unsigned i = 1; i < n_started; i++)
		pthread_join(slabd->loops[i].thread, NULL);
	for (unsigned i = 0; i < sizeof signals / sizeof signals[0]; i++)
		if (events[i])
			event_free(events[i]);
	return r ? -r : slabd->outcome;
}

void
slabd_stop(struct slabd *slabd)
{
	static const struct loop_message stop = {.fd = -1};

	for (unsigned i = 0; i < slabd->n_loops; i++) {
		struct pollfd room = {.fd = slabd->loops[i].pipe[1], .events = POLLOUT};

		while (!loop_send(&slabd->loops[i], &stop) && errno == EAGAIN)
			poll(&room, 1, 1000);
	}
}

void
slabd_free(struct slabd *slabd)
{
	if (!slabd)
		return;
	slabd->is_ending = true;
	/* Clients find the next one where this one is. */
	if (slabd->outcome == SLABD_E_AGAIN)
		listener_leave(slabd->listener);
	listener_free(slabd->listener);
	if (slabd->decay)
		event_free(slabd->decay);
	if (slabd->collapse)
		event_free(slabd->collapse);
	for (unsigned i = 0; i < slabd->n_loops; i++)
		loop_deinit(&slabd->loops[i]);
	for (unsigned i = 0; i < slabd->options.n_arenas; i++) {
		if (slabd->is_drained)
			drop_arena(slabd, slabd->arenas[i]);
		else
			adopt_leave(slabd->arenas[i]);
	}
	if (slabd->is_drained)
		store_unclaim(&slabd->store);
	free(slabd->inspections);
	pthread_mutex_destroy(&slabd->drain_lock);
	store_deinit(&slabd->store);
	strangers_deinit(&slabd->strangers);
	free(slabd);
}
