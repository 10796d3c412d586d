/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: arenas, a listening socket, and event loops, each in a thread of its own.
 *
 * A connection belongs to one loop for life; loops meet at the list_locks.  Nothing a client does ends slabd.
 */
#ifndef SLAB_SERVER_SLABD_H
#define SLAB_SERVER_SLABD_H

#include <event2/event.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"
#include "server/strangers.h"
#include "server/arena.h"
#include "server/store.h"

#define SLABD_VERSION "0.1.0"

enum { SLABD_MAX_THREADS = 64, SLABD_MAX_ARENAS = 64, SLABD_MAX_IDLE_S = 86400 };

struct conn;
struct inspection;
struct sweep;
struct task;

struct slabd_options {
	const char *socket;   /* path, unless systemd passes one; then the next three are systemd's business too */
	unsigned socket_mode; /* 0: 0660 */
	bool has_socket_group;
	gid_t socket_group;
	unsigned n_threads;
	bool has_signals; /* SIGTERM and SIGINT end slabd_run() */
	bool starts_empty; /* what a dead slabd left is not adopted, but given up */
	bool is_old_kernel; /* do without SO_PEERPIDFD and SO_PASSRIGHTS, as before Linux 6.5 */
	int log_level;      /* 0: as it is */
	uint32_t idle_after_s; /* what clients keep idle for so long goes back; 0: never */
	unsigned n_arenas;
	struct arena_options arenas[SLABD_MAX_ARENAS];
	/* At SIGHUP: reads the settings anew.  0 and *optionsp, which stays until the next call; or a negative errno and a sentence. NULL:
	 * no SIGHUP. */
	int (*reread)(void *ctx, const struct slabd_options **optionsp, char *why, size_t why_size);
	void *reread_ctx;
};

/* What a loop is told by others. */
struct loop_message {
	int fd; /* a connection that is its from here on; -1: stop, or with a client_id evict that session */
	/* Its RESUME of a session of the loop's; client_id 0: none. */
	uint32_t client_id;
	uint32_t request_id;
	int32_t pid;
	uint64_t token;
	struct arena *arena;
};

struct loop {
	struct slabd *slabd;
	struct event_base *base;
	struct event *wake;
	int pipe[2]; /* of loop_messages */
	pthread_t thread;
	struct conn *conns;
	uint32_t n_conns; /* atomic */
	/* Whose sessions are to be reaped in one go (conn.c). */
	struct conn *dying;
	unsigned n_dying;
	unsigned n_dying_seen;
	unsigned n_reap_turns;
	/* What is carried out a portion at a time (task.h): in turn; and the user who was served last. */
	struct task *tasks;
	struct event *turn;
	uint32_t last_uid;
	struct sweep *sweep; /* NULL: nothing was to be looked for yet (sweep.h) */
};

struct slabd {
	struct slabd_options options;
	struct arena *arenas[SLABD_MAX_ARENAS]; /* as configured, from the first; none comes or goes while slabd runs */
	unsigned n_arenas;
	struct listener *listener;
	struct store store;
	struct strangers strangers;
	/* What a dead slabd left is not adopted, and kept: nobody is served but who asks why (inspect.h), until a signal says what is to be done. */
	bool is_refused;
	char why[PROTO_SENTENCE_BYTES];
	struct inspection *inspections;
	unsigned n_inspections;
	int outcome; /* of slabd_run() */
	/* Connections that want it drained, and that it is (drain.h). */
	pthread_mutex_t drain_lock;
	uint32_t n_drains; /* atomic */
	bool is_drained;
	bool is_ending; /* in slabd_free() */
	struct event *decay; /* loop 0's, as the next one */
	struct event *collapse; /* NULL: no arena has transparent huge pages */
	uint64_t started_ns; /* monotonic */
	uint64_t n_bad_packets; /* atomic */
	/*
	 * The kernel waits 0.16 s for pages that somebody has pinned (vmsplice, RDMA) when it is asked whether a session is still mapped.  Who made it wait,
	 * and until when his sessions are not asked about again (monotonic ns); atomic.
	 */
	uint32_t slow_uid;
	uint64_t slow_until_ns;
	unsigned n_loops;
	struct loop loops[SLABD_MAX_THREADS];
};

/*
 * What a dead slabd left could not be adopted; nothing of it was changed.  Of slabd_new(): and nobody keeps it.  Of slabd_run(): somebody does, who gives it
 * to the next slabd if he starts one; a signal said that this one shall end (REFUSED), or be tried again (AGAIN).
 */
enum { SLABD_E_REFUSED = 1, SLABD_E_AGAIN };

/* Makes or adopts the arenas and listens.  0, SLABD_E_REFUSED or a negative errno with a sentence in why. */
int slabd_new(struct slabd **slabdp, const struct slabd_options *options, char *why, size_t why_size);

/* Serves until slabd_stop() or a signal; tells systemd when ready. 0, SLABD_E_REFUSED, SLABD_E_AGAIN or a negative errno. */
int slabd_run(struct slabd *slabd);

/* Tells systemd how it stands. Any thread. */
void slabd_notify(struct slabd *slabd);

/* Any thread. */
void slabd_stop(struct slabd *slabd);

/*
 * After slabd_run(). Clients go on with what they hold; the memory goes with the last of them, unless there is a store: then the next slabd adopts it, but
 * for a slabd that was drained.
 * NULL is ignored.
 */
void slabd_free(struct slabd *slabd);

/* Gives an accepted connection to the loop with the fewest. */
void slabd_accept(struct slabd *slabd, int fd);

/* Gives it to the loop of the session that it is about.  false: the loop is behind. */
bool slabd_resume(struct slabd *slabd, unsigned loop, const struct loop_message *message);

/* The arena of that name; "": the one called default, else the only one.  NULL: none such. */
struct arena *slabd_arena(struct slabd *slabd, const char *name);

#endif
