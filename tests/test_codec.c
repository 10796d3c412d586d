/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec: what is packed is unpacked as it was, and nothing else is accepted.
 *
 * Packets to unpack are copied to an allocation of exactly their size, so that a sanitizer sees a read past the end.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <CUnit/CUnit.h>
#include <msgpack.h>

#include "proto/codec.h"
#include "shm/layout.h"
#include "shm/word.h"

CU_pSuite test_codec_suite(void);

enum {
	PACKET_BYTES = 4096,
	N_RANDOM = 20000,
	ID = 0xfedcba98,
};

/* A request or a reply. */
struct message {
	enum proto_way way;
	enum proto_op op;
	uint32_t id;
	union {
		union proto_request request;
		union proto_reply reply;
	} u;
};

struct bytes {
	uint8_t at[PACKET_BYTES];
	size_t n;
};

enum fill {
	FILL_LEAST,
	FILL_MIDDLE,
	FILL_MOST,
};

static const enum proto_op all_ops[] = {
#define OP(number, NAME, name, request, reply) PROTO_OP_##NAME,
#include "proto/ops.def"
};
enum { N_OPS = sizeof(all_ops) / sizeof(all_ops[0]) };

static const enum proto_status all_errors[] = {
#define STATUS(number, NAME, error) PROTO_STATUS_##NAME,
#include "proto/ops.def"
};

static char why[PROTO_SENTENCE_BYTES];

/* Each message there is: 0 to 2 * N_OPS - 1. */
static void
message_fill(struct message *m, unsigned which, enum fill fill)
{
	const struct proto_field *f;

	memset(m, 0, sizeof(*m));
	m->way = which % 2 == 0 ? PROTO_REQUEST : PROTO_REPLY;
	m->op = all_ops[which / 2];
	m->id = ID;
	if (fill == FILL_LEAST)
		return;
	for (f = proto_fields(m->op, m->way); f->name != NULL; f++) {
		char *at = (char *)&m->u + f->off;
		uint64_t value = fill == FILL_MOST ? f->max : f->max / 3;

		if (f->type == PROTO_STR)
			memset(at, fill == FILL_MOST ? 0xff : 'a', value);
		else if (f->type == PROTO_U32)
			memcpy(at, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
		else
			memcpy(at, &value, sizeof(value));
	}
}

static int
message_pack(const struct message *m, void *buf, size_t size)
{
	if (m->way == PROTO_REQUEST)
		return proto_pack_request(buf, size, m->op, m->id, &m->u.request);
	return proto_pack_reply(buf, size, m->op, m->id, &m->u.reply);
}

/* way must be set, and for a reply op too. */
static int
message_unpack(struct message *m, const void *bytes, size_t n)
{
	enum proto_status status = PROTO_STATUS_IO;
	uint8_t *copy = malloc(n > 0 ? n : 1);
	int r;

	memset(&m->u, 0, sizeof(m->u));
	memset(why, 0, sizeof(why));
	if (n > 0)
		memcpy(copy, bytes, n);
	if (m->way == PROTO_REQUEST) {
		r = proto_unpack_request(copy, n, &m->op, &m->id, &m->u.request, why, sizeof(why));
	} else {
		r = proto_unpack_reply(copy, n, m->op, &m->id, &status, &m->u.reply, why, sizeof(why));
		if (r == 0 && status != PROTO_STATUS_OK)
			r = 1; /* an error's sentence: not a message */
	}
	free(copy);
	return r;
}

static bool
is_refused(enum proto_way way, enum proto_op op, const void *bytes, size_t n)
{
	struct message m = {.way = way, .op = op};

	return message_unpack(&m, bytes, n) == -EBADMSG && why[0] != '\0';
}

static int
bytes_write(void *data, const char *p, size_t n)
{
	struct bytes *b = data;

	memcpy(b->at + b->n, p, n);
	b->n += n;
	return 0;
}

/* The message packed by hand: n_values in all (op and id among them), and instead of value number "which" the raw bytes given. */
static void
bytes_build(struct bytes *b, const struct message *m, unsigned n_values, unsigned which, const struct bytes *raw)
{
	const struct proto_field *f = proto_fields(m->op, m->way);
	msgpack_packer p;

	b->n = 0;
	msgpack_packer_init(&p, b, bytes_write);
	msgpack_pack_array(&p, n_values);
	for (unsigned i = 0; i < n_values; i++) {
		const char *at = i >= 2 && f->name != NULL ? (const char *)&m->u + f->off : NULL;

		if (i == which) {
			bytes_write(b, (const char *)raw->at, raw->n);
		} else if (at == NULL) {
			msgpack_pack_uint32(&p, i == 0 ? (m->way == PROTO_REQUEST ? m->op : PROTO_STATUS_OK) : m->id);
		} else if (f->type == PROTO_STR) {
			msgpack_pack_str(&p, strlen(at));
			msgpack_pack_str_body(&p, at, strlen(at));
		} else if (f->type == PROTO_U32) {
			uint32_t value;

			memcpy(&value, at, sizeof(value));
			msgpack_pack_uint32(&p, value);
		} else {
			uint64_t value;

			memcpy(&value, at, sizeof(value));
			msgpack_pack_uint64(&p, value);
		}
		if (at != NULL)
			f++;
	}
}

static unsigned
count_fields(const struct message *m)
{
	const struct proto_field *f = proto_fields(m->op, m->way);
	unsigned n = 0;

	while (f[n].name != NULL)
		n++;
	return n;
}

/* Every op, both ways, at its least and largest values. */
static void
test_round_trip(void)
{
	for (unsigned which = 0; which < 2 * N_OPS; which++)
		for (enum fill fill = FILL_LEAST; fill <= FILL_MOST; fill++) {
			struct message m, got = {0};
			uint8_t buf[PACKET_BYTES], again[PACKET_BYTES];
			int n;

			message_fill(&m, which, fill);
			n = message_pack(&m, buf, sizeof(buf));
			CU_ASSERT_FATAL(n > 0);
			CU_ASSERT_EQUAL(proto_scan(buf, n, NULL), 0);
			got.way = m.way;
			got.op = m.way == PROTO_REPLY ? m.op : 0;
			CU_ASSERT_EQUAL(message_unpack(&got, buf, n), 0);
			CU_ASSERT_EQUAL(memcmp(&got, &m, sizeof(m)), 0);
			CU_ASSERT_EQUAL(message_pack(&got, again, sizeof(again)), n);
			CU_ASSERT_EQUAL(memcmp(buf, again, n), 0);
		}
}

/* A buffer too small is said to be, and nothing is written past it. */
static void
test_pack_small_buffer(void)
{
	for (unsigned which = 0; which < 2 * N_OPS; which++) {
		struct message m;
		uint8_t buf[PACKET_BYTES];
		int n;

		message_fill(&m, which, FILL_MOST);
		n = message_pack(&m, buf, sizeof(buf));
		for (int size = 0; size < n; size++) {
			memset(buf, 0xc1, sizeof(buf));
			CU_ASSERT_EQUAL(message_pack(&m, buf, size), -EMSGSIZE);
			CU_ASSERT_EQUAL(buf[size], 0xc1);
		}
		CU_ASSERT_EQUAL(message_pack(&m, buf, n), n);
	}
}

/* What would be refused is not sent. */
static void
test_pack_refuses(void)
{
	uint8_t buf[PACKET_BYTES];
	union proto_request request = {0};
	union proto_reply reply = {0};

	request.flush.cache = LAYOUT_MAX_CACHES;
	CU_ASSERT_EQUAL(proto_pack_request(buf, sizeof(buf), PROTO_OP_FLUSH, 1, &request), -EINVAL);
	memset(request.hello.library, 'x', sizeof(request.hello.library));
	CU_ASSERT_EQUAL(proto_pack_request(buf, sizeof(buf), PROTO_OP_HELLO, 1, &request), -EINVAL);
	CU_ASSERT_EQUAL(proto_pack_request(buf, sizeof(buf), 99, 1, &request), -EINVAL);
	CU_ASSERT_EQUAL(proto_pack_reply(buf, sizeof(buf), 99, 1, &reply), -EINVAL);
}

/* A packet cut anywhere is refused; so is one with a byte more. */
static void
test_truncated_and_trailing(void)
{
	for (unsigned which = 0; which < 2 * N_OPS; which++) {
		struct message m;
		uint8_t buf[PACKET_BYTES];
		int n;

		message_fill(&m, which, FILL_MOST);
		n = message_pack(&m, buf, sizeof(buf));
		for (int cut = 0; cut < n; cut++) {
			CU_ASSERT(is_refused(m.way, m.op, buf, cut));
		}
		buf[n] = 0xc0;
		CU_ASSERT_EQUAL(proto_scan(buf, n + 1, NULL), -EBADMSG);
		CU_ASSERT(is_refused(m.way, m.op, buf, n + 1));
	}
}

/* Each field with each other type, and beyond its limit; the sentence names op and field, and the id is read all the same. */
static void
test_wrong_values(void)
{
	static const struct bytes types[] = {
		{{0xc0}, 1},                               /* nil */
		{{0xc3}, 1},                               /* true */
		{{0xff}, 1},                               /* -1 */
		{{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, 9},    /* least int64 */
		{{0x90}, 1},                               /* [] */
		{{0x91, 0x01}, 2},                         /* [1] */
		{{0x81, 0x01, 0x01}, 3},                   /* {1: 1} */
		{{0xc4, 0x01, 'x'}, 3},                    /* bin */
		{{0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0}, 9}, /* 1.0 */
		{{0xd4, 0x00, 0x00}, 3},                   /* ext */
		{{0xc1}, 1},                               /* unused */
	};

	for (unsigned which = 0; which < 2 * N_OPS; which++) {
		const struct proto_field *f;
		struct message m, got = {0};
		struct bytes b, raw;
		msgpack_packer p;
		unsigned n, i;

		message_fill(&m, which, FILL_MIDDLE);
		got.way = m.way;
		got.op = m.op;
		n = 2 + count_fields(&m);
		msgpack_packer_init(&p, &raw, bytes_write);
		for (i = 0; i < n; i++)
			for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
				bytes_build(&b, &m, n, i, &types[t]);
				CU_ASSERT(is_refused(m.way, m.op, b.at, b.n));
			}
		for (f = proto_fields(m.op, m.way), i = 2; f->name != NULL; f++, i++) {
			raw.n = 0;
			if (f->type == PROTO_STR)
				msgpack_pack_uint32(&p, 1);
			else
				msgpack_pack_str(&p, 0);
			bytes_build(&b, &m, n, i, &raw);
			CU_ASSERT_EQUAL(message_unpack(&got, b.at, b.n), -EBADMSG);
			CU_ASSERT_PTR_NOT_NULL(strstr(why, f->name));
			CU_ASSERT_PTR_NOT_NULL(strstr(why, proto_op_name(m.op)));
			CU_ASSERT_EQUAL(got.id, (uint32_t)ID);

			if (f->max == UINT64_MAX)
				continue;
			raw.n = 0;
			if (f->type == PROTO_STR) {
				msgpack_pack_str(&p, f->max + 1);
				memset(raw.at + raw.n, 'x', f->max + 1);
				raw.n += f->max + 1;
			} else {
				msgpack_pack_uint64(&p, f->max + 1);
			}
			bytes_build(&b, &m, n, i, &raw);
			CU_ASSERT(is_refused(m.way, m.op, b.at, b.n));
			CU_ASSERT_PTR_NOT_NULL(strstr(why, f->name));

			if (f->type != PROTO_STR)
				continue;
			raw = (struct bytes){{0xa3, 'a', 0, 'b'}, 4};
			bytes_build(&b, &m, n, i, &raw);
			CU_ASSERT(is_refused(m.way, m.op, b.at, b.n));
			CU_ASSERT_PTR_NOT_NULL(strstr(why, "NUL"));
		}
	}
}

/* A field too few or too many. */
static void
test_wrong_count(void)
{
	for (unsigned which = 0; which < 2 * N_OPS; which++) {
		struct message m;
		struct bytes b;
		unsigned n;

		message_fill(&m, which, FILL_MIDDLE);
		n = 2 + count_fields(&m);
		for (unsigned i = 0; i < n + 3; i++) {
			bytes_build(&b, &m, i, UINT32_MAX, &(struct bytes){.n = 0});
			CU_ASSERT_EQUAL(is_refused(m.way, m.op, b.at, b.n), i != n);
		}
	}
}

/* Counts and lengths that claim what is not there, alone and within a request. */
static void
test_bombs(void)
{
	static const struct bytes bombs[] = {
		{{0xdd, 0xff, 0xff, 0xff, 0xff}, 5}, /* array32 */
		{{0xdd, 0x10, 0x00, 0x00, 0x00}, 5},
		{{0xdc, 0xff, 0xff}, 3},
		{{0xdf, 0xff, 0xff, 0xff, 0xff}, 5}, /* map32 */
		{{0xdf, 0x80, 0x00, 0x00, 0x00}, 5}, /* twice that is 0 in 32 bits */
		{{0xde, 0xff, 0xff}, 3},
		{{0xc6, 0xff, 0xff, 0xff, 0xff}, 5}, /* bin32 */
		{{0xdb, 0xff, 0xff, 0xff, 0xff}, 5}, /* str32 */
		{{0xda, 0xff, 0xff}, 3},
		{{0xc9, 0xff, 0xff, 0xff, 0xff, 0x00}, 6}, /* ext32 */
		{{0x9f}, 1},
		{{0x8f}, 1},
		{{0xbf}, 1},
	};
	struct message m;
	struct bytes b;

	message_fill(&m, 0, FILL_MIDDLE);
	for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
		CU_ASSERT_EQUAL(proto_scan(bombs[i].at, bombs[i].n, NULL), -EBADMSG);
		for (unsigned at = 0; at < 5; at++) {
			bytes_build(&b, &m, 5, at, &bombs[i]);
			CU_ASSERT_EQUAL(proto_scan(b.at, b.n, NULL), -EBADMSG);
			CU_ASSERT(is_refused(PROTO_REQUEST, 0, b.at, b.n));
		}
	}
}

/* Depth, number of values, size, emptiness: at the limit and past it. */
static void
test_scan_limits(void)
{
	static uint8_t big[PROTO_MAX_PACKET + 1];
	uint8_t nest[1001];
	const char *scan_why = NULL;

	memset(nest, 0x91, sizeof(nest));
	nest[PROTO_MAX_DEPTH] = 0x01;
	CU_ASSERT_EQUAL(proto_scan(nest, PROTO_MAX_DEPTH + 1, NULL), 0);
	CU_ASSERT(is_refused(PROTO_REQUEST, 0, nest, PROTO_MAX_DEPTH + 1));
	nest[PROTO_MAX_DEPTH] = 0x90;
	CU_ASSERT_EQUAL(proto_scan(nest, PROTO_MAX_DEPTH + 1, &scan_why), -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(scan_why);
	memset(nest, 0x91, 1000);
	nest[1000] = 0xc0;
	CU_ASSERT_EQUAL(proto_scan(nest, 1001, NULL), -EBADMSG);
	for (int i = 0; i < 1000; i += 2)
		nest[i] = 0x81, nest[i + 1] = 0x00;
	CU_ASSERT_EQUAL(proto_scan(nest, 1001, NULL), -EBADMSG);

	memset(nest, 0x00, sizeof(nest));
	nest[0] = 0xdc, nest[1] = 0, nest[2] = PROTO_MAX_VALUES - 1;
	CU_ASSERT_EQUAL(proto_scan(nest, 3 + PROTO_MAX_VALUES - 1, NULL), 0);
	nest[2] = PROTO_MAX_VALUES;
	CU_ASSERT_EQUAL(proto_scan(nest, 3 + PROTO_MAX_VALUES, NULL), -EBADMSG);
	/* As many objects as the decoder has room for, as maps: a map's entry is two. */
	nest[0] = 0xde, nest[2] = (PROTO_MAX_VALUES - 1) / 2;
	CU_ASSERT(is_refused(PROTO_REQUEST, 0, nest, 3 + PROTO_MAX_VALUES - 2));

	big[0] = 0xda, big[1] = (PROTO_MAX_PACKET - 3) >> 8, big[2] = (PROTO_MAX_PACKET - 3) & 0xff;
	CU_ASSERT_EQUAL(proto_scan(big, PROTO_MAX_PACKET, NULL), 0);
	big[0] = 0xdb, big[1] = 0, big[2] = 0, big[3] = (PROTO_MAX_PACKET - 4) >> 8, big[4] = (PROTO_MAX_PACKET - 4) & 0xff;
	CU_ASSERT_EQUAL(proto_scan(big, PROTO_MAX_PACKET + 1, NULL), -EBADMSG);

	CU_ASSERT(is_refused(PROTO_REQUEST, 0, "", 0));
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "", 0));
	CU_ASSERT(is_refused(PROTO_REQUEST, 0, "\x01", 1));
}

/* An integer not in its shortest form means the same. */
static void
test_long_forms(void)
{
	static const struct bytes five[] = {
		{{0xcc, 5}, 2},
		{{0xcd, 0, 5}, 3},
		{{0xce, 0, 0, 0, 5}, 5},
		{{0xcf, 0, 0, 0, 0, 0, 0, 0, 5}, 9},
		{{0xd0, 5}, 2},
		{{0xd1, 0, 5}, 3},
		{{0xd2, 0, 0, 0, 5}, 5},
		{{0xd3, 0, 0, 0, 0, 0, 0, 0, 5}, 9},
	};

	for (size_t i = 0; i < sizeof(five) / sizeof(five[0]); i++) {
		struct message m = {.way = PROTO_REQUEST, .op = PROTO_OP_FLUSH, .id = 1}, got = {.way = PROTO_REQUEST};
		struct bytes b;

		bytes_build(&b, &m, 4, 2, &five[i]);
		CU_ASSERT_EQUAL(message_unpack(&got, b.at, b.n), 0);
		CU_ASSERT_EQUAL(got.u.request.flush.cache, 5);
	}
}

/* An op we do not know is not a bad packet, whatever its arguments: it can be answered. */
static void
test_unknown_op(void)
{
	static const uint8_t packet[] = {0x94, 0xcd, 0x01, 0x00, 0x07, 0xa1, 'x', 0x90};
	struct message m = {.way = PROTO_REQUEST};

	CU_ASSERT_EQUAL(message_unpack(&m, packet, sizeof(packet)), PROTO_E_UNKNOWN_OP);
	CU_ASSERT_EQUAL(m.op, 256);
	CU_ASSERT_EQUAL(m.id, 7);
	CU_ASSERT_PTR_NOT_NULL(strstr(why, "256"));
	m.way = PROTO_REPLY;
	CU_ASSERT_EQUAL(message_unpack(&m, packet, sizeof(packet)), -EINVAL);
}

/* A status other than OK has exactly one sentence. */
static void
test_error_reply(void)
{
	uint8_t buf[512];
	char longest[PROTO_SENTENCE_BYTES + 44], sentence[PROTO_SENTENCE_BYTES];
	enum proto_status status;
	union proto_reply reply;
	uint32_t id;
	int n;

	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	for (unsigned i = 0; i < sizeof(all_errors) / sizeof(all_errors[0]); i++) {
		enum proto_status s = all_errors[i];

		if (s == PROTO_STATUS_OK)
			continue;
		n = proto_pack_error(buf, sizeof(buf), ID, s, "no such thing");
		CU_ASSERT_FATAL(n > 0);
		CU_ASSERT_EQUAL(proto_unpack_reply(buf, n, PROTO_OP_REFILL, &id, &status, &reply, sentence, sizeof(sentence)), 0);
		CU_ASSERT_EQUAL(status, s);
		CU_ASSERT_EQUAL(id, (uint32_t)ID);
		CU_ASSERT_STRING_EQUAL(sentence, "no such thing");
		CU_ASSERT(proto_status_errno(s) < 0);
		for (int cut = 0; cut < n; cut++)
			CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_REFILL, buf, cut));
		CU_ASSERT_EQUAL(proto_pack_error(buf, n - 1, ID, s, "no such thing"), -EMSGSIZE);
	}
	n = proto_pack_error(buf, sizeof(buf), 1, PROTO_STATUS_INVALID, longest);
	CU_ASSERT_EQUAL(proto_unpack_reply(buf, n, PROTO_OP_REFILL, &id, &status, &reply, sentence, sizeof(sentence)), 0);
	CU_ASSERT_EQUAL(strlen(sentence), PROTO_SENTENCE_BYTES - 1);
	/* A caller with little room gets what fits. */
	CU_ASSERT_EQUAL(proto_unpack_reply(buf, n, PROTO_OP_REFILL, &id, &status, &reply, sentence, 4), 0);
	CU_ASSERT_STRING_EQUAL(sentence, "xxx");

	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x93\x4f\x01\xa1x", 5));     /* no such status */
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x93\x00\x01\xa1x", 5));     /* a sentence with OK */
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x92\x09\x01", 3));          /* none */
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x94\x09\x01\xa0\xa0", 5));  /* two */
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x93\x09\x01\x01", 4));      /* a number */
	CU_ASSERT(is_refused(PROTO_REPLY, PROTO_OP_BYE, "\x93\x09\x01\xa2\x00x", 6)); /* a NUL */
	CU_ASSERT_EQUAL(proto_status_errno(PROTO_STATUS_OK), 0);
	CU_ASSERT_EQUAL(proto_status_errno(PROTO_STATUS_QUOTA), -EDQUOT);
	CU_ASSERT_EQUAL(proto_status_errno(99), -EPROTO);
	CU_ASSERT_STRING_EQUAL(proto_status_name(PROTO_STATUS_NO_CACHE), "NO_CACHE");
	CU_ASSERT_STRING_EQUAL(proto_op_name(PROTO_OP_CACHE_OPEN), "cache_open");
}

static uint64_t
random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Overwrites, removes or inserts a few bytes. */
static void
bytes_mutate(struct bytes *b, uint64_t *state)
{
	for (uint64_t n = 1 + random_next(state) % 4; n > 0 && b->n > 0; n--) {
		size_t at = random_next(state) % b->n;
		uint8_t byte = (uint8_t)(random_next(state) >> 32);

		switch (random_next(state) % 4) {
		case 0:
			memmove(b->at + at, b->at + at + 1, --b->n - at);
			break;
		case 1:
			memmove(b->at + at + 1, b->at + at, b->n++ - at);
			b->at[at] = byte;
			break;
		default:
			b->at[at] = byte;
		}
	}
}

/* Whatever is accepted means what packing it again says. */
static void
test_random(void)
{
	uint64_t seed = (uint64_t)time(NULL) * 2654435761u + 1, state = seed;
	unsigned n_accepted = 0;

	printf(" seed %#jx ", (uintmax_t)seed);
	for (unsigned i = 0; i < N_RANDOM; i++) {
		struct message m, got, again;
		uint8_t buf[PACKET_BYTES];
		struct bytes b;
		int n;

		message_fill(&m, random_next(&state) % (2 * N_OPS), random_next(&state) % (FILL_MOST + 1));
		if (i % 4 == 0) {
			b.n = random_next(&state) % 200;
			for (size_t at = 0; at < b.n; at++)
				b.at[at] = (uint8_t)(random_next(&state) >> 32);
		} else {
			b.n = message_pack(&m, b.at, sizeof(b.at));
			bytes_mutate(&b, &state);
		}
		got = (struct message){.way = m.way, .op = m.op};
		n = message_unpack(&got, b.at, b.n);
		CU_ASSERT(n == 0 || n == 1 || (n == -EBADMSG && why[0] != '\0'));
		if (n != 0)
			continue;
		n_accepted++;
		n = message_pack(&got, buf, sizeof(buf));
		CU_ASSERT_FATAL(n > 0);
		again = (struct message){.way = got.way, .op = got.op};
		CU_ASSERT_EQUAL(message_unpack(&again, buf, n), 0);
		CU_ASSERT_EQUAL(again.id, got.id);
		CU_ASSERT_EQUAL(memcmp(&again.u, &got.u, sizeof(got.u)), 0);
	}
	CU_ASSERT(n_accepted > 0);
}

static uint64_t
limit_of(enum proto_op op, enum proto_way way, const char *name)
{
	const struct proto_field *f = proto_fields(op, way);

	while (f->name != NULL && strcmp(f->name, name) != 0)
		f++;
	return f->max;
}

/* The maxima in ops.def are those of the layout. */
static void
test_limits_are_the_layouts(void)
{
	CU_ASSERT_EQUAL(PROTO_MAX_FDS, 3 + LAYOUT_MAX_SEGMENTS);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_ATTACH, PROTO_REPLY, "client"), LAYOUT_MAX_CLIENTS);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_ATTACH, PROTO_REPLY, "n_segments"), LAYOUT_MAX_SEGMENTS);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CLIENTS, PROTO_REQUEST, "after"), LAYOUT_MAX_CLIENTS);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CLIENTS, PROTO_REPLY, "client"), LAYOUT_MAX_CLIENTS);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CACHE_OPEN, PROTO_REPLY, "capacity"), LAYOUT_MAX_SHEAF);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CACHE_OPEN, PROTO_REPLY, "object_bytes"), LAYOUT_MAX_SLOT_BYTES);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CACHE_OPEN, PROTO_REQUEST, "name"), sizeof(((struct layout_cache *)0)->name) - 1);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CACHES, PROTO_REPLY, "name"), sizeof(((struct layout_cache *)0)->name) - 1);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_REFILL, PROTO_REQUEST, "capacity"), LAYOUT_MAX_SHEAF);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_REFILL, PROTO_REPLY, "slot"), LAYOUT_MAX_SLOTS - 1);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_CACHES, PROTO_REQUEST, "after"), LAYOUT_MAX_CACHES - 1);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_ORPHANS, PROTO_REQUEST, "after_cache"), LAYOUT_MAX_CACHES - 1);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_ORPHANS, PROTO_REPLY, "client"), WORD_ORPHAN);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_TUNE, PROTO_REPLY, "sheaf_capacity"), LAYOUT_MAX_SHEAF);
	CU_ASSERT_EQUAL(limit_of(PROTO_OP_DESTROY, PROTO_REQUEST, "name"), sizeof(((struct layout_cache *)0)->name) - 1);
	for (unsigned i = 0; i < N_OPS; i++)
		for (enum proto_way way = PROTO_REQUEST; way <= PROTO_REPLY; way++) {
			uint64_t max = limit_of(all_ops[i], way, "cache");

			CU_ASSERT(max == 0 || max == LAYOUT_MAX_CACHES - 1);
		}
}

CU_pSuite
test_codec_suite(void)
{
	CU_pSuite suite = CU_add_suite("codec", NULL, NULL);

	CU_ADD_TEST(suite, test_round_trip);
	CU_ADD_TEST(suite, test_pack_small_buffer);
	CU_ADD_TEST(suite, test_pack_refuses);
	CU_ADD_TEST(suite, test_truncated_and_trailing);
	CU_ADD_TEST(suite, test_wrong_values);
	CU_ADD_TEST(suite, test_wrong_count);
	CU_ADD_TEST(suite, test_bombs);
	CU_ADD_TEST(suite, test_scan_limits);
	CU_ADD_TEST(suite, test_long_forms);
	CU_ADD_TEST(suite, test_unknown_op);
	CU_ADD_TEST(suite, test_error_reply);
	CU_ADD_TEST(suite, test_random);
	CU_ADD_TEST(suite, test_limits_are_the_layouts);
	return suite;
}
