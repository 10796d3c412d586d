/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon: an arena, a listening socket, and event loops, each in a thread of its own.
 *
 * A connection belongs to one loop for life; loops meet at the list_locks.  Nothing a client does ends slabd.
 */
#ifndef SLAB_SERVER_SLABD_H
#define SLAB_SERVER_SLABD_H

#include <event2/event.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "server/arena.h"

#define SLABD_VERSION "0.1.0"

enum { SLABD_MAX_THREADS = 64 };

struct conn;

struct slabd_options {
	const char *socket; /* path, unless systemd passes one */
	unsigned n_threads;
	bool has_signals; /* SIGTERM and SIGINT end slabd_run() */
	bool is_old_kernel; /* do without SO_PEERPIDFD, as before Linux 6.5 */
	struct arena_options arena;
};

struct loop {
	struct slabd *slabd;
	struct event_base *base;
	struct event *wake;
	int pipe[2]; /* accepted descriptors, one int each; -1: stop */
	pthread_t thread;
	struct conn *conns;
	uint32_t n_conns; /* atomic */
};

struct slabd {
	struct slabd_options options;
	struct arena *arena;
	struct listener *listener;
	struct timespec started;
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

/* Makes the arena and listens.  0, or a negative errno with a sentence in why. */
int slabd_new(struct slabd **slabdp, const struct slabd_options *options, char *why, size_t why_size);

/* Serves until slabd_stop() or a signal; tells systemd when ready. 0 or a negative errno. */
int slabd_run(struct slabd *slabd);

/* Any thread. */
void slabd_stop(struct slabd *slabd);

/* After slabd_run(). Clients go on with what they hold; the memory goes with the last of them. NULL is ignored. */
void slabd_free(struct slabd *slabd);

/* Gives an accepted connection to the loop with the fewest. */
void slabd_accept(struct slabd *slabd, int fd);

/* "default", "kernel", "tiny"; "auto", "huge", "4k": the name, or the number of a name (-1: none). */
const char *slabd_profile_name(enum arena_profile profile);
int slabd_profile_parse(const char *name);
const char *slabd_page_kind_name(enum arena_page_kind kind);
int slabd_page_kind_parse(const char *name);

#endif
