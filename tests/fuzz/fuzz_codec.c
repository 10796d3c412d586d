/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: a packet from a peer.
 *
 * The first byte says whose: even, a request; odd, the reply to the op that is the second byte.  The rest is the packet.  Whatever it is, unpacking stays
 * within it and within its structs (the sanitizers look); what is accepted can be packed again, and comes out of that as it went in.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

static void
check_request(const uint8_t *packet, size_t n)
{
	static unsigned char once[PROTO_MAX_PACKET], twice[PROTO_MAX_PACKET];
	union proto_request request = {0}, again = {0};
	char why[PROTO_SENTENCE_BYTES];
	enum proto_op op = 0, op_again = 0;
	uint32_t id = 0, id_again = 0;
	int length;

	if (proto_unpack_request(packet, n, &op, &id, &request, why, sizeof why) != 0) {
		FUZZ_CHECK(memchr(why, '\0', sizeof why));
		return;
	}
	length = proto_pack_request(once, sizeof once, op, id, &request);
	FUZZ_CHECK(length > 0);
	FUZZ_CHECK(proto_unpack_request(once, (size_t)length, &op_again, &id_again, &again, why, sizeof why) == 0);
	FUZZ_CHECK(op_again == op && id_again == id);
	FUZZ_CHECK(proto_pack_request(twice, sizeof twice, op, id, &again) == length);
	FUZZ_CHECK(memcmp(once, twice, (size_t)length) == 0);
}

static void
check_reply(enum proto_op op, const uint8_t *packet, size_t n)
{
	static unsigned char once[PROTO_MAX_PACKET], twice[PROTO_MAX_PACKET];
	union proto_reply reply = {0}, again = {0};
	char sentence[PROTO_SENTENCE_BYTES], sentence_again[PROTO_SENTENCE_BYTES];
	enum proto_status status = 0, status_again = 0;
	uint32_t id = 0, id_again = 0;
	int length;

	if (proto_unpack_reply(packet, n, op, &id, &status, &reply, sentence, sizeof sentence) != 0)
		return;
	if (status != PROTO_STATUS_OK) {
		FUZZ_CHECK(memchr(sentence, '\0', sizeof sentence));
		length = proto_pack_error(once, sizeof once, id, status, sentence);
		FUZZ_CHECK(length > 0);
		FUZZ_CHECK(proto_unpack_reply(once, (size_t)length, op, &id_again, &status_again, &again, sentence_again, sizeof sentence_again) == 0);
		FUZZ_CHECK(id_again == id && status_again == status);
		return;
	}
	length = proto_pack_reply(once, sizeof once, op, id, &reply);
	FUZZ_CHECK(length > 0);
	FUZZ_CHECK(proto_unpack_reply(once, (size_t)length, op, &id_again, &status_again, &again, sentence_again, sizeof sentence_again) == 0);
	FUZZ_CHECK(id_again == id && status_again == PROTO_STATUS_OK);
	FUZZ_CHECK(proto_pack_reply(twice, sizeof twice, op, id, &again) == length);
	FUZZ_CHECK(memcmp(once, twice, (size_t)length) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *why = NULL;

	if (size < 2)
		return 0;
	FUZZ_CHECK(proto_scan(data + 2, size - 2, &why) == 0 || (why && *why));
	if (data[0] % 2 == 0)
		check_request(data + 2, size - 2);
	else
		check_reply((enum proto_op)data[1], data + 2, size - 2);
	return 0;
}
