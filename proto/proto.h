/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control protocol's names, numbers and structs, made from ops.def.
 *
 * proto_fields() lists a struct's fields for whoever treats all of them alike (codec.c, slabctl).
 */
#ifndef SLAB_PROTO_PROTO_H
#define SLAB_PROTO_PROTO_H

#include <stddef.h>
#include <stdint.h>

enum {
	PROTO_VERSION = 1, /* grows with every change that the other side's old codec would refuse */

	PROTO_MAX_PACKET = 65536,   /* bytes */
	PROTO_MAX_DEPTH = 4,        /* arrays and maps within each other */
	PROTO_MAX_VALUES = 64,      /* values in a packet, itself included: bounds what decoding costs */
	PROTO_MAX_FDS = 131,        /* descriptors with a packet: three, and LAYOUT_MAX_SEGMENTS */
	PROTO_SENTENCE_BYTES = 384, /* of a sentence about an error, with its NUL */
};

/* Flags of ATTACH and of CLIENTS' reply. */
enum {
	PROTO_ATTACH_READONLY = 1,   /* SLABC_RDONLY */
	PROTO_ATTACH_RECALLABLE = 2, /* registered for MEMBARRIER_CMD_GLOBAL_EXPEDITED: its threads' sheaves may be taken (server/recall.h) */
	PROTO_CLIENT_READONLY = 1,
	PROTO_CLIENT_NO_RECALL = 2, /* may write, and is not registered */
};

enum proto_op {
#define OP(number, NAME, name, request, reply) PROTO_OP_##NAME = (number),
#include "proto/ops.def"
};

enum proto_status {
#define STATUS(number, NAME, error) PROTO_STATUS_##NAME = (number),
#include "proto/ops.def"
};

/* struct proto_hello_request, struct proto_hello_reply and so on. */
#define U32(name) uint32_t name;
#define U64(name) uint64_t name;
#define UPTO(name, max) uint32_t name;
#define STR(name, max) char name[(max) + 1];
#define OP(number, NAME, name, request, reply)                                                                                             \
	struct proto_##name##_request {                                                                                                    \
		request                                                                                                                    \
	};                                                                                                                                 \
	struct proto_##name##_reply {                                                                                                      \
		reply                                                                                                                      \
	};
#include "proto/ops.def"

union proto_request {
#define OP(number, NAME, name, request, reply) struct proto_##name##_request name;
#include "proto/ops.def"
};

union proto_reply {
#define OP(number, NAME, name, request, reply) struct proto_##name##_reply name;
#include "proto/ops.def"
};

enum proto_way {
	PROTO_REQUEST,
	PROTO_REPLY,
};

enum proto_type {
	PROTO_U32,
	PROTO_U64,
	PROTO_STR,
};

struct proto_field {
	const char *name; /* NULL ends the list */
	size_t off;       /* in the struct; in the last entry the struct's size */
	enum proto_type type;
	uint64_t max; /* value, or bytes of a string less its NUL */
};

/* The fields of a request or reply in the order they are sent; NULL: no such op. */
const struct proto_field *proto_fields(enum proto_op op, enum proto_way way);

/* "cache_open", as in ops.def; "unknown op". */
const char *proto_op_name(enum proto_op op);
/* "NO_CACHE", as in ops.def; "unknown status". */
const char *proto_status_name(enum proto_status status);
/* Negative errno; 0 for OK. */
int proto_status_errno(enum proto_status status);

#endif
