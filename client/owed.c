/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frees that are owed: no sheaf had room, and slabd, silent or unable, gave none.
 *
 * Such a free is one that has stopped half-way: the object's word is CLOSING, and names this client still, but the object is in no sheaf.  So nobody
 * else can take it, a second free of it is a double free, and if the process is killed slabd frees it, as it does any that a kill met there (I1).
 * Its place is kept in the handle's list, in memory of the process's own, and goes into a sheaf when a thread next leaves the fast path and finds room
 * (not too many, so that no call takes long for it), at a shrinking, and at the handle's and the session's end.  An object without a word (SLABC_NO_OWNER) is
 * known by the list alone, and lost with it.
 *
 * The list is guarded by library_lock, and its memory mapped, not malloc'd: a handler that interrupted malloc may come by.
 */
#include "client/internal.h"

#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BYTES = 65536, OWED_A_TURN = 8192, OWED_A_TURN_SINGLE = 64 };

struct owed_chunk {
	struct owed_chunk *next;
	uint32_t n;
	uint32_t place[(CHUNK_BYTES - 16) / sizeof(uint32_t)];
};
_Static_assert(sizeof(struct owed_chunk) <= CHUNK_BYTES, "owed_chunk");

/* library_lock held. */
static struct owed_chunk *
chunk_with_room(struct slabc_cache *k)
{
	struct owed_chunk *chunk = k->owed;

	if (chunk && chunk->n < sizeof(chunk->place) / sizeof(chunk->place[0]))
		return chunk;
	chunk = mmap(NULL, sizeof(*chunk), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (chunk == MAP_FAILED)
		return NULL;
	chunk->next = k->owed;
	k->owed = chunk;
	return chunk;
}

int
owed_add(struct slabc_cache *k, uint32_t place)
{
	struct owed_chunk *chunk;

	pthread_mutex_lock(&library_lock);
	chunk = chunk_with_room(k);
	if (chunk) {
		chunk->place[chunk->n++] = place;
		atomic_write(&k->n_owed, k->n_owed + 1);
	}
	pthread_mutex_unlock(&library_lock);
	return chunk ? 0 : error_set(ENOMEM, "cache '%s': slabd gives no room for a free, and there is no memory to put it off", k->name);
}

/* The second half of a free.  false: there is no room in s. */
static bool
finish(const struct slabc_cache *k, struct sheaf *s, uint32_t place)
{
	bool is_done = false;
	uint32_t n;

	if (s == &no_sheaf)
		return false;
	sheaf_enter(s);
	n = atomic_read(&s->size);
	if (n < thread_limit(k, s)) {
		atomic_write(&s->entry[n], place);
		/* order: SHEAF_SIZE release - the entry lies below the size that covers it */
		atomic_write_release(&s->size, n + 1);
		STEP(FREE_GROWN);
		if (!k->is_wordless) {
			uint32_t *word = sheaf_word(&k->v, place);

			/* order: WORD release - the object is in the sheaf before its word is clear */
			atomic_write_release(word, word_cleared(atomic_read(word)));
		}
		STEP(FREE_CLEARED);
		is_done = true;
	}
	sheaf_leave(s);
	return is_done;
}

/* One of the list into main.  false: there is no room, or no more of them. */
static bool
pay_one(struct slabc_cache *k, struct sheaf *s)
{
	struct owed_chunk *chunk;
	bool is_done;

	pthread_mutex_lock(&library_lock);
	chunk = k->owed;
	is_done = chunk && finish(k, s, chunk->place[chunk->n - 1]);
	if (is_done) {
		atomic_write(&k->n_owed, k->n_owed - 1);
		if (--chunk->n == 0) {
			k->owed = chunk->next;
			munmap(chunk, sizeof(*chunk));
		}
	}
	pthread_mutex_unlock(&library_lock);
	return is_done;
}

/* Up to n of them.  Stops when room is not to be had. */
static void
pay(struct slabc_cache *k, struct thread_block *tb, uint32_t n)
{
	int64_t deadline = 0;

	for (uint32_t i = 0; i < n && atomic_read(&k->n_owed) > 0;) {
		if (pay_one(k, tb->main[k->v.index])) {
			i++;
			deadline = 0;
			thread_settle(k, tb, &deadline);
		} else if (thread_make_room(k, tb, &deadline) < 0) {
			return;
		}
	}
}

void
owed_pay(struct slabc_cache *k, struct thread_block *tb)
{
	if (__builtin_expect(atomic_read(&k->n_owed) > 0, 0))
		pay(k, tb, k->is_single ? OWED_A_TURN_SINGLE : OWED_A_TURN);
}

void
owed_pay_all(struct slabc_cache *k)
{
	struct thread_block *tb;

	if (atomic_read(&k->n_owed) == 0 || thread_get(k, &tb) < 0)
		return;
	/* Now or never: slabd is asked again. */
	atomic_write(&k->c->given_up_ns, 0);
	pay(k, tb, UINT32_MAX);
}

void
owed_forget(struct slabc_cache *k)
{
	while (k->owed) {
		struct owed_chunk *chunk = k->owed;

		k->owed = chunk->next;
		munmap(chunk, sizeof(*chunk));
	}
	atomic_write(&k->n_owed, 0);
}
