/* SPDX-License-Identifier: Apache-2.0 */
#include "server/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "server/claim.h"
#include "server/clock.h"
#include "server/log.h"
#include "server/stash.h"
#include "server/store.h"
#include "shm/barn.h"
#include "shm/segment.h"

/* So many dead may be named by words; of more, the words are rewritten to ORPHAN. */
enum { MAX_NAMED = 4096 };

/* Reports logged for one session. */
enum { MAX_REPORTS = 256 };

/* Compare-and-swaps on one word that may be lost. */
enum { MAX_LOST = 64 };

/* Slots looked at, on a client's list, that are not what the list says. */
enum { MAX_STALE = 64 };

/* Faults beyond max-faults after which its loop is told again to evict a session, should it have missed it. */
enum { EVICT_AGAIN = 64 };

/* Has it objects whose words say something? */
static bool
slab_has_words(struct arena *arena, uint16_t id)
{
	const struct cache *cache = arena_cache(arena, id);

	return cache && !(cache->flags & LAYOUT_CACHE_NO_OWNER);
}

/* sessions_lock held for writing. Words that name this slot's dead no longer name it: the slot may be used again. */
static void
forget_name(struct arena *arena, uint32_t client)
{
	bool is_left = false;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];

		if (!slab_has_words(arena, atomic_read_acquire(&slab->cache)))
			continue;
		for (uint32_t i = 0; i < slab->n_objects; i++) {
			uint32_t *word = &arena->words[slab->first_word + i];
			uint32_t w = atomic_read(word);

			for (int tries = 0; word_owner(w) == client && tries < MAX_LOST; tries++) {
				STEP(FORGET_READ);
				if (atomic_cas(word, &w, word_with(w, WORD_ORPHAN, word_state(w))))
					break;
			}
			is_left = is_left || word_owner(atomic_read(word)) == client;
		}
	}
	if (is_left)
		return;
	if (arena->dead[client].ended_ns > arena->ledger->forgotten_ns)
		atomic_write(&arena->ledger->forgotten_ns, arena->dead[client].ended_ns);
	atomic_write(&arena->named[client], 0);
	arena->n_named--;
}

/* sessions_lock held for writing. */
static void
remember(const struct session *session)
{
	struct session_dead *dead = &session->arena->dead[session->client];

	*dead = (struct session_dead){.pid = session->pid, .uid = session->uid, .ended_ns = (int64_t)clock_now_ns()};
	memcpy(dead->label, session->label, sizeof dead->label);
}

/* Slots are used in turn, so that a dead one's is used late. */
static uint32_t
take_client(struct arena *arena)
{
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < LAYOUT_MAX_CLIENTS; i++) {
			uint32_t client = (arena->next_client + i - 1) % LAYOUT_MAX_CLIENTS + 1;

			if (arena->sessions[client])
				continue;
			if (arena->named[client] && (pass == 1 || arena->n_named > MAX_NAMED))
				forget_name(arena, client);
			if (arena->named[client])
				continue;
			arena->next_client = client % LAYOUT_MAX_CLIENTS + 1;
			return client;
		}
	}
	return 0;
}

/* sessions_lock held.  Has the user as many as one may have? */
static bool
is_over_limit(const struct arena *arena, uid_t uid)
{
	uint32_t n = 0;

	if (!arena->options.max_sessions)
		return false;
	for (const struct session *s = arena->first_session; s; s = s->next)
		n += s->uid == uid;
	return n >= arena->options.max_sessions;
}

static int
make_segment(struct session *session)
{
	int r;

	session->fd = segment_create("slabd:session", LAYOUT_SESSION_BYTES, LAYOUT_PAGES_4K, 0);
	if (session->fd < 0)
		return session->fd;
	r = segment_map(session->fd, LAYOUT_SESSION_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &session->map);
	if (r < 0)
		return r;
	session->end_off = LAYOUT_SESSION_SHEAVES_OFF;
	session_head(session)->hash = layout_hash;
	return 0;
}

static void
session_free(struct session *session)
{
	if (session->map)
		segment_unmap(session->map, LAYOUT_SESSION_BYTES);
	if (session->copy)
		segment_unmap(session->copy, LAYOUT_SESSION_BYTES);
	if (session->fd >= 0)
		close(session->fd);
	for (uint32_t cache = 1; cache < LAYOUT_MAX_CACHES; cache++)
		stash_forget(session, cache);
	pthread_mutex_destroy(&session->work);
	free(session);
}

/* Points the session at its part of the ledger. */
static void
point(struct session *session)
{
	session->slots = ledger_slots(session->arena, session->client);
	session->n_drawn = ledger_drawn(session->arena, session->client);
	session->has_open = session->arena->clients[session->client].has_open;
	session->bytes_drawn = &session->arena->clients[session->client].bytes_drawn;
}

/* The session's part of the ledger, empty; nothing says yet that it is there.  sessions_lock held for writing. */
static int
begin_ledger(struct session *session)
{
	struct ledger_head *head = session->arena->ledger;
	struct ledger_client *client = &session->arena->clients[session->client];

	if (ledger_clear_session(session->arena, session->client) < 0)
		return -ENOMEM;
	point(session);
	if (head->n_clients <= session->client)
		atomic_write_release(&head->n_clients, session->client + 1);
	client->is_readonly = session->is_readonly;
	client->is_recallable = session->is_recallable;
	client->token = session->token;
	client->pid = session->pid;
	client->uid = session->uid;
	client->gid = session->gid;
	memcpy(client->label, session->label, sizeof client->label);
	memset(client->has_open, 0, sizeof client->has_open);
	client->bytes_drawn = 0;
	return 0;
}

/* NULL: a read-only session, which has no segment, or one that could not be mapped. */
static const uint32_t *
reader_flag(const struct session *session)
{
	return session->map ? &session_head(session)->has_resolved : NULL;
}

/* sessions_lock held for writing. */
static void
list(struct session *session)
{
	struct arena *arena = session->arena;

	readers_enter(&arena->readers, &session->reader, reader_flag(session));
	arena->sessions[session->client] = session;
	session->next = arena->first_session;
	session->prevp = &arena->first_session;
	if (session->next)
		session->next->prevp = &session->next;
	arena->first_session = session;
	arena->n_sessions++;
	arena->n_sessions_ever++;
}

/* Keeps the session's descriptors for the next slabd, before anybody can ask for them: by a token, which only a session that is kept has. */
static int
keep(struct session *session, int pidfd)
{
	int fds[2] = {pidfd, session->fd}, r;

	if (!session->arena->store)
		return 0;
	while (!session->token)
		if (getrandom(&session->token, sizeof session->token, 0) != (ssize_t)sizeof session->token)
			return -EIO;
	r = store_keep(session->arena->store, store_name(session->arena->store_number, STORE_SESSION, session->client).text, fds,
		session->is_readonly ? 1 : 2);
	if (r < 0)
		session->token = 0;
	/* Nobody keeps anything any more. */
	return r == -ENOTCONN ? 0 : r;
}

static void
drop(const struct session *session)
{
	if (session->token)
		store_drop(session->arena->store, store_name(session->arena->store_number, STORE_SESSION, session->client).text,
			session->is_readonly ? 1 : 2);
}

/* sessions_lock held for writing.  0, or a negative errno and nothing has changed. */
static int
enter(struct session *session, int pidfd)
{
	struct arena *arena = session->arena;
	int r = keep(session, pidfd);

	STEP(SESSION_KEPT);
	if (r == 0)
		r = begin_ledger(session);
	if (r < 0) {
		drop(session);
		return r;
	}
	atomic_write(&arena->incarnations[session->client], arena->incarnations[session->client] + 1);
	session->id = session->client | arena->incarnations[session->client] << 14;
	if (session->map) {
		session_head(session)->client = session->client;
		session_head(session)->incarnation = session->id >> 14;
	}
	/* It is there from here on, for an adopter too. */
	atomic_write_release(&arena->clients[session->client].state, LEDGER_CLIENT_LIVE);
	STEP(SESSION_ENTERED);
	list(session);
	return 0;
}

int
session_new(struct session **sessionp, struct arena *arena, const struct session_who *who, char *why, size_t why_size)
{
	struct session *session = calloc(1, sizeof *session);
	uint32_t max_sessions;
	bool is_refused, is_draining, was_draining;
	int r = 0;

	if (!session) {
		snprintf(why, why_size, "no memory in slabd for another session");
		return -ENOMEM;
	}
	session->arena = arena;
	session->fd = -1;
	session->pidfd = -1;
	session->pid = who->pid;
	session->uid = who->uid;
	session->gid = who->gid;
	session->is_readonly = who->is_readonly;
	session->is_recallable = who->is_recallable;
	snprintf(session->label, sizeof session->label, "%s", who->label);
	pthread_mutex_init(&session->work, NULL);

	if (!who->is_readonly)
		r = make_segment(session);
	/* Whatever the system calls it: there is none to be had. */
	if (r < 0) {
		snprintf(why, why_size, "no session segment: %s", strerror(-r));
		session_free(session);
		return -ENOMEM;
	}
	was_draining = MUTANT(DRAIN_LOOKED_AT_FIRST) && arena->is_draining;
	STEP(SESSION_ASKED);
	pthread_rwlock_wrlock(&arena->sessions_lock);
	is_draining = MUTANT(DRAIN_LOOKED_AT_FIRST) ? was_draining : arena->is_draining;
	is_refused = is_over_limit(arena, who->uid);
	max_sessions = arena->options.max_sessions;
	session->client = is_refused || is_draining ? 0 : take_client(arena);
	if (session->client)
		r = enter(session, who->pidfd);
	pthread_rwlock_unlock(&arena->sessions_lock);
	if (is_draining) {
		snprintf(why, why_size, "slabd takes no new sessions: it drains (slabctl drain), and stops when those that it has have ended");
		r = -EBUSY;
	} else if (is_refused) {
		snprintf(why, why_size, "uid %u has its %u sessions in arena '%s'; max-sessions= in [arena %s] says how many", who->uid,
			max_sessions, arena->name, arena->name);
		log_notice("pid %d refused: %s", who->pid, why);
		r = -EDQUOT;
	} else if (!session->client) {
		snprintf(why, why_size, "arena '%s' has its %d clients", arena->name, LAYOUT_MAX_CLIENTS);
		r = -EUSERS;
	} else if (r < 0) {
		snprintf(why, why_size, "the session cannot be kept for the next slabd: %s", strerror(-r));
	}
	if (r < 0) {
		session_free(session);
		return r;
	}
	*sessionp = session;
	return 0;
}

static void
keep_counts(struct session *session, struct cache *cache)
{
	const struct layout_session_cache *c;

	if (!session->map)
		return;
	c = session_cache(session, cache->id);
	atomic_add(&cache->n_dead_refills, c->n_refills);
	atomic_add(&cache->n_dead_waits, c->n_waits);
	atomic_add(&cache->n_dead_flushes, c->n_flushes);
	atomic_add(&cache->n_dead_foreign_frees, c->n_foreign_frees);
	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		atomic_add(&cache->n_dead_drawn, session->n_drawn[cache->id]);
	pthread_mutex_lock(&session->arena->ledger_lock);
	if (session->n_drawn[cache->id] > cache->missing.n) {
		cache->missing.client = session->id;
		cache->missing.pid = session->pid;
		cache->missing.uid = session->uid;
		cache->missing.n = session->n_drawn[cache->id];
		memcpy(cache->missing.label, session->label, sizeof cache->missing.label);
	}
	pthread_mutex_unlock(&session->arena->ledger_lock);
}

void
session_end(struct session *session, bool still_named)
{
	struct arena *arena = session->arena;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	for (struct cache *cache = arena_cache_after(arena, 0); cache; cache = arena_cache_after(arena, cache->id)) {
		keep_counts(session, cache);
		session_set_open(session, cache, false);
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	pthread_rwlock_wrlock(&arena->sessions_lock);
	if (still_named)
		remember(session);
	if (still_named && !arena->named[session->client]) {
		atomic_write_release(&arena->named[session->client], 1);
		arena->n_named++;
	}
	atomic_write_release(&arena->clients[session->client].state, LEDGER_CLIENT_NONE);
	STEP(SESSION_ENDED);
	drop(session);
	ledger_clear_session(arena, session->client);
	arena->sessions[session->client] = NULL;
	*session->prevp = session->next;
	if (session->next)
		session->next->prevp = session->prevp;
	arena->n_sessions--;
	arena->n_dead++;
	arena->n_dead_faults += session_count_faults(session);
	readers_leave(&arena->readers, &session->reader);
	pthread_rwlock_unlock(&arena->sessions_lock);
	session_free(session);
	arena_trim(arena);
}

void
session_for_each(
	struct arena *arena, struct session *mine, struct cache *cache, void (*visit)(struct session *session, struct cache *cache))
{
	if (mine)
		visit(mine, cache);
	for (struct session *s = arena->first_session; s; s = s->next) {
		if (s == mine || s->is_readonly || pthread_mutex_trylock(&s->work) != 0)
			continue;
		if (s->map && atomic_read(&s->state) != SESSION_DYING)
			visit(s, cache);
		pthread_mutex_unlock(&s->work);
	}
}

void
session_leave(struct session *session)
{
	readers_leave(&session->arena->readers, &session->reader);
	session->arena->sessions[session->client] = NULL;
	*session->prevp = session->next;
	if (session->next)
		session->next->prevp = session->prevp;
	session_free(session);
}

void
session_mark_dying(struct session *session)
{
	atomic_write(&session->arena->clients[session->client].state, LEDGER_CLIENT_DYING);
	atomic_write(&session->state, SESSION_DYING);
}

void
session_resume(struct session *session)
{
	for (uint32_t id = 1; session->map && id < LAYOUT_MAX_CACHES; id++)
		if (atomic_read(&session_cache(session, id)->is_refilling))
			atomic_write(&session_cache(session, id)->is_refilling, 0);
	atomic_write(&session->state, SESSION_LIVE);
}

/* false: there is no memory for it. */
static bool
make_copy(struct session *session)
{
	void *map;

	if (session->copy)
		return true;
	map = mmap(NULL, LAYOUT_SESSION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, session->fd, 0);
	if (map == MAP_FAILED)
		return false;
	session->copy = map;
	return true;
}

/* sessions_lock held for writing. */
static void
use_copy(struct session *session)
{
	session->map = session->copy;
	session->copy = NULL;
	session->is_bounded = true;
	readers_move(&session->arena->readers, &session->reader, reader_flag(session));
}

/*
 * The shared mapping goes, and is made again if it must.  The private one is made first: it is what a session whose client has gone is drained from, sealed
 * now, or before by a client that wants to be clever, so that nobody else can write it; and all that is left should the shared one not be had again.
 */
bool
session_is_mapped_by_client(struct session *session)
{
	struct arena *arena = session->arena;
	uint64_t start;
	int r = 0;

	if (session->fd < 0)
		return false;
	pthread_rwlock_wrlock(&arena->sessions_lock);
	if (!make_copy(session)) {
		pthread_rwlock_unlock(&arena->sessions_lock);
		log_error("client %u: whether it maps its session cannot be looked at now: %s", session->id, strerror(errno));
		return true;
	}
	/* Pages come free without that lock too. */
	readers_move(&arena->readers, &session->reader, NULL);
	if (session->map)
		segment_unmap(session->map, LAYOUT_SESSION_BYTES);
	session->map = NULL;
	start = clock_now_ns();
	if (segment_writer_exists(session->fd) != 0)
		r = segment_map(session->fd, LAYOUT_SESSION_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &session->map);
	session->asking_ns = clock_now_ns() - start;
	if (session->map) {
		segment_unmap(session->copy, LAYOUT_SESSION_BYTES);
		session->copy = NULL;
		readers_move(&arena->readers, &session->reader, reader_flag(session));
	} else if (r == 0 || r == -EPERM) {
		r = -EPERM;
		use_copy(session);
	} else {
		log_error("client %u: its session segment could not be mapped again: %s", session->id, strerror(-r));
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	/* What came free meanwhile was kept for it in case it reads. */
	arena_trim(arena);
	return r != -EPERM;
}

void
session_take_copy(struct session *session)
{
	if (session->map || !session->copy)
		return;
	pthread_rwlock_wrlock(&session->arena->sessions_lock);
	use_copy(session);
	pthread_rwlock_unlock(&session->arena->sessions_lock);
}

void
session_set_open(struct session *session, struct cache *cache, bool is_open)
{
	uint8_t bit = (uint8_t)(1u << (cache->id % 8)), *bits = &session->has_open[cache->id / 8];

	/* Whatever was on its way to a cache of that id before is not any more. */
	if (is_open && session->map)
		atomic_write(&session_cache(session, cache->id)->is_refilling, 0);
	if (session_has_open(session, cache->id) == is_open)
		return;
	atomic_write(bits, *bits ^ bit);
	/* Nobody has it open any more: nothing need be kept ready. */
	if (atomic_add(&cache->n_openers, is_open ? 1 : (uint64_t)-1) != 1 || is_open)
		return;
	for (unsigned i = 0; i < cache->n_nodes; i++)
		node_trim(cache->arena, &cache->nodes[i]);
	if (!(cache->flags & LAYOUT_CACHE_NO_OWNER) && cache_count_out(cache) > 0) {
		atomic_write(&cache->is_closed, 1);
		/* order: CLOSED release - the cache is marked */
		atomic_write_release(&cache->arena->has_closed, 1);
	}
}

static unsigned
size_class(uint32_t bytes)
{
	unsigned i = 0;

	while ((uint32_t)LAYOUT_SLOT_UNIT << i < bytes)
		i++;
	return i;
}

/* Lends a slot for the cache: says so here and where the client reads it. */
static int32_t
lend(struct session *session, uint32_t slot, const struct cache *cache, uint32_t capacity)
{
	struct layout_slot *shown = &session_slots(session)[slot];

	/* Audit and statistics of another loop may be walking the slots. */
	atomic_write(&session->slots[slot].capacity, (uint16_t)capacity);
	atomic_write(&session->slots[slot].cache, cache->id);
	shown->off = session->slots[slot].off / LAYOUT_SLOT_UNIT;
	shown->capacity = (uint16_t)capacity;
	shown->cache = cache->id;
	return (int32_t)slot;
}

int32_t
session_slot_lend(struct session *session, const struct cache *cache, uint32_t capacity)
{
	unsigned size = size_class((uint32_t)sheaf_bytes(capacity));
	uint32_t bytes = (uint32_t)LAYOUT_SLOT_UNIT << size;
	uint32_t slot;

	if (session->free_slots[size]) {
		slot = session->free_slots[size] - 1;
		session->free_slots[size] = session->slots[slot].next;
		return lend(session, slot, cache, capacity);
	}
	if (session->n_slots >= LAYOUT_MAX_SLOTS || session->end_off + bytes > LAYOUT_SESSION_BYTES)
		return -EDQUOT;
	slot = session->n_slots;
	/* A sheaf that fits a page does not straddle two. */
	session->end_off = (session->end_off + bytes - 1) & ~(bytes - 1);
	atomic_write(&session->slots[slot].off, session->end_off);
	/* There is such a slot from here on, for an adopter too. */
	atomic_write_release(&session->slots[slot].bytes, bytes);
	session->end_off += bytes;
	lend(session, slot, cache, capacity);
	/* order: SLOTS release - the slot is described before a walker counts it */
	atomic_write_release(&session->n_slots, slot + 1);
	atomic_write(&session_head(session)->n_slots, session->n_slots);
	return (int32_t)slot;
}

int32_t
session_slot_get(struct session *session, const struct cache *cache, uint32_t capacity)
{
	struct layout_slot *shown = session_slots(session);

	/* Bounded, since a refill has need of hundreds: a client that loops its list gets a new slot in the end. */
	for (uint32_t tries = 0; capacity == cache->capacity && tries < MAX_STALE; tries++) {
		int32_t slot = barn_pop(&session_cache(session, cache->id)->empty, shown, session->n_slots);

		if (slot < 0)
			break;
		if (session->slots[slot].cache != cache->id) {
			session_fault_own(session, "a slot of another cache on its list of empty sheaves");
		} else if (session->slots[slot].capacity != capacity) {
			/* From before the capacity was tuned: it retires as what is given back does. */
			if (barn_take(&shown[slot], LAYOUT_HOLDER_BARN, LAYOUT_HOLDER_RETURNED))
				barn_push(&session_cache(session, cache->id)->returned, shown, (uint32_t)slot);
		} else if (session_slot_take(session, (uint32_t)slot, LAYOUT_HOLDER_BARN)) {
			return slot;
		}
	}
	return session_slot_lend(session, cache, capacity);
}

bool
session_slot_take(struct session *session, uint32_t slot, uint32_t from)
{
	struct layout_slot *shown = &session_slots(session)[slot];

	/* A list may name a slot that slabd has by now; its holder word then says so, unless the client writes it. */
	if (!session->slots[slot].is_lent) {
		if (atomic_read(&shown->holder) == from)
			session_fault_own(session, "a slot given back that it does not have");
		return false;
	}
	if (!barn_take(shown, from, LAYOUT_HOLDER_SLABD))
		return false;
	session->slots[slot].is_lent = false;
	return true;
}

void
session_slot_put(struct session *session, uint32_t slot)
{
	struct session_slot *own = &session->slots[slot];
	unsigned size = size_class(own->bytes);

	atomic_write(&own->cache, 0);
	own->next = session->free_slots[size];
	session->free_slots[size] = slot + 1;
}

/* What the ledger says of a slot; end: of the one before. */
static bool
slot_is_sound(const struct session *session, const struct session_slot *slot, uint32_t end)
{
	unsigned size = size_class(slot->bytes);

	if (size >= SESSION_SLOT_SIZES || slot->bytes != (uint32_t)LAYOUT_SLOT_UNIT << size || slot->off < end || slot->off % slot->bytes ||
		slot->off > LAYOUT_SESSION_BYTES - slot->bytes)
		return false;
	/* Capacity 0: all of it was taken back, of a session that was about to end. */
	return !slot->cache ||
	       (arena_cache(session->arena, slot->cache) && slot->capacity <= LAYOUT_MAX_SHEAF && sheaf_bytes(slot->capacity) <= slot->bytes);
}

/* Counts the slots that there are, and lists the free ones. */
static int
adopt_slots(struct session *session, char *why, size_t why_size)
{
	uint32_t n = 0;

	session->end_off = LAYOUT_SESSION_SHEAVES_OFF;
	for (; n < LAYOUT_MAX_SLOTS && session->slots[n].bytes; n++) {
		struct session_slot *slot = &session->slots[n];

		if (!slot_is_sound(session, slot, session->end_off)) {
			snprintf(why, why_size, "slot %u of client %u has %u bytes at %u, capacity %u, cache %u", n, session->client, slot->bytes,
				slot->off, slot->capacity, slot->cache);
			return -EBADMSG;
		}
		session->end_off = slot->off + slot->bytes;
		if (slot->cache)
			continue;
		slot->is_lent = false;
		session_slot_put(session, n);
	}
	session->n_slots = n;
	atomic_write(&session_head(session)->n_slots, n);
	return 0;
}

/* The session's segment: as large and as sealed as it was made. */
static int
adopt_segment(struct session *session, char *why, size_t why_size)
{
	int r = segment_check(session->fd, LAYOUT_SESSION_BYTES, 0);

	if (r == 0)
		r = segment_map(session->fd, LAYOUT_SESSION_BYTES, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, &session->map);
	/* Sealed against writing, its client had gone: drained in a private copy (session_is_mapped_by_client()). */
	if (r == -EPERM) {
		session->map = mmap(NULL, LAYOUT_SESSION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, session->fd, 0);
		r = session->map == MAP_FAILED ? -errno : 0;
		session->map = r < 0 ? NULL : session->map;
		session->is_bounded = true;
	}
	if (r < 0)
		snprintf(why, why_size, "the session segment of client %u: %s", session->client, strerror(-r));
	return r;
}

int
session_adopt(struct session **sessionp, struct arena *arena, uint32_t client, int fd, char *why, size_t why_size)
{
	const struct ledger_client *kept = &arena->clients[client];
	struct session *session = calloc(1, sizeof *session);
	int r = 0;

	if (!session) {
		close(fd);
		snprintf(why, why_size, "no memory for the session of client %u", client);
		return -ENOMEM;
	}
	*session = (struct session){
		.arena = arena,
		.client = client,
		.id = client | arena->incarnations[client] << 14,
		.state = kept->state == LEDGER_CLIENT_DYING ? SESSION_DYING : SESSION_DETACHED,
		.pid = kept->pid,
		.uid = kept->uid,
		.gid = kept->gid,
		.is_readonly = kept->is_readonly,
		.is_bounded = kept->state == LEDGER_CLIENT_DYING,
		.is_recallable = kept->is_recallable,
		/* What it has is not counted yet: the first who asks does. */
		.quota = {.granted = UINT64_MAX / 2},
		.token = kept->token,
		.fd = fd,
		.pidfd = -1,
	};
	snprintf(session->label, sizeof session->label, "%.*s", (int)sizeof kept->label, kept->label);
	pthread_mutex_init(&session->work, NULL);
	point(session);
	if (!session->is_readonly)
		r = adopt_segment(session, why, why_size);
	if (r == 0 && !session->is_readonly)
		r = adopt_slots(session, why, why_size);
	if (r < 0) {
		session_free(session);
		return r;
	}
	list(session);
	*sessionp = session;
	return 0;
}

uint32_t
session_slot_entries(const struct session *session, uint32_t slot)
{
	/* Those of an unsettled one are still others' objects. */
	uint32_t size = claim_is_unsettled(session, slot) ? 0 : atomic_read(&session_sheaf(session, slot)->size);
	uint32_t capacity = atomic_read(&session->slots[slot].capacity);

	return size < capacity ? size : capacity;
}

uint64_t
session_idle_bytes(const struct session *session, bool is_with_words)
{
	uint64_t bytes = 0;

	/* order: SLOTS acquire - pairs with session_slot_lend() */
	for (uint32_t slot = 0; session->map && slot < atomic_read_acquire(&session->n_slots); slot++) {
		const struct cache *k = arena_cache(session->arena, atomic_read(&session->slots[slot].cache));

		if (k && !(is_with_words && k->flags & LAYOUT_CACHE_NO_OWNER))
			bytes += (uint64_t)session_slot_entries(session, slot) * k->object_bytes;
	}
	for (const struct cache *k = arena_cache_after(session->arena, 0); k; k = arena_cache_after(session->arena, k->id))
		if (!(is_with_words && k->flags & LAYOUT_CACHE_NO_OWNER))
			bytes += (uint64_t)stash_size(session, k->id) * k->object_bytes;
	return bytes;
}

/* What a client counted itself; no number that it writes makes a sum come round. */
static uint64_t
read_count(const uint64_t *count)
{
	uint64_t n = atomic_read(count);

	return n < UINT32_MAX ? n : UINT32_MAX;
}

uint64_t
session_count_faults(const struct session *session)
{
	uint64_t n = atomic_read(&session->n_faults);

	/* Cache 0: frees of what is an object of no cache.  Caches that were destroyed count too. */
	for (uint32_t id = 0; session->map && id <= atomic_read(&session->arena->max_cache); id++) {
		const struct layout_session_cache *c = session_cache(session, id);

		n += read_count(&c->n_double_frees) + read_count(&c->n_wild_frees) + read_count(&c->n_misaligned_frees) + read_count(&c->n_refused_frees);
	}
	return n;
}

void
session_report(struct session *session, const char *what)
{
	if (atomic_add(&session->n_reports, 1) < MAX_REPORTS)
		log_warning("client %u (pid %d, uid %u, '%s'): %s", session->id, session->pid, session->uid, session->label, what);
}

void
session_fault(struct session *session, const char *what)
{
	uint64_t n = atomic_add(&session->n_faults, 1) + 1;

	if ((n & (n - 1)) == 0)
		log_warning("client %u (pid %d, uid %u, '%s'): %s; %llu such faults", session->id, session->pid, session->uid, session->label,
			what, (unsigned long long)n);
}

void
session_fault_own(struct session *session, const char *what)
{
	const struct arena *arena = session->arena;
	uint32_t max = atomic_read(&arena->options.max_faults);
	uint64_t n = atomic_add(&session->n_own_faults, 1);

	session_fault(session, what);
	if (max && n >= max && (n - max) % EVICT_AGAIN == 0 && arena->evict)
		arena->evict(arena->evict_ctx, session);
}
