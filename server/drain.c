/* SPDX-License-Identifier: Apache-2.0 */
#include "server/drain.h"

#include <systemd/sd-daemon.h>

#include "server/conn.h"
#include "server/log.h"

/* drain_lock held. */
static void
set_all(struct slabd *slabd, bool is_draining)
{
	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		pthread_rwlock_wrlock(&slabd->arenas[i]->sessions_lock);
		slabd->arenas[i]->is_draining = is_draining;
		pthread_rwlock_unlock(&slabd->arenas[i]->sessions_lock);
	}
	slabd_notify(slabd);
}

void
drain_hold(struct conn *conn)
{
	struct slabd *slabd = conn->loop->slabd;

	if (conn->is_draining)
		return;
	conn->is_draining = true;
	pthread_mutex_lock(&slabd->drain_lock);
	if (atomic_add(&slabd->n_drains, 1) == 0) {
		log_notice("drain: pid %d, uid %u, wants no new sessions", conn->peer.pid, conn->peer.uid);
		set_all(slabd, true);
	}
	pthread_mutex_unlock(&slabd->drain_lock);
}

void
drain_release(struct conn *conn)
{
	struct slabd *slabd = conn->loop->slabd;

	if (!conn->is_draining)
		return;
	conn->is_draining = false;
	pthread_mutex_lock(&slabd->drain_lock);
	if (atomic_add(&slabd->n_drains, -1u) == 1 && !slabd->is_drained && !slabd->is_ending) {
		log_notice("drain: whoever wanted it has gone, and sessions are taken again");
		set_all(slabd, false);
	}
	pthread_mutex_unlock(&slabd->drain_lock);
}

uint32_t
drain_count(struct slabd *slabd)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < slabd->n_arenas; i++) {
		pthread_rwlock_rdlock(&slabd->arenas[i]->sessions_lock);
		n += slabd->arenas[i]->n_sessions;
		pthread_rwlock_unlock(&slabd->arenas[i]->sessions_lock);
	}
	return n;
}

void
drain_finish(struct slabd *slabd)
{
	log_notice("drained: stopping");
	pthread_mutex_lock(&slabd->drain_lock);
	slabd->is_drained = true;
	pthread_mutex_unlock(&slabd->drain_lock);
	sd_notify(0, "STOPPING=1");
	slabd_stop(slabd);
}
