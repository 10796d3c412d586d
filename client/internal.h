/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libslabclient know of each other.
 *
 *   slabclient.c   sessions: open, close, fork; the sentence of the last error
 *   session.c      requests over the socket
 *   reconnect.c    a session that goes on with the next slabd
 *   mapping.c      what slabd shows, mapped
 *   cache.c        handles; sheaves between threads, process barn and slabd
 *   inline.c       the fast path in a program's own code
 *   block.c        thread blocks: first use, exit, frees put off
 *   thread.c       a thread's sheaves: allocation, room for frees
 *   rack.c         those that it has in hand beside main and spare
 *   free.c         frees
 *   owed.c         those for which there was no room
 *   foreign.c      a thread's foreign sheaf: others' objects, claimed later
 *   node.c         the thread's node, and what goes back to others
 *   bulk.c         many objects in one call, prefilled sheaves
 *   debug.c        debug caches: red zones, poison, who allocated and freed where
 *   ref.c          references
 *   root.c         named references
 *   orphan.c       what passes from one client to another by slabd
 *   admin.c        stats, shrinking, destroying
 *   sized.c        the malloc family
 *
 * Locks, in the order in which they are taken: slabc.opening, library_lock, slabc.requests.  None is held by a thread that is not inside
 * the library (tls.in_library), so a signal handler that finds its thread outside may take them, and one that finds it inside takes none.
 * Calls here return 0 or a negative errno and have then set the sentence (error_set()).
 */
#ifndef SLAB_CLIENT_INTERNAL_H
#define SLAB_CLIENT_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/slabclient.h"
#include "proto/proto.h"
#include "shm/barn.h"
#include "shm/layout.h"
#include "shm/sheaf.h"

enum {
	CLIENT_MAX_HANDLES = 1024, /* open caches of a process */
	CLIENT_MAX_THREADS = 65536,
	CLIENT_MAX_DEFERRED = 64, /* frees that a thread's signal handlers may put off */
	CLIENT_PORTION = 64,      /* objects that bulk calls treat at once */
	CLIENT_MAX_ASK = 512,     /* sheaves of a refill */
	CLIENT_MIN_AHEAD = 8,     /* sheaves: where refills bring so many, the next is made before the barn is empty */
	/* Given back between two doorbells, at most half of what the cache's clients may keep.  slabd looks before it carves, rung for or not. */
	CLIENT_BELL_SHEAVES = 1024,
	CLIENT_BELL_BYTES = 4 * 1024 * 1024,
	CLIENT_KEEP_BYTES = 1024 * 1024, /* in a process barn, before the program shows that it wants more */
	/* In a thread's rack of sheaves of each kind: at most so many, and of those with objects no more bytes. Moved at once: at most so many. */
	CLIENT_RACK = 48,
	CLIENT_RACK_BYTES = 384 * 1024,
	CLIENT_RACK_BATCH = 8,
	CLIENT_N_CLASSES = 13, /* of sizes: 8, 16, 32, 64, 96, 128, 192, 256, 512 .. 8192 bytes */
	CLIENT_SENTENCE_BYTES = 704,
	CLIENT_NO_SLOT = -1,
	CLIENT_PATH_BYTES = 108, /* of a socket */
	CLIENT_REVOKED_TRIES = 20000, /* of sheaf_pause(): until slabd, should it die, is replaced */
};

/* A SLABC_NOWAIT refill: none, on its way, come; above 0: an errno. */
enum {
	NOWAIT_IDLE = 0,
	NOWAIT_SENT = -1,
	NOWAIT_CAME = -2,
};

#define CLIENT_FOR_EVER INT64_MAX

/*
 * Of the two hot functions: both at the same place, whatever is linked before them.  CPUs tell loads apart by the low bits of their addresses when they
 * guess which one must wait for an earlier store; where two fell together by chance a pair took 12 ns instead of 7.
 */
#define CLIENT_HOT __attribute__((aligned(256)))

/* One session. */
struct slabc {
	struct slabc *next; /* library_lock */
	/* 1 while there is no connection; 1 when slabd no longer knows the session; 1 in a forked child.  Read anywhere; the last two are set once. */
	uint32_t is_dead;
	uint32_t is_stale;
	uint32_t is_forked;
	bool is_readonly;
	/* References were resolved, and slabd can see it. Set once (READER_SHOWN), read anywhere. */
	uint32_t is_reader;
	int fd; /* the number stays when the connection is another (reconnect.c) */
	/* What fd was opened as.  Any thread. */
	uint64_t fd_dev;
	uint64_t fd_ino;
	int timeout_ms;
	uint32_t me;      /* owner slot */
	uint32_t id;      /* what slabctl shows */
	bool is_recallable; /* slabd's membarrier reaches this process */
	uint32_t last_id; /* of requests; guarded by requests */
	int64_t given_up_ns; /* when a request was, to which slabd has not answered yet; 0: none. Any thread */
	/* For taking the session up again with the next slabd; token 0: it cannot be.  requests */
	uint64_t token;
	char path[CLIENT_PATH_BYTES];
	char arena_name[64];
	int64_t retry_ns; /* a SLABC_NOWAIT refill does not try before */
	pthread_mutex_t requests;
	pthread_mutex_t opening; /* held over the opening and closing of handles */

	/* Mappings (mapping.c), NULL or 0 where there is none. */
	void *range;
	uint64_t range_bytes;
	char *base;
	uint64_t span; /* bytes of place space */
	const struct layout_arena *arena;
	uint64_t arena_bytes;
	const struct layout_cache *caches;
	const struct layout_page *pages;
	uint32_t *words;
	uint64_t words_bytes;
	uint64_t n_words;
	struct layout_session *session;
	uint64_t session_bytes;
	struct layout_session_cache *session_caches;
	struct layout_slot *slots;

	/* Handles by cache id: the first of a chain (library_lock); and the one that the session keeps for itself (written once). */
	struct slabc_cache *handles[LAYOUT_MAX_CACHES];
	struct slabc_cache *own[LAYOUT_MAX_CACHES];
	/* Handles of caches that this session destroyed, until they are closed (library_lock). */
	struct slabc_cache *destroyed;
	/* Of own[], those of the size classes, and last that of the runs. Written once. */
	struct slabc_cache *sized[CLIENT_N_CLASSES + 1];
	/* SLABC_NOWAIT refills on their way, by cache id: NOWAIT_, or what came of the last (a positive errno). requests */
	int nowait[LAYOUT_MAX_CACHES];
	/* By slot: a prefilled sheaf that the program knows of. Set before its holder says APP, or under requests. */
	uint8_t is_with_app[LAYOUT_MAX_SLOTS];
};

/* A handle.  All but the counts is written before it is shown. */
struct slabc_cache {
	struct sheaf_view v; /* first: the hot path */
	struct slabc *c;
	struct layout_session_cache *shown; /* process barn and counters */
	struct slabc_cache *next;           /* chain of its cache id; library_lock */
	uint32_t n_opens;                   /* library_lock */
	uint32_t is_destroyed;              /* set once, when no thread has a sheaf of it: the slow paths look */
	uint32_t flags;
	/* As slabd shows them (shm/layout.h); capacity to max_ask follow from them, looked at when a sheaf is put down and at a refill. Any thread. */
	uint64_t knobs;
	uint32_t capacity; /* of a sheaf */
	bool is_single;    /* no sheaves: an object is asked for and given back by itself */
	bool is_wordless;  /* SLABC_NO_OWNER */
	bool is_plain;     /* none of what takes longer: is_single, debug, several nodes */
	bool is_late;      /* others' objects, freed by pointer, are claimed later: a foreign sheaf */
	uint32_t mark;     /* of its sheaves, in busy */
	uint32_t debug;      /* of flags, those of debug caches; 0: it is none */
	uint32_t slot_bytes; /* from one object to the next */
	uint32_t n_written;  /* faults by writing, told so far */
	bool is_nowait;
	uint32_t max_full;  /* sheaves with objects that the process barn may ever keep: max_cached */
	uint32_t max_empty; /* and without: barn_empty */
	uint32_t max_ask;
	uint32_t rack_full; /* sheaves with objects in a thread's rack */
	uint32_t rack_empty; /* and without */
	/* Sheaves to ask for next; sheaves given back since the last doorbell.  Any thread. */
	uint32_t ask;
	/* Sheaves with objects that the process barn keeps now: doubled, up to max_full, when a refill follows a flush. Any thread. */
	uint32_t keep;
	uint32_t has_flushed; /* since the last refill */
	int64_t asked_ns;     /* when that was */
	int64_t net_asked;    /* and the net use of the barn then (cache.c) */
	uint32_t lend_ask; /* the same for empty ones */
	uint32_t n_unrung;
	/* Frees that are owed (owed.c): library_lock; how many, anybody may look at. */
	struct owed_chunk *owed;
	uint32_t n_owed;
	char name[48];
};

struct slabc_sheaf {
	struct slabc_cache *k;
	struct sheaf *sheaf;
	uint32_t slot;
};

/* What a thread has of a cache, beside its main sheaf. k NULL: nothing.  One line: every foreign free comes here. */
struct __attribute__((aligned(64))) thread_cache {
	struct slabc_cache *k;
	struct sheaf *spare;   /* NULL: none */
	struct sheaf *foreign; /* NULL: none; else there is a record */
	struct sheaf *record;  /* of the foreign sheaf; kept for the next one. NULL: none */
	struct sheaf *away;    /* objects of other nodes than the thread's own, on their way back. NULL: none */
	int16_t main_slot;     /* CLIENT_NO_SLOT: main is the sentinel */
	int16_t spare_slot;
	int16_t foreign_slot;
	int16_t record_slot;
	int16_t away_slot;
	/* Pages of the thread's node; all there are, until it is known or where nothing lies on it. */
	uint16_t home_os_node;
	uint32_t home_first;
	uint32_t n_home;
	uint16_t opened_s;  /* coarse time at which the foreign sheaf was begun, seconds, cut off */
	uint16_t n_unasked; /* frees for which slabd is not to be asked for a sheaf: it was, and gave none */
};
_Static_assert(sizeof(struct thread_cache) == 64 && LAYOUT_MAX_SLOTS <= INT16_MAX + 1, "thread_cache");

/* A thread that has nothing. */
extern const struct thread_cache thread_cache_none;

/* Sheaves of one kind that a thread has in hand (rack.c). */
struct __attribute__((aligned(64))) rack {
	uint32_t n;
	uint32_t n_fresh; /* from the bottom: they came from the barn as slabd had filled them */
	uint16_t slot[CLIENT_RACK + 1];
	struct sheaf *sheaf[CLIENT_RACK + 1];
};
enum rack_kind { RACK_FULL, RACK_EMPTY };

struct thread_deferred {
	struct slabc_cache *k;
	void *p;
};

/* One thread.  Its own but for library_lock's part: list, and records of handles that are being closed. */
struct thread_block {
	/*
	 * First, so that main[0] does not lie where a page begins, as many an object and sheaf does: a CPU that compares the low 12 bits takes a load for
	 * one of what was just stored there, and waits (2 of 7 ns of a pair).
	 */
	uint32_t number;   /* holder is LAYOUT_HOLDER_THREAD + this */
	uint32_t n_caches; /* records at and above this are unused */
	uint32_t n_deferred;
	struct sheaf *main[CLIENT_MAX_HANDLES]; /* by handle; never NULL */
	struct thread_cache cache[CLIENT_MAX_HANDLES];
	struct rack rack[CLIENT_MAX_HANDLES][RACK_EMPTY + 1]; /* by handle; n is 0 where there is no record */
	struct thread_deferred deferred[CLIENT_MAX_DEFERRED];
	struct thread_block *next, **linkp;
};

/* Initial-exec: a handler's first use must not find the dynamic linker allocating. */
struct thread_local_state {
	struct sheaf *const *main; /* the block's, or the sentinels */
	struct thread_block *block;
	uint32_t in_library;
};
extern __thread struct thread_local_state tls __attribute__((tls_model("initial-exec")));

/* Sheaf of those who have none: nothing can be popped or pushed. */
extern struct sheaf no_sheaf;
extern struct sheaf *const no_sheaves[CLIENT_MAX_HANDLES];

/* Guards the list of sessions, handles, thread blocks and their numbers.  Never held while waiting for slabd. */
extern pthread_mutex_t library_lock;
extern struct slabc *library_sessions;
extern struct thread_block *library_threads;

/* slabclient.c */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* More of the sentence that was set last. */
void error_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* For pointer calls: errno and NULL from a negative errno. */
void *error_null(int r);
/* Fails with ENOTCONN in a forked child. */
int session_usable(const struct slabc *c);
int session_writable(const struct slabc *c);

/* Copies the caller's options, whose struct may be older or newer than ours. */
int options_read(void *to, size_t size, const void *from);

/* session.c */
int64_t session_now_ns(void);
/* When a call that began just now must be over; *deadlinep 0: not looked at the clock yet. */
int64_t session_deadline(const struct slabc *c, int64_t *deadlinep);
/* source: who named the path. */
int session_connect(struct slabc *c, const char *path, const char *source, int64_t deadline);
/* Closes the socket, if there is one and the program has not. */
void session_disconnect(struct slabc *c);
/* Sends and waits for the reply.  fds, n_fdsp as in channel_recv(), NULL: none. */
int session_call(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int64_t deadline);
/* A request was given up, and slabd has not been heard of since: who can do without it does not ask. */
bool session_is_silent(struct slabc *c);
int session_call_fds(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds,
	unsigned *n_fdsp, int64_t deadline);
/* Sends what wants no reply; what cannot go at once is not sent: false. */
bool session_post(struct slabc *c, enum proto_op op, const union proto_request *request);
/* A refill that is not waited for.  0: look into the process barn, one has come; -EAGAIN: on its way; or what came of the last one. */
int session_refill_nowait(struct slabc *c, const union proto_request *request);

/* One request and its answer, on the connection that there is. requests held, or nobody else knows the session. */
int session_exchange(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds,
	unsigned *n_fdsp, int64_t deadline);
/* HELLO.  As session_exchange(). */
int session_hello(struct slabc *c, uint64_t *noncep, int64_t deadline);
/* requests held: a connection is there (again), by the deadline.  ESTALE: slabd does not know the session. */
int session_ready(struct slabc *c, int64_t deadline);
/* A connected socket: what is received without MSG_DONTWAIT waits, for a while. */
void session_let_block(int fd);
/* The descriptor is the session's.  0, or what fstat() said. */
int session_note_fd(struct slabc *c);
/* Is it still?  A program that closed all its descriptors may have given the number to a file of its own. */
bool session_owns_fd(const struct slabc *c);
/* Says so: ENOTCONN. */
int session_lost(struct slabc *c);
/* A pause before the next try, half of *pause_usp (0 at first, and grows) to one and a half.  false: the deadline has passed. */
bool session_rest(const struct slabc *c, uint32_t *pause_usp, int64_t deadline);
int session_timed_out(const struct slabc *c, const char *what);
/* What the call says for a request that was sent a second time, since the first answer was lost with its connection, and that now failed. requests held. */
int session_judge_resent(struct slabc *c, enum proto_op op, const union proto_request *request, int r, int64_t deadline);

/* From outside: a request, within the session's timeout. EAGAIN in a handler that interrupted the library. */
int session_ask(struct slabc *c, enum proto_op op, const union proto_request *request, union proto_reply *reply);

/* ref.c */
/* The reference of an object that this session holds, which is not shared by that. */
int ref_peek(const struct slabc *c, const void *p, slabc_ref *refp);
/* Whoever holds what the reference is of; 0: nobody, or it is stale. */
uint32_t ref_owner(const struct slabc *c, slabc_ref ref);
/* What the reference stands for here. */
int ref_resolve(const struct slabc *c, slabc_ref ref, void **pp);

/* mapping.c */
int mapping_attach(struct slabc *c, const struct proto_attach_reply *reply, int *fds, unsigned n_fds);
void mapping_drop_session(struct slabc *c);
void mapping_drop(struct slabc *c);
/* The sheaf of a slot; NULL: what is shown of it makes no sense. */
struct sheaf *mapping_sheaf(const struct slabc *c, uint32_t slot);

/* block.c */
/* Is the calling thread in the midst of one of its sheaves of k?  So in a handler that interrupted a call that went without thread_enter(). */
bool thread_is_amid(const struct slabc_cache *k);
/* The calling thread is inside from here on.  false, a nested call: it was already, or is in the midst of one of its sheaves of k (if not NULL). */
bool thread_enter(const struct slabc_cache *k);
void thread_leave(void);
/* As thread_enter(), where the calling thread has a record of k, of an ordinary cache, and nothing to catch up on: its block. NULL: the long way. */
struct thread_block *thread_enter_quick(const struct slabc_cache *k);
/* The calling thread's block and its record of k, made if need be. */
int thread_get(struct slabc_cache *k, struct thread_block **tbp);
/* library_lock held: the thread's sheaves of handle i go to the process barn, or are forgotten. */
void thread_drop(struct thread_block *tb, uint32_t i, bool is_forgotten);
/* Puts a free off.  false: no room. */
bool thread_defer(struct thread_block *tb, struct slabc_cache *k, void *p);
/* Makes the frees that the thread's handlers put off; those that any thread's put off: of k, or, k NULL, of c.  Only from inside. */
void thread_drain(struct thread_block *tb);
void thread_drain_all(const struct slabc *c, const struct slabc_cache *k);
/* library_lock held: frees of k that are put off will never be made, it is no more. */
void thread_forget_deferred(struct slabc_cache *k);
/* library_lock held: in a forked child. */
void thread_forget_all(void);
int thread_key_make(void);

/* inline.c: the calling thread's table of sheaves, or NULL, for who has the fast path inlined. */
void inline_show(struct sheaf *const *main);

/* cache.c: sheaves between the thread, the process barn and slabd */
/* As session_usable(), and ENOENT if the cache was destroyed. */
int cache_usable(const struct slabc_cache *k);
/* The calling thread's sheaves (or all threads', none of which may be in a call on k) and the process barn go back to slabd's list. */
void cache_drop_idle(struct slabc_cache *k, bool is_all_threads);
/* Makes the claims of all threads' foreign sheaves; none may be in a call on k. */
void cache_settle(struct slabc_cache *k);
/* opening held: the cache is no more; its handles only wait for being closed. */
void cache_bury(struct slabc *c, uint32_t id);
/* Takes the newest sheaf off one of the lists for holder, ready for use; CLIENT_NO_SLOT: there is none. */
int32_t barn_get(struct slabc_cache *k, uint64_t *head, uint32_t holder, struct sheaf **sheafp);
/* The same, some at once: up to `want`, newest first. Returns how many. *is_freshp: was the last one filled by slabd? */
uint32_t barn_get_some(
	struct slabc_cache *k, uint64_t *head, uint32_t holder, uint32_t want, uint16_t *slots, struct sheaf **sheaves, bool *is_freshp);
/* Hands on a sheaf that `holder` holds and that is no longer used. false: slabd has it. */
bool barn_put(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder);
/* The same of n sheaves, which all have objects or all have none; not wanted: to slabd, whatever the barn has room for. */
void barn_put_some(struct slabc_cache *k, uint32_t n, const uint16_t *slots, struct sheaf *const *sheaves, uint32_t holder, bool is_wanted);
/* As barn_put(), to slabd whatever the barn has room for. */
bool barn_return(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder);
/* Puts a taken sheaf into the state in which it may be used. */
void sheaf_open(const struct slabc_cache *k, struct sheaf *s, uint32_t slot);
/* Makes it busy for good, so that it may be handed on.  false: slabd has taken it, and it was let go of; or slabd died at that. */
bool sheaf_shut(struct slabc_cache *k, uint32_t slot, struct sheaf *s, uint32_t holder);
/* The slot goes to slabd, on the cache's list of what is returned, if `holder` still holds it. */
void slot_give_back(struct slabc *c, uint32_t cache, uint32_t slot, uint32_t holder);
/* slabd has taken the sheaf (LAYOUT_HOLDER_RECALLED), an ordinary one, and its thread has forgotten it: slabd may lend the slot again. */
void sheaf_let_go(struct slabc_cache *k, uint32_t slot);
/*
 * Of a revoked sheaf that is holder's: forgets it, for none, once slabd is through with it, so that slabd may lend the slot again.  false: not
 * yet, or slabd finds it busy and lets it be.
 */
bool sheaf_forget(struct slabc_cache *k, uint32_t holder, struct sheaf **sheafp, int16_t *slotp, struct sheaf *none);
/* Lets slabd finish what it does with a revoked sheaf. */
void sheaf_pause(void);
/* library_lock held: the handle is in no chain and with no thread. */
void handle_free(struct slabc_cache *k);
/* Gets objects into the process barn. */
int cache_refill(struct slabc_cache *k, int64_t deadline);
/* As cache_refill(), without waiting, when the barn, and the thread's rack, run low and refills have followed each other: so that a steady thread never waits. */
void cache_ask_ahead(struct slabc_cache *k, uint32_t n_in_hand);
/* Follows the knobs, if they have been tuned. */
void cache_learn_now(struct slabc_cache *k);
/* Gets an empty sheaf into the process barn. */
int cache_lend(struct slabc_cache *k, int64_t deadline);
/* A sheaf with n objects, for the application; in a cache of runs with one, of n_pages. */
int cache_prefill(struct slabc_cache *k, uint32_t n, uint32_t n_pages, uint32_t *slotp, int64_t deadline);
/* The handle that the session keeps for itself: of the cache with that id, or name; flags: LAYOUT_CACHE_ beyond opt's. Only from inside. */
int cache_own(struct slabc *c, uint32_t id, struct slabc_cache **kp);
int cache_own_named(
	struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *opt, uint32_t flags, struct slabc_cache **kp);

/* bulk.c */
/* A sheaf that the application had goes back. */
void app_put(struct slabc_cache *k, uint32_t slot, struct sheaf *s);
/* Up to n objects from the top of a sheaf, which the caller may enter; 0: see the slow path. */
uint32_t bulk_pop(struct slabc_cache *k, struct sheaf *s, uint32_t n, void **pv);

/* thread.c */
void *thread_alloc_slow(struct slabc_cache *k);
/* Makes the thread's main sheaf hold an object, or have room for one. Only from inside. */
int thread_fetch(struct slabc_cache *k, struct thread_block *tb, uint32_t *n_droppedp, int64_t *deadlinep);
int thread_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep);
/* As that, from what the process has; false: only by the long way. */
bool thread_make_room_now(struct slabc_cache *k, struct thread_block *tb);
/* One object by the slow path. Only from inside. */
int thread_alloc_one(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, void **pp);
/* Entries that a sheaf of the thread takes; 0: revoked, or none. */
uint32_t thread_limit(const struct slabc_cache *k, const struct sheaf *s);
/* After a free into main: a cache without sheaves gives it back at once. */
int thread_settle(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep);
/* Drops the top entry of a sheaf if its word is owned; false: there is none such. */
bool thread_drop_top(struct slabc_cache *k, struct sheaf *s);

/*
 * An empty sheaf for the thread, to be used for something else than main.  false: none is to be had now; slabd may be stopped, and is not asked at
 * every free, since each question costs the timeout.
 */
bool thread_get_empty(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep, struct sheaf **sheafp, int16_t *slotp);

/* Gives back to the barn, sending nothing, a sheaf that was borrowed from it. */
void thread_lend_back(struct slabc_cache *k, uint32_t slot, struct sheaf *s);

/* rack.c: only from inside */
/* A sheaf with objects, or without, of the rack or the barn; CLIENT_NO_SLOT: there is none.  What is in it is a hint, as in the barn. */
int32_t rack_get(struct slabc_cache *k, struct thread_block *tb, enum rack_kind kind, struct sheaf **sheafp);
/*
 * Most changes of main, when it has no object, or no room: the spare takes its place, or, that being no better, one of the rack.  false: something is out of
 * the ordinary, or there is none.
 */
bool rack_change_for_alloc(struct slabc_cache *k, struct thread_block *tb);
bool rack_change_for_free(struct slabc_cache *k, struct thread_block *tb);
/* Puts down a sheaf of the thread's that it no longer uses. */
void rack_put(struct slabc_cache *k, struct thread_block *tb, uint32_t slot, struct sheaf *s);
/* The same for one with objects, which the process hardly wants: some of the rack's go to slabd. */
void rack_put_back(struct slabc_cache *k, struct thread_block *tb, uint32_t slot, struct sheaf *s);
/* All of them go to the barn, or are forgotten. */
void rack_drop(struct slabc_cache *k, struct thread_block *tb, bool is_forgotten);

/* foreign.c */
/* Makes the thread's foreign sheaf have room.  false: none is to be had now, claim at once. Only from inside. */
bool foreign_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep);
/* The same for one that is full, where nothing is out of the ordinary: with an empty sheaf that the process has. */
bool foreign_change_now(struct slabc_cache *k, struct thread_block *tb);
/* Makes the claims; the sheaf goes on to the barn, its record stays with the thread.  Only from inside. */
void foreign_flush(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t);
/* As that, if it is old: no claim is made so late that a generation could have come round (I1b).  For the slow paths; slabd sees to other threads. */
enum { FOREIGN_MAX_AGE_S = 2 };
void foreign_flush_old(struct slabc_cache *k, struct thread_block *tb);
/* As foreign_flush(), and the record goes too. */
void foreign_drop(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t);

/* node.c */
/* Learns where the thread runs.  In an arena of several nodes. */
void node_learn(const struct slabc_cache *k, struct thread_cache *t);
/* Makes the away sheaf have room.  false: none is to be had now. Only from inside. */
bool node_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep);
/* The away sheaf goes back. */
void node_drop(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t);

/* Does the object lie on another node than the thread runs on? */
static inline bool
node_is_away(const struct slabc_cache *k, const struct thread_cache *t, uint32_t place)
{
	return (k->mark & SHEAF_NODED) && (place >> LAYOUT_PLACE_PAGE_SHIFT) - t->home_first >= t->n_home;
}

/* free.c */
void thread_free_slow(struct slabc_cache *k, void *p);
/* Frees by pointer; faults are reported. Only from inside. */
int thread_free_one(struct slabc_cache *k, struct thread_block *tb, void *p, int64_t *deadlinep);
/* Frees what a reference stands for, whose word is `word`.  -ESTALE, -EINVAL as slabc_free_ref(). */
int thread_free_exact(
	struct slabc_cache *k, struct thread_block *tb, uint32_t place, uint32_t *word, uint32_t generation, int64_t *deadlinep);

/* owed.c: only from inside */
/* Puts off the free of an object whose word is CLOSING, or that has none. -ENOMEM. */
int owed_add(struct slabc_cache *k, uint32_t place);
/* Makes good some of what is owed, if there is room by now. */
void owed_pay(struct slabc_cache *k, struct thread_block *tb);
/* All of it, if slabd gives room. */
void owed_pay_all(struct slabc_cache *k);
/* library_lock held: of a cache that is destroyed, or a handle that goes. */
void owed_forget(struct slabc_cache *k);

/* ref.c */
/* The word of the object that starts at place, and whose page's life it is; false: none starts there. */
bool ref_find_word(const struct slabc *c, uint32_t place, uint32_t *cachep, uint32_t **wordp);

enum fault {
	FAULT_NONE,
	FAULT_DOUBLE = 1,
	FAULT_WILD = 2,
	FAULT_MISALIGNED = 3,
	FAULT_REFUSED = 4,
	FAULT_OVERRUN = 5, /* from here on of debug caches only */
	FAULT_UNDERRUN = 6,
	FAULT_AFTER_FREE = 7,
};
/* Counts and reports a bad free; -EINVAL. */
int thread_fault(struct slabc_cache *k, enum fault kind, const void *p);

/* debug.c: only for handles whose debug is not 0 */
/* The handle's fields of a debug cache, from what slabd shows; false: it makes no sense. */
bool debug_init(struct slabc_cache *k, uint32_t object_size, uint32_t object_bytes);
/* As sheaf_take(). */
void *debug_take(struct slabc_cache *k, struct sheaf *s);
/* The object is the caller's, its word says so: looks whether anybody wrote into it while it was free, and makes it new. */
void debug_allocated(struct slabc_cache *k, void *p);
/* Before a free of what w allows: -EINVAL if anybody wrote around the object, told once, and the red zones put right. */
int debug_check(struct slabc_cache *k, uint32_t place, const uint32_t *word, uint32_t w);
/* The object's word is closed and the object in no sheaf yet. */
void debug_freed(struct slabc_cache *k, uint32_t place);
/* Adds to the sentence about a bad free who did it, and who had the object before, and reports it. */
void debug_tell(struct slabc_cache *k, enum fault kind, const void *p, uint64_t n);
/* library_lock held.  Looks at the free objects of a sheaf that is the caller's. */
void debug_check_idle(struct slabc_cache *k, struct sheaf *s);

static inline bool
cache_is_wordless(const struct slabc *c, uint32_t cache)
{
	return c->caches[cache].flags & LAYOUT_CACHE_NO_OWNER;
}

/* Has slabd tuned the knobs? */
static inline bool
cache_has_news(const struct slabc_cache *k)
{
	return atomic_read(&k->c->caches[k->v.cache].knobs) != atomic_read(&k->knobs);
}

static inline void
cache_learn(struct slabc_cache *k)
{
	if (__builtin_expect(cache_has_news(k), 0))
		cache_learn_now(k);
}

static inline uint32_t
thread_holder(const struct thread_block *tb)
{
	return LAYOUT_HOLDER_THREAD + tb->number;
}

/* Interrupted by a handler in the midst of it?  What is asked of the calling thread's sheaves only. */
static inline bool
sheaf_is_entered(const struct sheaf *s)
{
	return s && s != &no_sheaf && (atomic_read(&s->busy) & SHEAF_BUSY) != 0;
}

/* Objects in a sheaf of one's own; -1: revoked. */
static inline int32_t
sheaf_look(struct sheaf *s)
{
	int32_t n;

	if (s == &no_sheaf)
		return 0;
	sheaf_enter(s);
	n = atomic_read(&s->floor) == SHEAF_REVOKED ? -1 : (int32_t)atomic_read(&s->size);
	sheaf_leave(s);
	return n;
}

/* Not revoked, and of the size that sheaves have now: a hint, as slabd may revoke it at any time. */
static inline bool
sheaf_is_plain(const struct slabc_cache *k, const struct sheaf *s)
{
	return atomic_read(&s->floor) == 0 && atomic_read(&s->limit) == atomic_read(&k->capacity);
}

/* An object from the top of a sheaf of any kind. */
static inline void *
sheaf_take(struct slabc_cache *k, struct sheaf *s)
{
	if (k->debug)
		return debug_take(k, s);
	return k->is_wordless ? sheaf_pop_wordless(&k->v, s, k->mark) : sheaf_pop_marked(&k->v, s, k->mark);
}

/* Counters for show: racing threads may lose one. */
static inline void
count_one(uint64_t *counter)
{
	atomic_write(counter, atomic_read(counter) + 1);
}

#endif
