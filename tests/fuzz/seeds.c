/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes packets as fuzz_codec takes them into a folder: of every op the request and the reply, with fields as small as they may be and as large, and an
 * error.  So a fuzzer begins with what a real peer sends, as ops.def has it today.
 * usage: fuzz_seeds folder
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"

static const enum proto_op ops[] = {
#define OP(number, NAME, name, request, reply) PROTO_OP_##NAME,
#include "proto/ops.def"
};

static void
write_seed(const char *folder, enum proto_op op, const char *what, unsigned way, const unsigned char *packet, int n)
{
	const unsigned char head[] = {(unsigned char)way, (unsigned char)op};
	char path[512];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s-%s", folder, proto_op_name(op), what);
	file = n > 0 ? fopen(path, "wb") : NULL;
	if (!file || fwrite(head, 1, sizeof head, file) != sizeof head || fwrite(packet, 1, (size_t)n, file) != (size_t)n || fclose(file) != 0) {
		fprintf(stderr, "fuzz_seeds: cannot write %s\n", path);
		exit(1);
	}
}

static void
fill(void *message, const struct proto_field *field, bool is_large)
{
	for (; field->name; field++) {
		char *at = (char *)message + field->off;
		uint64_t value = is_large ? field->max : 0;
		uint32_t narrow = (uint32_t)value;

		switch (field->type) {
		case PROTO_U32:
			memcpy(at, &narrow, sizeof narrow);
			break;
		case PROTO_U64:
			memcpy(at, &value, sizeof value);
			break;
		case PROTO_STR:
			memset(at, 'x', (size_t)value);
			at[value] = '\0';
			break;
		}
	}
}

int
main(int argc, char **argv)
{
	unsigned char packet[8192];

	if (argc != 2)
		return 2;
	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
		for (int is_large = 0; is_large < 2; is_large++) {
			union proto_request request = {0};
			union proto_reply reply = {0};

			fill(&request, proto_fields(ops[i], PROTO_REQUEST), is_large);
			fill(&reply, proto_fields(ops[i], PROTO_REPLY), is_large);
			write_seed(argv[1], ops[i], is_large ? "request-large" : "request", PROTO_REQUEST, packet,
				proto_pack_request(packet, sizeof packet, ops[i], 1, &request));
			write_seed(argv[1], ops[i], is_large ? "reply-large" : "reply", PROTO_REPLY, packet,
				proto_pack_reply(packet, sizeof packet, ops[i], 1, &reply));
		}
	}
	write_seed(argv[1], PROTO_OP_REFILL, "error", PROTO_REPLY, packet,
		proto_pack_error(packet, sizeof packet, 1, PROTO_STATUS_NO_MEMORY, "arena 'default' is full"));
	return 0;
}
