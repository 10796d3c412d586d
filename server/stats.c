/* SPDX-License-Identifier: Apache-2.0 */
#include "server/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/cache.h"
#include "server/census.h"
#include "server/claim.h"
#include "server/clock.h"
#include "server/orphan.h"
#include "server/session.h"
#include "server/stash.h"
#include "shm/segment.h"

static uint64_t
resident(int fd)
{
	int64_t bytes = fd >= 0 ? segment_resident(fd) : 0;

	return bytes > 0 ? (uint64_t)bytes : 0;
}

static uint64_t *
bytes_of_kind(struct proto_status_reply *reply, unsigned kind)
{
	return kind == LAYOUT_PAGES_1G ? &reply->bytes_1g : kind == LAYOUT_PAGES_HUGE ? &reply->bytes_huge : &reply->bytes_4k;
}

void
stats_status(struct slabd *slabd, struct arena *arena, struct proto_status_reply *reply)
{
	*reply = (struct proto_status_reply){
		.version = PROTO_VERSION,
		.pid = (uint32_t)getpid(),
		.uptime_ms = (clock_now_ns() - slabd->started_ns) / 1000000,
		.n_threads = slabd->n_loops,
		.arena_bytes = arena->options.limit_bytes,
		.committed_bytes = atomic_read(&arena->committed_bytes),
		.reserve_bytes = arena->options.reserve_bytes,
		.n_nodes = arena->topology.n_nodes,
		.words_bytes = resident(arena->words_fd),
		.map_bytes = resident(arena->fd),
		.ledger_bytes = resident(arena->ledger_fd),
		.n_bad_packets = atomic_read(&slabd->n_bad_packets),
		.n_misplaced = atomic_read(&arena->n_misplaced),
		.n_recalls = atomic_read(&arena->n_recalls),
		.n_recalled_sheaves = atomic_read(&arena->n_recalled_sheaves),
		.n_recall_busy = atomic_read(&arena->n_recall_busy),
		.n_repaired = atomic_read(&arena->n_repaired),
	};
	snprintf(reply->server, sizeof reply->server, "slabd %s", SLABD_VERSION);
	snprintf(reply->profile, sizeof reply->profile, "%s", profile_name(arena->options.profile));
	snprintf(reply->arena, sizeof reply->arena, "%s", arena->name);
	ladder_name(arena->options.page_kind, reply->page_kind);
	snprintf(reply->recall, sizeof reply->recall, "%s", atomic_read(&arena->recall_error) ? strerror(atomic_read(&arena->recall_error)) : "ok");
	pthread_mutex_lock(&arena->ledger_lock);
	snprintf(reply->page_note, sizeof reply->page_note, "%s", arena->page_note);
	pthread_mutex_unlock(&arena->ledger_lock);
	for (unsigned i = 0; i < arena->n_segments; i++) {
		*bytes_of_kind(reply, arena->segments[i].kind) += resident(arena->segments[i].fd);
		reply->kept_bytes += arena_kept_bytes(&arena->segments[i]);
	}
	/* They lie among the small pages. */
	reply->bytes_thp = atomic_read(&arena->thp_bytes);
	reply->bytes_4k -= reply->bytes_thp < reply->bytes_4k ? reply->bytes_thp : reply->bytes_4k;
	pthread_mutex_lock(&arena->registry_lock);
	reply->n_caches = arena->n_caches;
	pthread_mutex_unlock(&arena->registry_lock);
	pthread_rwlock_rdlock(&arena->sessions_lock);
	reply->n_sessions = arena->n_sessions;
	reply->n_sessions_ever = arena->n_sessions_ever;
	reply->n_ended_ever = arena->n_dead;
	reply->n_faults = arena->n_dead_faults;
	for (struct session *s = arena->first_session; s; s = s->next) {
		reply->session_bytes += resident(s->fd);
		reply->n_faults += session_count_faults(s);
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
}

static void
add_session(const struct session *session, uint32_t cache, struct proto_caches_reply *reply)
{
	const struct layout_session_cache *c;

	reply->n_stash += stash_size(session, cache);
	if (!session->map)
		return;
	c = session_cache(session, cache);
	reply->n_refills += atomic_read(&c->n_refills);
	reply->n_waits += atomic_read(&c->n_waits);
	reply->n_flushes += atomic_read(&c->n_flushes);
	reply->n_foreign_frees += atomic_read(&c->n_foreign_frees);
	/* order: SLOTS acquire - pairs with session_slot_lend() */
	for (uint32_t slot = 0; slot < atomic_read_acquire(&session->n_slots); slot++) {
		uint32_t n;

		if (atomic_read(&session->slots[slot].cache) != cache)
			continue;
		n = session_slot_entries(session, slot);
		switch (atomic_read(&session_slots(session)[slot].holder)) {
		case LAYOUT_HOLDER_SLABD:
		case LAYOUT_HOLDER_RETURNED:
		case LAYOUT_HOLDER_RECALLED:
			reply->n_returned += n;
			break;
		case LAYOUT_HOLDER_BARN:
			reply->n_process_barn += n;
			break;
		case LAYOUT_HOLDER_APP:
			reply->n_app += n;
			break;
		default:
			reply->n_thread += n;
		}
	}
}

static void
add_node(struct node *node, struct proto_caches_reply *reply)
{
	node_lock(node);
	reply->n_slabs += node->n_slabs;
	reply->n_pages += node->n_pages;
	reply->n_partial += node->n_partial;
	reply->n_objects += node->n_objects;
	reply->n_free += node->n_free;
	reply->n_node_barn += node->n_barn;
	reply->lock_acquired += node->lock.n_acquired;
	reply->lock_contended += node->lock.n_contended;
	reply->lock_wait_ns += node->lock.wait_ns;
	reply->lock_hold_ns += node->lock.hold_ns;
	reply->n_sheaves_granted += atomic_read(&node->n_sheaves_granted);
	reply->n_sheaves_taken += node->n_sheaves_taken;
	reply->n_carved += node->n_carved;
	reply->n_slabs_touched += node->n_slabs_touched;
	reply->n_discarded += node->n_discarded;
	reply->n_order_fallback += node->n_order_fallback;
	node_unlock(node);
}

void
stats_cache(struct arena *arena, uint32_t after, struct proto_caches_reply *reply)
{
	struct cache *k;
	uint64_t idle;

	*reply = (struct proto_caches_reply){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	k = arena_cache_after(arena, after);
	if (!k) {
		pthread_rwlock_unlock(&arena->sessions_lock);
		return;
	}
	reply->cache = k->id;
	snprintf(reply->name, sizeof reply->name, "%s", k->name);
	reply->flags = k->flags;
	reply->object_size = k->object_size;
	reply->object_bytes = k->object_bytes;
	reply->align = k->align;
	reply->order = k->order;
	reply->objects_per_slab = k->n_slab_objects;
	reply->capacity = k->is_sheafless ? 0 : k->capacity;
	reply->barn_full = k->barn_full;
	reply->barn_empty = k->barn_empty;
	reply->min_partial = k->min_partial;
	reply->max_cached = k->max_cached;
	reply->cpu_partial = k->cpu_partial;
	snprintf(reply->policy, sizeof reply->policy, "%s", cache_policy_name(k->policy));
	reply->n_openers = atomic_read(&k->n_openers);
	reply->n_recalled = atomic_read(&k->n_recalled);
	for (unsigned i = 0; i < k->n_nodes; i++)
		add_node(&k->nodes[i], reply);
	for (struct session *s = arena->first_session; s; s = s->next)
		add_session(s, k->id, reply);
	/* Clients that have ended took their counters with them. */
	reply->n_refills += atomic_read(&k->n_dead_refills);
	reply->n_waits += atomic_read(&k->n_dead_waits);
	reply->n_flushes += atomic_read(&k->n_dead_flushes);
	reply->n_foreign_frees += atomic_read(&k->n_dead_foreign_frees);
	reply->n_out = reply->n_objects - reply->n_free - reply->n_node_barn;
	idle = reply->n_thread + reply->n_process_barn + reply->n_returned + reply->n_app + reply->n_stash;
	reply->n_allocated = reply->n_out > idle ? reply->n_out - idle : 0;
	reply->n_left = cache_left(k, reply->n_allocated);
	pthread_rwlock_unlock(&arena->sessions_lock);
}

void
stats_count(struct arena *arena, struct stats_census *counts)
{
	struct census_place place = {.number = 1};

	memset(counts, 0, sizeof *counts);
	while (!census_part(arena, &place, counts))
		;
}

static void
add_counters(const struct layout_session_cache *c, struct proto_clients_reply *reply)
{
	reply->n_refills += atomic_read(&c->n_refills);
	reply->n_waits += atomic_read(&c->n_waits);
	reply->n_flushes += atomic_read(&c->n_flushes);
	reply->n_foreign_frees += atomic_read(&c->n_foreign_frees);
	reply->n_double_frees += atomic_read(&c->n_double_frees);
	reply->n_wild_frees += atomic_read(&c->n_wild_frees);
	reply->n_misaligned_frees += atomic_read(&c->n_misaligned_frees);
	reply->n_refused_frees += atomic_read(&c->n_refused_frees);
	reply->n_dropped += atomic_read(&c->n_dropped);
	reply->n_nested += atomic_read(&c->n_nested);
}

static void
add_caches(const struct session *session, struct proto_clients_reply *reply)
{
	/* Cache 0: frees of what is an object of no cache. */
	add_counters(session_cache(session, 0), reply);
	for (const struct cache *cache = arena_cache_after(session->arena, 0); cache; cache = arena_cache_after(session->arena, cache->id))
		add_counters(session_cache(session, cache->id), reply);
	reply->n_slots = atomic_read_acquire(&session->n_slots);
	reply->n_threads = atomic_read(&session_head(session)->n_threads);
	reply->bytes_idle = session_idle_bytes(session, false);
	reply->n_recalled = atomic_read(&session->n_recalled);
	reply->bytes_max = session->arena->options.client_max;
}

/* counts NULL: there was no memory for them. */
static void
describe(const struct stats_census *counts, struct session *session, struct proto_clients_reply *reply)
{
	static const char *const states[] = {"live", "detached", "dying"};

	reply->client_id = session->id;
	reply->pid = (uint32_t)session->pid;
	reply->uid = session->uid;
	reply->gid = session->gid;
	snprintf(reply->state, sizeof reply->state, "%s", states[atomic_read(&session->state)]);
	snprintf(reply->label, sizeof reply->label, "%s", session->label);
	reply->flags = session->is_readonly ? PROTO_CLIENT_READONLY : session->is_recallable ? 0 : PROTO_CLIENT_NO_RECALL;
	reply->n_faults = session_count_faults(session);
	if (session->map)
		add_caches(session, reply);
	if (!counts)
		return;
	reply->n_held = counts->n[session->client];
	reply->bytes_held = counts->bytes[session->client];
}

static void
describe_dead(const struct arena *arena, uint32_t client, struct proto_clients_reply *reply)
{
	struct orphan_owner owner;

	if (!orphan_owner(arena, client, (int64_t)clock_now_ns(), &owner))
		return;
	reply->client_id = owner.id;
	reply->pid = (uint32_t)owner.pid;
	reply->uid = owner.uid;
	reply->dead_ms = (uint64_t)owner.age_ns / 1000000;
	snprintf(reply->label, sizeof reply->label, "%s", owner.label);
}

static void
find_client(struct arena *arena, const struct stats_census *counts, uint32_t after, struct proto_clients_reply *reply)
{
	for (uint32_t client = after + 1; client <= LAYOUT_MAX_CLIENTS; client++) {
		struct session *session = arena->sessions[client];

		if (!session && !(counts && arena->named[client] && counts->n[client]))
			continue;
		reply->client = client;
		if (session) {
			describe(counts, session, reply);
			return;
		}
		/* The dead whose objects are kept. */
		reply->n_orphans = counts->n[client];
		reply->bytes_orphans = counts->bytes[client];
		describe_dead(arena, client, reply);
		snprintf(reply->state, sizeof reply->state, "dead");
		return;
	}
}

bool
stats_client(struct arena *arena, uint32_t after, uint64_t asked_ns, struct proto_clients_reply *reply)
{
	const struct stats_census *counts = NULL;
	struct census *census;

	*reply = (struct proto_clients_reply){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	pthread_mutex_lock(&arena->registry_lock);
	census = census_of(arena);
	if (census)
		counts = census_get(arena, census, asked_ns, after != 0);
	if (counts || !census)
		find_client(arena, counts, after, reply);
	pthread_mutex_unlock(&arena->registry_lock);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return counts || !census;
}

bool
stats_session(struct session *session, uint64_t asked_ns, struct proto_session_stats_reply *reply)
{
	struct arena *arena = session->arena;
	const struct stats_census *counts = NULL;
	struct proto_clients_reply client = {0};
	struct census *census;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	pthread_mutex_lock(&arena->registry_lock);
	census = census_of(arena);
	if (census)
		counts = census_get(arena, census, asked_ns, false);
	if (counts || !census)
		describe(counts, session, &client);
	*reply = (struct proto_session_stats_reply){
		.arena_bytes = arena->options.limit_bytes,
		.committed_bytes = atomic_read(&arena->committed_bytes),
		.bytes_held = client.bytes_held,
		.bytes_idle = client.bytes_idle,
		.n_refills = client.n_refills,
		.n_waits = client.n_waits,
		.n_flushes = client.n_flushes,
		.n_foreign_frees = client.n_foreign_frees,
		.n_bad_frees = client.n_double_frees + client.n_wild_frees + client.n_misaligned_frees + client.n_refused_frees,
		.n_dropped = client.n_dropped,
		.n_nested = client.n_nested,
		.n_threads = (uint32_t)client.n_threads,
	};
	for (unsigned i = 0; i < sizeof session->has_open; i++)
		reply->n_caches += (uint32_t)__builtin_popcount(session->has_open[i]);
	pthread_mutex_unlock(&arena->registry_lock);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return counts || !census;
}

/* Bytes of all clients, or, client not 0, of that one's caches; counts by client slot or cache id.  Returns where most is. */
static uint32_t
count_holders(struct arena *arena, uint32_t client, uint64_t *bytes)
{
	uint32_t top = 0;

	for (uint32_t number = 1; number <= atomic_read_acquire(&arena->n_slabs); number++) {
		const struct slab *slab = &arena->slabs[number];
		const struct cache *k = arena_cache(arena, atomic_read_acquire(&slab->cache));

		for (uint32_t i = 0; k && !(k->flags & LAYOUT_CACHE_NO_OWNER) && i < atomic_read(&slab->n_objects); i++) {
			uint32_t owner = word_owner(atomic_read(&arena->words[atomic_read(&slab->first_word) + i]));
			uint32_t at = client ? k->id : owner;

			if (owner == 0 || owner > LAYOUT_MAX_CLIENTS || (client && owner != client))
				continue;
			bytes[at] += slab_object_bytes(arena, k, number);
			if (bytes[at] > bytes[top])
				top = at;
		}
	}
	return top;
}

static void
describe_top(struct arena *arena, char *text, size_t size)
{
	uint64_t *bytes = calloc(LAYOUT_MAX_CLIENTS + 1, sizeof *bytes), n_bytes;
	uint32_t client = bytes ? count_holders(arena, 0, bytes) : 0;
	const struct session *s = arena->sessions[client];
	const struct cache *k;

	*text = '\0';
	if (client) {
		n_bytes = bytes[client];
		memset(bytes, 0, LAYOUT_MAX_CACHES * sizeof *bytes);
		k = arena_cache(arena, count_holders(arena, client, bytes));
		if (s)
			snprintf(text, size, "client %u (pid %d, '%s') holds most, %llu", s->id, s->pid, s->label, (unsigned long long)n_bytes);
		else
			snprintf(text, size, "a dead client left most, %llu", (unsigned long long)n_bytes);
		snprintf(text + strlen(text), size - strlen(text), ", and of these %llu of cache '%s'; see slabctl leaks",
			(unsigned long long)(k ? bytes[k->id] : 0), k ? k->name : "?");
	}
	free(bytes);
}

void
stats_top_holder(struct arena *arena, char *text, size_t size)
{
	static const int64_t pause_ns = 1000000000;
	char found[STATS_TOP_BYTES];
	int64_t now = (int64_t)clock_now_ns();
	bool is_fresh;

	pthread_mutex_lock(&arena->ledger_lock);
	is_fresh = arena->top_ns && now - arena->top_ns < pause_ns;
	if (!is_fresh)
		arena->top_ns = now; /* others take what there is meanwhile */
	pthread_mutex_unlock(&arena->ledger_lock);
	if (!is_fresh)
		describe_top(arena, found, sizeof found);
	pthread_mutex_lock(&arena->ledger_lock);
	if (!is_fresh)
		memcpy(arena->top_holder, found, sizeof found);
	snprintf(text, size, "%s", arena->top_holder);
	pthread_mutex_unlock(&arena->ledger_lock);
}
