/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/conn.h"
#include "server/orphan.h"
#include "server/request.h"
#include "server/root.h"
#include "server/stats.h"
#include "server/watch.h"

/* SLABC_REPLACE */
enum { PUBLISH_REPLACE = 1 };

static enum proto_status
check_name(struct request *q, const char *name)
{
	if (!*name)
		REFUSE(q, PROTO_STATUS_INVALID, "a root's name has 1 to %d bytes, this one has none", ROOT_NAME_BYTES - 1);
	return PROTO_STATUS_OK;
}

enum proto_status
request_publish(struct request *q)
{
	const struct proto_publish_request *in = &q->in->publish;
	enum proto_status status = request_need_writable(q);

	if (status == PROTO_STATUS_OK)
		status = check_name(q, in->name);
	if (status != PROTO_STATUS_OK)
		return status;
	if (in->flags & ~(uint32_t)PUBLISH_REPLACE)
		REFUSE(q, PROTO_STATUS_INVALID, "unknown flags 0x%x: SLABC_REPLACE is the only one",
			in->flags & ~(uint32_t)PUBLISH_REPLACE);
	return request_status_of(root_publish(q->arena, in->name, in->ref, in->flags & PUBLISH_REPLACE, q->why, sizeof q->why));
}

static enum proto_status
no_root(struct request *q, const char *name)
{
	REFUSE(q, PROTO_STATUS_NO_ROOT, "there is no root '%.120s' in arena '%s', or its object was freed", name, q->arena->name);
}

enum proto_status
request_unpublish(struct request *q)
{
	enum proto_status status = request_need_writable(q);

	if (status != PROTO_STATUS_OK)
		return status;
	return root_unpublish(q->arena, q->in->unpublish.name) ? PROTO_STATUS_OK : no_root(q, q->in->unpublish.name);
}

enum proto_status
request_lookup(struct request *q)
{
	const struct proto_lookup_request *in = &q->in->lookup;
	enum proto_status status = check_name(q, in->name);
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	if (!q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "attach to an arena first");
	if (!in->wait)
		return root_lookup(q->arena, in->name, &q->out.lookup.ref) ? PROTO_STATUS_OK : no_root(q, in->name);
	r = watch_new(q->conn, q->arena, in->name, &q->out.lookup.ref, &q->own_fd);
	if (r == -EAGAIN)
		REFUSE(q, PROTO_STATUS_TOO_MANY, "%d calls of this session wait for roots already, which is the limit", WATCH_MAX);
	if (r < 0)
		REFUSE(q, PROTO_STATUS_NO_MEMORY, "slabd cannot let the call wait: %s; raise its LimitNOFILE=", strerror(-r));
	if (r == 1)
		q->fds[q->n_fds++] = q->own_fd;
	return PROTO_STATUS_OK;
}

/* What a listing says of a root's object besides. */
static void
describe_object(struct request *q, const struct ref_object *o)
{
	struct proto_next_root_reply *out = &q->out.next_root;
	uint32_t client = word_owner(o->word);
	const struct session *holder;
	struct cache *cache;

	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	cache = arena_cache(q->arena, o->cache);
	if (cache)
		snprintf(out->cache_name, sizeof out->cache_name, "%s", cache->name);
	holder = client <= LAYOUT_MAX_CLIENTS ? q->arena->sessions[client] : NULL;
	out->client_id = holder ? holder->id : client <= LAYOUT_MAX_CLIENTS ? client | q->arena->incarnations[client] << 14 : client;
	pthread_rwlock_unlock(&q->arena->sessions_lock);
}

enum proto_status
request_next_root(struct request *q)
{
	const struct proto_next_root_request *in = &q->in->next_root;
	struct proto_next_root_reply *out = &q->out.next_root;
	struct ref_object o;

	if (root_next(q->arena, in->prefix, in->after, out->name, &out->ref, &o))
		describe_object(q, &o);
	return PROTO_STATUS_OK;
}

enum proto_status
request_next_orphan(struct request *q)
{
	const struct proto_next_orphan_request *in = &q->in->next_orphan;
	struct proto_next_orphan_reply *out = &q->out.next_orphan;
	enum proto_status status = request_need_writable(q);
	struct cache *cache;

	if (status != PROTO_STATUS_OK)
		return status;
	cache = arena_cache(q->arena, in->cache);
	if (!cache || !session_has_open(q->conn->session, in->cache))
		REFUSE(q, PROTO_STATUS_NO_CACHE, "cache %u is not open in this session", in->cache);
	if (cache->flags & LAYOUT_CACHE_NO_OWNER)
		REFUSE(q, PROTO_STATUS_NOT_SUPPORTED, "cache '%s' has no object words (SLABC_NO_OWNER): nothing says what is an orphan",
			cache->name);
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	orphan_next(q->arena, cache, in->after, &out->ref, &out->next);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	return PROTO_STATUS_OK;
}

enum proto_status
request_adopt_orphan(struct request *q)
{
	enum proto_status status = request_need_writable(q);
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	r = orphan_adopt(q->conn->session, q->in->adopt_orphan.ref, q->why, sizeof q->why);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	return request_status_of(r);
}

enum proto_status
request_give(struct request *q)
{
	const struct proto_give_request *in = &q->in->give;
	enum proto_status status = request_need_writable(q);
	int r;

	if (status != PROTO_STATUS_OK)
		return status;
	pthread_rwlock_rdlock(&q->arena->sessions_lock);
	r = orphan_give(q->conn->session, in->ref, in->client_id, q->why, sizeof q->why);
	pthread_rwlock_unlock(&q->arena->sessions_lock);
	return request_status_of(r);
}

enum proto_status
request_session_stats(struct request *q)
{
	if (!q->conn->session)
		REFUSE(q, PROTO_STATUS_STATE, "attach to an arena first");
	return stats_session(q->conn->session, q->asked_ns, &q->out.session_stats) ? PROTO_STATUS_OK : REQUEST_GO_ON;
}
