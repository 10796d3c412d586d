/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sheaves of many threads, of many sessions, are revoked with one barrier.  Between revocation and look their sessions' work is held, so
 * that a revocation is finished by who began it; it is only tried for, never waited for, so that nobody can be held up by holding several.
 */
#include "server/recall.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "server/cache.h"
#include "server/claim.h"
#include "server/clock.h"
#include "server/grant.h"
#include "server/log.h"
#include "server/repair.h"
#include "server/stash.h"
#include "shm/barn.h"

enum {
	BATCH = 64, /* revocations under one barrier */
	LOOKS = 64, /* at a busy sheaf, before it is let be: an operation is over in less */
	MAX_AGAIN =
		4, /* passes over what stayed busy: a thread was preempted, or is stopped, in the midst; a loop is at work on the session */
	PAUSE_NS = 200000,
	RELIEVED_NS = 10000000, /* so long after one who was refused the next is not waited for */
	/* In busy, of whom a sheaf is and what for; with any other bit it is let be. */
	MARKS = SHEAF_WORDLESS | SHEAF_UNSETTLED | SHEAF_NODED | SHEAF_DEBUG,
};

/* Of recall_relieve(); the stages after the last are those that try it again. */
enum { STAGE_BARNS, STAGE_CACHE, STAGE_ALL };

/* A revoked sheaf. */
struct chosen {
	struct session *session;
	uint32_t slot;
	uint32_t holder; /* as it was */
};

/* One look at the threads' sheaves of all sessions. */
struct pass {
	struct arena *arena;
	struct cache *cache; /* NULL: of all */
	bool is_decay;       /* only those that have not changed */
	bool is_own;         /* only this session's */
	uint32_t n_busy;
	uint32_t n_taken;
	bool is_incomplete; /* on a session somebody else was at work */
	unsigned n;
	struct chosen chosen[BATCH];
	unsigned n_held;
	struct session *held[BATCH]; /* visited before, each with something chosen */
};

int
recall_probe(void)
{
	return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0 ? 0 : errno;
}

/* Every running thread of the registered clients has passed a full barrier. */
static bool
issue_barrier(struct arena *arena)
{
	uint64_t n = atomic_add(&arena->n_recalls, 1);
	int error;

	if (MUTANT(NO_BARRIER) || (MUTANT(NO_SECOND_BARRIER) && n > 0))
		return true;
	error = recall_probe();
	if (error && atomic_swap(&arena->recall_error, error) != error)
		log_warning(
			"arena '%s': membarrier: %s; what clients' threads keep idle cannot be taken back", arena->name, strerror(error));
	return error == 0;
}

/* Is its owner in the midst of an operation, or is it in a state that is not for slabd?  Looks for a moment. */
static bool
is_busy(const struct sheaf *sheaf)
{
	for (unsigned i = 0; i < LOOKS; i++)
		/* order: BUSY acquire - pairs with sheaf_leave(): what the owner did is visible, sheaf_open()'s floor too */
		if ((atomic_read_acquire(&sheaf->busy) & ~(uint32_t)MARKS) == 0)
			return false;
	return !MUTANT(IGNORE_BUSY);
}

/* After the barrier. */
static bool
take(const struct chosen *c)
{
	struct session *session = c->session;
	struct sheaf *sheaf = session_sheaf(session, c->slot);

	/* It changed hands before the barrier, and who got it has opened it: the revocation was overwritten, and binds nobody. */
	if ((atomic_read(&sheaf->floor) != SHEAF_REVOKED || atomic_read(&sheaf->limit) != 0) && !MUTANT(REVOKED_NOT_LOOKED_AT))
		return false;
	if (!barn_take(&session_slots(session)[c->slot], c->holder, LAYOUT_HOLDER_RECALLED))
		return false;
	STEP(RECALL_TAKEN);
	grant_take_back(session, c->slot, false);
	session->slots[c->slot].n_same = 0;
	atomic_add(&session->n_recalled, 1);
	atomic_add(&arena_cache(session->arena, session->slots[c->slot].cache)->n_recalled, 1);
	if (MUTANT(LENT_BEFORE_LET_GO) && session_slot_take(session, c->slot, LAYOUT_HOLDER_RECALLED))
		session_slot_put(session, c->slot);
	return true;
}

/* As who opens it would have it (client/cache.c): whoever has it by now finds it usable. */
static void
withdraw(const struct chosen *c)
{
	struct sheaf *sheaf = session_sheaf(c->session, c->slot);

	if (MUTANT(NO_WITHDRAW))
		return;
	atomic_write(&sheaf->limit, c->session->slots[c->slot].capacity);
	atomic_write(&sheaf->floor, 0);
}

/* Ends all revocations under way, and the work on the sessions that were visited before. */
static void
settle(struct pass *pass)
{
	bool has_barrier = pass->n > 0 && issue_barrier(pass->arena);

	for (unsigned i = 0; i < pass->n; i++) {
		const struct chosen *c = &pass->chosen[i];
		bool is_left = is_busy(session_sheaf(c->session, c->slot));

		if (has_barrier && !is_left && take(c)) {
			pass->n_taken++;
			continue;
		}
		pass->n_busy += is_left;
		withdraw(c);
	}
	pass->n = 0;
	for (unsigned i = 0; i < pass->n_held; i++)
		pthread_mutex_unlock(&pass->held[i]->work);
	pass->n_held = 0;
}

/* Has a thread something in it that is wanted? Who works on it at this moment may be done by the time of the look. */
static bool
is_wanted(const struct pass *pass, const struct session *session, uint32_t slot)
{
	const struct session_slot *own = &session->slots[slot];
	const struct cache *cache = arena_cache(session->arena, own->cache);
	const struct sheaf *sheaf = session_sheaf(session, slot);

	return cache && own->is_lent && (!pass->cache || cache == pass->cache) && !cache->is_sheafless &&
	       (!pass->is_decay || own->n_same >= RECALL_TICKS) && atomic_read(&sheaf->size) > 0 &&
	       (atomic_read(&sheaf->busy) & ~(uint32_t)(SHEAF_BUSY | MARKS)) == 0;
}

static void
choose(struct pass *pass, struct session *session, uint32_t slot)
{
	uint32_t holder = atomic_read(&session_slots(session)[slot].holder);
	struct sheaf *sheaf = session_sheaf(session, slot);

	if (holder < LAYOUT_HOLDER_THREAD || !is_wanted(pass, session, slot))
		return;
	STEP(RECALL_CHOSEN);
	atomic_write(&sheaf->floor, SHEAF_REVOKED);
	atomic_write(&sheaf->limit, 0);
	STEP(RECALL_REVOKED);
	pass->chosen[pass->n++] = (struct chosen){.session = session, .slot = slot, .holder = holder};
	if (pass->n == BATCH)
		settle(pass);
}

/* The session's work is held; true: and must be, until settle(). */
static bool
visit(struct pass *pass, struct session *session)
{
	unsigned i;

	for (uint32_t slot = 0; session->is_recallable && slot < session->n_slots; slot++)
		choose(pass, session, slot);
	for (i = 0; i < pass->n && pass->chosen[i].session != session; i++)
		;
	return i < pass->n;
}

/* Threads' sheaves go back to their slabs. */
static void
recall_threads(struct pass *pass, struct session *mine)
{
	struct arena *arena = pass->arena;

	pass->n_taken = pass->n_busy = 0;
	pass->is_incomplete = false;
	if (atomic_read(&arena->recall_error))
		return;
	if (mine)
		visit(pass, mine);
	for (struct session *s = pass->is_own ? NULL : arena->first_session; s; s = s->next) {
		if (s == mine || s->is_readonly)
			continue;
		if (pthread_mutex_trylock(&s->work) != 0) {
			pass->is_incomplete = true;
			continue;
		}
		if (s->map && atomic_read(&s->state) != SESSION_DYING && visit(pass, s))
			pass->held[pass->n_held++] = s;
		else
			pthread_mutex_unlock(&s->work);
	}
	settle(pass);
	atomic_add(&arena->n_recalled_sheaves, pass->n_taken);
	atomic_add(&arena->n_recall_busy, pass->n_busy);
}

static void
trim_all(struct arena *arena)
{
	for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id))
		for (unsigned i = 0; i < cache->n_nodes; i++)
			node_trim(arena, &cache->nodes[i]);
}

static void
call_in_all(struct session *session, struct cache *unused)
{
	(void)unused;
	for (struct cache *cache = arena_cache_after(session->arena, 0); cache; cache = arena_cache_after(session->arena, cache->id))
		grant_call_in(session, cache);
}

bool
recall_relieve(struct session *session, struct cache *cache, unsigned *stagep)
{
	static const struct timespec pause = {.tv_nsec = PAUSE_NS};
	struct arena *arena = session->arena;
	struct pass pass = {.arena = arena};
	uint64_t n_repaired;
	bool is_patient;

	if (*stagep == STAGE_BARNS) {
		*stagep = STAGE_CACHE;
		session_for_each(arena, session, NULL, call_in_all);
		trim_all(arena);
		return true;
	}
	if (*stagep == STAGE_CACHE) {
		*stagep = STAGE_ALL;
		pass.cache = cache;
		recall_threads(&pass, session);
		if (pass.n_taken > 0)
			return true;
		pass.cache = NULL;
	}
	is_patient = clock_now_ns() - atomic_read(&arena->refused_ns) > RELIEVED_NS;
	/* Last, what wrong clients have made away with. */
	if (*stagep == STAGE_ALL + MAX_AGAIN + 1) {
		++*stagep;
		repair_arena(arena, &n_repaired);
		if (n_repaired > 0) {
			trim_all(arena);
			return true;
		}
	}
	if (*stagep > STAGE_ALL + MAX_AGAIN) {
		if (is_patient)
			atomic_write(&arena->refused_ns, clock_now_ns());
		return false;
	}
	if (*stagep > STAGE_ALL) {
		nanosleep(&pause, NULL);
		session_for_each(arena, session, NULL, call_in_all);
	}
	recall_threads(&pass, session);
	*stagep = is_patient && (pass.n_busy > 0 || pass.is_incomplete) ? *stagep + 1 : STAGE_ALL + MAX_AGAIN + 1;
	trim_all(arena);
	return true;
}

void
recall_own(struct session *session)
{
	struct pass pass = {.arena = session->arena, .is_own = true};

	call_in_all(session, NULL);
	recall_threads(&pass, session);
}

void
recall_shrink(struct arena *arena, struct session *session, struct cache *cache)
{
	struct pass pass = {.arena = arena, .cache = cache};

	session_for_each(arena, session, cache, grant_call_in);
	recall_threads(&pass, session);
	if (session)
		grant_shrink(session, cache);
	for (unsigned i = 0; i < cache->n_nodes; i++)
		node_trim(arena, &cache->nodes[i]);
}

/* Idle for long */

static uint64_t
mix(uint64_t sign, uint64_t x)
{
	return (sign ^ x) * UINT64_C(0x9e3779b97f4a7c15);
}

/* What a slot looks like; 0: it has nothing that may go back, or changed just now. */
static uint64_t
sign_of(const struct session *session, uint32_t slot)
{
	struct arena *arena = session->arena;
	const struct session_slot *own = &session->slots[slot];
	const struct cache *cache = arena_cache(arena, own->cache);
	const struct sheaf *sheaf = session_sheaf(session, slot);
	uint32_t holder = atomic_read(&session_slots(session)[slot].holder), size = atomic_read(&sheaf->size), place;
	struct slab_object o;

	if (!cache || holder < LAYOUT_HOLDER_THREAD || cache->flags & LAYOUT_CACHE_NO_OWNER || size == 0 || size > own->capacity ||
		(atomic_read(&sheaf->busy) & ~(uint32_t)MARKS) != 0)
		return 0;
	if (claim_is_unsettled(session, slot)) {
		/* As old as its first entry, however it grows: its claims are not put off for ever. */
		const struct sheaf *record = claim_record(session, cache, slot, size);

		return mix(mix(holder, atomic_read(&sheaf->entry[0])), record ? atomic_read(&record->entry[0]) : 0) | 1;
	}
	place = atomic_read(&sheaf->entry[size - 1]);
	if (!slab_find(arena, cache, place, &o))
		return 0;
	return mix(mix(mix(holder, size), place), atomic_read(&arena->words[o.word])) | 1;
}

/* The same as at the last tick? */
static void
compare(uint64_t *before, uint32_t *n_same, uint64_t now)
{
	*n_same = now != 0 && now == *before ? *n_same + 1 : 0;
	*before = now;
}

static void
tick(struct session *session, struct cache *unused)
{
	(void)unused;
	for (uint32_t slot = 0; slot < session->n_slots; slot++)
		compare(&session->slots[slot].sign, &session->slots[slot].n_same, sign_of(session, slot));
	for (struct cache *cache = arena_cache_after(session->arena, 0); cache; cache = arena_cache_after(session->arena, cache->id)) {
		const struct layout_session_cache *lists = session_cache(session, cache->id);
		uint64_t full = atomic_read(&lists->full), returned = atomic_read(&lists->returned), n_stashed = stash_size(session, cache->id);
		struct session_barn *barn = &session->barns[cache->id];

		/* Each change advances a list's tag. */
		compare(&barn->sign, &barn->n_same,
			barn_count(full) + barn_count(returned) + n_stashed == 0 ? 0 : mix(mix(full, returned), n_stashed) | 1);
		if (barn->n_same < RECALL_TICKS)
			continue;
		barn->n_same = 0;
		grant_call_in(session, cache);
	}
}

void
recall_decay(struct arena *arena)
{
	struct pass pass = {.arena = arena, .is_decay = true};

	session_for_each(arena, NULL, NULL, tick);
	recall_threads(&pass, NULL);
}

const struct session *
recall_idlest(const struct arena *arena, uint64_t *bytesp)
{
	const struct session *idlest = NULL;

	*bytesp = 0;
	for (const struct session *s = arena->first_session; s; s = s->next) {
		uint64_t bytes = session_idle_bytes(s, false);

		if (bytes <= *bytesp)
			continue;
		*bytesp = bytes;
		idlest = s;
	}
	return idlest;
}
