/* SPDX-License-Identifier: Apache-2.0 */
/* A drain (server/drain.h) that comes while somebody attaches: either he is counted, or he is refused. */
#include <errno.h>

#include "server/conn.h"
#include "server/drain.h"
#include "tests/steps_rig.h"

static struct conn drainer;
static uint32_t n_left;

static void
drain(void)
{
	drainer.loop = &rig.slabd->loops[0];
	drain_hold(&drainer);
	n_left = drain_count(rig.slabd);
}

void
it_drain_meets_an_attach(void)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;
	int r;

	rig_start(1);
	o.socket = rig.socket;
	rig_at(STEP_SESSION_ASKED, 0, drain);
	r = slabc_open(&c, &o);
	NEED(rig_was_played(), "nobody asked for a session");
	HOLDS(r < 0 || n_left > 0, "slabd said that no session was left, and made one");
	HOLDS(r == -EBUSY, "refused by %d, %s", r, slabc_last_error());
	drain_release(&drainer);
	c = rig_open(rig.socket);
	slabc_close(c);
	rig_stop();
}
