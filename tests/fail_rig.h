/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs of tests/fail stand on: a slabd and a worker that take orders (fail_at.h), and what must hold once a shortage is over.
 */
#ifndef SLAB_TESTS_FAIL_RIG_H
#define SLAB_TESTS_FAIL_RIG_H

#include "tests/fail_at.h"
#include "tests/harness.h"

enum { PATIENT_MS = 10000, OURS = 1000 };

/* The run under way, for who reads of its failure. */
struct fail_run {
	const char *side;
	enum fail_call call;
	uint32_t k;
	int error;
	bool is_lasting;
};

extern struct fail_run run;
/* Orders to slabd, and to the worker; $FAIL_AT_FILE of slabd. */
extern struct fail_at *at, *to_worker;
extern char at_path[64];
/* What slabd is started with: the usual, or others. */
extern const char usual_options[];
extern const char *slabd_options;

bool rig_init(void);
/* A check; what was wrong is said with the run. */
bool holds(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* fail_at.so */
const char *library_path(void);

/* A slabd, perhaps with an order from its first call on.  false: it ended, *statusp is its exit status, above OURS a signal. */
bool start(struct harness *h, int *statusp);
bool is_alive(struct harness *h);
/* A connection that asks, instead of one that was a victim. */
bool has_monitor(struct harness *h);
/* Once connections that were victims are gone. */
unsigned count_settled_fds(const struct harness *h);

/* The job.  Returns its exit status; above OURS: a signal. */
int work(const struct harness *h, int timeout_ms, bool is_preloaded);

bool is_quiet(struct harness *h);
/* Everything that slabd counts, against what it finds when it looks. */
bool recount(struct harness *h, const char *when);
/* What is left goes: orphans, and then the caches; nothing is committed then. */
bool clear(struct harness *h);
/* After a job under an order, which is over; status: the job's. */
bool check_after(struct harness *h, int status, unsigned n_fds);

#endif
