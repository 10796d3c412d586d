/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What integration tests stand on: a slabd of one's own, client processes, raw packets, and the pool of huge pages.
 *
 *   struct harness   a slabd in its own folder; its end is checked: exit status 0, no descriptor left open in the test process
 *   struct peer      a child process that runs a function, and the two pipes by which it and the test tell each other how far they are
 *   struct raw       a client without the library: descriptors and mappings of a session in the test's own hands
 *
 * CHECK and REQUIRE work in the test process (CUnit counts them) and in children (a failed one is printed and ends the child, whose exit
 * status the test process checks).  Nothing sleeps to wait for something: EVENTUALLY looks again for ten seconds at most. What a test
 * leaves behind because REQUIRE left it is put away by harness_teardown(), which every suite has.
 */
#ifndef SLAB_TESTS_HARNESS_H
#define SLAB_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "client/slabclient.h"
#include "proto/proto.h"
#include "shm/layout.h"
#include "shm/sheaf.h"
#include "tests/skip.h"

enum {
	HARNESS_TIMEOUT_S = 60, /* of a test; it_main.c */
	HARNESS_MAX_PEERS = 72,
	HARNESS_PATIENCE_MS = 10000,
};

#define CLEANUP(f) __attribute__((cleanup(f##_at)))

#define CHECK(condition) harness_check((condition) ? true : false, __FILE__, __LINE__, #condition, false)
#define REQUIRE(condition) harness_check((condition) ? true : false, __FILE__, __LINE__, #condition, true)
/* Looks at a condition until it holds; false: not within HARNESS_PATIENCE_MS. */
#define EVENTUALLY(condition)                                                                                                              \
	__extension__({                                                                                                                    \
		int64_t until_ms_ = harness_now_ns() / 1000000 + HARNESS_PATIENCE_MS;                                                      \
		bool holds_;                                                                                                               \
		while (!(holds_ = (condition)) && harness_now_ns() / 1000000 < until_ms_)                                                  \
			harness_pause();                                                                                                   \
		holds_;                                                                                                                    \
	})

struct peer {
	pid_t pid;
	int in, out; /* pipe ends of this side */
	bool is_ended;
};

struct harness {
	char dir[64];
	char socket[96];
	char log[96];
	pid_t slabd; /* 0: not running */
	unsigned n_files; /* descriptors that slabd may have; 0: as many as the test */
	int monitor; /* a connection that asks, -1: none yet */
	uint32_t last_id;
	unsigned n_fds_before;
	unsigned n_failures_before;
	bool is_killed; /* its exit status says nothing */
	bool is_kept;   /* slabd is slabd-keeper, and the slabd under it another process: that which harness_status() tells */
	char program[256]; /* slabd's; empty: the build's */
	unsigned n_peers;
	struct peer peers[HARNESS_MAX_PEERS];
};

/* Counts what failed; a fatal failure leaves the test. In a child it ends the child. Returns ok. */
bool harness_check(bool ok, const char *file, int line, const char *condition, bool is_fatal);

/* A suite whose tests have a timeout, and leave nothing behind. */
CU_pSuite harness_suite(const char *name);
void harness_teardown(void);

int64_t harness_now_ns(void);
/* A millisecond. */
void harness_pause(void);
/* SLAB_SEED or the clock; printed. */
unsigned harness_seed(void);
unsigned harness_count_fds(pid_t pid);
/* Files of the build: from the environment ($SLABD, $SLABCTL, $SLABD_KEEPER, $SLABCLIENT_LIB), else build/release/. */
const char *harness_path(const char *variable);

/* A folder without a slabd. */
struct harness *harness_new(void);
/* Starts slabd with these arguments (parted at blanks) and --socket; returns once it answers. false: it ended instead, *statusp its status.
 */
bool harness_start(struct harness *h, int *statusp, const char *arguments);
/* Both; a slabd that does not come up is fatal. */
struct harness *harness_slabd(const char *arguments, ...) __attribute__((format(printf, 1, 2)));
/*
 * Under slabd-keeper; program: in place of slabd, with arguments of its own before slabd's; NULL: slabd.  _kill_kept kills the slabd under it, and waits
 * until the next one answers; its pid.
 */
struct harness *harness_keeper(const char *program, const char *arguments);
pid_t harness_kill_kept(struct harness *h);
void harness_wait_kept(struct harness *h, pid_t before);
/*
 * harness_kept.c: the keeper stops, and slabd dies (its pid): nobody starts the next until _go_on().  What the keeper holds: the nth memory of that name
 * (with several arenas in no order), opened anew, -1: none; and how many session segments.
 */
pid_t harness_stop_and_kill(struct harness *h);
void harness_go_on(struct harness *h, pid_t before);
int harness_open_held(const struct harness *h, const char *name, unsigned nth);
unsigned harness_count_kept(const struct harness *h);
/* The slabd under it, also one that does not say; 0: there is none. */
pid_t harness_child(const struct harness *h);
/*
 * harness_busy.c: clients that do all sorts of things, each for timeout_s at most, and no call of which may fail; a slabd that is killed under them so often,
 * each time after it has lived for so long; and what must hold meanwhile, and when all have gone.
 */
enum { HARNESS_MAX_BUSY = 20 };
struct storm {
	const char *arguments;
	unsigned n_busy, n_kills, least_ms, more_ms, timeout_s;
};
void harness_storm(const struct storm *storm);
void harness_start_busy(struct harness *h, unsigned timeout_s, unsigned n, pid_t *pids);
void harness_stop_busy(struct harness *h, unsigned n, const pid_t *pids);
/* Nothing is lost, doubled or undecided. */
void harness_check_audit(struct harness *h);
/* What slabd says it has committed is what the segments have. */
bool harness_has_committed_right(struct harness *h);
/* All have gone: nothing is out, or in a barn, nothing more is kept for anybody, and no page is committed that is not counted. */
void harness_check_at_rest(struct harness *h);
/* From SIGKILL to the first answer of the next slabd; prints these, and what slabd says that it needed for adoptions, and returns the median. */
int64_t harness_time_kill(struct harness *h);
int64_t harness_print_times(const struct harness *h, int64_t *ns, unsigned n);
/* With a configuration file; its path is harness_config(). Afterwards another file and SIGHUP: returns once slabd has reread it. */
struct harness *harness_slabd_config(const char *text);
void harness_reload(struct harness *h, const char *text);
void harness_write_config(const struct harness *h, const char *text);
const char *harness_config(const struct harness *h);
/* SIGTERM, and all checks; NULL is ignored. */
void harness_free(struct harness *h);
void harness_free_at(struct harness **hp);
void harness_kill_slabd(struct harness *h);
/* Ends it by a signal; its exit status. */
int harness_stop_slabd(struct harness *h, int sig);
/* Has slabd's log this text?  How often? */
unsigned harness_log_count(const struct harness *h, const char *text);
/* Runs a program, its output (both streams) into out; returns its exit status, or -1. env: NAME=VALUE, may be NULL. */
int harness_run(char *const argv[], char *const env[], char *out, size_t size);

/* A child in a session (setsid) of its own. It ends with status 0 when fn returns. */
typedef void harness_fn(struct peer *me, void *arg);
pid_t harness_spawn(struct harness *h, harness_fn *fn, void *arg);
struct peer *harness_peer(struct harness *h, pid_t pid);
/* Waits for its end and checks that it went well. */
void harness_join(struct harness *h, pid_t pid);
/* SIGKILL also waits for it. */
void harness_kill(struct harness *h, pid_t pid, int sig);
/* Slabd no longer lists a living session of the process. */
void harness_wait_reaped(struct harness *h, pid_t pid);

/* Steps and data between the test and its child, either way. */
void peer_tell(struct peer *peer, char step);
void peer_await(struct peer *peer, char step);
void peer_put(struct peer *peer, const void *data, size_t n);
void peer_get(struct peer *peer, void *data, size_t n);

/* What slabd says, over a connection of the harness's own. */
enum proto_status harness_ask(struct harness *h, enum proto_op op, const union proto_request *request, union proto_reply *reply);
struct proto_status_reply harness_status(struct harness *h);
struct proto_caches_reply harness_cache(struct harness *h, const char *name); /* .cache 0: there is none */
/* Of all caches; a named one. */
struct proto_audit_reply harness_audit(struct harness *h);
struct proto_audit_reply harness_audit_cache(struct harness *h, const char *name);
/* By process, which lives; by client id, also of a dead one.  .client 0: there is none. */
struct proto_clients_reply harness_client(struct harness *h, pid_t pid);
struct proto_clients_reply harness_client_id(struct harness *h, uint32_t client_id);

/* Library sessions of this process with the harness's slabd. */
struct slabc *harness_open(const struct harness *h, const char *label);
struct slabc_cache *harness_open_cache(struct slabc *c, const char *name, size_t size, unsigned flags);

/* Raw packets.  Sending returns 0 or a negative errno. */
int raw_connect(const char *path);
int raw_send(int fd, enum proto_op op, uint32_t id, const union proto_request *request);
/* Waits for the reply to id, ten seconds at most: its status; -1: the connection has ended, or no answer. sentence has PROTO_SENTENCE_BYTES
 * or is NULL. */
int raw_receive(int fd, enum proto_op op, uint32_t id, union proto_reply *reply, char *sentence);
int raw_call(int fd, enum proto_op op, const union proto_request *request, union proto_reply *reply, char *sentence);
int raw_hello(int fd);

struct raw {
	int fd;
	int fds[PROTO_MAX_FDS]; /* as they came: arena, words, session, data */
	unsigned n_fds;
	struct proto_attach_reply attach;
	const struct layout_arena *arena;
	const struct layout_page *pages;
	const struct layout_cache *caches;
	uint32_t *words;
	char *session;
	struct layout_slot *slots;
};

/* HELLO, ATTACH, and everything but the data segments mapped. Failure is fatal. */
void raw_attach(struct raw *raw, const char *path, const char *label);
void raw_attach_with(struct raw *raw, const char *path, const char *label, uint32_t flags); /* PROTO_ATTACH_ */
/* Unmaps and closes; no BYE. */
void raw_detach(struct raw *raw);
uint32_t raw_cache_open(struct raw *raw, const char *name, uint64_t size, uint32_t flags);
/* One sheaf of n objects for the application; its slot. */
uint32_t raw_prefill(struct raw *raw, uint32_t cache, uint32_t n);
struct sheaf *raw_sheaf(const struct raw *raw, uint32_t slot);
uint32_t *raw_word(const struct raw *raw, uint32_t place);

/*
 * Makes the system's pool have n free 2 MiB pages, until hugepages_put_back() (also done at the end of the test and of the process).
 * false: it cannot be done here, and skip() was told.
 */
bool hugepages_take(unsigned n);
unsigned hugepages_free(void);
void hugepages_put_back(void);

#endif
