/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slabd, workers with ghost ledgers, and a process that disturbs them: what stress_kill and soak have in common.
 *
 * The disturbing process has a session of its own, with which it looks at the arena and takes what the dead left, and a connection that asks; a worker
 * (ghost_worker.c), forked from it, closes the inherited handle and opens another.  Everything waits WAIT_MS at most: then the test has failed, and the
 * process ends.
 */
#ifndef SLAB_TESTS_STORM_H
#define SLAB_TESTS_STORM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/proto.h"
#include "tests/ghost.h"

enum {
	STORM_WAIT_MS = 20000, /* for anything: then the test has failed */
	STORM_N_CHECKS = 32,
	STORM_CACHED_SHEAVES = 8,
};

/* Knobs: of most caches a worker's barn must hold what its load swings by; while it waits for slabd it names nothing.  Two have stashes. */
extern const uint32_t storm_sheaf_capacity[GHOST_CACHES], storm_node_sheaves[GHOST_CACHES], storm_cpu_partial[GHOST_CACHES];

struct storm {
	const char *name; /* of the test */
	uint32_t n_workers;
	uint64_t seed, random;
	const char *page_kind;
	uint32_t n_threads; /* of slabd */
	bool is_kept;       /* slabd is under slabd-keeper */
	char dir[64], socket[96], log[96];
	pid_t slabd; /* the keeper, if there is one */
	int control;
	uint32_t last_id;
	struct ghost *ghost;
	struct ghost_setup setup;
	struct ghost_view view;
	bool has_view;
	struct ghost_snapshot snapshot;
	pid_t worker[GHOST_MAX_LANES]; /* 0: none */
	bool is_stopped[GHOST_MAX_LANES];
	/* What the dead, and those that ended, noted. */
	struct ghost_sums sums;
	uint64_t n_allocated[GHOST_CACHES], n_freed[GHOST_CACHES], n_gone[GHOST_CACHES];
	uint64_t n_audits, n_undecided_looks, n_comparisons;
	uint64_t killed_ns, max_reaped_ns, sum_reaped_ns, max_committed;
	struct {
		const char *sentence;
		bool is_good;
	} check[STORM_N_CHECKS];
	uint32_t n_checks;
};

uint64_t storm_now_ns(void);
void storm_pause_us(uint64_t us);

/* Nothing more can be tested. */
void storm_die(struct storm *s, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
void storm_check(struct storm *s, bool is_good, const char *sentence);
/* Prints what failed, and the sums; all went well? Then the folder is removed. */
bool storm_report(struct storm *s);

/* The ghost, slabd, its caches and its workers.  name to is_kept are set. */
void storm_begin(struct storm *s);
/* The workers drain, are compared and end. */
void storm_end(struct storm *s);
/* With no session left: SIGTERM, and its exit status. */
int storm_slabd_stop(struct storm *s);
/* Another connection to the slabd that comes next. */
void storm_control_open(struct storm *s);

void storm_call(struct storm *s, enum proto_op op, const union proto_request *request, union proto_reply *reply);
/* Has slabd a session of this process that it has not reaped?  client: its id, if that is known, else 0. */
bool storm_has_session(struct storm *s, pid_t pid, uint32_t client);
void storm_audit(struct storm *s, struct proto_audit_reply *a);
uint64_t storm_committed(struct storm *s);

void storm_worker_start(struct storm *s, uint32_t lane);
/* None that is not stopped, nor slabd, may have ended by itself. */
void storm_workers_look(struct storm *s);
void storm_worker_stop(struct storm *s, uint32_t lane);
void storm_worker_go_on(struct storm *s, uint32_t lane);
/* Stops one, looks what it is in the midst of, and kills it there; then waits until it is reaped, compares, and takes what it left. */
pid_t storm_kill(struct storm *s, uint32_t lane, struct ghost_death *death);
void storm_settle(struct storm *s, uint32_t lane, pid_t pid);
/* All stop; then nothing moves, and everything must agree. */
void storm_compare_all(struct storm *s);

void storm_check_accounts(struct storm *s);
/* At the end, when the own session is closed. */
void storm_check_empty(struct storm *s);
/* slabd notes what no correct client does; a kill must not look like it. */
bool storm_log_is_clean(const struct storm *s);

#endif
