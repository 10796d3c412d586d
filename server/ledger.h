/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of an arena: what the next slabd must know if this one is killed, in one sparse memfd that no client ever gets.
 *
 *   struct ledger_head            what the arena is, and a few counts
 *   struct ledger_cache[512]      caches, by id
 *   struct ledger_client[16383]   sessions, by client slot
 *   incarnations, named, dead     lives of client slots, and who the dead were that words may still name
 *   struct root[65536]            named references
 *   units                         a byte for each unit of each data segment: LEDGER_UNIT_
 *   struct slab[], bits           slab descriptors, and where each object is (slab.h)
 *   drawn                         of each session, by cache: objects lent to it
 *   struct session_slot[16384]    of each session: its sheaves' slots
 *
 * Nothing here has a twin that counts: the structs of arena.h, cache.h and session.h point into it.  What can be derived is not here: partial
 * lists, counts of free objects, page and word allocators, node barns (their objects become FREE), stashes (their objects are taken back as lost).
 *
 * A slabd can be killed between any two stores.  So each change is one store (the field that says "there is one" comes last, when it appears,
 * and first, when it goes), or it can be made again:
 *
 *   session    descriptors kept (store.h), THEN its life, THEN the rest, THEN state.   Its end: state DYING, reaped, THEN its name, THEN state NONE.
 *   cache      knobs, THEN recip.     Its end: no slab, no slot with its id, THEN recip 0.
 *   slab       descriptor, THEN its cache, THEN page map.   Its end: cache 0, THEN page map (incarnation first), THEN its pages are free.
 *              So a page that the map gives to a slab, and no slab has, was going; one that a slab has and the map does not, was coming.
 *   unit       COMMITTING, THEN its pages, THEN COMMITTED.  Its end: no slab in it, THEN GIVING, THEN the hole, THEN ABSENT.
 *   root       name, THEN ref.        Its end: ref 0.
 *
 * Whoever adopts (adopt.h) believes this file's structs as far as they are within bounds, and the page map where it agrees with them.
 */
#ifndef SLAB_SERVER_LEDGER_H
#define SLAB_SERVER_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/root.h"
#include "shm/layout.h"

struct arena;

#define LEDGER_MAGIC UINT64_C(0x31726567646562c5)

/* States of a unit of pages. */
enum { LEDGER_UNIT_ABSENT, LEDGER_UNIT_COMMITTING, LEDGER_UNIT_COMMITTED, LEDGER_UNIT_COLLAPSED, LEDGER_UNIT_GIVING };

/* States of a client slot's session. */
enum { LEDGER_CLIENT_NONE, LEDGER_CLIENT_LIVE, LEDGER_CLIENT_DYING };

/* A data segment. */
struct ledger_segment {
	uint32_t first_page;
	uint32_t n_pages;
	uint16_t node;
	uint8_t kind; /* LAYOUT_PAGES_ */
	uint8_t is_thp;
	uint32_t unit_order;
	uint32_t os_node;
};

struct ledger_head {
	/* Whose it is: these stay where they are in every version, for whoever cannot read the rest to say so. */
	uint64_t magic;
	uint64_t layout_hash;
	uint64_t ledger_hash;
	uint32_t layout_version;
	char server[32];
	/* Of this memfd, of the arena segment and of the word table. */
	uint64_t ledger_bytes;
	uint64_t arena_bytes;
	uint64_t words_bytes;
	/* Process that writes here. */
	uint32_t writer;
	/* Options, as they were when the arena was made. */
	char name[64];
	uint64_t limit_bytes;
	uint64_t reserve_bytes;
	uint32_t page_kind;
	uint32_t profile;
	/* Place space. */
	uint32_t n_pages;
	uint32_t n_nodes;
	uint32_t n_segments;
	uint32_t n_units;
	uint32_t max_slabs;
	/* Slab descriptors ever used; client slots and entries of roots ever used: from there on nothing was written. */
	uint32_t n_slabs;
	uint32_t n_clients;
	uint32_t n_roots;
	/* Words below this have been given the arena's first generation. */
	uint64_t n_seeded;
	uint32_t first_generation;
	/* Cache id given out last. */
	uint32_t last_cache;
	/* The last end of a session whose name words were made to forget (WORD_ORPHAN), CLOCK_MONOTONIC; 0: none was. */
	int64_t forgotten_ns;
	struct ledger_segment segments[LAYOUT_MAX_SEGMENTS];
};

/* As the fields of struct cache. */
struct ledger_cache {
	uint32_t recip; /* 0: no such cache */
	uint32_t flags;
	uint32_t object_size;
	uint32_t align;
	uint32_t object_bytes;
	uint32_t head;
	uint32_t order;
	uint32_t min_order;
	uint32_t n_slab_objects;
	uint32_t capacity;
	uint32_t is_sheafless;
	uint32_t barn_full;
	uint32_t barn_empty;
	uint32_t is_empty_default;
	uint32_t min_partial;
	uint32_t cpu_partial;
	uint32_t cpu_partial_slabs;
	uint32_t policy;
	uint64_t max_cached;
	char name[48];
};

struct ledger_client {
	uint32_t state; /* LEDGER_CLIENT_ */
	uint32_t is_readonly;
	uint32_t is_recallable;
	/* What the session's client must say to take it up again; 0: it cannot. */
	uint64_t token;
	int32_t pid;
	uint32_t uid;
	uint32_t gid;
	char label[32];
	/* What was lent to it, as of drawn, in bytes, of all caches with owner words. */
	int64_t bytes_drawn;
	/* A bit for each cache. */
	uint8_t has_open[LAYOUT_MAX_CACHES / 8];
};

/* Slabd's word on a slot of a session. */
struct session_slot {
	uint32_t off; /* bytes, in the segment */
	uint16_t capacity; /* of a session that is dying: entries that have not been taken back */
	uint16_t cache; /* 0: with nobody, on the free list of its size */
	uint32_t next;  /* free list: slot + 1; means nothing to an adopter */
	uint32_t bytes; /* power of two; 0: no such slot yet */
	bool is_lent;   /* in the client's hands: only then may its holder word give it back */
	uint32_t n_same; /* ticks for which it has not changed, and what it looked like then (recall.c) */
	uint64_t sign;
};

/* What is kept of a session that has ended as long as words may name it. */
struct session_dead {
	pid_t pid;
	uid_t uid;
	int64_t ended_ns; /* CLOCK_MONOTONIC */
	char label[32];
};

struct root {
	uint64_t ref; /* 0: no root */
	char name[ROOT_NAME_BYTES];
};

/* Made at build time from this file and slab.h. */
extern const uint64_t ledger_hash;

/* This process writes it from here on. */
void ledger_sign(struct ledger_head *head);

/* Where the ledger has its caches and its clients, whatever their number. */
uint64_t ledger_caches_off(void);
uint64_t ledger_clients_off(void);

/* Bytes of a ledger for so many units, slabs and words. */
uint64_t ledger_bytes(uint32_t n_units, uint32_t max_slabs, uint64_t n_words);

/* Points the arena's pointers into the ledger that is mapped at arena->ledger; ledger->n_units, max_slabs and arena->words_bytes are known. */
void ledger_point(struct arena *arena);

/* Of a session: its slots, LAYOUT_MAX_SLOTS, and its LAYOUT_MAX_CACHES counts; both are 0 after ledger_clear_session(), and cost no memory. */
struct session_slot *ledger_slots(const struct arena *arena, uint32_t client);
int64_t *ledger_drawn(const struct arena *arena, uint32_t client);
/* 0, or a negative errno. */
int ledger_clear_session(const struct arena *arena, uint32_t client);

#endif
