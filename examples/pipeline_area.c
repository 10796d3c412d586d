/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memfd of the pipeline (pipeline.h): where things lie, bells, and the tables of counts.
 *
 * A table has one writer at a time, the counter in that place; the parent reads it when all have ended.  table_count() keeps the order of
 * stores that pipeline.h promises.  It trusts its own program: unlike slabd, this example has no enemies.
 */
#define _GNU_SOURCE 1
#include "pipeline.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void
area_layout(struct area *a)
{
	a->rings_off = (sizeof(struct area) + 4095) & ~(uint64_t)4095;
	a->tables_off = a->rings_off + (uint64_t)a->n_readers * a->n_counters * sizeof(struct ring);
	a->table_bytes = area_entries_off(a) + area_entry_bytes(a) * a->max_entries + a->max_text_bytes;
	a->table_bytes = (a->table_bytes + AREA_LINE - 1) & ~(uint64_t)(AREA_LINE - 1);
	a->size_bytes = a->tables_off + a->table_bytes * a->n_counters;
}

/* A cache's objects have one size for ever: a text with longer words gets a cache of its own. */
void
area_cache_name(const struct area *a, char *name, size_t n_bytes)
{
	if (a->object_bytes == 64)
		snprintf(name, n_bytes, "pipeline.word");
	else
		snprintf(name, n_bytes, "pipeline.word-%u", a->object_bytes);
}

struct area *
area_map(int fd, size_t size_bytes)
{
	void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Before the last look for work: what the bell says now. */
uint32_t
bell_listen(struct bell *b)
{
	/* order: BELL acquire - pairs with bell_ring() */
	uint32_t heard = __atomic_load_n(&b->n_rung, __ATOMIC_ACQUIRE);

	__atomic_store_n(&b->is_asleep, 1, __ATOMIC_RELAXED);
	/* Between this store and the next look for work; in bell_ring() between the work and the look at is_asleep: one of the two sees. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return heard;
}

/* Until the bell rings, or AREA_WAIT_MS: a ringer may have been killed before it rang. */
void
bell_sleep(struct bell *b, uint32_t heard)
{
	struct timespec wait = {0, AREA_WAIT_MS * 1000000L};

	syscall(SYS_futex, &b->n_rung, FUTEX_WAIT, heard, &wait, NULL, 0);
	bell_wake_up(b);
}

void
bell_wake_up(struct bell *b)
{
	__atomic_store_n(&b->is_asleep, 0, __ATOMIC_RELAXED);
}

/* After work was made. A bell that nobody sleeps at costs a fence and a load. */
void
bell_ring(struct bell *b)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&b->is_asleep, __ATOMIC_RELAXED))
		return;
	/* order: BELL release - the work is visible to who hears it */
	__atomic_fetch_add(&b->n_rung, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &b->n_rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The entry of a word, made if it is not there; NULL: no room. */
static struct table_entry *
table_entry_of(struct area *a, struct table *t, uint64_t hash, const struct word *word)
{
	uint32_t mask = a->index_slots - 1;
	uint32_t slot = (uint32_t)(hash >> 32) & mask;
	struct table_entry *e;
	uint32_t number, text_off;

	for (; t->index[slot] != 0; slot = (slot + 1) & mask) {
		e = area_entry(a, t, t->index[slot] - 1);
		if (e->hash == hash && e->n_bytes == word->n_bytes && memcmp(area_text(a, t) + e->text_off, word->text, e->n_bytes) == 0)
			return e;
	}
	if (t->n_entries == a->max_entries || word->n_bytes > a->max_text_bytes - t->n_text)
		return NULL;
	/* Room is taken first and the index stored last: a kill between wastes the room, and nobody finds half an entry. */
	number = t->n_entries;
	text_off = t->n_text;
	__atomic_store_n(&t->n_text, text_off + word->n_bytes, __ATOMIC_RELEASE);
	__atomic_store_n(&t->n_entries, number + 1, __ATOMIC_RELEASE);
	e = area_entry(a, t, number);
	memcpy(area_text(a, t) + text_off, word->text, word->n_bytes);
	e->hash = hash;
	e->text_off = text_off;
	e->n_bytes = word->n_bytes;
	/* Release: the entry is whole before it can be found. Who else looks, a successor or the parent, does so after this process's end.
	 */
	__atomic_store_n(&t->index[slot], number + 1, __ATOMIC_RELEASE);
	return e;
}

int
table_count(struct area *a, unsigned counter, unsigned reader, uint64_t position, const struct word *word)
{
	uint64_t hash = text_hash(word->text, word->n_bytes);
	struct table_entry *e = table_entry_of(a, area_table(a, counter), hash, word);
	uint32_t upto = (uint32_t)position + 1;
	uint64_t cell;

	if (!e)
		return -ENOSPC;
	cell = e->cell[reader];
	if ((uint32_t)cell == upto)
		return 0;
	/* One store counts the word and says that it is counted. */
	__atomic_store_n(&e->cell[reader], ((cell >> 32) + 1) << 32 | upto, __ATOMIC_RELEASE);
	return 0;
}
