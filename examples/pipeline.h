/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of the pipeline share, beside the objects themselves: one memfd, made by the parent, found by its number.
 *
 *     0                 one line each                        rings_off                  tables_off
 *     +---------------+----------------+-------------------+--------------------------+---------------------------+
 *     | struct area   | readers[64]    | counters[64]      | ring[reader][counter]    | table of counter 0, 1 ... |
 *     +---------------+----------------+-------------------+--------------------------+---------------------------+
 *
 *     ring:  | head, is_closed | tail | slabc_ref slot[AREA_RING_ENTRIES] |     one reader writes, one counter reads
 *     table: | n_entries, n_text | index[index_slots] | entries[max_entries], each with a cell a reader | text |
 *
 * Promise: a counter may be killed at any instruction, and its successor goes on so that every word is counted once and freed once.
 *   - tail moves past a reference only after its object was counted and freed:  done [0, tail)  under way at most tail  to do (tail, head)
 *   - a cell is one 64-bit store {count, upto}: words of this spelling from this reader, and the ring position behind the last one counted.
 *     A successor that meets position tail again sees upto == tail + 1 if the word was counted already, and does not count it twice.
 *   - an entry of the table is reached through index[] only, and the index is stored last; what a kill leaves unreached has count 0.
 * Stores of one process become visible in program order, so a kill leaves a prefix of them; nothing here needs a lock or a repair pass.
 * The objects need no such care: slabd knows who holds them, and a reference that was freed says ESTALE (see counter_handle_again()).
 */
#ifndef SLAB_EXAMPLES_PIPELINE_H
#define SLAB_EXAMPLES_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <slabclient.h>

enum {
	AREA_MAX_READERS = 64,
	AREA_MAX_COUNTERS = 64,
	AREA_RING_ENTRIES = 2048,
	AREA_PUBLISH_BATCH = 32, /* references a reader writes before it moves head */
	AREA_HANDLE_BATCH = 256, /* references a counter handles before it looks whether somebody waits for room */
	AREA_LINE = 64,
	AREA_WAIT_MS = 100, /* no wait is longer: then one looks again, also at is_stopped */
};
#define AREA_MAX_WORDS 4000000000u /* a ring position fits 32 bits */

/* A word, as an object in slabd's memory. */
struct word {
	uint32_t n_bytes;
	char text[]; /* lower case, no NUL */
};

/* One bell: the sleeper says so and looks once more before it sleeps; who made work looks whether somebody sleeps after it did (BELL). */
struct bell {
	uint32_t n_rung;
	uint32_t is_asleep;
};

/* One line for each process place. A successor has the same place. */
struct area_reader {
	_Alignas(AREA_LINE) struct bell room; /* rung by counters */
	uint64_t n_made;                      /* objects allocated.  W: reader. R: parent */
};

struct area_counter {
	_Alignas(AREA_LINE) struct bell work; /* rung by readers */
	uint64_t n_freed;                     /* objects freed by those who had this place.  W: counter. R: parent */
	uint64_t n_found_freed;               /* references a successor found freed already, but not passed: 0 or 1 */
	uint64_t n_adopted;                   /* references a successor looked at with care, and adopted */
};

struct area {
	uint64_t size_bytes;
	uint64_t rings_off;
	uint64_t tables_off;
	uint64_t table_bytes;
	uint64_t n_words;      /* to be produced in all */
	uint32_t object_bytes; /* size of the cache's objects: the longest word fits */
	uint32_t index_slots;  /* power of two */
	uint32_t max_entries;
	uint32_t max_text_bytes;
	uint32_t n_readers;
	uint32_t n_counters;
	int32_t parent_pid;
	uint32_t is_stopped; /* W: parent, when something failed. R: all */
	uint32_t is_gated;   /* readers stop at three quarters of their share until the parent clears it, so that a kill comes midway */
	struct area_reader readers[AREA_MAX_READERS];
	struct area_counter counters[AREA_MAX_COUNTERS];
};

struct ring {
	_Alignas(AREA_LINE) uint64_t head; /* W: reader (RING_HEAD). R: counter */
	uint32_t is_closed;                /* W: reader, after its last head (RING_CLOSED). R: counter */
	_Alignas(AREA_LINE) uint64_t tail; /* W: counter (RING_TAIL). R: reader, parent */
	_Alignas(AREA_LINE) slabc_ref slot[AREA_RING_ENTRIES];
};

struct table_entry {
	uint64_t hash;
	uint32_t text_off;
	uint32_t n_bytes;
	uint64_t cell[]; /* one a reader: count << 32 | upto */
};

struct table {
	uint32_t n_entries;
	uint32_t n_text;
	uint32_t index[]; /* entry number + 1; 0: none */
};

/* The text: files one after another, for ever. A word may run from the end of one into the start of the next, as it does for cat | tr. */
struct text {
	char *bytes;
	size_t n_bytes;
	size_t at;
	uint64_t n_passes; /* how often the end was reached */
};

/* A worker's command line. */
struct role {
	unsigned number;
	bool is_successor;  /* of a counter that was killed */
	const char *socket; /* NULL: the default */
	struct area *area;
	struct text *text; /* readers only */
};

static inline struct ring *
area_ring(struct area *a, unsigned reader, unsigned counter)
{
	return (struct ring *)(void *)((char *)a + a->rings_off) + (size_t)reader * a->n_counters + counter;
}

static inline struct table *
area_table(struct area *a, unsigned counter)
{
	return (struct table *)(void *)((char *)a + a->tables_off + a->table_bytes * counter);
}

static inline size_t
area_entry_bytes(const struct area *a)
{
	return sizeof(struct table_entry) + (size_t)a->n_readers * sizeof(uint64_t);
}

static inline size_t
area_entries_off(const struct area *a)
{
	return (sizeof(struct table) + (size_t)a->index_slots * sizeof(uint32_t) + 7) & ~(size_t)7;
}

static inline struct table_entry *
area_entry(const struct area *a, struct table *t, uint32_t number)
{
	return (struct table_entry *)(void *)((char *)t + area_entries_off(a) + area_entry_bytes(a) * number);
}

static inline char *
area_text(const struct area *a, struct table *t)
{
	return (char *)t + area_entries_off(a) + area_entry_bytes(a) * a->max_entries;
}

/* pipeline_area.c.  The bytes of an area with these numbers (sets the offsets); one that is mapped already; bells. */
void area_layout(struct area *a);
void area_cache_name(const struct area *a, char *name, size_t n_bytes);
struct area *area_map(int fd, size_t size_bytes);
uint32_t bell_listen(struct bell *b);
void bell_sleep(struct bell *b, uint32_t heard);
void bell_wake_up(struct bell *b);
void bell_ring(struct bell *b);

/* Counts a word once, however often it is asked to. Returns -ENOSPC if the table, made for the whole text, is full: that has changed. */
int table_count(struct area *a, unsigned counter, unsigned reader, uint64_t position, const struct word *word);

/* pipeline_text.c.  0 or -errno, said on stderr. text_next(): the length, of which max_bytes are stored; 0: no word, or one without end. */
uint64_t text_hash(const char *bytes, size_t n_bytes);
int text_load(struct text *t, char *const *files, size_t n_files);
size_t text_next(struct text *t, char *word, size_t max_bytes);

/* pipeline_worker.c.  Exit statuses. */
int reader_main(const struct role *role);
int counter_main(const struct role *role);

/* What the counters counted of one word. */
struct total {
	const char *text; /* no NUL */
	uint32_t n_bytes;
	uint64_t count;
};

/* pipeline_verify.c.  All counters' tables in one array, words ascending: *totalsp is the caller's. Returns how many, or -errno. */
int64_t totals_of(struct area *a, struct total **totalsp);
/* Lets cat | tr | sort | uniq -c count the first n_words of n_passes over the files, and compares. 0: equal; -errno, said on stderr. */
int totals_verify(const struct total *totals, size_t n_totals, uint64_t n_words, uint64_t n_passes, char *const *files, size_t n_files);

#endif
