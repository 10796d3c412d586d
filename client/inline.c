/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What slabclient-inline.h, the fast path as a program's own code, needs of the library.
 *
 * The header defines, weakly, the thread-local pointer that is defined here too; the dynamic linker makes the two one, the program's.  Its
 * name has the layout hash in it.  So a program of the library's layout finds there its thread's table of sheaves; one of another layout
 * finds what it was initialised with, slabc_inline_none, since no library writes a pointer of that name: all its calls go slow, and so into
 * the library. That costs the fast path nothing.
 *
 * For ever, whatever the layout: a handle begins with its index, below 1,024; slabc_inline_none has as many entries, each the address of 64
 * bytes of zeros, in which no call finds an object or room; the library itself looks into neither.
 */
#include "client/internal.h"

#include "layout_name.h"

#define PASTE(a, b) a##b
#define NAME(a, b) PASTE(a, b)
#define INLINE_MAIN NAME(slabc_inline_main_, LAYOUT_NAME)
#define EXPORT __attribute__((visibility("default")))

enum { NONE_BYTES = 64 };

static char none[NONE_BYTES] __attribute__((aligned(64)));

extern void *const slabc_inline_none[CLIENT_MAX_HANDLES];
EXPORT void *const slabc_inline_none[CLIENT_MAX_HANDLES] = {[0 ... CLIENT_MAX_HANDLES - 1] = none};

extern __thread void *const *INLINE_MAIN __attribute__((tls_model("initial-exec")));
EXPORT __thread void *const *INLINE_MAIN = slabc_inline_none;

_Static_assert(offsetof(struct slabc_cache, v.index) == 0 && CLIENT_MAX_HANDLES == 1024, "for ever");
_Static_assert(sizeof(struct sheaf) <= NONE_BYTES, "a sheaf without entries");

void
inline_show(struct sheaf *const *main)
{
	INLINE_MAIN = main ? (void *const *)main : slabc_inline_none;
}
