/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte that more than one process maps.
 *
 *   place space of an arena: one range of 32-bit places, in units of 8 bytes, shared out among the arena's data segments
 *
 *     place 0                                                                       n_pages * 512
 *     +---------------------------+---------------------------+-- ... --+
 *     | segment 0: node 0, 2 MiB  | segment 1: node 0, 4 KiB  | node 1  |      each a sparse memfd, mapped whole by each client, at
 *     +---------------------------+---------------------------+-- ... --+      base + place * 8; pages are committed by slabd before use
 *
 *   arena segment (slabd writes, clients read)      word table (all of the arena's clients write)
 *     +-------------------------+                     +----+----+----+--
 *     | struct layout_arena     |                     | u32| u32| ...       object words (word.h); those of a slab lie together,
 *     | struct layout_cache[512]|                     +----+----+----+--    the page map says where
 *     | struct layout_page[n]   |  page map
 *     +-------------------------+
 *
 *   session segment (one client and slabd write)
 *     +---------------------------------+  0
 *     | struct layout_session           |
 *     +---------------------------------+  LAYOUT_SESSION_CACHES_OFF
 *     | struct layout_session_cache[512]|  process barn and counters, by cache id
 *     +---------------------------------+  LAYOUT_SESSION_SLOTS_OFF
 *     | struct layout_slot[16384]       |  holder word, link, and what slabd says of each slot
 *     +---------------------------------+  LAYOUT_SESSION_SHEAVES_OFF
 *     | sheaves (sheaf.h)               |  slots of power-of-two sizes
 *     +---------------------------------+  LAYOUT_SESSION_BYTES
 *
 * Rules: a field has a fixed width.  "W:" who writes it, "R:" who reads it.  What a client can write, slabd reads once into a local, checks,
 * and bounds every loop by numbers of its own.  Slabd's own truth (the ledger) is never here.
 * LAYOUT_VERSION grows with every change that an old library or an old slabd would read wrongly; the hash made from this file at build time
 * (tests/layout_hash.awk reads it: one field a line, constants as LAYOUT_ enumerators) catches the forgotten bump.
 */
#ifndef SLAB_SHM_LAYOUT_H
#define SLAB_SHM_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum {
	LAYOUT_VERSION = 1,

	LAYOUT_PAGE_SHIFT = 12,
	LAYOUT_PAGE_BYTES = 4096,
	LAYOUT_PLACE_SHIFT = 3,      /* a place is this many bits short of a byte offset */
	LAYOUT_PLACE_PAGE_SHIFT = 9, /* places in a page: 512 */
	LAYOUT_MAX_NODES = 64,
	LAYOUT_MAX_SEGMENTS = 128,
	LAYOUT_MAX_PAGES = 1 << 23, /* 32 GiB of place space: what 32 bits of places reach */

	LAYOUT_MAX_CACHES = 512, /* ids 1 to 511; 0 is no cache */
	LAYOUT_MAX_CLIENTS = 0x3ffe, /* slots 1 to this; the word's owner field, less ORPHAN */
	LAYOUT_MAX_OBJECT_BYTES = 32768,
	LAYOUT_MAX_SLOT_BYTES = 40960, /* from one object to the next, with what lies between them in a debug cache (shm/debug.h) */
	LAYOUT_MAX_ORDER = 4,
	LAYOUT_MAX_SLAB_OBJECTS = 4096,
	LAYOUT_NAME_BYTES = 64, /* of a cache, with its NUL */

	LAYOUT_MAX_SLOTS = 16384,
	LAYOUT_MAX_SHEAF = 1020, /* entries: the largest capacity, and the largest prefill */
	LAYOUT_SLOT_UNIT = 32,   /* bytes: offsets of sheaves are in this unit */

	LAYOUT_SITE_BYTES = 144, /* of a call site in a debug cache, with its NUL */

	LAYOUT_SESSION_CACHES_OFF = 4096,
	LAYOUT_SESSION_SLOTS_OFF = 4096 + 512 * 128,
	LAYOUT_SESSION_SHEAVES_OFF = 4096 + 512 * 128 + 16384 * 16,
	LAYOUT_SESSION_BYTES = 48 * 1024 * 1024,

	LAYOUT_ARENA_CACHES_OFF = 4096,
	LAYOUT_ARENA_PAGES_OFF = 4096 + 512 * 72,
};

/* Kinds of page behind a data segment. */
enum {
	LAYOUT_PAGES_4K = 0,
	LAYOUT_PAGES_HUGE = 1, /* hugetlb, 2 MiB */
	LAYOUT_PAGES_1G = 2,   /* hugetlb, 1 GiB */
};

/* Who holds a sheaf's slot: the one word that says so (I2). */
enum {
	LAYOUT_HOLDER_SLABD = 0,    /* not lent out, or being filled or emptied */
	LAYOUT_HOLDER_BARN = 1,     /* in the process barn: any thread of the client, or slabd, may take it by compare-and-swap */
	LAYOUT_HOLDER_RETURNED = 2, /* given back by the client: slabd takes it when it likes */
	LAYOUT_HOLDER_APP = 3,      /* a prefilled sheaf in the application's hands */
	LAYOUT_HOLDER_RECALLED = 4, /* taken from its thread, which may still point to it: nobody uses it before the thread has made it RETURNED */
	LAYOUT_HOLDER_BORROWED = 5, /* from the barn for one object, or on its way to the application or back */
	LAYOUT_HOLDER_THREAD = 16,  /* plus the thread's number: its main, its spare, one in its rack, its foreign sheaf, or the record of that */
};

/* In a sheaf's first word (sheaf.h). */
enum {
	LAYOUT_SHEAF_BUSY = 1,
	LAYOUT_SHEAF_WORDLESS = 2,
	LAYOUT_SHEAF_UNSETTLED = 4,
	LAYOUT_SHEAF_NODED = 8,
	LAYOUT_SHEAF_DEBUG = 16,
};

/* Flags of a cache (as SLABC_RECLAIM and so on; 4 is SLABC_NOWAIT), and knob values that say "really none" where 0 means "by formula". */
enum {
	LAYOUT_CACHE_RECLAIM = 1,
	LAYOUT_CACHE_SHARED = 2,
	LAYOUT_CACHE_NO_OWNER = 8, /* its words are never read or written */
	LAYOUT_CACHE_RUNS = 16,    /* its objects are runs of pages, each of its own length (slabc_malloc of more than the largest class) */
	LAYOUT_CACHE_DEBUG = 32,   /* and which of the checks below, those of SLABC_DEBUG_, are made */
	LAYOUT_CACHE_SANITY = 64,
	LAYOUT_CACHE_RED_ZONE = 128,
	LAYOUT_CACHE_POISON = 256,
	LAYOUT_CACHE_USER = 512,
	LAYOUT_CACHE_DEBUG_ALL = 992, /* these five */
	LAYOUT_CACHE_DEBUG_SHIFT = 6, /* SLABC_DEBUG_SANITY is bit 0 */
};
#define LAYOUT_KNOB_NONE 0xffffffffu

/* One data segment, as part of the place space. */
struct layout_segment {
	/* First page, and how many.  W: slabd, before the arena is shown. R: all. */
	uint32_t first_page;
	uint32_t n_pages;
	/* NUMA node (index, not the kernel's number) and LAYOUT_PAGES_ kind.  W: slabd, once. R: all. */
	uint16_t node;
	uint16_t pages;
	/* The kernel's number of that node.  W: slabd, once. R: monitors. */
	uint32_t os_node;
};

/* Head of the arena segment. */
struct layout_arena {
	/* The layout hash of who made it.  W: slabd, once. R: clients, at attach. */
	uint64_t hash;
	/* Pages of place space, segments and nodes in use.  W: slabd, once. R: all. */
	uint32_t n_pages;
	uint32_t n_segments;
	uint32_t n_nodes;
	uint32_t reserved;
	/* Words in the word table.  W: slabd, once. R: clients, at attach. */
	uint64_t n_words;
	/* W: slabd, once. R: all. */
	struct layout_segment segments[LAYOUT_MAX_SEGMENTS];
};

/* What all clients must know of a cache, by id. */
struct layout_cache {
	/*
	 * Bits 0..15: entries of a sheaf, 0: no sheaves.  16..31: sheaves with objects that a client may keep; 32..47: sheaves without.
	 * W: slabd, also when they are tuned. R: clients, at a refill.
	 */
	uint64_t knobs;
	/* ceil(2^32 / object_bytes), in a cache of runs 1; 0: no such cache.  W: slabd, before the first page map entry that names the cache. R: all. */
	uint32_t recip;
	/* Bytes from one object to the next; in a cache of runs a page.  W: slabd, once. R: all. */
	uint32_t object_bytes;
	/* LAYOUT_CACHE_ flags.  W: slabd, once. R: all. */
	uint16_t flags;
	/* Bytes of an object as asked for.  W: slabd, once. R: debug caches' clients, tools. */
	uint16_t object_size;
	/* W: slabd, once. R: tools. */
	char name[48];
};

/*
 * Page map entry: 16 bytes a page.
 *
 * For a place p in a slab page:  x = (p * 8 mod 4096) * recip + prod;  word index = x >> 32;  p is the start of an object iff (uint32_t)x < recip.
 * The multiplication for the pages before is done in advance: prod = (page in slab * 4096) * recip + (first word << 32).
 * Exact while object_bytes * slab bytes < 2^32.  A page that is no slab names cache 0, which no handle has.
 *
 * A run of pages is one object, and recip is 1: prod = (first word << 32) in its first page, + the number of its pages in the others.  So the
 * run's first byte alone is a start, every page leads to its one word, and the second page says how long the run is.
 */
struct layout_page {
	/* See above.  W: slabd, after incarnation, before cache (release). R: all. */
	uint64_t prod;
	/* Slab number in the ledger: for slabd's own use, no promise to clients.  W: slabd. R: slabd. */
	uint32_t slab;
	/* Cache id; 0: none.  W: slabd, last (PAGE_MAP release). R: all, first (acquire). */
	uint16_t cache;
	/* Which life of the page: a reference made in another one is stale.  W: slabd, first. R: all, last. */
	uint8_t incarnation;
	/* Number of the data segment it lies in, + 1; 0: nothing lay there yet.  The two together are the upper 16 bits of a reference.  W: slabd, before cache (release). R: all. */
	uint8_t segment;
};

/* Who allocated or freed an object of a debug cache last. */
struct layout_track {
	/* Client id and kernel's thread number; client 0: nobody yet.  W: who holds the object. R: all, and believe nothing. */
	uint32_t client;
	uint32_t tid;
	/* Of CLOCK_REALTIME. */
	uint64_t time_ns;
	/* "function+0x1d < caller+0x20 < module+0x1234", innermost first. */
	char site[LAYOUT_SITE_BYTES];
};

/*
 * What lies between the objects of a debug cache (shm/debug.h).  Any client of the arena can write it: a reader copies it, ends its strings, and
 * lets it lead nowhere.
 */
struct layout_record {
	/* Which object this is, and whether it is free: debug_seal(). Anything else: never used in this life of the page.  W: who holds the object. R: who allocates it. */
	uint64_t seal;
	/* With LAYOUT_CACHE_USER only.  As above. */
	struct layout_track allocated;
	struct layout_track freed;
};

/* Head of the session segment. */
struct layout_session {
	/* W: slabd, once. R: client, at attach. */
	uint64_t hash;
	/* Client slot (word_owner) and this session's number in it.  W: slabd, once. R: client. */
	uint32_t client;
	uint32_t incarnation;
	/* Slots made so far.  W: slabd. R: monitors; a client learns of a slot by its holder word. */
	uint32_t n_slots;
	/* Threads with a sheaf now.  W: client. R: slabd, for show. */
	uint32_t n_threads;
	/* 1: the client has begun to resolve references, so that pages may not go from under what it reads; 0: not yet.  W: client, once, before (READER). R: slabd. */
	uint32_t has_resolved;
};

/*
 * Head of a list of slots: a hint for whoever looks for a sheaf; the truth is in the slots' holder words.
 * bits 0..15 slot + 1 (0: empty), 16..31 sheaves on the list, 32..63 a tag that each change advances.
 */
struct layout_session_cache {
	/* Process barn: sheaves with objects, sheaves without; and those given back to slabd.  W, R: client and slabd, by compare-and-swap (BARN). */
	uint64_t full;
	uint64_t empty;
	uint64_t returned;
	/* Of this session, for show; racing threads may lose a count, but for n_bad_frees and n_foreign_frees.  W: client; slabd, of the claims it makes for it. R: slabd. */
	uint64_t n_refills;       /* requests answered */
	uint64_t n_flushes;       /* sheaves given back */
	uint64_t n_foreign_frees; /* objects of other clients freed here */
	uint64_t n_double_frees;
	uint64_t n_wild_frees;       /* no object of the cache */
	uint64_t n_misaligned_frees; /* inside an object */
	uint64_t n_refused_frees;    /* another client's OWNED object, or by pointer in a SLABC_RECLAIM cache */
	uint64_t n_dropped;          /* sheaf entries whose word was owned already */
	uint64_t n_nested;           /* calls from a signal handler that found the sheaf busy */
	uint64_t n_barn_gets;        /* full sheaves taken from the process barn */
	uint64_t n_barn_puts;        /* and put there */
	/*
	 * Sheaves that a refill asked for ahead may be expected to bring; 0: none, it is not asked for; UINT32_MAX once what lay in the barn has been called in.
	 * W: slabd. R: client.
	 */
	uint32_t n_granted;
	/* A refill that nobody waits for is on its way.  W: client, 1 by swap; slabd, 0 when it is done. R: client. */
	uint32_t is_refilling;
	uint64_t n_waits; /* refills that a thread waited for.  As the counts above. */
};

/* One slot. */
struct layout_slot {
	/* LAYOUT_HOLDER_.  W: whoever holds it; from BARN, RETURNED and RECALLED, and by slabd from a thread's, by compare-and-swap (HOLDER). R: client and slabd. */
	uint32_t holder;
	/* On a list the next slot + 1; of a thread's foreign sheaf its record's slot + 1 (sheaf.h).  W: who pushes, or holds it. R: who pops (bounded), slabd. */
	uint32_t next;
	/* Where its sheaf lies, from the start of the segment, in LAYOUT_SLOT_UNIT.  W: slabd, once. R: client; slabd goes by its own copy. */
	uint32_t off;
	/* Entries it holds at most, and its cache.  W: slabd, when it lends the slot. R: client; slabd goes by its own copy. */
	uint16_t capacity;
	uint16_t cache;
};

_Static_assert(sizeof(struct layout_segment) == 16, "layout_segment");
_Static_assert(sizeof(struct layout_arena) <= LAYOUT_ARENA_CACHES_OFF, "layout_arena fits before the caches");
_Static_assert(sizeof(struct layout_cache) == 72, "layout_cache");
_Static_assert(sizeof(struct layout_track) == 160 && sizeof(struct layout_record) == 8 + 2 * 160, "layout_record");
_Static_assert(LAYOUT_ARENA_PAGES_OFF == LAYOUT_ARENA_CACHES_OFF + LAYOUT_MAX_CACHES * sizeof(struct layout_cache), "page map follows caches");
_Static_assert(sizeof(struct layout_page) == 16 && offsetof(struct layout_page, cache) == 12, "layout_page");
_Static_assert(sizeof(struct layout_session) <= LAYOUT_SESSION_CACHES_OFF, "layout_session");
_Static_assert(sizeof(struct layout_session_cache) == 128, "layout_session_cache");
_Static_assert(sizeof(struct layout_slot) == 16, "layout_slot");
_Static_assert(LAYOUT_SESSION_SLOTS_OFF == LAYOUT_SESSION_CACHES_OFF + LAYOUT_MAX_CACHES * sizeof(struct layout_session_cache), "slots follow");
_Static_assert(LAYOUT_SESSION_SHEAVES_OFF == LAYOUT_SESSION_SLOTS_OFF + LAYOUT_MAX_SLOTS * sizeof(struct layout_slot), "sheaves follow");
_Static_assert(LAYOUT_SESSION_SHEAVES_OFF % LAYOUT_PAGE_BYTES == 0, "sheaves start on a page");

/* Made at build time from this file (build/.../layout_hash.c). */
extern const uint64_t layout_hash;

#endif
