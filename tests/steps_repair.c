/* SPDX-License-Identifier: Apache-2.0 */
/* What is lost is taken back beside clients that work (server/repair.h), and nothing else is. */
#include "server/cache.h"
#include "server/repair.h"
#include "tests/steps_rig.h"

static struct slabc *b;
static struct slabc_cache *bk;
static void *bs_object;

static void
b_allocates(void)
{
	bs_object = rig_get(bk);
}

static void
b_frees(void)
{
	slabc_free(bk, bs_object);
	bs_object = NULL;
}

static struct audit
repair(void)
{
	struct audit_walk *walk;
	struct audit audit;
	int r;

	pthread_rwlock_rdlock(&rig.arena->sessions_lock);
	NEED(audit_begin(&walk, rig.arena, 0, repair_tell) == 0, "no audit");
	while ((r = audit_step(walk)) == AUDIT_E_MORE)
		;
	NEED(r == 0, "the audit fails");
	audit = *audit_result(walk);
	audit_end(walk);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
	return audit;
}

/*
 * At each look of the audit a client allocates, or frees what it has; another one has just dropped an object.  That one goes back, and what the client has
 * stays the client's: it is OUT and named, and every object is in one place.
 */
void
it_repair_beside_clients(void)
{
	static const enum step steps[] = {STEP_AUDIT_FIRST_LOOK, STEP_AUDIT_SECOND_LOOK, STEP_AUDIT_FIRST_LOOK, STEP_AUDIT_SECOND_LOOK};
	struct slabc_sheaf *dropped;
	struct slabc *c;

	rig_start(1);
	b = rig_open(rig.socket);
	bk = rig_open_cache(b, 0);
	rig_get(bk);
	c = rig_open(rig.socket);
	dropped = slabc_prefill(rig_open_cache(c, 0), RIG_CAPACITY);
	NEED(dropped, "%s", slabc_last_error());
	for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
		bool allocates = i < 2;
		struct audit audit;

		if (!allocates)
			b_allocates();
		atomic_write(&dropped->sheaf->size, atomic_read(&dropped->sheaf->size) - 1);
		rig_at(steps[i], 0, allocates ? b_allocates : b_frees);
		audit = repair();
		NEED(rig_was_played(), "the audit did not look");
		HOLDS(audit.n_lost == 1 && audit.n_repaired == 1 && audit.n_doubled == 0 && audit.n_undecided == 0,
			"a client %s at %s, another had dropped one object: %llu were lost, %llu taken back, %llu doubled, %llu undecided",
			allocates ? "allocated" : "freed", step_names[steps[i]], (unsigned long long)audit.n_lost, (unsigned long long)audit.n_repaired,
			(unsigned long long)audit.n_doubled, (unsigned long long)audit.n_undecided);
		if (bs_object)
			rig_judge_holder(bk, bs_object, "repaired beside its holder");
		rig_judge("repaired beside a client at %s", step_names[steps[i]]);
	}
	slabc_close(c);
	slabc_close(b);
	rig_stop();
}
