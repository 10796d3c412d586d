/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which arena a request is about, and whether the peer may ask.
 *
 * A connection with a session asks about that session's arena, another about the one that it names: there it must be somebody who may read
 * it. A request that changes something wants more than that (request_need_writable(), request_need_admin()).
 */
#include <string.h>

#include "server/access.h"
#include "server/conn.h"
#include "server/log.h"
#include "server/request.h"

/* Bits of ARENAS' field `may`. */
enum { MAY_READ = 1, MAY_WRITE = 2, MAY_ADMINISTER = 4 };

static enum proto_status
peer_of(struct request *q, struct access_peer *peer)
{
	int r = access_peer_init(peer, q->conn->fd, q->conn->peer.uid, q->conn->peer.gid);

	if (r < 0)
		REFUSE(q, PROTO_STATUS_IO, "slabd cannot tell the groups of process %d: %s", q->conn->peer.pid, strerror(-r));
	return PROTO_STATUS_OK;
}

enum proto_status
request_need_access(struct request *q, struct arena *arena, enum access_want want)
{
	struct access_peer peer;
	struct access access;
	enum proto_status status = peer_of(q, &peer);

	if (status != PROTO_STATUS_OK)
		return status;
	arena_get_access(arena, &access);
	if (!access_may(&access, &peer, want)) {
		status = PROTO_STATUS_ACCESS;
		access_explain(&access, &peer, want, arena->name, q->why, sizeof q->why);
		atomic_add(&arena->n_refused, 1);
		/* Once for a connection: it may ask again and again. */
		if (!q->conn->is_refusal_logged)
			log_notice("pid %d refused: %s", q->conn->peer.pid, q->why);
		q->conn->is_refusal_logged = true;
	}
	access_peer_deinit(&peer);
	return status;
}

enum proto_status
request_need_admin(struct request *q)
{
	return request_need_access(q, q->arena, ACCESS_ADMIN);
}

enum proto_status
request_find_arena(struct request *q, const char *name, struct arena **arenap)
{
	struct slabd *slabd = q->conn->loop->slabd;
	char names[160] = "";
	size_t used = 0;

	*arenap = slabd_arena(slabd, name);
	if (*arenap)
		return PROTO_STATUS_OK;
	for (unsigned i = 0; i < slabd->n_arenas && used < sizeof names; i++)
		used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", i ? ", " : "", slabd->arenas[i]->name);
	if (*name)
		REFUSE(q, PROTO_STATUS_NO_ARENA, "there is no arena '%s' here; there is %s", name, names);
	REFUSE(q, PROTO_STATUS_NO_ARENA, "which arena? None is called 'default'; there is %s", names);
}

static const char *
arena_field(const struct request *q, enum proto_op op)
{
	for (const struct proto_field *f = proto_fields(op, PROTO_REQUEST); f->name; f++)
		if (f->type == PROTO_STR && strcmp(f->name, "arena") == 0)
			return (const char *)q->in + f->off;
	return NULL;
}

enum proto_status
request_pick_arena(struct request *q, enum proto_op op)
{
	const struct session *session = q->conn->session;
	enum proto_status status;
	const char *name;

	if (op == PROTO_OP_HELLO || op == PROTO_OP_ATTACH || op == PROTO_OP_BYE || op == PROTO_OP_RESUME || op == PROTO_OP_ARENAS ||
		op == PROTO_OP_INSPECT || op == PROTO_OP_DRAIN)
		return PROTO_STATUS_OK;
	name = arena_field(q, op);
	if (session) {
		q->arena = session->arena;
		if (name && *name && strcmp(name, q->arena->name) != 0)
			REFUSE(q, PROTO_STATUS_STATE, "this connection has a session in arena '%s'", q->arena->name);
		return PROTO_STATUS_OK;
	}
	if (!name)
		REFUSE(q, PROTO_STATUS_STATE, "attach to an arena first");
	status = request_find_arena(q, name, &q->arena);
	return status == PROTO_STATUS_OK ? request_need_access(q, q->arena, ACCESS_READ) : status;
}

enum proto_status
request_show_access(struct request *q, struct arena *arena)
{
	struct proto_arenas_reply *out = &q->out.arenas;
	struct access_peer peer;
	struct access access;
	enum proto_status status = peer_of(q, &peer);

	if (status != PROTO_STATUS_OK)
		return status;
	arena_get_access(arena, &access);
	out->uid = access.owner;
	out->gid = access.group;
	out->mode = access.mode;
	snprintf(out->owner, sizeof out->owner, "%s", access.owner_name);
	snprintf(out->group, sizeof out->group, "%s", access.group_name);
	out->may = (access_may(&access, &peer, ACCESS_READ) ? MAY_READ : 0) | (access_may(&access, &peer, ACCESS_WRITE) ? MAY_WRITE : 0) |
		   (access_may(&access, &peer, ACCESS_ADMIN) ? MAY_ADMINISTER : 0);
	access_peer_deinit(&peer);
	out->n_refused = atomic_read(&arena->n_refused);
	pthread_mutex_lock(&arena->registry_lock);
	out->max_caches = arena->options.max_caches;
	pthread_mutex_unlock(&arena->registry_lock);
	pthread_rwlock_rdlock(&arena->sessions_lock);
	out->max_sessions = arena->options.max_sessions;
	out->client_max = arena->options.client_max;
	out->client_min = arena->options.client_min;
	out->user_max = arena->options.user_max;
	snprintf(out->node_policy, sizeof out->node_policy, "%s", arena->options.is_node_strict ? "strict" : "preferred");
	out->max_orphans = arena->options.max_orphans;
	out->max_faults = arena->options.max_faults;
	out->n_evicted = atomic_read(&arena->n_evicted);
	out->n_orphans_dropped = atomic_read(&arena->n_orphans_dropped);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return PROTO_STATUS_OK;
}
