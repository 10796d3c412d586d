/* SPDX-License-Identifier: Apache-2.0 */
#include "server/claim.h"

#include <stdio.h>

#include "shm/word.h"

static bool
is_dead(const struct session *session)
{
	return atomic_read(&session->state) == SESSION_DYING;
}

bool
claim_is_unsettled(const struct session *session, uint32_t slot)
{
	/* order: SETTLED acquire - pairs with settle(): an ordinary sheaf's claims are made */
	return atomic_read_acquire(&session_sheaf(session, slot)->busy) & SHEAF_UNSETTLED;
}

const struct sheaf *
claim_record(const struct session *session, const struct cache *cache, uint32_t slot, uint32_t size)
{
	uint32_t record = atomic_read(&session_slots(session)[slot].next) - 1;

	/* What has no words, and what is reclaimed, is never freed late. */
	if (cache->flags & (LAYOUT_CACHE_NO_OWNER | LAYOUT_CACHE_RECLAIM) || record >= session->n_slots || record == slot)
		return NULL;
	if (session->slots[record].cache != cache->id || session->slots[record].capacity < size)
		return NULL;
	return session_sheaf(session, record);
}

bool
claim_make(struct session *session, const struct cache *cache, uint32_t *word, uint32_t recorded)
{
	uint32_t w = recorded, claimed = word_with(recorded, session->client, WORD_CLOSING);

	STEP(TAKE_CHECKED);
	if (MUTANT(SLABD_NO_CAS)) {
		atomic_write(word, word_cleared(recorded));
		return true;
	}
	if (word_state(recorded) == WORD_SHARED && word_owner(recorded) != 0 && atomic_cas(word, &w, word_cleared(recorded))) {
		atomic_add(&session_cache(session, cache->id)->n_foreign_frees, 1);
		return true;
	}
	if (MUTANT(TAKE_UNOWNED) && word_owner(atomic_read(word)) == 0)
		return true;
	return (is_dead(session) || MUTANT(LIVE_MINE)) && atomic_cas(word, &claimed, word_cleared(recorded));
}

void
claim_lost(struct session *session, const struct cache *cache)
{
	char what[128];
	uint64_t n;

	/* Whether its own claim was lost, or made before it moved the entry, nobody can say, nor is there anybody to tell. */
	if (is_dead(session))
		return;
	n = atomic_add(&session_cache(session, cache->id)->n_double_frees, 1) + 1;
	snprintf(what, sizeof what, "an object freed twice, cache '%s', found out when it was claimed; %llu of the kind", cache->name,
		(unsigned long long)n);
	if ((n & (n - 1)) == 0)
		session_report(session, what);
}
