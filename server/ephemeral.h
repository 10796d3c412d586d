/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ephemeral: a slabd for one test suite, with a socket that nobody else can reach, which goes when whoever it is for goes.
 *
 * Without a command that is the parent process, which reads the socket's path on our standard output; with one it is the command, a child
 * that has the path in its environment.  Either is watched by a pidfd in loop 0, so that no death goes unseen, whatever the signal.
 * (prctl(PR_SET_PDEATHSIG) would tell of the death of the thread that started us.)
 *
 * The socket lies in a folder of its own, mode 0700, which is locked (flock) as long as its slabd lives.  What a killed slabd has left
 * behind the next one finds unlocked, and removes.
 */
#ifndef SLAB_SERVER_EPHEMERAL_H
#define SLAB_SERVER_EPHEMERAL_H

#include <stddef.h>

enum { EPHEMERAL_STATUS_FAILED = 125 }; /* of slabd itself when there is a command: as env(1) and timeout(1) have it */

struct ephemeral;
struct slabd;
struct slabd_options;

/*
 * Before slabd_new(): makes the folder, sets the options' socket, blocks the signals that end slabd until the loop reads them.
 * command: NULL, or as for execvp().  0, or a negative errno with a sentence.
 */
int ephemeral_new(struct ephemeral **ephemeralp, char **command, struct slabd_options *options, char *why, size_t why_size);

/* After slabd_new(), before slabd_run(): says that slabd is ready, or starts the command.  0, or a negative errno with a sentence. */
int ephemeral_start(struct ephemeral *ephemeral, struct slabd *slabd, char *why, size_t why_size);

/* After slabd_free(). Removes the folder; NULL is ignored. */
void ephemeral_free(struct ephemeral *ephemeral);

/* The command's exit status, as a shell has it, also if it could not be executed; EPHEMERAL_STATUS_FAILED if it never came to that. */
int ephemeral_status(const struct ephemeral *ephemeral);

#endif
