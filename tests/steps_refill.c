/* SPDX-License-Identifier: Apache-2.0 */
/* What a refill tells of itself in layout_session_cache: what one asked for ahead may bring, and that none is on its way. */
#include "tests/steps_rig.h"

enum { OBJECT_BYTES = 64, MOST = 65536 };

void
it_refill_of_one_says_nothing_of_others(void)
{
	struct slabc_cache *k;
	uint32_t n_granted;
	uint64_t n_waits;
	struct slabc *c;
	int n = 0;

	rig_start(1);
	c = rig_open(rig.socket);
	k = rig_cache(c, "refilled", OBJECT_BYTES, NULL);
	while (n++ < MOST && atomic_read(&k->ask) < 4 * CLIENT_MIN_AHEAD)
		rig_get(k);
	/* As if one were on its way; no other is asked for ahead. */
	atomic_write(&k->ask, 1);
	atomic_write(&k->shown->is_refilling, 1);
	n_granted = atomic_read(&k->shown->n_granted);
	n_waits = atomic_read(&k->shown->n_waits);
	NEED(n_granted > 1, "no refill brought more than %u sheaves", n_granted);
	while (n++ < 2 * MOST && atomic_read(&k->shown->n_waits) == n_waits)
		rig_get(k);
	NEED(atomic_read(&k->shown->n_waits) > n_waits, "no refill was waited for");
	HOLDS(atomic_read(&k->shown->n_granted) == n_granted, "a refill of one sheaf says that others bring %u, not %u",
		atomic_read(&k->shown->n_granted), n_granted);
	HOLDS(atomic_read(&k->shown->is_refilling) == 0, "a refill is on its way for ever");
	slabc_close(c);
	rig_stop();
}

/* Whose barn was called in asks for less, down to one sheaf, and for more again once that is wanted: the refill of one ends it. */
void
it_called_in_asks_for_more_again(void)
{
	struct slabc_cache *k;
	struct slabc *c;
	int n = 0;

	rig_start(1);
	c = rig_open(rig.socket);
	k = rig_cache(c, "refilled", OBJECT_BYTES, NULL);
	rig_get(k);
	atomic_write(&k->ask, 4);
	atomic_write(&k->shown->n_granted, UINT32_MAX);
	while (n++ < MOST && atomic_read(&k->shown->n_granted) == UINT32_MAX)
		rig_get(k);
	HOLDS(n < MOST, "it hears of it for ever");
	while (n++ < 2 * MOST && atomic_read(&k->ask) < CLIENT_MIN_AHEAD)
		rig_get(k);
	HOLDS(atomic_read(&k->ask) >= CLIENT_MIN_AHEAD, "after %d objects it asks for %u sheaves", n, atomic_read(&k->ask));
	slabc_close(c);
	rig_stop();
}

/* A refill asked for ahead that slabd refuses, and one that never arrived, are not on their way. */
void
it_refused_refill_is_not_on_its_way(void)
{
	union proto_request request = {.refill = {.n_sheaves = 8}};
	struct slabc_cache *k;
	struct slabc *c;
	uint32_t id;

	rig_start(1);
	c = rig_open(rig.socket);
	k = rig_cache(c, "refilled", OBJECT_BYTES, NULL);
	id = k->v.cache;
	request.refill.cache = id + 1;
	atomic_write(&c->session_caches[id + 1].is_refilling, 1);
	NEED(session_post(c, PROTO_OP_REFILL, &request), "not posted");
	NEED(slabc_cache_shrink(k) == 0, "%s", slabc_last_error());
	HOLDS(atomic_read(&c->session_caches[id + 1].is_refilling) == 0, "a refill of a cache that is not open is on its way for ever");
	slabc_cache_close(k);
	atomic_write(&c->session_caches[id].is_refilling, 1);
	k = rig_cache(c, "refilled", OBJECT_BYTES, NULL);
	NEED(k->v.cache == id, "another cache");
	HOLDS(atomic_read(&k->shown->is_refilling) == 0, "a cache is opened, and a refill is on its way");
	slabc_close(c);
	rig_stop();
}
