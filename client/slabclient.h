/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libslabclient: allocate an object in one process, use it in a second, free it in a third.
 *
 * A process opens a session with slabd (slabc_open), opens caches of equal-sized objects by name (slabc_cache_open), and allocates and frees
 * without locks or system calls in the common case.  A pointer is valid in one process; a slabc_ref is valid in every process of the arena.
 *
 * Unless a call says otherwise: any thread may call it at any time; int calls return 0 or a negative errno; pointer calls return NULL and set
 * errno; slabc_last_error() then has a sentence about it.  A signal handler may call slabc_alloc, slabc_zalloc and slabc_free: a call that finds its thread
 * inside the library takes no lock; then an allocation may fail with EAGAIN.
 * In a forked child every call on an inherited handle fails with ENOTCONN; open a session of its own there.
 * When slabd dies, calls wait for the next one, up to timeout_ms; ENOTCONN if none can go on with the session, ESTALE from each call if it began empty.
 * All calls exist since 0.1.
 */
#ifndef SLABCLIENT_H
#define SLABCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLABC_VERSION "0.1.0"
#if defined(__GNUC__)
#define SLABC_API __attribute__((visibility("default")))
#else
#define SLABC_API
#endif

#define SLABC_DEFAULT_SOCKET "/run/slabd/slabd.sock"
#define SLABC_DEFAULT_ARENA "default"
#define SLABC_MAX_OBJECT_BYTES 32768
#define SLABC_MAX_PREFILL 1020

struct slabc;       /* a session: one process, one arena */
struct slabc_cache; /* an open cache of a session */
struct slabc_sheaf; /* prefilled objects in the caller's hands; one thread at a time */

/* A reference: place, generation and page life of an object. 0 is none. May lie in objects and be compared and swapped. */
typedef uint64_t slabc_ref;

/* Session flags. */
#define SLABC_RDONLY 0x1u /* resolve references only; nothing can be written */

/* Cache flags; all openers must agree but for SLABC_NOWAIT, which is the opener's own, and SLABC_DEBUG, which is its maker's. */
#define SLABC_RECLAIM 0x1u /* objects of a client that dies are freed; default: kept as orphans. A free by pointer of another's object is refused */
#define SLABC_SHARED 0x2u  /* objects are shared from birth: for containers whose links are offsets */
/*
 * No object words: the last nanosecond.  Not with the two above, and no slabc_adopt, _free_ref, _give or _publish (ENOTSUP): any client frees any
 * object, by pointer; a reference is followed unchecked as long as its page is the cache's; a double free is noticed late, by slabd, or never; the
 * audit passes the cache by; what a dead client held stays until the cache is destroyed, and is counted.
 */
#define SLABC_NO_OWNER 0x8u
#define SLABC_NOWAIT 0x4u  /* allocation never waits for slabd: EAGAIN, and a refill is on its way */
/*
 * Debug cache: what is written around an object or into a free one, and bad frees, are found and told with client, thread and call sites, in slabd's log
 * and by slabc_last_error(); slower, and larger in memory.  Whoever makes the cache, or slabd.conf, says whether it is one, for all; it need not agree.
 */
#define SLABC_DEBUG 0x20u

/* debug, the letters of the kernel's slab_debug; 0: all. */
#define SLABC_DEBUG_SANITY 0x1u   /* F: each bad free is reported, not only at powers of two */
#define SLABC_DEBUG_RED_ZONE 0x2u /* Z: bytes before and behind each object, looked at when it is allocated and freed */
#define SLABC_DEBUG_POISON 0x4u   /* P: free objects are filled with 0x6b, their last byte with 0xa5, new ones with 0x5a */
#define SLABC_DEBUG_USER 0x8u     /* U: who allocated and freed it last, and where; slabctl leaks */

#define SLABC_SHEAVES_NONE 0xffffffffu /* sheaf_capacity: each object is asked for and given back by itself */
#define SLABC_KNOB_NONE 0xffffffffu    /* a knob whose 0 means "by formula": really none */

/*
 * policy.  SLOB: the least memory, a message for each object and each free.  An object comes from the lowest place of the cache's heap that is free,
 * so what lives packs at the low end, and slabs above it empty and go back: smallest slabs, no sheaves, no barn, no stash, no empty slab kept, so
 * none of the knobs for these may be given.  The kernel's SLOB was one heap for all sizes; here each cache has its own, since a page is of one cache.
 */
#define SLABC_POLICY_SLUB 1u
#define SLABC_POLICY_SLOB 2u

struct slabc_options {
	size_t size;        /* set by SLABC_OPTIONS_INIT */
	const char *socket; /* NULL: $SLABD_SOCKET, else SLABC_DEFAULT_SOCKET */
	const char *arena;  /* NULL: SLABC_DEFAULT_ARENA */
	const char *label;  /* shown by slabctl; NULL: the program's name. At most 31 bytes are kept */
	int timeout_ms;     /* how long a call may wait for slabd; 0: 1,000; -1: for ever */
	unsigned flags;     /* SLABC_RDONLY */
};
#define SLABC_OPTIONS_INIT {sizeof(struct slabc_options), 0, 0, 0, 0, 0}

/* Knobs: 0 means the profile's default, from the kernel's formulas; heeded from who opens the cache first. */
struct slabc_cache_options {
	size_t size;             /* set by SLABC_CACHE_OPTIONS_INIT */
	size_t align;            /* bytes, a power of two up to 4,096; 0: 8 */
	unsigned flags;          /* cache flags above */
	uint32_t sheaf_capacity; /* objects, 1 to 1,020; SLABC_SHEAVES_NONE. In the kernel's profile at least the formula's */
	uint32_t sheaf_round_up; /* 1: as the kernel may do: at least the formula's, rounded up to what fills the sheaf's memory */
	uint32_t barn_full;      /* full sheaves kept by slabd for a node; SLABC_KNOB_NONE */
	uint32_t min_partial;    /* slabs of a node kept, though empty; SLABC_KNOB_NONE */
	uint32_t min_order;      /* pages of a slab: at least 2^min_order */
	uint32_t max_order;      /* at most 2^max_order, up to 4; SLABC_KNOB_NONE: order 0 */
	uint32_t min_objects;    /* wanted in a slab */
	uint64_t max_cached;     /* bytes a client may keep idle in its process barn; a thread has two sheaves, and 128 KiB or a quarter of this in more */
	uint32_t cpu_partial;    /* objects, up to 65,536, that slabd sets aside for each client from partial slabs; SLABC_KNOB_NONE */
	uint32_t policy;         /* SLABC_POLICY_SLUB, the default of all profiles, or SLABC_POLICY_SLOB */
	uint32_t debug;          /* with SLABC_DEBUG: SLABC_DEBUG_, which checks */
	uint32_t barn_empty;     /* sheaves without objects kept in a client's process barn, up to 16,384; SLABC_KNOB_NONE */
};
#define SLABC_CACHE_OPTIONS_INIT {sizeof(struct slabc_cache_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/*
 * Opens a session.  opt may be NULL.  *cp is the caller's until slabc_close().
 * ENOENT, ECONNREFUSED: nobody listens there. EACCES: the socket may not be used. EPROTO: versions or layouts differ, both are named.
 * ENOENT with a sentence: unknown arena. EBUSY: slabd takes no sessions now. ETIMEDOUT. ENOMEM. EUSERS: no client slot is left. EINVAL: options.
 */
SLABC_API int slabc_open(struct slabc **cp, const struct slabc_options *opt);

/* Ends the session as its death would: idle objects go back, held ones are freed (SLABC_RECLAIM) or kept as orphans. No other thread may be in a call on it. NULL is ignored. */
SLABC_API void slabc_close(struct slabc *c);

/*
 * Opens a cache, and makes it if it is not there.  size: bytes of an object, 1 to SLABC_MAX_OBJECT_BYTES; 0: must exist.  opt may be NULL.
 * The same cache opened again in a session gives the same handle, counted.  EEXIST: it is there with another size, align or flags, both named.
 * EINVAL: size, align or a knob, named with its limits. ENOENT: size 0 and no such cache. ENOSPC: too many caches. ENAMETOOLONG: over 47 bytes. EACCES: read-only session. ENOTCONN, ETIMEDOUT, ENOMEM.
 */
SLABC_API int slabc_cache_open(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *opt,
			       struct slabc_cache **kp);

/* Gives the handle back. With the last one the session's idle objects of the cache go back too. No other thread may be in a call on it. NULL is ignored. */
SLABC_API void slabc_cache_close(struct slabc_cache *k);

/*
 * One object, its contents undefined (slabc_zalloc: zero), aligned as the cache says.
 * ENOMEM: the arena is full. EDQUOT: this client has its share of it. EAGAIN: SLABC_NOWAIT, or a nested call from a signal handler. ENOTCONN, ETIMEDOUT, EIO: see slabc_last_error().
 */
SLABC_API void *slabc_alloc(struct slabc_cache *k);
SLABC_API void *slabc_zalloc(struct slabc_cache *k);

/*
 * Frees an object of k; NULL is ignored; errno is kept.  An object of another client must be shared (slabc_ref_of) and, in a SLABC_RECLAIM cache, adopted first.
 * The free of another client's object takes effect later: after at most one sheaf of further ones by this thread, at its exit, at slabc_cache_shrink(), _close(),
 * _destroy() and slabc_close(), or when this process dies.  Until then its references still resolve, in this thread too, and who adopts it by one keeps it: the
 * free is then a double free, counted and reported late.  slabc_free_ref() takes effect at once,
 * and so does each free in a SLABC_DEBUG cache.
 * A free needs no slabd: where no sheaf has room and slabd, stopped or busy, gives none, it is put off and made good at a later call on the cache by any
 * thread, at the closing, or by slabd at the process's death (in a SLABC_NO_OWNER cache then lost): it counts as held until then.
 * ENOTCONN, EAGAIN (a nested call from a signal handler), ENOMEM (nowhere to put it off): the object stays allocated.
 * EINVAL in errno, the object left alone, counted and reported: freed twice, no object of k, inside an object, another client's unshared object; in a
 * SLABC_DEBUG cache also once for an object around which somebody wrote.
 */
SLABC_API void slabc_free(struct slabc_cache *k, void *p);

/* n objects into pv, or none.  Returns 0 or a negative errno as slabc_alloc() would set. n 0 does nothing. */
SLABC_API int slabc_alloc_bulk(struct slabc_cache *k, size_t n, void **pv);
/* As n times slabc_free(); NULLs are ignored; errno as slabc_free() if any failed, else kept. */
SLABC_API void slabc_free_bulk(struct slabc_cache *k, size_t n, void **pv);

/* Takes n objects aside (1 to SLABC_MAX_PREFILL): the next n slabc_alloc_from() cannot fail. errno as slabc_alloc(), or EINVAL. */
SLABC_API struct slabc_sheaf *slabc_prefill(struct slabc_cache *k, size_t n);
/* One of them; NULL when it is empty (it never falls back to the cache). */
SLABC_API void *slabc_alloc_from(struct slabc_cache *k, struct slabc_sheaf *s);
/* Makes *sp hold at least n again; may replace it. On failure it is as before. */
SLABC_API int slabc_refill(struct slabc_cache *k, struct slabc_sheaf **sp, size_t n);
/* Gives what is left back. NULL is ignored. */
SLABC_API void slabc_return(struct slabc_cache *k, struct slabc_sheaf *s);

/* The reference of an object one holds, at its first byte; marks it shared.  0, errno EINVAL: no object, or nobody holds it. */
SLABC_API slabc_ref slabc_ref_of(struct slabc *c, const void *p);
/*
 * The object's address here.  NULL, errno ESTALE: freed, or used anew, since.  It may be freed by its owner at any time: see slabc_valid(), slabc_adopt().
 * It can be read without a fault until the session is closed, whatever becomes of the object.  For that, pages of the pools of huge pages that come free after a
 * session's first slabc_deref() (of a SLABC_RDONLY session: after it was opened) stay with the arena, for any cache, until that session ends.
 */
SLABC_API void *slabc_deref(struct slabc *c, slabc_ref ref);
/* 1: the reference still stands; 0: what was read since it was resolved may be another object's (errno ENOTSUP: SLABC_NO_OWNER, nobody can say). */
SLABC_API int slabc_valid(struct slabc *c, slabc_ref ref);
/* Becomes the owner of a shared object, whoever it was (also of the dead). NULL, errno ESTALE: gone, or taken by a free. EINVAL: not shared. */
SLABC_API void *slabc_adopt(struct slabc *c, slabc_ref ref);
/* Frees by reference: exact also when the owner died or the object was used anew.  -ESTALE: it is gone already. -EINVAL: not shared, and not one's own. */
SLABC_API int slabc_free_ref(struct slabc *c, slabc_ref ref);

/*
 * Makes the living client with that id the owner of one's own object, which is shared from then on.  Done by slabd: on an error the object is one's own as
 * before, but after ETIMEDOUT, when only slabc_adopt() tells.  ESRCH: no such client lives. EINVAL: not one's own. EACCES: it may only read. ENOTSUP: SLABC_NO_OWNER.
 */
SLABC_API int slabc_give(struct slabc *c, void *p, uint32_t client);

/*
 * Sized allocation: size classes 8 to 8,192 bytes (96 and 192 too), larger ones as runs of pages up to what a segment holds.  Any session can free
 * what any made; the rules for other clients' objects are slabc_free()'s.  errno as slabc_alloc().
 */
SLABC_API void *slabc_malloc(struct slabc *c, size_t n);                            /* n 0: an object of its own, of no use */
SLABC_API void *slabc_calloc(struct slabc *c, size_t n, size_t size);               /* zero; ENOMEM if n * size overflows */
SLABC_API void *slabc_realloc(struct slabc *c, void *p, size_t n);                  /* in place if the class or run holds it; p NULL: malloc; n 0: frees, NULL. On failure p stays */
SLABC_API void *slabc_memalign(struct slabc *c, size_t align, size_t n);            /* align: a power of two up to 4,096; else EINVAL */
SLABC_API void slabc_mfree(struct slabc *c, void *p);                               /* any object of any cache of the arena; NULL is ignored */
SLABC_API size_t slabc_usable_size(struct slabc *c, const void *p);                 /* bytes that may be used; 0, errno EINVAL: no object */

/*
 * Roots: names of 1 to SLABC_MAX_ROOT_NAME bytes, any but NUL, for references, kept by slabd for the arena.  Weak: a root is gone when its object is freed.
 * slabc_publish: EEXIST unless flags has SLABC_REPLACE or the old one is stale. ESTALE, EINVAL: no such object, or not shared. ENAMETOOLONG. ENOSPC: too many roots.
 * ENOTSUP: of a SLABC_NO_OWNER cache. EACCES: read-only session.
 */
#define SLABC_MAX_ROOT_NAME 255
#define SLABC_REPLACE 0x1u
SLABC_API int slabc_publish(struct slabc *c, const char *name, slabc_ref ref, unsigned flags);
SLABC_API int slabc_lookup(struct slabc *c, const char *name, slabc_ref *refp);     /* ENOENT. Read-only sessions may */
/*
 * As slabc_lookup(), but waits until it is published; timeout_ms -1: for ever, 0: not at all.  The thread sleeps; others' calls on the session go on.
 * ETIMEDOUT. ENOSPC: 64 calls of the session wait already. ENOTCONN: slabd has ended.
 */
SLABC_API int slabc_lookup_wait(struct slabc *c, const char *name, slabc_ref *refp, int timeout_ms);
SLABC_API int slabc_unpublish(struct slabc *c, const char *name);                   /* ENOENT */
/* The first root after `after` (NULL: from the start), in the order of bytes, whose name begins with prefix; name has room for SLABC_MAX_ROOT_NAME + 1. ENOENT: no more. */
SLABC_API int slabc_next_root(struct slabc *c, const char *prefix, const char *after, char *name, slabc_ref *refp);

/* What the dead left in the cache, one by one: the orphan after `after` (0: the first), by place; 0: no more, or an error: errno, else untouched, is ENOTSUP (SLABC_NO_OWNER) and so on. */
SLABC_API slabc_ref slabc_next_orphan(struct slabc_cache *k, slabc_ref after);
/* As slabc_adopt(), but only from the dead: of two that were shown it, one gets it. NULL, errno ESTALE: gone, or somebody who lives has it. */
SLABC_API void *slabc_adopt_orphan(struct slabc *c, slabc_ref ref);

/* Gives what is idle of the cache back: this thread's sheaves and this session's barn, slabd's barns, empty slabs, and what other clients keep idle. */
SLABC_API int slabc_cache_shrink(struct slabc_cache *k);
/*
 * Ends a cache that nobody needs: EBUSY with the count, and who has most, while objects are in use or other sessions have it open (slabc_last_error()); then
 * nothing has changed.  ENOENT: there is none.  This session may have it open; no other thread may be in a call on its handles of it.  They can only be
 * closed afterwards: other calls on them fail with ENOENT. So they do after ETIMEDOUT, since slabd may have done it.
 */
SLABC_API int slabc_cache_destroy(struct slabc *c, const char *name);

struct slabc_stats {
	size_t size; /* set by SLABC_STATS_INIT */
	uint64_t arena_bytes, committed_bytes; /* limit, and what is committed of it */
	uint64_t bytes_held, bytes_idle;       /* of this session: in objects it holds; in its sheaves, and set aside for it */
	uint64_t n_refills, n_flushes, n_foreign_frees, n_bad_frees, n_dropped, n_nested; /* of this session, since it began */
	uint32_t n_threads, n_caches;          /* of this session */
	uint64_t n_waits;                      /* of n_refills, those that a thread waited for */
};
#define SLABC_STATS_INIT {sizeof(struct slabc_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
SLABC_API int slabc_get_stats(struct slabc *c, struct slabc_stats *out);

/* The id slabctl shows: slot and life of this session. */
SLABC_API uint32_t slabc_client_id(struct slabc *c);
/* Of the calling thread's last failed call: one sentence that names the limit, and what changes it. Never NULL; valid until the next call. */
SLABC_API const char *slabc_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
