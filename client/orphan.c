/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passes from one client to another by slabd: orphans, and gifts.
 *
 * Only slabd knows who lives, so it changes these words (tests/model/README.md, rules 9 and 14).  Who is asked to adopt or give has done
 * nothing to the word by himself; if the answer does not come in time, the word says what became of it.
 */
#include "client/internal.h"

slabc_ref
slabc_next_orphan(struct slabc_cache *k, slabc_ref after)
{
	union proto_request request = {.next_orphan = {.cache = k->v.cache, .after = after ? (uint64_t)(uint32_t)after + 1 : 0}};
	union proto_reply reply;
	int r = cache_usable(k);

	while (r == 0) {
		r = session_ask(k->c, PROTO_OP_NEXT_ORPHAN, &request, &reply);
		if (r < 0)
			break;
		/* slabd looks at a part at a time; each part begins after the one before. */
		if (reply.next_orphan.ref != 0 || reply.next_orphan.next <= request.next_orphan.after)
			return reply.next_orphan.ref;
		request.next_orphan.after = reply.next_orphan.next;
	}
	errno = -r;
	return 0;
}

void *
slabc_adopt_orphan(struct slabc *c, slabc_ref ref)
{
	union proto_request request = {.adopt_orphan = {.ref = ref}};
	union proto_reply reply;
	void *p = NULL;
	int r = session_writable(c);

	if (r == 0)
		r = ref_resolve(c, ref, &p);
	if (r == 0)
		r = session_ask(c, PROTO_OP_ADOPT_ORPHAN, &request, &reply);
	return r < 0 ? error_null(r) : p;
}

int
slabc_give(struct slabc *c, void *p, uint32_t client)
{
	union proto_request request = {.give = {.client_id = client}};
	union proto_reply reply;
	int r = session_writable(c);

	if (r == 0)
		r = ref_peek(c, p, &request.give.ref);
	return r < 0 ? r : session_ask(c, PROTO_OP_GIVE, &request, &reply);
}
