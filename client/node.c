/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: what is freed on another node than it lies on bypasses the thread's sheaves (design.md, section 4), so that nobody here allocates
 * what is far away.
 *
 * It goes into the away sheaf: an ordinary one that is only pushed to, handed back to slabd when it is full or dropped, never to the
 * process barn; slabd puts each object home when it takes it.  Others' objects go through the foreign sheaf first (foreign.c).  Where no
 * away sheaf is to be had, and in a handler that interrupted the library, the object stays here after all.
 *
 * All this is in arenas of several nodes only.  A node's pages are one range there; a thread that runs on a node without pages of the
 * arena's has nothing that is far.
 */
#include "client/internal.h"

#include <sched.h>

void
node_learn(const struct slabc_cache *k, struct thread_cache *t)
{
	const struct layout_arena *arena = k->c->arena;
	uint32_t first = 0, n = UINT32_MAX;
	unsigned cpu, os_node;

	if (getcpu(&cpu, &os_node) < 0 || os_node == t->home_os_node || os_node >= UINT16_MAX)
		return;
	for (uint32_t i = 0; i < arena->n_segments && i < LAYOUT_MAX_SEGMENTS; i++) {
		const struct layout_segment *segment = &arena->segments[i];

		if (segment->os_node != os_node)
			continue;
		if (n == UINT32_MAX)
			first = segment->first_page;
		n = segment->first_page + segment->n_pages - first;
	}
	t->home_os_node = (uint16_t)os_node;
	t->home_first = first;
	t->n_home = n;
}

/* What it has goes back; empty it may stay in the barn. */
static void
flush_away(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t)
{
	uint32_t slot = (uint32_t)t->away_slot;
	struct sheaf *s = t->away;

	/* A handler must not find it. */
	atomic_write(&t->away, (struct sheaf *)NULL);
	t->away_slot = CLIENT_NO_SLOT;
	if (atomic_read(&s->size) > 0)
		barn_return(k, slot, s, thread_holder(tb));
	else
		barn_put(k, slot, s, thread_holder(tb));
}

void
node_drop(struct slabc_cache *k, struct thread_block *tb, struct thread_cache *t)
{
	if (t->away)
		flush_away(k, tb, t);
}

bool
node_make_room(struct slabc_cache *k, struct thread_block *tb, int64_t *deadlinep)
{
	struct thread_cache *t = &tb->cache[k->v.index];
	struct sheaf *s = t->away;
	int16_t slot;
	int32_t n;

	if (s) {
		n = sheaf_look(s);
		if (n >= 0 && (uint32_t)n < thread_limit(k, s))
			return true;
		if (n >= 0)
			flush_away(k, tb, t);
		/* Revoked, and slabd is about to take it. */
		else if (!sheaf_forget(k, thread_holder(tb), &t->away, &t->away_slot, NULL))
			return false;
	}
	if (!thread_get_empty(k, tb, deadlinep, &s, &slot))
		return false;
	t->away_slot = slot;
	atomic_write(&t->away, s);
	return true;
}
