/* SPDX-License-Identifier: Apache-2.0 */
#include "server/request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/codec.h"
#include "server/audit.h"
#include "server/cache.h"
#include "server/clock.h"
#include "server/conn.h"
#include "server/grant.h"
#include "server/log.h"
#include "server/presence.h"
#include "server/repair.h"
#include "server/stats.h"
#include "server/sweep.h"
#include "server/task.h"
#include "shm/step.h"
#include "shm/word.h"

enum proto_status
request_status_of(int r)
{
	switch (r) {
	case 0:
		return PROTO_STATUS_OK;
	case -EEXIST:
		return PROTO_STATUS_EXISTS;
	case -ENOENT:
		return PROTO_STATUS_NO_CACHE;
	case -ESTALE:
		return PROTO_STATUS_STALE;
	case -ESRCH:
		return PROTO_STATUS_NO_CLIENT;
	case -EBUSY:
		return PROTO_STATUS_BUSY;
	case -EACCES:
		return PROTO_STATUS_ACCESS;
	case -EUSERS:
	case -ENOSPC:
		return PROTO_STATUS_TOO_MANY;
	case -ENOMEM:
		return PROTO_STATUS_NO_MEMORY;
	case -EDQUOT:
		return PROTO_STATUS_QUOTA;
	case -EINVAL:
	case -ENAMETOOLONG:
		return PROTO_STATUS_INVALID;
	case -ENOTSUP:
		return PROTO_STATUS_NOT_SUPPORTED;
	default:
		return PROTO_STATUS_IO;
	}
}

static enum proto_status
refuse_unadopted(struct request *q)
{
	REFUSE(q, PROTO_STATUS_BUSY, "slabd %s serves nobody: it has not adopted what a dead slabd left, and keeps it (slabctl inspect): %.200s", SLABD_VERSION,
		q->conn->loop->slabd->why);
}

static enum proto_status
request_hello(struct request *q)
{
	const struct proto_hello_request *in = &q->in->hello;
	int r;

	if (in->version != PROTO_VERSION)
		REFUSE(q, PROTO_STATUS_VERSION, "slabd %s speaks protocol version %d, %s speaks version %u", SLABD_VERSION, PROTO_VERSION,
			in->library, in->version);
	/* As long as another slabd may adopt it its clients, who are of its layout, wait. */
	if (in->layout_hash != layout_hash && q->conn->loop->slabd->is_refused)
		return refuse_unadopted(q);
	if (in->layout_hash != layout_hash)
		REFUSE(q, PROTO_STATUS_LAYOUT, "slabd %s has layout %016llx, %s has layout %016llx: they are not of the same version",
			SLABD_VERSION, (unsigned long long)layout_hash, in->library, (unsigned long long)in->layout_hash);
	if (q->conn->is_over_limit)
		REFUSE(q, PROTO_STATUS_QUOTA, "user %u has %u connections without a session, which is the limit; they end when they get one, or close",
			q->conn->peer_uid, q->conn->loop->slabd->strangers.limit);
	r = conn_open_nonce(q->conn);
	if (r < 0)
		REFUSE(q, PROTO_STATUS_IO, "slabd cannot watch process %d: %s", q->conn->sender.pid, strerror(-r));
	q->conn->has_hello = true;
	q->out.hello.nonce = q->conn->nonce;
	q->out.hello.version = PROTO_VERSION;
	q->out.hello.layout_hash = layout_hash;
	snprintf(q->out.hello.server, sizeof q->out.hello.server, "slabd %s", SLABD_VERSION);
	return PROTO_STATUS_OK;
}

static void
pass_segments(struct request *q, const struct session *session)
{
	struct arena *arena = q->arena;

	q->fds[q->n_fds++] = arena->fd_readonly;
	q->fds[q->n_fds++] = session->is_readonly ? arena->words_fd_readonly : arena->words_fd;
	/* A read-only client has no session segment; the page map stands in its place. */
	q->fds[q->n_fds++] = session->is_readonly ? arena->fd_readonly : session->fd;
	for (unsigned i = 0; i < arena->n_segments; i++)
		q->fds[q->n_fds++] = session->is_readonly ? arena->segments[i].fd_readonly : arena->segments[i].fd;
}

static enum proto_status
request_attach(struct request *q)
{
	const struct proto_attach_request *in = &q->in->attach;
	struct session_who who = {
		.pid = q->conn->peer.pid,
		.uid = q->conn->peer.uid,
		.gid = q->conn->peer.gid,
		.label = in->label,
		.is_readonly = in->flags & PROTO_ATTACH_READONLY,
		.is_recallable = in->flags & PROTO_ATTACH_RECALLABLE,
	};
	struct session *session;
	enum proto_status status;
	int r;

	if (q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "this connection has a session already");
	if (in->flags & ~(uint32_t)(PROTO_ATTACH_READONLY | PROTO_ATTACH_RECALLABLE))
		REFUSE(q, PROTO_STATUS_INVALID, "unknown session flags 0x%x",
			in->flags & ~(uint32_t)(PROTO_ATTACH_READONLY | PROTO_ATTACH_RECALLABLE));
	status = request_find_arena(q, in->arena, &q->arena);
	if (status == PROTO_STATUS_OK)
		status = request_need_access(q, q->arena, who.is_readonly ? ACCESS_READ : ACCESS_WRITE);
	if (status != PROTO_STATUS_OK)
		return status;
	r = conn_watch_death(q->conn, in->nonce);
	if (r == -EPERM)
		REFUSE(q, PROTO_STATUS_ACCESS, "ATTACH must come from the process that said HELLO, with the nonce of its reply");
	if (r < 0)
		REFUSE(q, PROTO_STATUS_IO, "slabd cannot watch process %d: %s", who.pid, strerror(-r));
	who.pidfd = q->conn->pidfd;
	r = session_new(&session, q->arena, &who, q->why, sizeof q->why);
	if (r < 0)
		return request_status_of(r);
	session->loop = (unsigned)(q->conn->loop - q->conn->loop->slabd->loops);
	q->conn->session = session;
	conn_has_session(q->conn);
	pass_segments(q, session);
	q->out.attach = (struct proto_attach_reply){
		.client = session->client,
		.incarnation = session->id >> 14,
		.client_id = session->id,
		.n_segments = q->arena->n_segments,
		.session_bytes = LAYOUT_SESSION_BYTES,
		.arena_bytes = q->arena->bytes,
		.words_bytes = q->arena->words_bytes,
		.may_write = !session->is_readonly,
		.token = session->token,
	};
	log_info("client %u: pid %d, uid %u, gid %u, '%s', arena '%s'%s", session->id, who.pid, who.uid, who.gid, session->label,
		q->arena->name, session->is_readonly ? ", read-only" : "");
	return PROTO_STATUS_OK;
}

/* The session's loop does the rest (conn_take_up()). */
static enum proto_status
request_resume(struct request *q)
{
	const struct proto_resume_request *in = &q->in->resume;
	uint32_t client = in->client_id & WORD_OWNER_MASK;
	struct loop_message message = {
		.fd = q->conn->fd,
		.client_id = in->client_id,
		.request_id = q->id,
		.pid = q->conn->loop->slabd->options.is_old_kernel ? q->conn->sender.pid : q->conn->peer.pid,
		.token = in->token,
	};
	const struct session *session;
	enum proto_status status;
	unsigned loop = 0;

	if (q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "this connection has a session already");
	if (q->id == 0)
		REFUSE(q, PROTO_STATUS_BAD_REQUEST, "RESUME wants an answer");
	status = request_find_arena(q, in->arena, &q->arena);
	if (status != PROTO_STATUS_OK)
		return status;
	message.arena = q->arena;
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	session = client && client <= LAYOUT_MAX_CLIENTS ? q->arena->sessions[client] : NULL;
	if (session && session->id == in->client_id)
		loop = session->loop;
	else
		session = NULL;
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	if (!session)
		REFUSE(q, PROTO_STATUS_STALE, "slabd has no session of client %u in arena '%s'", in->client_id, q->arena->name);
	if (!slabd_resume(q->conn->loop->slabd, loop, &message))
		REFUSE(q, PROTO_STATUS_BUSY, "slabd's loop is behind");
	q->is_moved = true;
	return PROTO_STATUS_OK;
}

enum proto_status
request_need_writable(struct request *q)
{
	if (!q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "attach to an arena first");
	if (q->conn->session->is_readonly)
		REFUSE(q, PROTO_STATUS_ACCESS, "the session is read-only");
	if (!q->conn->session->map)
		REFUSE(q, PROTO_STATUS_IO, "slabd has no memory to map the session");
	return PROTO_STATUS_OK;
}

static enum proto_status
request_cache_open(struct request *q)
{
	const struct proto_cache_open_request *in = &q->in->cache_open;
	const struct cache_options options = {
		.name = in->name,
		.size = in->size,
		.align = in->align,
		.flags = in->flags,
		.sheaf_capacity = in->sheaf_capacity,
		.sheaf_round_up = in->sheaf_round_up,
		.barn_full = in->barn_full,
		.min_partial = in->min_partial,
		.min_order = in->min_order,
		.max_order = in->max_order,
		.min_objects = in->min_objects,
		.max_cached = in->max_cached,
		.cpu_partial = in->cpu_partial,
		.policy = in->policy,
		.barn_empty = in->barn_empty,
		.opener = q->conn->session,
	};
	enum proto_status status = request_need_writable(q);
	struct cache *cache;
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	/* Found and held open before anybody can destroy it. */
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	r = cache_open(q->arena, &options, &cache, q->why, sizeof q->why);
	if (r == 0) {
		session_set_open(q->conn->session, cache, true);
		q->out.cache_open = (struct proto_cache_open_reply){
			.cache = cache->id,
			.object_bytes = cache->object_bytes,
			.capacity = cache->is_sheafless ? 0 : cache->capacity,
			.flags = cache->flags,
			.max_cached = cache->max_cached,
			.barn_empty = cache->barn_empty,
		};
	}
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	return request_status_of(r);
}

/* The cache, if the session has it open; then sessions_lock and the session's work are held until end_work(). */
static enum proto_status
begin_work(struct request *q, uint32_t id, struct cache **cachep)
{
	enum proto_status status = request_need_writable(q);

	if (status != PROTO_STATUS_OK)
		return status;
	*cachep = arena_cache(q->arena, id);
	if (!*cachep || !session_has_open(q->conn->session, id))
		REFUSE(q, PROTO_STATUS_NO_CACHE, "cache %u is not open in this session", id);
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	pthread_mutex_lock(&q->conn->session->work);
	return PROTO_STATUS_OK;
}

static void
end_work(struct request *q)
{
	pthread_mutex_unlock(&q->conn->session->work);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
}

static enum proto_status
request_cache_close(struct request *q)
{
	struct cache *cache;
	enum proto_status status = begin_work(q, q->in->cache_close.cache, &cache);

	if (status != PROTO_STATUS_OK)
		return status;
	grant_close(q->conn->session, cache);
	session_set_open(q->conn->session, cache, false);
	end_work(q);
	sweep_wake(q->conn->loop);
	return PROTO_STATUS_OK;
}

/*
 * What the client is to expect of a refill that it asks for ahead.  One of several sheaves that brought but the one for which somebody waits says:
 * nothing.  One of a single sheaf, asked for since another refill is on its way, says nothing at all; but it was asked by who has heard that what lay
 in the barn was called in.
 */
static void
show_granted(struct request *q, uint32_t n)
{
	const struct proto_refill_request *in = &q->in->refill;
	struct layout_session_cache *shown = session_cache(q->conn->session, in->cache);

	if (!q->is_waited)
		atomic_write(&shown->n_granted, n);
	else if (in->n_sheaves > 1)
		atomic_write(&shown->n_granted, n > 1 ? n : 0);
	else if (atomic_read(&shown->n_granted) == UINT32_MAX)
		atomic_write(&shown->n_granted, 0);
	atomic_write(&shown->is_refilling, 0);
}

static enum proto_status
request_refill(struct request *q)
{
	const struct proto_refill_request *in = &q->in->refill;
	const struct grant_request wish = {
		.n_sheaves = in->n_sheaves,
		.n_empty = in->n_empty,
		.capacity = in->capacity,
		.os_node = in->node,
		.n_pages = in->n_pages,
		.is_ahead = !q->is_waited,
	};
	struct cache *cache;
	enum proto_status status = begin_work(q, in->cache, &cache);
	struct grant grant;
	uint64_t n_counts;
	int r;

	if (status != PROTO_STATUS_OK) {
		if (status == PROTO_STATUS_NO_CACHE && in->cache < LAYOUT_MAX_CACHES)
			atomic_write(&session_cache(q->conn->session, in->cache)->is_refilling, 0);
		return status;
	}
	n_counts = q->conn->session->quota.n_counts;
	r = grant_refill(q->conn->session, cache, &wish, &grant, q->why, sizeof q->why);
	q->is_heavy = q->conn->session->quota.n_counts != n_counts;
	if (in->n_sheaves && !in->capacity)
		show_granted(q, r < 0 ? 0 : grant.n_sheaves);
	end_work(q);
	if (r < 0)
		return request_status_of(r);
	q->out.refill = (struct proto_refill_reply){.n_sheaves = grant.n_sheaves, .n_objects = grant.n_objects, .slot = grant.slot};
	return PROTO_STATUS_OK;
}

static enum proto_status
request_flush(struct request *q)
{
	struct cache *cache;
	enum proto_status status = begin_work(q, q->in->flush.cache, &cache);

	if (status != PROTO_STATUS_OK)
		return status;
	grant_flush(q->conn->session, cache);
	end_work(q);
	return PROTO_STATUS_OK;
}

/* Of FAULT: client/internal.h's FAULT_WILD. */
enum { KIND_WILD = 2 };

static enum proto_status
request_fault(struct request *q)
{
	static const char *const kinds[] = {"an unknown fault", "an object freed twice", "a free of what is no object of the cache",
		"a free inside an object", "a free of another client's object", "bytes written behind an object", "bytes written before an object",
		"bytes written into a free object"};
	const unsigned first_written = 5;
	const struct proto_fault_request *in = &q->in->fault;
	const char *kind = in->kind == KIND_WILD && in->cache == 0 ? "a free of what is no object of the arena" : kinds[in->kind < sizeof kinds / sizeof kinds[0] ? in->kind : 0];
	char where[48] = "an address outside the arena", of[64] = "";
	const struct cache *cache;
	char what[896];
	int n;

	if (!q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "attach to an arena first");
	if (in->place < (uint64_t)q->arena->n_pages * LAYOUT_PAGE_BYTES)
		snprintf(where, sizeof where, "place %llu", (unsigned long long)in->place >> LAYOUT_PLACE_SHIFT);
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	cache = arena_cache(q->arena, in->cache);
	if (cache)
		snprintf(of, sizeof of, ", cache '%s'", cache->name);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	n = snprintf(what, sizeof what, "%s%s, at %s; %llu of the kind", kind, of, where, (unsigned long long)in->n);
	if (in->thread)
		snprintf(what + n, sizeof what - (size_t)n, "; thread %u%s%s", in->thread, *in->details ? "; " : "", in->details);
	/* Bad frees the client counts where slabd sees it. */
	if (in->kind >= first_written && in->kind < sizeof kinds / sizeof kinds[0])
		atomic_add(&q->conn->session->n_faults, 1);
	session_report(q->conn->session, what);
	return PROTO_STATUS_OK;
}

static enum proto_status
request_bye(struct request *q)
{
	if (!conn_end_session(q->conn))
		REFUSE(q, PROTO_STATUS_STATE, "the session segment is still mapped");
	conn_is_stranger_again(q->conn);
	return PROTO_STATUS_OK;
}

static enum proto_status
request_status(struct request *q)
{
	stats_status(q->conn->loop->slabd, q->arena, &q->out.status);
	return PROTO_STATUS_OK;
}

static enum proto_status
request_caches(struct request *q)
{
	stats_cache(q->arena, q->in->caches.after, &q->out.caches);
	return PROTO_STATUS_OK;
}

static enum proto_status
request_clients(struct request *q)
{
	return stats_client(q->arena, q->in->clients.after, q->asked_ns, &q->out.clients) ? PROTO_STATUS_OK : REQUEST_GO_ON;
}

/* The next cache without owner words above that id, or only that one; 0: none. */
static uint32_t
next_passed(struct arena *arena, uint32_t after, uint32_t only)
{
	const struct cache *cache;
	uint32_t id = 0;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	for (cache = arena_cache_after(arena, after); cache && id == 0; cache = arena_cache_after(arena, cache->id))
		if (cache->flags & LAYOUT_CACHE_NO_OWNER && (!only || cache->id == only))
			id = cache->id;
	pthread_rwlock_unlock(&arena->sessions_lock);
	return id;
}

/* What the audit passes by: of one cache, or (0) of all. */
static void
count_passed(struct arena *arena, uint32_t only, struct proto_audit_reply *reply)
{
	for (uint32_t id = next_passed(arena, 0, only); id; id = next_passed(arena, id, only)) {
		struct proto_caches_reply now;

		stats_cache(arena, id - 1, &now);
		/* Unless it has just been destroyed. */
		if (now.cache != id)
			continue;
		reply->n_passed += now.n_out;
		reply->n_left += now.n_left;
	}
}

static struct proto_audit_reply
audit_reply(const struct audit *a)
{
	return (struct proto_audit_reply){
		.n_objects = a->n_objects,
		.n_out = a->n_out,
		.n_free = a->n_free,
		.n_barn = a->n_barn,
		.n_in_sheaves = a->n_in_sheaves,
		.n_held = a->n_held,
		.n_orphans = a->n_orphans,
		.n_lost = a->n_lost,
		.n_doubled = a->n_doubled,
		.n_undecided = a->n_undecided,
		.n_rounds = a->n_rounds,
		.longest_window_ns = a->longest_window_ns,
		.first_lost = a->first_lost,
		.first_doubled = a->first_doubled,
		.n_in_stashes = a->n_in_stashes,
		.n_repaired = a->n_repaired,
	};
}

static enum proto_status
begin_audit(struct request *q)
{
	bool repairs = q->in->audit.repair;
	enum proto_status status = repairs ? request_need_admin(q) : PROTO_STATUS_OK;
	struct audit_walk *walk;
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	r = audit_begin(&walk, q->arena, q->in->audit.cache, repairs ? repair_tell : NULL);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	if (r == -ENOENT)
		REFUSE(q, PROTO_STATUS_NO_CACHE, "there is no cache %u", q->in->audit.cache);
	if (r < 0)
		REFUSE(q, PROTO_STATUS_IO, "no memory in slabd for the audit");
	q->walk = walk;
	q->end_walk = audit_cancel;
	return PROTO_STATUS_OK;
}

/* Portions, as many as a turn has time for: those of a small cache are small.  As audit_step(). */
static int
audit_for_a_turn(const struct request *q)
{
	uint64_t start = clock_now_ns();
	int r;

	do {
		pthread_rwlock_rdlock(&q->arena->sessions_lock);
		r = audit_step(q->walk);
		pthread_rwlock_unlock(&q->arena->sessions_lock);
	} while (r == AUDIT_E_MORE && clock_now_ns() - start <= TASK_PORTION_NS / 2);
	return r;
}

static enum proto_status
request_audit(struct request *q)
{
	enum proto_status status = q->walk ? PROTO_STATUS_OK : begin_audit(q);
	struct presence presence = {0};
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	r = audit_for_a_turn(q);
	if (r == AUDIT_E_MORE)
		return REQUEST_GO_ON;
	if (r < 0)
		REFUSE(q, PROTO_STATUS_IO, "no memory in slabd for the audit");
	q->out.audit = audit_reply(audit_result(q->walk));
	if (q->out.audit.n_repaired)
		log_notice("arena '%s': uid %u had %llu lost objects taken back", q->arena->name, q->conn->peer.uid,
			(unsigned long long)q->out.audit.n_repaired);
	count_passed(q->arena, q->in->audit.cache, &q->out.audit);
	/* Of pages nobody can say whose they are. */
	if (q->in->audit.cache == 0)
		presence_check(q->arena, &presence);
	q->out.audit.bytes_missing = presence.bytes_missing;
	q->out.audit.bytes_extra = presence.bytes_extra;
	return PROTO_STATUS_OK;
}

enum proto_status
request_dispatch(struct request *q, enum proto_op op)
{
	enum proto_status status;

	if (!q->conn->has_hello && op != PROTO_OP_HELLO)
		REFUSE(q, PROTO_STATUS_STATE, "HELLO comes first, then %s", proto_op_name(op));
	if (q->conn->loop->slabd->is_refused && op != PROTO_OP_HELLO && op != PROTO_OP_INSPECT)
		return refuse_unadopted(q);
	status = request_pick_arena(q, op);
	if (status != PROTO_STATUS_OK)
		return status;
	switch (op) {
#define OP(number, NAME, name, in, out)                                                                                                    \
	case PROTO_OP_##NAME:                                                                                                              \
		return request_##name(q);
#include "proto/ops.def"
	}
	REFUSE(q, PROTO_STATUS_UNKNOWN_OP, "unknown op %d", op);
}

static size_t
reply_bytes(enum proto_op op)
{
	switch (op) {
#define OP(number, NAME, name, in, out)                                                                                                    \
	case PROTO_OP_##NAME:                                                                                                              \
		return sizeof(struct proto_##name##_reply);
#include "proto/ops.def"
	}
	return 0;
}

void
request_init(struct request *q, struct conn *conn)
{
	memset(q, 0, offsetof(struct request, out));
	*q->why = '\0';
	q->conn = conn;
	q->own_fd = -1;
}

int
request_answer(struct request *q, enum proto_op op, uint32_t id, enum proto_status status)
{
	unsigned char buf[4096];
	int length;

	STEP(REQUEST_DONE);
	if (status == PROTO_STATUS_OK)
		length = proto_pack_reply(buf, sizeof buf, op, id, &q->out);
	else
		length = proto_pack_error(buf, sizeof buf, id, status, q->why);
	/* A reply that does not fit its own table's limits: the peer shall not wait for it. */
	if (length < 0)
		return -EBADMSG;
	conn_send(q->conn, buf, (size_t)length, q->fds, q->n_fds);
	return 0;
}

int
request_handle(struct conn *conn, const void *packet, size_t n)
{
	struct request q;
	enum proto_status status;
	union proto_request in;
	enum proto_op op = 0;
	uint32_t id = 0;
	int r, answered = 0;

	request_init(&q, conn);
	r = proto_unpack_request(packet, n, &op, &id, &in, q.why, sizeof q.why);
	q.in = &in;
	q.id = id;
	q.is_waited = id != 0;
	if (r == 0 && task_is_one(op)) {
		if (id == 0 || task_new(conn, op, id, &in) == 0)
			return 0;
		snprintf(q.why, sizeof q.why, "slabd has no memory for %s", proto_op_name(op));
		return request_answer(&q, op, id, PROTO_STATUS_NO_MEMORY);
	}
	memset(&q.out, 0, reply_bytes(op));
	status = r == 0 ? request_dispatch(&q, op) : r == PROTO_E_UNKNOWN_OP ? PROTO_STATUS_UNKNOWN_OP : PROTO_STATUS_BAD_REQUEST;
	if (q.is_moved)
		return REQUEST_E_MOVED;
	if (id != 0)
		answered = request_answer(&q, op, id, status);
	if (q.own_fd >= 0)
		close(q.own_fd);
	if (r < 0 || answered < 0)
		return r < 0 ? r : answered;
	return q.is_heavy ? REQUEST_E_HEAVY : id != 0 ? REQUEST_E_ANSWERED : 0;
}
