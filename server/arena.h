/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena: one named space of objects: its segments, word table, page map, ledger, caches and sessions.
 *
 * Lock ranks, in acquisition order: orphans, sessions, registry, session work (session.h), list_lock (node.h), then ledger, pages, words, roots
 * and stashes (stash.h), which are leaves, but that readers is taken under pages.  A request on a session holds `sessions` for reading, and so does whoever uses a struct cache; only the appearance and
 * the end of a session, and what changes a cache for all (tuning, destroying), take it for writing.
 */
#ifndef SLAB_SERVER_ARENA_H
#define SLAB_SERVER_ARENA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/access.h"
#include "server/cgroup.h"
#include "server/ladder.h"
#include "server/ledger.h"
#include "server/pages.h"
#include "server/profile.h"
#include "server/readers.h"
#include "server/root.h"
#include "server/slab.h"
#include "server/topology.h"
#include "server/words.h"
#include "shm/atomic.h"
#include "shm/layout.h"
#include "shm/segment.h"

struct repair_walk;
struct session;
struct store;

enum { STATS_TOP_BYTES = 192 };

struct arena_options {
	const char *name;
	uint64_t limit_bytes;   /* of data pages committed at one time */
	uint64_t reserve_bytes; /* committed at start and kept */
	unsigned page_kind;     /* LADDER_ */
	enum arena_profile profile;
	struct access access;
	uint32_t max_sessions; /* of one user; 0: no limit */
	uint32_t max_caches;   /* 0: no limit but the layout's */
	uint64_t client_max;   /* bytes that a client may have, in objects and idle; 0: no limit */
	uint64_t client_min;   /* bytes kept for each client that is connected */
	char debug[128];       /* "": none; else the checks, and of which caches (cache_parse_debug()) */
	bool is_node_strict;   /* clients get memory of their own node, or none */
	uint64_t user_max;     /* bytes that all clients of a user may have together; 0: no limit */
	uint64_t max_orphans;  /* bytes that the dead may leave; 0: no limit */
	uint32_t max_faults;   /* of a session, that nobody else can have made (session_fault_own()), beyond which it is evicted; 0: no limit; atomic */
	/* NULL: the machine's nodes. Else a test's invention, whose memory is bound to no node. */
	const struct topology_source *source;
};

/* One data segment. */
struct arena_segment {
	struct arena *arena;
	int fd;
	int fd_readonly;
	unsigned kind; /* LAYOUT_PAGES_ */
	unsigned node;
	unsigned unit_order;
	uint8_t *units; /* the ledger's, of each: LEDGER_UNIT_ */
	/*
	 * Units whose pages the kernel is asked to make one of: those of which it did, those that wait to be asked for, and of them those that were once
	 * and had a page in use.  One call of ops, or pages_try_hold(), at a time, so no lock.
	 */
	bool is_thp;
	struct bitset collapsed;
	struct bitset waiting;
	struct bitset retried;
	/* When the system is asked again after it had none, if another kind stands in meanwhile. */
	uint64_t ask_again_ns;
	/* Units that are GIVING, since the system did not take them: counted as committed, and tried again. Atomic. */
	uint32_t n_going;
	/* Why the last commit, collapse, or giving back failed: said once for each reason. */
	int said_commit;
	int said_collapse;
	int said_give_back;
	/* Bytes that the last comparison missed (presence.c); the same while pages are held. */
	uint64_t said_missing;
	uint32_t first_page;
	uint32_t n_pages;
	struct pages pages;
};

struct arena {
	char name[64];
	struct arena_options options; /* a reload changes access, max_sessions, client_max, client_min, user_max, max_orphans, max_faults and is_node_strict (sessions_lock), max_caches (registry_lock) */
	struct topology topology;

	int fd; /* arena segment, word table and ledger */
	int fd_readonly;
	int words_fd;
	int words_fd_readonly;
	int ledger_fd;
	uint64_t bytes; /* of the arena segment */
	uint64_t words_bytes;
	uint64_t ledger_bytes;
	struct ledger_head *ledger;
	/* Where descriptors are kept for the next slabd, and this arena's number there. NULL: nowhere. */
	struct store *store;
	unsigned store_number;
	struct layout_arena *head;
	struct layout_cache *shown; /* by cache id */
	struct layout_page *page_map;
	uint32_t *words;

	struct arena_segment segments[LAYOUT_MAX_SEGMENTS];
	unsigned n_segments;
	uint32_t n_pages;
	struct cgroup cgroup;
	uint64_t committed_bytes; /* atomic: of all segments */
	uint64_t n_misplaced;     /* atomic: pages that were found on another node than asked for */
	bool is_made;             /* the reserve is there, and clients may come */
	uint64_t thp_bytes;       /* atomic: committed units that are transparent huge pages */
	uint64_t n_from_elsewhere[LAYOUT_MAX_NODES]; /* atomic: by node, objects that its clients got on another */
	uint64_t n_refused;       /* atomic: peers that might not */
	uint64_t n_recalls;       /* atomic: barriers issued; sheaves taken from threads; and those found busy (recall.c) */
	uint64_t n_recalled_sheaves;
	uint64_t n_recall_busy;
	uint64_t n_repaired;      /* atomic: lost objects taken back (audit.h) */
	uint64_t repair_due_ns;   /* atomic: when repair_arena() may go on; its pass is of whose turn it is. NULL: none yet */
	struct repair_walk *repair;
	uint32_t has_closed;      /* atomic: some cache is_closed (sweep.h) */
	uint64_t bytes_missing;   /* atomic: what nobody was seen to have, when it was counted last (quota.c) */
	uint64_t refused_ns;      /* atomic: when recall_relieve() had no means left, having waited for who was busy */
	int recall_error;         /* atomic: why no barrier can be issued; 0: it can */
	char top_holder[STATS_TOP_BYTES]; /* who held most at top_ns (stats.h); under ledger_lock */
	int64_t top_ns;           /* 0: not looked yet */
	char page_note[256];      /* what was wanted, what was got, what would change it; under ledger_lock */

	pthread_mutex_t ledger_lock; /* the descriptors' free list */
	/* Parts of the ledger (ledger.h). */
	struct slab *slabs;
	uint32_t *bits;
	uint8_t *units;
	struct ledger_cache *ledger_caches; /* by id; under registry_lock */
	struct ledger_client *clients;      /* this and the next three by client slot; under sessions_lock */
	uint32_t *incarnations;
	uint8_t *named; /* words may still name the dead session of this slot */
	struct session_dead *dead; /* who that was */
	uint32_t n_slabs; /* descriptors ever used; atomic. The ledger's number is as large at least */
	uint32_t max_slabs;
	uint32_t free_slab;
	struct words words_runs;

	pthread_mutex_t registry_lock;
	struct cache *caches[LAYOUT_MAX_CACHES]; /* atomic: by id. Set to NULL again only under sessions_lock for writing */
	unsigned n_caches;
	unsigned max_cache;  /* atomic: no id above this was ever used */

	struct roots roots;

	/* Of all sessions: who may still look at memory that was freed. */
	struct readers readers;

	pthread_rwlock_t sessions_lock;
	struct session *first_session;
	struct session *sessions[LAYOUT_MAX_CLIENTS + 1]; /* by client slot */
	uint32_t next_client;
	uint64_t n_sessions_ever;
	uint64_t n_dead;
	uint64_t n_dead_faults; /* of sessions that have ended */
	/* The session has more faults than max-faults; whoever met the last one holds its work, so it ends a moment later, in its loop.  NULL: nobody does that. */
	void (*evict)(void *ctx, const struct session *session);
	void *evict_ctx;
	uint64_t n_evicted; /* atomic */
	unsigned n_sessions;
	bool is_draining; /* it takes no more (drain.h) */
	unsigned n_named;
	pthread_mutex_t quota_lock; /* over a count (quota.c); taken after a session's work */
	uint64_t counted_ns;        /* when the last one was; any loop's guess */
	pthread_mutex_t orphans_lock; /* over what orphan_bound() does */
	uint64_t n_orphans_dropped; /* atomic: freed since they were more than max_orphans */
	struct census *census;       /* who holds how much (census.h); NULL: nobody has asked yet. Under registry_lock */
};

/* Whether such an arena can be made here: 0, or -EINVAL and a sentence. Sets nothing up. */
int arena_check(const struct arena_options *options, char *why, size_t why_size);

/* Its limit in whole units of pages, as it will be. */
uint64_t arena_rounds_to(const struct arena_options *options);

/* Makes the arena's segments and commits its reserve.  0, or a negative errno with a sentence in why. */
int arena_new(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size);
/*
 * Parts of it, for whoever adopts one: no memory yet; a data segment, whose fd is taken over also on failure; segments find their units in the ledger;
 * each node carries its part of the reserve, on the best kind of page there is, and the next rung carries what a rung could not.
 */
int arena_begin(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size);
int arena_add_segment(struct arena *arena, const struct ledger_segment *as, int fd);
uint32_t arena_count_units(const struct arena *arena);
void arena_point_units(struct arena *arena);
int arena_commit_reserve(struct arena *arena, char *why, size_t why_size);
/* All sessions must be gone. NULL is ignored. */
void arena_free(struct arena *arena);

void arena_get_access(struct arena *arena, struct access *access);

/* What a reload may change.  Takes registry_lock and sessions_lock. */
void arena_set_access(struct arena *arena, const struct arena_options *options);

/* 2^order pages on the node, on the best kind of page there is; *pagep counts in the arena.  -ENOSPC: the arena's limit; -ENOMEM: the system's. */
int arena_pages_alloc(struct arena *arena, unsigned node, unsigned order, uint32_t *pagep);
void arena_pages_free(struct arena *arena, uint32_t page, unsigned order);
/* The same for a run of n_pages. */
int arena_run_alloc(struct arena *arena, unsigned node, uint32_t n_pages, uint32_t *pagep);
void arena_run_free(struct arena *arena, uint32_t page, uint32_t n_pages);

/* Units that a dead slabd had committed are; 0, or -EBADMSG.  Those that were coming or going are given back. */
int arena_adopt_units(struct arena_segment *s);
void arena_adopt_finish(struct arena_segment *s);

/* Pages of committed units that a slab has, on that node, by what a dead slabd says.  0, or -EBADMSG: they cannot be. */
int arena_adopt_pages(struct arena *arena, unsigned node, uint32_t page, uint32_t n_pages);
/* A reader has left: pages that were kept for it go back to the system.  So do those that could not before. */
void arena_trim(struct arena *arena);
/* Those of a segment, whose pages are held. */
void arena_let_go(struct arena_segment *s);

/*
 * Asks the kernel for transparent huge pages in the place of small ones, a unit after the other, until no unit waits for it or max_ns have passed; one is begun
 * in any case, and can take a hundred milliseconds on a busy machine.  true: units are left.  Not for who is answering a request.
 */
bool arena_collapse(struct arena *arena, uint64_t max_ns);
/* Has it any such pages? */
bool arena_has_thp(const struct arena *arena);

/* Pages of a segment, as its file has them. */
/* The number of the segment that a page lies in; n_segments: in none. */
uint32_t arena_segment_of(const struct arena *arena, uint32_t page);

struct segment_extent arena_extent(const struct arena_segment *s, uint32_t first_page, uint32_t n_pages);
/* "2 MiB pages". */
const char *arena_kind_name(const struct arena_segment *s);

/* Bytes of the segment that are free, and committed for those only who may still read there. */
uint64_t arena_kept_bytes(struct arena_segment *s);

static inline struct cache *
arena_cache(struct arena *arena, uint64_t id)
{
	/* order: CACHE acquire - pairs with cache_open() */
	return id > 0 && id < LAYOUT_MAX_CACHES ? atomic_read_acquire(&arena->caches[id]) : NULL;
}

/* The cache with the lowest id above that; NULL: no more. */
static inline struct cache *
arena_cache_after(struct arena *arena, uint64_t id)
{
	while (id < atomic_read(&arena->max_cache)) {
		struct cache *cache = arena_cache(arena, ++id);

		if (cache)
			return cache;
	}
	return NULL;
}

/* What the ledger says of an object, by its word. */
static inline enum slab_state
slab_get(const struct arena *arena, uint32_t word)
{
	return (enum slab_state)(atomic_read(&arena->bits[word / 16]) >> (word % 16 * 2) & 3);
}

static inline void
slab_set(struct arena *arena, uint32_t word, enum slab_state state)
{
	uint32_t *unit = &arena->bits[word / 16];
	unsigned shift = word % 16 * 2;

	/* One store, so that a killed slabd leaves the old or the new. */
	atomic_write(unit, (*unit & ~(3u << shift)) | (uint32_t)state << shift);
}

#endif
