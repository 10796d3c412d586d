/* SPDX-License-Identifier: Apache-2.0 */
#include "server/inspect.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/ledger.h"

enum { READ_AT_A_TIME = 64 };

/* Memory that the file has. */
static uint64_t
resident(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* By their names; a session has two descriptors, or one. */
static void
count_left(struct inspection *inspection, const struct store *store, unsigned number)
{
	const struct store_left *before = NULL;
	struct store_left *left = store_next_left(store, number, STORE_LEDGER, NULL);

	if (left)
		inspection->ledger_fd = fcntl(left->fd, F_DUPFD_CLOEXEC, 0);
	for (left = NULL; (left = store_next_left(store, number, STORE_DATA, left));) {
		inspection->found.n_segments++;
		inspection->found.bytes += resident(left->fd);
	}
	for (left = NULL; (left = store_next_left(store, number, STORE_SESSION, left)); before = left)
		inspection->found.n_sessions += !before || strcmp(before->name, left->name) != 0;
}

void
inspect_begin(struct inspection *inspection, const struct store *store, unsigned number)
{
	*inspection = (struct inspection){.ledger_fd = -1, .found.store_number = number};
	count_left(inspection, store, number);
}

static uint32_t
count_caches(int fd)
{
	struct ledger_cache caches[READ_AT_A_TIME];
	uint32_t n = 0;

	for (uint32_t id = 0; id < LAYOUT_MAX_CACHES; id += READ_AT_A_TIME) {
		ssize_t got = pread(fd, caches, sizeof caches, (off_t)(ledger_caches_off() + id * sizeof caches[0]));

		for (uint32_t i = 0; got == (ssize_t)sizeof caches && i < READ_AT_A_TIME; i++)
			n += caches[i].recip != 0;
	}
	return n;
}

static uint32_t
count_clients(int fd, uint32_t n_clients)
{
	struct ledger_client clients[READ_AT_A_TIME];
	uint32_t n = 0;

	for (uint32_t client = 0; client < n_clients && client <= LAYOUT_MAX_CLIENTS; client += READ_AT_A_TIME) {
		ssize_t got = pread(fd, clients, sizeof clients, (off_t)(ledger_clients_off() + client * sizeof clients[0]));

		for (uint32_t i = 0; got == (ssize_t)sizeof clients && i < READ_AT_A_TIME; i++)
			n += clients[i].state != LEDGER_CLIENT_NONE;
	}
	return n;
}

static void
read_ledger(struct inspection *inspection)
{
	struct proto_inspect_reply *found = &inspection->found;
	struct ledger_head head;

	if (pread(inspection->ledger_fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.magic != LEDGER_MAGIC)
		return;
	found->layout_hash = head.layout_hash;
	found->ledger_hash = head.ledger_hash;
	found->layout_version = head.layout_version;
	snprintf(found->server, sizeof found->server, "%.*s", (int)sizeof head.server, head.server);
	if (head.layout_hash != layout_hash || head.ledger_hash != ledger_hash)
		return;
	snprintf(found->name, sizeof found->name, "%.*s", (int)sizeof head.name, head.name);
	found->pid = head.writer;
	found->limit_bytes = head.limit_bytes;
	found->n_caches = count_caches(inspection->ledger_fd);
	found->n_clients = count_clients(inspection->ledger_fd, head.n_clients);
	found->n_slabs = head.n_slabs;
	found->n_roots = head.n_roots;
}

void
inspect_end(struct inspection *inspection, const char *why)
{
	if (why)
		snprintf(inspection->found.failed, sizeof inspection->found.failed, "%s", why);
	if (inspection->ledger_fd < 0)
		return;
	read_ledger(inspection);
	close(inspection->ledger_fd);
	inspection->ledger_fd = -1;
}
