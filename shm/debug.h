/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug caches: what lies around an object, as slabd carves the slabs and clients fill them.
 *
 *     p             object_size         record_off                object_bytes - 16    object_bytes
 *     +-------------+-------------------+-------------------------+--------------------+
 *     | object      | red zone          | struct layout_record    | red zone before the next object
 *     +-------------+-------------------+-------------------------+--------------------+
 *
 * A slab begins with `head` bytes that end in the red zone before its first object.  The page map counts them in (server/slab.c), so that places,
 * references and words are those of other caches: an object is at its place, and who is told nothing of its neighbours' red zones needs not know.
 * head < object_bytes - align, so that no place in the head is taken for the start of an object.
 *
 * Slabd never touches any of it.  Red zones are the same bytes whether the object is in use or not, so who looks while another client allocates or
 * frees sees nothing change.
 */
#ifndef SLAB_SHM_DEBUG_H
#define SLAB_SHM_DEBUG_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/layout.h"

enum {
	DEBUG_ZONE_BYTES = 16,    /* before an object; behind it at least half as many */
	DEBUG_ZONE = 0xcc,        /* the kernel's SLUB_RED_ACTIVE */
	DEBUG_POISON_FREE = 0x6b, /* POISON_FREE, POISON_END and POISON_INUSE */
	DEBUG_POISON_END = 0xa5,
	DEBUG_POISON_IN_USE = 0x5a,
};

struct debug_shape {
	uint32_t object_bytes;
	uint32_t record_off;
	uint32_t head;
};

static inline uint32_t
debug_record_bytes(uint32_t flags)
{
	return flags & LAYOUT_CACHE_USER ? (uint32_t)sizeof(struct layout_record) : (uint32_t)sizeof(uint64_t);
}

/* Of objects of 1 to LAYOUT_MAX_OBJECT_BYTES, align a power of two from 8 to LAYOUT_PAGE_BYTES; object_bytes + head <= LAYOUT_MAX_SLOT_BYTES. */
static inline struct debug_shape
debug_shape(uint32_t object_size, uint32_t align, uint32_t flags)
{
	uint32_t record = debug_record_bytes(flags), payload = (object_size + DEBUG_ZONE_BYTES / 2 + 7) / 8 * 8;
	struct debug_shape s = {.head = (DEBUG_ZONE_BYTES + align - 1) / align * align};

	s.object_bytes = (payload + record + DEBUG_ZONE_BYTES + align - 1) / align * align;
	if (s.object_bytes < s.head + align)
		s.object_bytes = s.head + align;
	s.record_off = s.object_bytes - DEBUG_ZONE_BYTES - record;
	return s;
}

/* record_off from what the page map's readers know. */
static inline uint32_t
debug_record_off(uint32_t object_bytes, uint32_t flags)
{
	return object_bytes - DEBUG_ZONE_BYTES - debug_record_bytes(flags);
}

/* What layout_record.seal says of the object at place, in that life of its page. */
static inline uint64_t
debug_seal(uint32_t place, uint32_t cache, uint32_t object_bytes, uint8_t incarnation, bool is_free)
{
	uint64_t h = ((uint64_t)place << 32 | object_bytes << 9 | cache) * UINT64_C(0x9e3779b97f4a7c15);

	h = (h ^ h >> 29 ^ incarnation) * UINT64_C(0xbf58476d1ce4e5b9);
	return (h ^ h >> 32) << 1 | is_free;
}

#endif
