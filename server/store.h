/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptor store: who holds slabd's descriptors while there is no slabd.
 *
 * It is systemd (FileDescriptorStoreMax=) or slabd-keeper, and both are spoken to alike: descriptors go out by sd_pid_notify_with_fds(), come back by
 * sd_listen_fds_with_names(), and $FDSTORE says that they are wanted.  Without it nothing is kept, and slabd's end is the end of its arenas.
 *
 * Names, which are short since a start gets all of them in one environment variable of 128 KiB (n, c, p: hexadecimal):
 *
 *   +nl, +np, +nw, +ngc   ledger, arena segment, word table, data segment c of the arena that has number n here
 *   +nsc                  pidfd and segment of the session of its client slot c
 *   +Pp                   pidfd of a slabd, process p, that writes the ledgers
 *   +control              the listening socket, where slabd made it
 *
 * A descriptor is kept before anybody can have it from slabd, and dropped when the ledger no longer knows it.
 */
#ifndef SLAB_SERVER_STORE_H
#define SLAB_SERVER_STORE_H

#include <stdbool.h>
#include <stdint.h>

enum {
	STORE_MAX = 14000, /* descriptors: as many names as fit the environment */
	STORE_NAME_BYTES = 16,
	STORE_MAX_ARENAS = 256,
};

/* Kinds: no hexadecimal digits, so that they end a number. */
#define STORE_LEDGER 'l'
#define STORE_ARENA 'p'
#define STORE_WORDS 'w'
#define STORE_DATA 'g'
#define STORE_SESSION 's'
#define STORE_CONTROL "+control"

struct store_name {
	char text[STORE_NAME_BYTES];
};

/* A descriptor that a dead slabd left. */
struct store_left {
	char name[STORE_NAME_BYTES];
	int fd; /* -1: taken */
};

struct store {
	uint32_t is_on;  /* atomic */
	uint32_t n_kept; /* atomic */
	struct store_left *left; /* by name */
	unsigned n_left;
	/* Descriptors that systemd passes for another reason, and one of them. */
	int n_passed;
	int passed_fd;
};

/* Asks the environment, and takes what is there over.  0, or a negative errno. Once in a process. */
int store_init(struct store *store);
/* Closes what nobody took; it stays in the store. */
void store_deinit(struct store *store);

bool store_is_on(const struct store *store);

struct store_name store_name(unsigned arena, char kind, unsigned number);

/*
 * Copies of the descriptors are held under the name from here on.  0; -EUSERS: the store is full; -ENOTCONN: there is no store (any more: that is
 * logged once, and slabd goes on without).  Any thread.
 */
int store_keep(struct store *store, const char *name, const int *fds, unsigned n_fds);
/* All n_fds of the name. Any thread. */
void store_drop(struct store *store, const char *name, unsigned n_fds);

/* The first descriptor left under the name that is not taken yet, now the caller's; -1: none. */
int store_take(struct store *store, const char *name);
/* What was left of an arena, of a kind (0: of any), after that entry (NULL: the first), by name; NULL: no more. */
struct store_left *store_next_left(const struct store *store, unsigned arena, char kind, struct store_left *before);
/* Was anything?  What was not taken of it is dropped, and closed. */
bool store_has_left(const struct store *store, unsigned arena, char kind);
void store_drop_left(struct store *store, unsigned arena, char kind);

/* This process writes the ledgers.  0; -EBUSY: another one that did lives still, *pidp; or a negative errno. */
int store_claim(struct store *store, int *pidp);
/* This process writes none any more. */
void store_unclaim(struct store *store);

#endif
