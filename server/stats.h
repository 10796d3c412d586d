/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What monitors are told.  Counted when asked for, from the ledger and by walking the sheaves: the fast paths count nothing.
 * On a live system the parts were read one after the other; differences that would be negative are shown as 0.
 */
#ifndef SLAB_SERVER_STATS_H
#define SLAB_SERVER_STATS_H

#include <stdbool.h>

#include "proto/proto.h"
#include "server/slabd.h"

/* Who holds how much, by client slot; 0: what is OUT and named by nobody. */
struct stats_census {
	uint64_t n[LAYOUT_MAX_CLIENTS + 2]; /* the last one is ORPHAN's */
	uint64_t bytes[LAYOUT_MAX_CLIENTS + 2];
};

/* One walk over all words of the arena.  sessions_lock held for reading. */
void stats_count(struct arena *arena, struct stats_census *census);

void stats_status(struct slabd *slabd, struct arena *arena, struct proto_status_reply *reply);
/* The first cache after that id; reply's id 0: no more.  Takes sessions_lock for reading, as the next two. */
void stats_cache(struct arena *arena, uint32_t after, struct proto_caches_reply *reply);

/* The same of clients; what the session is told of itself.  Asked when?  false: words are still being counted (census.h); ask again. */
bool stats_client(struct arena *arena, uint32_t after, uint64_t asked_ns, struct proto_clients_reply *reply);
bool stats_session(struct session *session, uint64_t asked_ns, struct proto_session_stats_reply *reply);

/*
 * Who holds most of the arena, and most of which cache, as a clause of a sentence; "": nobody.  Looked for at most once a second, since it reads all
 * words, and whoever is refused memory asks again.  sessions_lock held.
 */
void stats_top_holder(struct arena *arena, char *text, size_t size);

#endif
