/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "server/log.h"
#include "shm/atomic.h"

/* For a predecessor that was killed this instant. */
enum { DEATH_MS = 1000 };

static int
by_name(const void *a, const void *b)
{
	return strcmp(((const struct store_left *)a)->name, ((const struct store_left *)b)->name);
}

static bool
is_ours(const char *name)
{
	return name[0] == '+' && strlen(name) < STORE_NAME_BYTES;
}

int
store_init(struct store *store)
{
	const char *max = getenv("FDSTORE");
	char **names = NULL;
	int n = sd_listen_fds_with_names(0, &names), r = 0;

	*store = (struct store){.is_on = max && atoi(max) > 0 && getenv("NOTIFY_SOCKET")};
	if (n <= 0)
		return n;
	store->left = calloc((size_t)n, sizeof *store->left);
	if (!store->left)
		r = -ENOMEM;
	for (int i = 0; i < n; i++) {
		if (r == 0 && is_ours(names[i])) {
			struct store_left *left = &store->left[store->n_left++];

			strcpy(left->name, names[i]);
			left->fd = SD_LISTEN_FDS_START + i;
		} else if (r == 0) {
			store->n_passed++;
			store->passed_fd = SD_LISTEN_FDS_START + i;
		}
		fcntl(SD_LISTEN_FDS_START + i, F_SETFD, FD_CLOEXEC);
		free(names[i]);
	}
	free(names);
	if (r == 0)
		qsort(store->left, store->n_left, sizeof *store->left, by_name);
	store->n_kept = store->n_left;
	return r;
}

void
store_deinit(struct store *store)
{
	for (unsigned i = 0; i < store->n_left; i++)
		if (store->left[i].fd >= 0)
			close(store->left[i].fd);
	free(store->left);
	store->left = NULL;
	store->n_left = 0;
}

bool
store_is_on(const struct store *store)
{
	return atomic_read(&store->is_on) != 0;
}

struct store_name
store_name(unsigned arena, char kind, unsigned number)
{
	struct store_name name;

	if (kind == STORE_DATA || kind == STORE_SESSION)
		snprintf(name.text, sizeof name.text, "+%x%c%x", arena & (STORE_MAX_ARENAS - 1), kind, number & 0xffff);
	else
		snprintf(name.text, sizeof name.text, "+%x%c", arena & (STORE_MAX_ARENAS - 1), kind);
	return name;
}

/* Says what happened to the store once; slabd serves on without. */
static int
lost(struct store *store, int r)
{
	if (atomic_swap(&store->is_on, 0))
		log_error("the descriptor store is gone (%s): who attaches from now on loses its session if slabd dies", strerror(-r));
	return -ENOTCONN;
}

int
store_keep(struct store *store, const char *name, const int *fds, unsigned n_fds)
{
	char state[64];
	int r;

	if (!store_is_on(store))
		return -ENOTCONN;
	if (atomic_add(&store->n_kept, n_fds) + n_fds > STORE_MAX) {
		atomic_add(&store->n_kept, -n_fds);
		return -EUSERS;
	}
	/* FDPOLL=0: systemd would drop a pidfd when its process dies, which is when it is wanted. */
	snprintf(state, sizeof state, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
	r = sd_pid_notify_with_fds(0, 0, state, fds, n_fds);
	return r > 0 ? 0 : lost(store, r);
}

void
store_drop(struct store *store, const char *name, unsigned n_fds)
{
	if (!store_is_on(store))
		return;
	atomic_add(&store->n_kept, -n_fds);
	sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

/* The first entry whose name is not below that one; store->n_left: none. */
static unsigned
lower_bound(const struct store *store, const char *name)
{
	unsigned low = 0, high = store->n_left;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;

		if (strcmp(store->left[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The first entry of that name; NULL: none. */
static struct store_left *
find(const struct store *store, const char *name)
{
	unsigned i = lower_bound(store, name);

	return i < store->n_left && strcmp(store->left[i].name, name) == 0 ? &store->left[i] : NULL;
}

int
store_take(struct store *store, const char *name)
{
	struct store_left *left = find(store, name), *end = store->left + store->n_left;

	for (; left && left < end && strcmp(left->name, name) == 0; left++) {
		int fd = left->fd;

		if (fd < 0)
			continue;
		left->fd = -1;
		return fd;
	}
	return -1;
}

/* Whose it is, and what. -1: no arena's. */
static int
arena_of(const char *name, char *kindp)
{
	char *end;
	unsigned long number = strtoul(name + 1, &end, 16);

	*kindp = *end;
	return end > name + 1 && *end && strchr("lpwgs", *end) && number < STORE_MAX_ARENAS ? (int)number : -1;
}

static bool
is_of(const struct store_left *left, unsigned arena, char kind)
{
	char here;

	return arena_of(left->name, &here) == (int)arena && (!kind || here == kind);
}

/* All of an arena stand together: kinds come after the digits. */
static struct store_left *
first_of(const struct store *store, unsigned arena)
{
	char name[STORE_NAME_BYTES];

	snprintf(name, sizeof name, "+%xg", arena);
	return &store->left[lower_bound(store, name)];
}

struct store_left *
store_next_left(const struct store *store, unsigned arena, char kind, struct store_left *before)
{
	struct store_left *left = before ? before + 1 : first_of(store, arena);

	while (left < store->left + store->n_left && is_of(left, arena, 0)) {
		if (!kind || is_of(left, arena, kind))
			return left;
		left++;
	}
	return NULL;
}

void
store_drop_left(struct store *store, unsigned arena, char kind)
{
	for (struct store_left *left = NULL; (left = store_next_left(store, arena, kind, left));) {
		if (left->fd < 0)
			continue;
		close(left->fd);
		left->fd = -1;
		store_drop(store, left->name, 1);
	}
}

bool
store_has_left(const struct store *store, unsigned arena, char kind)
{
	return store_next_left(store, arena, kind, NULL) != NULL;
}

static void
name_self(char name[STORE_NAME_BYTES])
{
	snprintf(name, STORE_NAME_BYTES, "+P%x", (unsigned)getpid());
}

int
store_claim(struct store *store, int *pidp)
{
	char name[STORE_NAME_BYTES];
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0), r;

	if (fd < 0)
		return -errno;
	for (unsigned i = 0; i < store->n_left; i++) {
		struct store_left *left = &store->left[i];
		struct pollfd p = {.fd = left->fd, .events = POLLIN};

		if (left->name[1] != 'P')
			continue;
		*pidp = (int)strtoul(left->name + 2, NULL, 16);
		if (poll(&p, 1, DEATH_MS) != 1 || !(p.revents & POLLIN)) {
			close(fd);
			return -EBUSY;
		}
	}
	name_self(name);
	r = store_keep(store, name, &fd, 1);
	close(fd);
	/* The next one finds at least one of these. */
	for (unsigned i = 0; i < store->n_left; i++) {
		struct store_left *left = &store->left[i];

		if (left->name[1] != 'P' || left->fd < 0)
			continue;
		close(left->fd);
		left->fd = -1;
		if (strcmp(left->name, name) != 0)
			store_drop(store, left->name, 1);
	}
	return r;
}

void
store_unclaim(struct store *store)
{
	char name[STORE_NAME_BYTES];

	name_self(name);
	store_drop(store, name, 1);
}
