/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dead slabd left of an arena, for whoever asks why it is not adopted (INSPECT; slabctl inspect).
 *
 * It is begun before adoption takes the descriptors, and ended when they have been found wanting: from the names in the store, the sizes of what is there,
 * and the ledger as far as that is of this slabd's layout, read with bounds and believed in nothing.  Nothing is changed.
 */
#ifndef SLAB_SERVER_INSPECT_H
#define SLAB_SERVER_INSPECT_H

#include "proto/proto.h"
#include "server/store.h"

struct inspection {
	int ledger_fd; /* of our own, until inspect_end(); -1: none was left */
	struct proto_inspect_reply found;
};

/* Of the arena that has that number in the store. */
void inspect_begin(struct inspection *inspection, const struct store *store, unsigned number);
/* why: the check that failed; NULL: it is sound. */
void inspect_end(struct inspection *inspection, const char *why);

#endif
