/* SPDX-License-Identifier: Apache-2.0 */
/* Roots: who waits for a name misses no publishing, at whatever instant that comes. */
#include <string.h>
#include <time.h>

#include "server/root.h"
#include "tests/steps_rig.h"

enum { WAIT_MS = 1500 };

static slabc_ref ref;
static pthread_t publisher;
static bool has_publisher;

static void *
publish(void *arg)
{
	char why[128];

	NEED(root_publish(rig.arena, "late", ref, false, why, sizeof(why)) == 0, "%s", why);
	return arg;
}

/* slabd has found no such root; another loop publishes it now, which the lock of the roots puts off.  So it is waited for no longer than
 * this. */
static void
publish_beside(void)
{
	struct timespec t;

	NEED(pthread_create(&publisher, NULL, publish, NULL) == 0, "no thread");
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += 100000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	has_publisher = pthread_timedjoin_np(publisher, NULL, &t) != 0;
}

/* Published just after slabd looked, and before it has noted who waits: the waiter is told. */
void
it_watch_misses_nothing(void)
{
	struct slabc_cache *k;
	slabc_ref found = 0;
	struct slabc *c;
	int r;

	rig_start(1);
	c = rig_open(rig.socket);
	k = rig_open_cache(c, 0);
	ref = rig_share(c, rig_get(k));
	rig_at(STEP_WATCH_LOOKED, 0, publish_beside);
	r = slabc_lookup_wait(c, "late", &found, WAIT_MS);
	NEED(rig_was_played(), "slabd did not look");
	if (has_publisher)
		NEED(pthread_join(publisher, NULL) == 0, "no publisher");
	HOLDS(r == 0 && found == ref, "a root was published while slabd let its waiter wait, and the call says %s", strerror(-r));
	/* Next time it is there, and nobody waits. */
	HOLDS(slabc_lookup_wait(c, "late", &found, 0) == 0, "%s", slabc_last_error());
	slabc_close(c);
	rig_stop();
}
