/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recount: where each object of a running slabd's arena is, by its ledger, the word table and all sheaves, without a line of server/audit.c
 * and without asking slabd: its memory is read through /proc.
 *
 * Exact while slabd and its clients are stopped.  Slabd may have been stopped in the midst of a grant or a take-back, when an object may be
 * OUT and nowhere: then let it go on, and count again; what is lost stays so. Caches without owner words are passed by, and those with
 * stashes must not be there: what is set aside for a client only slabd knows.
 */
#ifndef SLAB_TESTS_RECOUNT_H
#define SLAB_TESTS_RECOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/slab.h"

struct recount;

/* The first arena of that slabd; NULL: its memory cannot be read.  It is the same memory after a restart of slabd, whose pid is then
 * another. */
struct recount *recount_open(pid_t slabd);
void recount_close(struct recount *r);
void recount_at(struct recount *r, pid_t slabd);

struct recount_sums {
	uint64_t n_objects, n_out, n_in_sheaves;
	uint64_t n_lost;    /* OUT, unowned, in no sheaf */
	uint64_t n_doubled; /* in two places */
	uint64_t n_stuck;   /* free in the ledger and named; or named by a client that is no more, and to be freed, or not to be adopted */
	char first[160];    /* about the first of these; empty: all is well */
};
void recount_take(struct recount *r, struct recount_sums *sums);

/* By the last recount_take(): objects that a client's words name; and the object at a place, false: none. */
uint32_t recount_named(const struct recount *r, uint32_t client);
bool recount_find(const struct recount *r, uint32_t place, enum slab_state *statep, uint32_t *wordp);

#endif
