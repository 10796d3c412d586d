/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec: one packer and one unpacker that walk the field lists made from ops.def; no code per op.
 *
 * A packet is scanned first, and read only when that has proved that all it announces is there.  Its values are then taken where they lie, one after
 * the other, as the field list asks for them: nothing is copied but into the message, and nothing allocated.  msgpack-c packs, but does not unpack: its
 * objects would be a copy of the packet, in a form that a codec of integers and strings has no use for, and were a third of what a request costs slabd.
 */
#include "proto/codec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <msgpack.h>

enum {
	ENVELOPE_VALUES = 2, /* op or status, and id */
};

/* A scanned packet: what of its array is still to be read. */
struct packet {
	const uint8_t *at;
	const uint8_t *end;
	uint32_t n_left;
};

/* One value of it; a string points into the packet. */
struct value {
	enum { VALUE_UINT, VALUE_STR, VALUE_OTHER } type;
	uint64_t n; /* the integer; bytes of the string */
	const char *str;
};

/* Where msgpack-c packs to: the caller's buffer. */
struct sink {
	char *buf;
	size_t size;
	size_t used;
	bool is_full;
};

/* ---- names and fields ---- */

const struct proto_field *
proto_fields(enum proto_op op, enum proto_way way)
{
	switch (op) {
#define U32(name) {#name, offsetof(message, name), PROTO_U32, UINT32_MAX},
#define U64(name) {#name, offsetof(message, name), PROTO_U64, UINT64_MAX},
#define UPTO(name, max) {#name, offsetof(message, name), PROTO_U32, (max)},
#define STR(name, max) {#name, offsetof(message, name), PROTO_STR, (max)},
/* Each list stands in a block of its own, where "message" is the struct that its offsets are of. */
#define OP(number, NAME, name, request, reply)                                                                                             \
	case PROTO_OP_##NAME:                                                                                                              \
		if (way == PROTO_REQUEST) {                                                                                                \
			typedef struct proto_##name##_request message;                                                                     \
			static const struct proto_field fields[] = {request{NULL, sizeof(message), PROTO_U32, 0}};                         \
			return fields;                                                                                                     \
		} else {                                                                                                                   \
			typedef struct proto_##name##_reply message;                                                                       \
			static const struct proto_field fields[] = {reply{NULL, sizeof(message), PROTO_U32, 0}};                           \
			return fields;                                                                                                     \
		}
#include "proto/ops.def"
	}
	return NULL;
}

const char *
proto_op_name(enum proto_op op)
{
	switch (op) {
#define OP(number, NAME, name, request, reply)                                                                                             \
	case PROTO_OP_##NAME:                                                                                                              \
		return #name;
#include "proto/ops.def"
	}
	return "unknown op";
}

const char *
proto_status_name(enum proto_status status)
{
	switch (status) {
#define STATUS(number, NAME, error)                                                                                                        \
	case PROTO_STATUS_##NAME:                                                                                                          \
		return #NAME;
#include "proto/ops.def"
	}
	return "unknown status";
}

static bool
status_is_known(enum proto_status status)
{
	switch (status) {
#define STATUS(number, NAME, error) case PROTO_STATUS_##NAME:
#include "proto/ops.def"
		return true;
	}
	return false;
}

int
proto_status_errno(enum proto_status status)
{
	switch (status) {
#define STATUS(number, NAME, error)                                                                                                        \
	case PROTO_STATUS_##NAME:                                                                                                          \
		return -(error);
#include "proto/ops.def"
	}
	return -EPROTO;
}

/* ---- scan ---- */

/* What follows a value's first byte. */
struct scan_value {
	bool is_container;
	uint64_t n; /* bytes of its body; values of a container */
};

/* Reads a first byte and the count or length after it.  Returns NULL, or what is wrong. */
__attribute__((always_inline)) static inline const char *
scan_head(const uint8_t **pp, const uint8_t *end, struct scan_value *v)
{
	/* 0xc0 to 0xdf: FIXED has that many bytes; the others are followed by a length or count of that many bytes. */
	enum { BAD, FIXED, BYTES, ARRAY, MAP };
	static const struct {
		uint8_t kind, width;
	} tags[32] = {
		{FIXED, 0}, {BAD, 0}, {FIXED, 0}, {FIXED, 0}, {BYTES, 1}, {BYTES, 2}, {BYTES, 4}, /* nil, unused, bool, bool, bin */
		{BAD, 0}, {BAD, 0}, {BAD, 0}, {BAD, 0}, {BAD, 0},                                 /* ext, float */
		{FIXED, 1}, {FIXED, 2}, {FIXED, 4}, {FIXED, 8}, {FIXED, 1}, {FIXED, 2}, {FIXED, 4}, {FIXED, 8}, /* uint, int */
		{BAD, 0}, {BAD, 0}, {BAD, 0}, {BAD, 0}, {BAD, 0},                                               /* fixext */
		{BYTES, 1}, {BYTES, 2}, {BYTES, 4}, {ARRAY, 2}, {ARRAY, 4}, {MAP, 2}, {MAP, 4},                 /* str, array, map */
	};
	uint8_t first, kind, width;

	*v = (struct scan_value){0};
	if (*pp == end)
		return "the packet ends where a value should begin";
	first = *(*pp)++;
	if (first < 0x80 || first >= 0xe0)
		return NULL; /* fixint */
	if (first < 0xa0) {
		v->is_container = true;
		v->n = first < 0x90 ? 2 * (first & 0xfu) : first & 0xfu;
		return NULL;
	}
	if (first < 0xc0) {
		v->n = first & 0x1f;
		return NULL;
	}
	kind = tags[first - 0xc0].kind;
	width = tags[first - 0xc0].width;
	if (kind == BAD)
		return "the packet has a value of a type that the protocol does not use";
	if (kind == FIXED) {
		v->n = width;
		return NULL;
	}
	if (end - *pp < width)
		return "the packet ends within a length";
	for (; width > 0; width--)
		v->n = v->n << 8 | *(*pp)++;
	v->is_container = kind != BYTES;
	if (kind == MAP)
		v->n *= 2;
	return NULL;
}

static const char *
scan(const uint8_t *p, size_t n)
{
	const uint8_t *end = p + n;
	uint64_t n_left[PROTO_MAX_DEPTH]; /* values still to come, by depth */
	unsigned depth = 0, n_values = 0;
	struct scan_value v;
	const char *why;

	if (n > PROTO_MAX_PACKET)
		return "the packet is larger than a packet may be";
	for (;;) {
		why = scan_head(&p, end, &v);
		if (why != NULL)
			return why;
		if (++n_values > PROTO_MAX_VALUES)
			return "the packet has more values than a packet may have";
		if (v.n > (uint64_t)(end - p))
			return "the packet ends before what it announces";
		if (!v.is_container) {
			p += v.n;
		} else if (depth == PROTO_MAX_DEPTH) {
			return "the packet is nested too deeply";
		} else {
			n_left[depth++] = v.n;
		}
		while (depth > 0 && n_left[depth - 1] == 0)
			depth--;
		if (depth == 0)
			return p == end ? NULL : "bytes follow the packet's end";
		n_left[depth - 1]--;
	}
}

int
proto_scan(const void *buf, size_t n, const char **whyp)
{
	const char *why = scan(buf, n);

	if (why != NULL && whyp != NULL)
		*whyp = why;
	return why == NULL ? 0 : -EBADMSG;
}

/* ---- pack ---- */

static int
sink_write(void *data, const char *bytes, size_t n)
{
	struct sink *sink = data;

	if (n > sink->size - sink->used) {
		sink->is_full = true;
		return -1;
	}
	memcpy(sink->buf + sink->used, bytes, n);
	sink->used += n;
	return 0;
}

static int
sink_end(const struct sink *sink)
{
	return sink->is_full ? -EMSGSIZE : (int)sink->used;
}

static void
pack_string(msgpack_packer *packer, const char *s, size_t n)
{
	msgpack_pack_str(packer, n);
	msgpack_pack_str_body(packer, s, n);
}

/* 0, or -EINVAL: over its limit. */
static int
pack_field(msgpack_packer *packer, const struct proto_field *f, const void *message)
{
	const char *at = (const char *)message + f->off;
	uint64_t value;
	uint32_t u32;

	if (f->type == PROTO_STR) {
		size_t n = strnlen(at, f->max + 1);

		if (n > f->max)
			return -EINVAL;
		pack_string(packer, at, n);
		return 0;
	}
	if (f->type == PROTO_U32) {
		memcpy(&u32, at, sizeof(u32));
		value = u32;
	} else {
		memcpy(&value, at, sizeof(value));
	}
	if (value > f->max)
		return -EINVAL;
	msgpack_pack_uint64(packer, value);
	return 0;
}

static int
pack_message(struct sink *sink, uint32_t op_or_status, uint32_t id, const struct proto_field *fields, const void *message)
{
	const struct proto_field *f;
	msgpack_packer packer;
	size_t n = ENVELOPE_VALUES;

	if (fields == NULL)
		return -EINVAL;
	for (f = fields; f->name != NULL; f++)
		n++;
	msgpack_packer_init(&packer, sink, sink_write);
	msgpack_pack_array(&packer, n);
	msgpack_pack_uint32(&packer, op_or_status);
	msgpack_pack_uint32(&packer, id);
	for (f = fields; f->name != NULL; f++)
		if (pack_field(&packer, f, message) < 0)
			return -EINVAL;
	return sink_end(sink);
}

int
proto_pack_request(void *buf, size_t size, enum proto_op op, uint32_t id, const union proto_request *request)
{
	struct sink sink = {.buf = buf, .size = size};

	return pack_message(&sink, op, id, proto_fields(op, PROTO_REQUEST), request);
}

int
proto_pack_reply(void *buf, size_t size, enum proto_op op, uint32_t id, const union proto_reply *reply)
{
	struct sink sink = {.buf = buf, .size = size};

	return pack_message(&sink, PROTO_STATUS_OK, id, proto_fields(op, PROTO_REPLY), reply);
}

int
proto_pack_error(void *buf, size_t size, uint32_t id, enum proto_status status, const char *sentence)
{
	struct sink sink = {.buf = buf, .size = size};
	msgpack_packer packer;

	msgpack_packer_init(&packer, &sink, sink_write);
	msgpack_pack_array(&packer, ENVELOPE_VALUES + 1);
	msgpack_pack_uint32(&packer, status);
	msgpack_pack_uint32(&packer, id);
	pack_string(&packer, sentence, strnlen(sentence, PROTO_SENTENCE_BYTES - 1));
	return sink_end(&sink);
}

/* ---- unpack ---- */

__attribute__((format(printf, 3, 4))) static int
refuse(char *why, size_t why_size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, why_size, format, args);
	va_end(args);
	return -EBADMSG;
}

static uint64_t
read_big_endian(const uint8_t *p, unsigned width)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < width; i++)
		n = n << 8 | p[i];
	return n;
}

/* Past a value of any kind, with what lies in it. */
static const uint8_t *
skip_value(const uint8_t *at, const uint8_t *end)
{
	struct scan_value v;

	for (uint64_t n_more = 1; n_more > 0; n_more--) {
		scan_head(&at, end, &v);
		if (v.is_container)
			n_more += v.n;
		else
			at += v.n;
	}
	return at;
}

/* One that does not lie in its first byte alone. */
static struct value
long_value(struct packet *packet)
{
	const uint8_t *at = packet->at;
	uint8_t first = *at++;
	struct value v = {.type = VALUE_OTHER};

	if ((first & 0xe0) == 0xa0) {
		v = (struct value){.type = VALUE_STR, .n = first & 0x1f, .str = (const char *)at};
		at += v.n;
	} else if (first >= 0xcc && first <= 0xd3) { /* uint 8 to 64, int 8 to 64 */
		unsigned width = 1u << ((first - 0xcc) & 3);

		if (first <= 0xcf || *at < 0x80)
			v = (struct value){.type = VALUE_UINT, .n = read_big_endian(at, width)};
		at += width;
	} else if (first >= 0xd9 && first <= 0xdb) { /* str 8 to 32 */
		unsigned width = 1u << (first - 0xd9);

		v = (struct value){.type = VALUE_STR, .n = read_big_endian(at, width), .str = (const char *)at + width};
		at += width + v.n;
	} else {
		at = skip_value(packet->at, packet->end);
	}
	packet->at = at;
	return v;
}

/* The packet has one, and was scanned: what the value announces is there. */
static inline struct value
next_value(struct packet *packet)
{
	packet->n_left--;
	if (*packet->at < 0x80)
		return (struct value){.type = VALUE_UINT, .n = *packet->at++};
	return long_value(packet);
}

static bool
is_uint(const struct value *v, uint64_t max)
{
	return v->type == VALUE_UINT && v->n <= max;
}

static bool
is_array(uint8_t first)
{
	return (first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd;
}

/* Scans; reads what every packet begins with.  *idp is set also when the first value is wrong. */
static int
packet_open(struct packet *packet, const void *buf, size_t n, uint32_t *firstp, uint32_t *idp, char *why, size_t why_size)
{
	const uint8_t *at = buf, *end = at + n;
	struct scan_value array;
	struct value first, id;
	const char *scan_why;

	*firstp = *idp = 0;
	if (proto_scan(buf, n, &scan_why) < 0)
		return refuse(why, why_size, "%s", scan_why);
	if (!is_array(*at) || scan_head(&at, end, &array) || array.n < ENVELOPE_VALUES)
		return refuse(why, why_size, "the packet is no array of two values or more");
	*packet = (struct packet){.at = at, .end = end, .n_left = (uint32_t)array.n};
	first = next_value(packet);
	id = next_value(packet);
	if (!is_uint(&id, UINT32_MAX))
		return refuse(why, why_size, "id, the second value, is no integer from 0 to %u", UINT32_MAX);
	*idp = (uint32_t)id.n;
	if (!is_uint(&first, UINT32_MAX))
		return refuse(why, why_size, "the first value is no integer from 0 to %u", UINT32_MAX);
	*firstp = (uint32_t)first.n;
	return 0;
}

/* at has room for max bytes and a NUL.  Returns NULL, or what is wrong. */
static const char *
unpack_string(const struct value *v, char *at, size_t max)
{
	if (v->type != VALUE_STR)
		return "is no string";
	if (v->n > max)
		return "is too long";
	if (memchr(v->str, '\0', v->n) != NULL)
		return "has a NUL within";
	memcpy(at, v->str, v->n);
	at[v->n] = '\0';
	return NULL;
}

static int
unpack_message(struct packet *packet, enum proto_op op, const struct proto_field *f, void *message, char *why, size_t why_size)
{
	for (; f->name != NULL; f++) {
		char *at = (char *)message + f->off;
		const char *problem;
		struct value v;

		if (packet->n_left == 0)
			return refuse(why, why_size, "%s: %s is missing", proto_op_name(op), f->name);
		v = next_value(packet);
		if (f->type == PROTO_STR) {
			problem = unpack_string(&v, at, f->max);
			if (problem != NULL)
				return refuse(why, why_size, "%s: %s %s (a string of at most %ju bytes)", proto_op_name(op), f->name,
					problem, (uintmax_t)f->max);
			continue;
		}
		if (!is_uint(&v, f->max))
			return refuse(why, why_size, "%s: %s is no integer from 0 to %ju", proto_op_name(op), f->name, (uintmax_t)f->max);
		if (f->type == PROTO_U32)
			memcpy(at, &(uint32_t){(uint32_t)v.n}, sizeof(uint32_t));
		else
			memcpy(at, &v.n, sizeof(uint64_t));
	}
	if (packet->n_left > 0)
		return refuse(why, why_size, "%s: %u values follow the last field", proto_op_name(op), packet->n_left);
	return 0;
}

int
proto_unpack_request(const void *buf, size_t n, enum proto_op *opp, uint32_t *idp, union proto_request *request, char *why, size_t why_size)
{
	const struct proto_field *fields;
	struct packet packet;
	uint32_t op;
	int r;

	r = packet_open(&packet, buf, n, &op, idp, why, why_size);
	if (r < 0)
		return r;
	*opp = op;
	fields = proto_fields(op, PROTO_REQUEST);
	if (fields == NULL) {
		refuse(why, why_size, "no op has the number %u", op);
		return PROTO_E_UNKNOWN_OP;
	}
	return unpack_message(&packet, op, fields, request, why, why_size);
}

int
proto_unpack_reply(const void *buf, size_t n, enum proto_op op, uint32_t *idp, enum proto_status *statusp, union proto_reply *reply,
	char *sentence, size_t sentence_size)
{
	const struct proto_field *fields = proto_fields(op, PROTO_REPLY);
	char received[PROTO_SENTENCE_BYTES];
	struct packet packet;
	const char *problem;
	struct value v;
	uint32_t status;
	int r;

	if (fields == NULL)
		return -EINVAL;
	r = packet_open(&packet, buf, n, &status, idp, sentence, sentence_size);
	if (r < 0)
		return r;
	*statusp = status;
	if (status == PROTO_STATUS_OK)
		return unpack_message(&packet, op, fields, reply, sentence, sentence_size);
	if (!status_is_known(status))
		return refuse(sentence, sentence_size, "%s: no status has the number %u", proto_op_name(op), status);
	if (packet.n_left != 1)
		return refuse(sentence, sentence_size, "%s: an error without exactly one sentence", proto_op_name(op));
	v = next_value(&packet);
	problem = unpack_string(&v, received, sizeof(received) - 1);
	if (problem != NULL)
		return refuse(sentence, sentence_size, "%s: the sentence %s", proto_op_name(op), problem);
	snprintf(sentence, sentence_size, "%s", received);
	return 0;
}
