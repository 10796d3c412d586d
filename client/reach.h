/* SPDX-License-Identifier: Apache-2.0 */
/* Reach: one sentence about why slabd's socket could not be connected to, for the library and slabctl. */
#ifndef SLAB_CLIENT_REACH_H
#define SLAB_CLIENT_REACH_H

#include <stddef.h>

enum { REACH_SENTENCE_BYTES = 320 };

/* error: connect()'s, positive.  source: who named the path, such as "$SLABD_SOCKET". Looks at the path, and for EACCES into the list of
 * groups. */
void reach_explain(const char *path, const char *source, int error, char *why, size_t size);

#endif
