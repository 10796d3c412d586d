/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking slabd: a connection, requests and their answers.
 *
 * These come back only with an answer that says OK; anything else ends slabctl with a sentence on stderr and its exit status.  Output not
 * yet written is dropped: half an answer is worse than none.
 */
#ifndef SLAB_CLIENT_CTL_ASK_H
#define SLAB_CLIENT_CTL_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

/* Exit statuses besides 0. */
enum {
	ASK_EXIT_FOUND = 1, /* what should not be there */
	ASK_EXIT_USAGE = 2,
	ASK_EXIT_SLABD = 3,
	ASK_EXIT_UNDECIDED = 4,
};

struct ask {
	const char *socket;
	const char *source; /* who named it */
	const char *arena; /* NULL: the default or only one */
	int timeout_s;
	int fd;
	uint32_t last_id;
	uint64_t nonce; /* slabd's, for an ATTACH */
};

__attribute__((noreturn, format(printf, 2, 3))) void ask_die(int status, const char *format, ...);

/* Connects, and compares versions: slabd refuses what does not match; so do we, in case it is the older one and does not know better. */
void ask_open(struct ask *ask);

/* Waits for slabd's end, which it has announced. */
void ask_await_end(struct ask *ask);

void ask_call(struct ask *ask, enum proto_op op, const union proto_request *request, union proto_reply *reply);
/* fds: those that come with the answer, of which there is room for *n_fdsp. */
void ask_call_fds(struct ask *ask, enum proto_op op, const union proto_request *request, union proto_reply *reply, int *fds, unsigned *n_fdsp);

/* The entry of a list (CACHES, CLIENTS, ARENAS, NODES, INSPECT, ORPHANS, NEXT_ROOT) after the one in request, which then names it.  false: no more.
 */
bool ask_next(struct ask *ask, enum proto_op op, union proto_request *request, union proto_reply *reply);

/* The id of a cache; there is one. */
uint32_t ask_find_cache(struct ask *ask, const char *name);

#endif
