/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets from structs and back.
 *
 * A packet from a peer is hostile until unpacked: what these calls accept has exactly the fields of its op, each of its type and within its
 * limit. None of them allocates memory or takes a lock: a signal handler may come to unpack a refill while its thread is inside malloc.
 */
#ifndef SLAB_PROTO_CODEC_H
#define SLAB_PROTO_CODEC_H

#include "proto/proto.h"

/* Outcome of proto_unpack_request(): well-formed, but no op of ours; *idp is set. */
enum { PROTO_E_UNKNOWN_OP = 1 };

/*
 * Looks over a packet before it is read: one value fills it, no count or length is larger than what is left of it, and PROTO_MAX_
 * limits hold. 0; -EBADMSG, and *whyp (unless whyp is NULL) is a sentence.
 */
int proto_scan(const void *buf, size_t n, const char **whyp);

/* These return the packet's length; -EMSGSIZE: size is too small; -EINVAL: no such op, or a field is over its limit. */
int proto_pack_request(void *buf, size_t size, enum proto_op op, uint32_t id, const union proto_request *request);
int proto_pack_reply(void *buf, size_t size, enum proto_op op, uint32_t id, const union proto_reply *reply);
/* status is not OK.  A sentence too long to send is cut. */
int proto_pack_error(void *buf, size_t size, uint32_t id, enum proto_status status, const char *sentence);

/*
 * 0, PROTO_E_UNKNOWN_OP or -EBADMSG; with these two, why has a sentence that names op and field.
 * *idp is the request's id whenever that could be read, else 0, so that also a refusal can be answered.
 */
int proto_unpack_request(
	const void *buf, size_t n, enum proto_op *opp, uint32_t *idp, union proto_request *request, char *why, size_t why_size);
/*
 * The reply to a request with this op.  0: reply is filled in if *statusp is OK, else sentence has the peer's.
 * -EBADMSG: no such reply; sentence says why.  -EINVAL: no such op.
 */
int proto_unpack_reply(const void *buf, size_t n, enum proto_op op, uint32_t *idp, enum proto_status *statusp, union proto_reply *reply,
	char *sentence, size_t sentence_size);

#endif
