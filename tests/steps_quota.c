/* SPDX-License-Identifier: Apache-2.0 */
/* client-max (server/quota.h): exact to the object, and what the client is told costs slabd few walks over the words. */
#include <string.h>

#include "server/session.h"
#include "tests/steps_rig.h"

enum { OBJECT_BYTES = 64, MAX_BYTES = 1 << 20, N_MAX = MAX_BYTES / OBJECT_BYTES, MAX_COUNTS = 8, N_TRIES = 200, N_AGAIN = 1000 };

static uint64_t
n_counts(const struct slabc *c)
{
	return rig.arena->sessions[c->me]->quota.n_counts;
}

/* Refills are asked for ahead, and many sheaves at a time. */
void
it_client_max_takes_few_counts(void)
{
	static void *pv[N_MAX + 1];
	struct slabc_cache *k;
	struct slabc *c;
	uint64_t before;
	uint32_t n = 0;

	rig_start(1);
	rig.arena->options.client_max = MAX_BYTES;
	c = rig_open(rig.socket);
	k = rig_cache(c, "small", OBJECT_BYTES, NULL);
	while (n <= N_MAX && (pv[n] = slabc_alloc(k)))
		n++;
	HOLDS(n == N_MAX && errno == EDQUOT, "%u objects of %d, then %s", n, N_MAX, strerror(errno));
	HOLDS(n_counts(c) <= MAX_COUNTS, "%llu walks over the words for %u objects", (unsigned long long)n_counts(c), n);
	before = n_counts(c);
	for (int i = 0; i < N_TRIES; i++)
		HOLDS(!slabc_alloc(k) && errno == EDQUOT, "an object beyond client-max");
	HOLDS(n_counts(c) - before < N_TRIES / 2, "%llu walks over the words for %d refusals", (unsigned long long)(n_counts(c) - before), N_TRIES);
	/* What one gives back oneself may be had again at once. */
	before = n_counts(c);
	for (uint32_t i = N_MAX - N_AGAIN; i < N_MAX; i++)
		slabc_free(k, pv[i]);
	for (n = N_MAX - N_AGAIN; n <= N_MAX && (pv[n] = slabc_alloc(k));)
		n++;
	HOLDS(n == N_MAX && errno == EDQUOT, "%u objects of %d at the second time, then %s", n, N_MAX, strerror(errno));
	NEED(slabc_cache_shrink(k) == 0, "%s", slabc_last_error());
	slabc_free(k, pv[0]);
	NEED(slabc_cache_shrink(k) == 0, "%s", slabc_last_error());
	HOLDS((pv[0] = slabc_alloc(k)) != NULL, "what was given back to slabd is not to be had");
	HOLDS(n_counts(c) - before <= 4 * MAX_COUNTS, "%llu walks over the words for %d objects", (unsigned long long)(n_counts(c) - before), N_AGAIN);
	slabc_close(c);
	rig_stop();
}
