/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session: one process's tie to an arena: its client slot, its session segment, its sheaf slots.
 *
 *   LIVE --socket's end, process alive and still mapping the segment--> DETACHED
 *   LIVE, DETACHED --death (I5)--> DYING --drained, words walked (reaper.h)--> gone
 *
 * Work on a session is serial: `work` is held by whoever grants to it or takes back from it; who finds it DYING then leaves it to the reaper.
 * What the client can write is read through map and believed nowhere; where a slot lies, what it holds at most and for which cache stands in
 * slots[], slabd's own.
 */
#ifndef SLAB_SERVER_SESSION_H
#define SLAB_SERVER_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/arena.h"
#include "server/cache.h"
#include "shm/layout.h"
#include "shm/sheaf.h"

struct stash;

enum session_state { SESSION_LIVE, SESSION_DETACHED, SESSION_DYING };

/* How often a process barn has not changed, and what it looked like then (recall.c); as of a slot. */
struct session_barn {
	uint64_t sign;
	uint32_t n_same;
};

/* Sizes of slots: 32 bytes to 4,096. */
enum { SESSION_SLOT_SIZES = 8 };

/* What the session has, in bytes (quota.h): as counted last, of that in objects; granted and taken since. */
struct session_quota {
	uint64_t counted; /* atomic, as granted, taken and missing: others' loops read them */
	uint64_t held;
	uint64_t wordless; /* of counted: its share of what is in use without owner words */
	uint64_t missing;  /* on top of counted: what it may have of what is in no word and no sheaf, at most */
	uint64_t granted;
	uint64_t taken;
	uint64_t granted_before; /* before the count under way */
	uint64_t taken_before;
	bool is_marked;
	uint64_t counted_ns; /* when a call for this session counted last, and how often such did */
	uint64_t n_counts;
	uint32_t n_refused;  /* in a row */
};

struct session {
	struct arena *arena;
	struct session *next; /* of the arena; under sessions_lock */
	struct session **prevp;
	uint32_t client; /* slot: word_owner */
	uint32_t id;     /* what clients and tools are told: slot and life */
	enum session_state state;
	pid_t pid;
	uid_t uid;
	gid_t gid;
	char label[32];
	bool is_readonly;
	struct reader reader;
	bool is_recallable;  /* slabd's membarrier reaches its threads */
	uint64_t n_recalled; /* atomic: sheaves taken from its threads */
	uint64_t token;     /* the ledger's; 0: nobody can take the session up again */
	unsigned loop;      /* where its connection is (slabd.h) */
	uint64_t n_faults;  /* atomic: things that no correct client does */
	uint64_t n_own_faults; /* atomic: those of them that only its own process can have done */
	uint64_t n_reports; /* atomic: what it said of itself */
	/* The reaper's (reaper.h): with whom it is reaped, and what became of the objects that named it. */
	struct session *next_dying;
	uint64_t n_freed;
	uint64_t n_kept;

	pthread_mutex_t work; /* guards everything below, and the slots' holders on slabd's side */
	int pidfd;          /* of one that was adopted, until its connection has it; -1 */
	uint64_t asking_ns; /* what the last session_is_mapped_by_client() took */
	int fd;               /* session segment; -1 in a read-only session */
	void *map;
	void *copy; /* a private mapping, which the segment is drained from when map could not be had again; NULL: none */
	bool is_bounded; /* what is taken back may be out of a copy of the segment, so that only the ledger's slots tell the next slabd */
	struct session_slot *slots; /* this, has_open, n_drawn and bytes_drawn are the ledger's */
	uint32_t n_slots;
	uint32_t end_off; /* where the next slot goes */
	uint32_t free_slots[SESSION_SLOT_SIZES]; /* slot + 1 */
	uint8_t *has_open; /* a bit for each cache */
	/* By cache: objects lent to it or set aside for it, less those taken back from it; below 0: it frees what others allocate. Atomic: quotas add them up. */
	int64_t *n_drawn;
	int64_t *bytes_drawn; /* the same of all caches with owner words; atomic */
	struct stash *stashes[LAYOUT_MAX_CACHES]; /* by cache; stash_of() */
	struct session_barn barns[LAYOUT_MAX_CACHES];
	struct session_quota quota;
};

struct session_who {
	pid_t pid;
	uid_t uid;
	gid_t gid;
	const char *label;
	bool is_readonly;
	bool is_recallable;
	int pidfd; /* kept for the next slabd, if there is a store */
};

/* Appears in the arena.  0, or a negative errno with a sentence: -EUSERS no client slot, -EDQUOT the user has its share, -EBUSY slabd drains, -ENOMEM.  Takes sessions_lock. */
int session_new(struct session **sessionp, struct arena *arena, const struct session_who *who, char *why, size_t why_size);

/* Leaves the arena; its sheaves are drained and its words walked. still_named: words may go on naming the client, whose slot then waits. */
void session_end(struct session *session, bool still_named);

/*
 * Visits this session (NULL: none more), whose work is held, and every other one that lives and on which nobody works just now, holding its work.
 * sessions_lock held for reading.
 */
void session_for_each(
	struct arena *arena, struct session *mine, struct cache *cache, void (*visit)(struct session *session, struct cache *cache));
/* Nothing is granted to it any more, by this slabd or the next.  work held. */
void session_mark_dying(struct session *session);

/* Its client has another connection: refills that were on their way over the old one are not any more. */
void session_resume(struct session *session);

/* The session of a client slot that the ledger says lives, of a dead slabd's; fd, its segment, is taken over (-1: read-only).  0; or a negative errno and a
 * sentence that says what does not agree, and fd is closed. */
int session_adopt(struct session **sessionp, struct arena *arena, uint32_t client, int fd, char *why, size_t why_size);

/* Without a word to the ledger: the next slabd finds it as it is. */
void session_leave(struct session *session);

/* Does the process still map its session segment?  Only if its socket has ended.  Takes sessions_lock for writing, since nobody may use the map meanwhile. */
bool session_is_mapped_by_client(struct session *session);
/* The session is to be reaped: by the private mapping, if there is no other. */
void session_take_copy(struct session *session);

static inline struct layout_session *
session_head(const struct session *session)
{
	return session->map;
}

static inline struct layout_session_cache *
session_cache(const struct session *session, uint32_t cache)
{
	return (struct layout_session_cache *)((char *)session->map + LAYOUT_SESSION_CACHES_OFF) + cache;
}

static inline struct layout_slot *
session_slots(const struct session *session)
{
	return (struct layout_slot *)((char *)session->map + LAYOUT_SESSION_SLOTS_OFF);
}

static inline struct sheaf *
session_sheaf(const struct session *session, uint32_t slot)
{
	return (struct sheaf *)((char *)session->map + session->slots[slot].off);
}

static inline bool
session_has_open(const struct session *session, uint32_t cache)
{
	return session->has_open[cache / 8] >> (cache % 8) & 1;
}

/* So many objects of the cache, and bytes, were lent or set aside, or (below 0) taken back. work held. */
static inline void
session_drew(struct session *session, const struct cache *cache, int64_t n, int64_t bytes)
{
	atomic_write(&session->n_drawn[cache->id], session->n_drawn[cache->id] + n);
	if (!(cache->flags & LAYOUT_CACHE_NO_OWNER))
		atomic_write(session->bytes_drawn, *session->bytes_drawn + bytes);
}

/* The last to close a cache leaves no sheaf in its node barns and no empty slab behind; lost objects are looked for then (sweep.h). Takes list_locks; sessions_lock held. */
void session_set_open(struct session *session, struct cache *cache, bool is_open);

/*
 * An empty slot in slabd's hands for a sheaf of that capacity: a free one or a new one; _get first looks on the client's list of empty ones.
 * The slot, or -EDQUOT: the session has all its slots.  work held.
 */
int32_t session_slot_lend(struct session *session, const struct cache *cache, uint32_t capacity);
int32_t session_slot_get(struct session *session, const struct cache *cache, uint32_t capacity);

/* Takes a lent slot back if its holder is `from`; false: it is not, or slabd has the slot, whatever the word says. work held. */
bool session_slot_take(struct session *session, uint32_t slot, uint32_t from);

/* The slot is in slabd's hands, and empty: it may be lent again for anything. work held. */
void session_slot_put(struct session *session, uint32_t slot);

/* Entries of a slot: what the client claims, as far as it can be true.  Bytes of objects in all of its slots, or only of those with owner words. Nothing need be held but sessions_lock. */
uint32_t session_slot_entries(const struct session *session, uint32_t slot);
uint64_t session_idle_bytes(const struct session *session, bool is_with_words);

/* Things that no correct client does: what slabd met, and bad frees that the client counted. */
uint64_t session_count_faults(const struct session *session);

/* What a client says of itself: logged with its name, so many a session. */
void session_report(struct session *session, const char *what);

/*
 * Something that no correct client does: counted, logged with its name at each power of two.  Of what lies in the session's own segment, apart from the
 * objects that it names, nobody else can have done it: _own; more than the arena's max-faults of these, and the session is evicted.  A sheaf's objects, and
 * their words, others of the arena can spoil.
 */
void session_fault(struct session *session, const char *what);
void session_fault_own(struct session *session, const char *what);

#endif
