/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cache.h"
#include "server/conn.h"
#include "server/drain.h"
#include "server/grant.h"
#include "server/inspect.h"
#include "server/log.h"
#include "server/orphan.h"
#include "server/recall.h"
#include "server/request.h"
#include "server/retire.h"
#include "server/root.h"
#include "server/stash.h"

/* The session that asks, if it may write; NULL: none, and then the peer administers or is refused. */
static enum proto_status
who_asks(struct request *q, struct session **ownp)
{
	*ownp = NULL;
	if (!q->conn->session)
		return request_need_admin(q);
	*ownp = q->conn->session;
	return request_need_writable(q);
}

static uint64_t
count_pages(struct cache *cache)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < cache->n_nodes; i++) {
		node_lock(&cache->nodes[i]);
		n += cache->nodes[i].n_pages;
		node_unlock(&cache->nodes[i]);
	}
	return n;
}

/* Returns the pages that went back. */
static uint64_t
shrink(struct cache *cache, struct session *own)
{
	uint64_t before = count_pages(cache), after;

	if (own)
		pthread_mutex_lock(&own->work);
	recall_shrink(cache->arena, own, cache);
	if (own)
		pthread_mutex_unlock(&own->work);
	after = count_pages(cache);
	return before > after ? before - after : 0;
}

enum proto_status
request_shrink(struct request *q)
{
	uint32_t id = q->in->shrink.cache;
	struct session *own;
	enum proto_status status = who_asks(q, &own);
	struct cache *cache;

	if (status != PROTO_STATUS_OK)
		return status;
	if (own && (!arena_cache(q->arena, id) || !session_has_open(own, id)))
		REFUSE(q, PROTO_STATUS_NO_CACHE, "cache %u is not open in this session", id);
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	cache = id ? arena_cache(q->arena, id) : arena_cache_after(q->arena, 0);
	if (id && !cache)
		status = PROTO_STATUS_NO_CACHE;
	for (; cache; cache = id ? NULL : arena_cache_after(q->arena, cache->id))
		q->out.shrink.n_pages += shrink(cache, own);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	if (status != PROTO_STATUS_OK)
		snprintf(q->why, sizeof q->why, "there is no cache %u in arena '%s'", id, q->arena->name);
	return status;
}

enum proto_status
request_destroy(struct request *q)
{
	const char *name = q->in->destroy.name;
	struct session *own;
	enum proto_status status = who_asks(q, &own);
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	if (!q->walk) {
		q->walk = calloc(1, sizeof(struct retire_walk));
		q->end_walk = retire_end;
	}
	if (!q->walk)
		REFUSE(q, PROTO_STATUS_NO_MEMORY, "no memory in slabd for counting objects");
	if (q->in->destroy.commit)
		r = retire_cache(q->arena, name, own, q->walk, q->why, sizeof q->why);
	else
		r = retire_look(q->arena, name, own, q->walk, q->why, sizeof q->why);
	return r == RETIRE_E_MORE ? REQUEST_GO_ON : request_status_of(r);
}

/* What sessions have set aside and in their barns, down to the knobs. sessions_lock held. */
static void
trim_sessions(struct cache *cache)
{
	for (struct session *s = cache->arena->first_session; s; s = s->next) {
		/* What a dying one has goes back anyway, and its reaper may take a while. */
		if (s->is_readonly || !session_has_open(s, cache->id) || atomic_read(&s->state) == SESSION_DYING)
			continue;
		pthread_mutex_lock(&s->work);
		if (s->map && atomic_read(&s->state) != SESSION_DYING) {
			stash_trim(s, cache, cache->cpu_partial);
			if (!cache->is_sheafless)
				grant_trim(s, cache);
		}
		pthread_mutex_unlock(&s->work);
	}
}

enum proto_status
request_tune(struct request *q)
{
	const struct proto_tune_request *in = &q->in->tune;
	const struct cache_tuning tuning = {
		.set = in->set,
		.sheaf_capacity = in->sheaf_capacity,
		.barn_full = in->barn_full,
		.min_partial = in->min_partial,
		.max_cached = in->max_cached,
		.cpu_partial = in->cpu_partial,
		.barn_empty = in->barn_empty,
	};
	struct proto_tune_reply *out = &q->out.tune;
	enum proto_status status = request_need_admin(q);
	struct cache *cache;
	int r = -ENOENT;

	if (status != PROTO_STATUS_OK)
		return status;
	pthread_rwlock_wrlock(&q->arena->sessions_lock);
	cache = arena_cache(q->arena, in->cache);
	if (cache)
		r = cache_tune(cache, &tuning, q->why, sizeof q->why);
	else
		snprintf(q->why, sizeof q->why, "there is no cache %u in arena '%s'", in->cache, q->arena->name);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	if (r < 0)
		return request_status_of(r);
	/* What is more than the new knobs let go at once; nobody waits for it. */
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	cache = arena_cache(q->arena, in->cache);
	if (cache)
		trim_sessions(cache);
	for (unsigned i = 0; cache && i < cache->n_nodes; i++)
		node_trim_to(q->arena, &cache->nodes[i], cache->barn_full, cache->min_partial);
	if (cache) {
		*out = (struct proto_tune_reply){.barn_full = cache->barn_full,
			.min_partial = cache->min_partial,
			.max_cached = cache->max_cached,
			.cpu_partial = cache->cpu_partial,
			.barn_empty = cache->barn_empty};
		out->sheaf_capacity = cache->is_sheafless ? 0 : cache->capacity;
		log_notice("arena '%s', cache '%s' tuned by uid %u: sheaf_capacity %u, barn_full %u, min_partial %u, max_cached %llu, "
			   "cpu_partial %u, barn_empty %u",
			q->arena->name, cache->name, q->conn->peer.uid, out->sheaf_capacity, out->barn_full, out->min_partial,
			(unsigned long long)out->max_cached, out->cpu_partial, out->barn_empty);
	}
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	return PROTO_STATUS_OK;
}

enum proto_status
request_orphans(struct request *q)
{
	const struct proto_orphans_request *in = &q->in->orphans;
	struct orphan_walk *walk = q->walk;
	struct orphan_group group;
	int r = walk ? 0 : orphan_walk_new(&walk, q->asked_ns, in->after_cache, in->after_client);

	q->walk = walk;
	q->end_walk = free;
	if (r == 0)
		r = orphan_list(q->arena, walk, &group);
	if (r == ORPHAN_E_MORE)
		return REQUEST_GO_ON;
	if (r < 0)
		REFUSE(q, PROTO_STATUS_NO_MEMORY, "no memory in slabd for counting orphans");
	if (group.cache == 0)
		return PROTO_STATUS_OK;
	q->out.orphans = (struct proto_orphans_reply){
		.cache = group.cache,
		.client = group.client,
		.client_id = group.owner.id,
		.pid = (uint32_t)group.owner.pid,
		.uid = group.owner.uid,
		.n_orphans = group.n,
		.bytes = group.bytes,
		.age_ms = (uint64_t)group.owner.age_ns / 1000000,
	};
	snprintf(q->out.orphans.cache_name, sizeof q->out.orphans.cache_name, "%s", group.cache_name);
	snprintf(q->out.orphans.label, sizeof q->out.orphans.label, "%s", group.label);
	return PROTO_STATUS_OK;
}

enum proto_status
request_reclaim(struct request *q)
{
	const struct proto_reclaim_request *in = &q->in->reclaim;
	const struct orphan_filter filter = {
		.cache = in->cache,
		.client_id = in->client_id,
		.min_age_ns = in->older_than_ms < INT64_MAX / 1000000 ? (int64_t)in->older_than_ms * 1000000 : INT64_MAX,
	};
	enum proto_status status = request_need_admin(q);
	uint64_t n_freed, bytes;

	if (status != PROTO_STATUS_OK)
		return status;
	q->out.reclaim.next = orphan_reclaim(q->arena, &filter, in->from, &n_freed, &bytes);
	q->out.reclaim.n_freed = n_freed;
	q->out.reclaim.bytes = bytes;
	if (n_freed)
		log_notice("arena '%s': uid %u freed %llu orphans, %llu bytes", q->arena->name, q->conn->peer.uid,
			(unsigned long long)n_freed, (unsigned long long)bytes);
	return PROTO_STATUS_OK;
}

enum proto_status
request_arenas(struct request *q)
{
	const struct slabd *slabd = q->conn->loop->slabd;
	struct proto_arenas_reply *out = &q->out.arenas;
	struct arena *arena;

	if (q->in->arenas.after >= slabd->n_arenas)
		return PROTO_STATUS_OK;
	arena = slabd->arenas[q->in->arenas.after];
	*out = (struct proto_arenas_reply){
		.arena = q->in->arenas.after + 1,
		.limit_bytes = arena->options.limit_bytes,
		.reserve_bytes = arena->options.reserve_bytes,
		.committed_bytes = atomic_read(&arena->committed_bytes),
		.n_nodes = arena->topology.n_nodes,
		.n_roots = root_count(arena),
	};
	snprintf(out->name, sizeof out->name, "%s", arena->name);
	snprintf(out->profile, sizeof out->profile, "%s", profile_name(arena->options.profile));
	ladder_name(arena->options.page_kind, out->page_kind);
	pthread_rwlock_rdlock(&arena->sessions_lock);
	out->n_sessions = arena->n_sessions;
	pthread_rwlock_unlock(&arena->sessions_lock);
	pthread_mutex_lock(&arena->registry_lock);
	out->n_caches = arena->n_caches;
	pthread_mutex_unlock(&arena->registry_lock);
	return request_show_access(q, arena);
}

enum proto_status
request_nodes(struct request *q)
{
	uint32_t node = q->in->nodes.after;
	struct proto_nodes_reply *out = &q->out.nodes;

	if (node >= q->arena->topology.n_nodes)
		return PROTO_STATUS_OK;
	*out = (struct proto_nodes_reply){.node = node + 1, .os_node = q->arena->topology.os_node[node],
		.n_from_elsewhere = atomic_read(&q->arena->n_from_elsewhere[node])};
	for (unsigned i = 0; i < q->arena->n_segments; i++) {
		struct arena_segment *s = &q->arena->segments[i];
		struct pages_counters c;

		if (s->node != node)
			continue;
		pages_count(&s->pages, &c);
		*(s->kind == LAYOUT_PAGES_4K ? &out->small_bytes : &out->huge_bytes) += (uint64_t)c.n_committed * LAYOUT_PAGE_BYTES;
		out->free_bytes += (uint64_t)c.n_free * LAYOUT_PAGE_BYTES;
		out->given_back_bytes += (uint64_t)c.n_given_back * LAYOUT_PAGE_BYTES;
		out->n_commit_fails += c.n_commit_fails;
		out->kept_bytes += arena_kept_bytes(s);
	}
	return PROTO_STATUS_OK;
}

enum proto_status
request_inspect(struct request *q)
{
	const struct slabd *slabd = q->conn->loop->slabd;

	if (slabd->is_refused && q->in->inspect.after < slabd->n_inspections)
		q->out.inspect = slabd->inspections[q->in->inspect.after].found;
	return PROTO_STATUS_OK;
}

enum proto_status
request_drain(struct request *q)
{
	struct slabd *slabd = q->conn->loop->slabd;

	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		enum proto_status status = request_need_access(q, slabd->arenas[i], ACCESS_ADMIN);

		if (status != PROTO_STATUS_OK)
			return status;
	}
	if (!slabd->options.has_signals)
		REFUSE(q, PROTO_STATUS_NOT_SUPPORTED, "this slabd serves a test suite (--ephemeral), and ends with it");
	if (q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "this connection has a session, which would be waited for");
	drain_hold(q->conn);
	q->out.drain.n_sessions = drain_count(slabd);
	if (q->out.drain.n_sessions == 0)
		drain_finish(slabd);
	return PROTO_STATUS_OK;
}
