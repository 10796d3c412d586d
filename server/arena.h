/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena: one named space of objects: its segments, word table, page map, ledger, caches and sessions.
 *
 * Lock ranks, in acquisition order: sessions, registry, session work (session.h), list_lock (node.h), then ledger, pages, words, roots
 * and stashes (stash.h), which are leaves, but that readers is taken under pages.  A request on a session holds `sessions` for reading, and so does whoever uses a struct cache; only the appearance and
 * the end of a session, and what changes a cache for all (tuning, destroying), take it for writing.
 */
#ifndef SLAB_SERVER_ARENA_H
#define SLAB_SERVER_ARENA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/access.h"
#include "server/ladder.h"
#include "server/pages.h"
#include "server/profile.h"
#include "server/readers.h"
#include "server/root.h"
#include "server/slab.h"
#include "server/topology.h"
#include "server/words.h"
#include "shm/atomic.h"
#include "shm/layout.h"

struct session;

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
	/* Why the last commit, or collapse, failed: said once for each reason. */
	int said_commit;
	int said_collapse;
	uint32_t first_page;
	uint32_t n_pages;
	struct pages pages;
};

struct arena {
	char name[64];
	struct arena_options options; /* a reload changes access, max_sessions, client_max and client_min (sessions_lock), max_caches (registry_lock) */
	struct topology topology;

	int fd; /* arena segment, word table and ledger */
	int fd_readonly;
	int words_fd;
	int words_fd_readonly;
	int ledger_fd;
	uint64_t bytes; /* of the arena segment */
	uint64_t words_bytes;
	uint64_t ledger_bytes;
	struct layout_arena *head;
	struct layout_cache *shown; /* by cache id */
	struct layout_page *page_map;
	uint32_t *words;

	struct arena_segment segments[LAYOUT_MAX_SEGMENTS];
	unsigned n_segments;
	uint32_t n_pages;
	uint64_t committed_bytes; /* atomic: of all segments */
	uint64_t n_misplaced;     /* atomic: pages that were found on another node than asked for */
	bool is_made;             /* the reserve is there, and clients may come */
	uint64_t thp_bytes;       /* atomic: committed units that are transparent huge pages */
	uint64_t n_refused;       /* atomic: peers that might not */
	uint64_t n_recalls;       /* atomic: barriers issued; sheaves taken from threads; and those found busy (recall.c) */
	uint64_t n_recalled_sheaves;
	uint64_t n_recall_busy;
	uint64_t n_repaired;      /* atomic: lost objects taken back (repair.h); and when repair_arena() may look again */
	uint64_t repair_due_ns;
	uint64_t refused_ns;      /* atomic: when recall_relieve() had no means left, having waited for who was busy */
	int recall_error;         /* atomic: why no barrier can be issued; 0: it can */
	char top_holder[STATS_TOP_BYTES]; /* who held most at top_ns (stats.h); under ledger_lock */
	int64_t top_ns;           /* 0: not looked yet */
	char page_note[256];      /* what was wanted, what was got, what would change it; under ledger_lock */

	pthread_mutex_t ledger_lock; /* the descriptors' free list */
	struct slab *slabs;
	uint32_t *bits;
	uint32_t n_slabs; /* descriptors ever used; atomic */
	uint32_t max_slabs;
	uint32_t free_slab;
	struct words words_runs;
	/* Words below this have been given the arena's first generation; under ledger_lock. */
	uint64_t n_seeded;
	uint32_t first_generation;

	pthread_mutex_t registry_lock;
	struct cache *caches[LAYOUT_MAX_CACHES]; /* atomic: by id. Set to NULL again only under sessions_lock for writing */
	unsigned n_caches;
	unsigned max_cache;  /* atomic: no id above this was ever used */
	unsigned last_cache; /* the id given out last: they are used in turn, a destroyed cache's as late as can be */

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
	unsigned n_sessions;
	uint32_t incarnations[LAYOUT_MAX_CLIENTS + 1];
	uint8_t named[LAYOUT_MAX_CLIENTS + 1]; /* words may still name the dead session of this slot */
	struct session_dead *dead[LAYOUT_MAX_CLIENTS + 1]; /* who that was; NULL: not known */
	int64_t forgotten_ns; /* the last end of a session whose name words were made to forget (WORD_ORPHAN); 0: none was */
	unsigned n_named;
	pthread_mutex_t quota_lock; /* over a count (quota.c); taken after a session's work */
	uint64_t counted_ns;        /* when the last one was; any loop's guess */
	struct stats_census *census; /* of the last walk (stats.c); under registry_lock */
};

/* Whether such an arena can be made here: 0, or -EINVAL and a sentence. Sets nothing up. */
int arena_check(const struct arena_options *options, char *why, size_t why_size);

/* Its limit in whole units of pages, as it will be. */
uint64_t arena_rounds_to(const struct arena_options *options);

/* Makes the arena's segments and commits its reserve.  0, or a negative errno with a sentence in why. */
int arena_new(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size);
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

/* A reader has left: pages that were kept for it go back to the system. */
void arena_trim(struct arena *arena);

/*
 * Asks the kernel for transparent huge pages in the place of small ones, a unit after the other, until no unit waits for it or max_ns have passed; one is begun
 * in any case, and can take a hundred milliseconds on a busy machine.  true: units are left.  Not for who is answering a request.
 */
bool arena_collapse(struct arena *arena, uint64_t max_ns);
/* Has it any such pages? */
bool arena_has_thp(const struct arena *arena);
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
