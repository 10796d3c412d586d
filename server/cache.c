/* SPDX-License-Identifier: Apache-2.0 */
/* Registry of caches: names, knobs and their defaults by profile (design.md, section 6). */
#include "server/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/geometry.h"
#include "server/log.h"
#include "server/topology.h"
#include "shm/atomic.h"

/* The kernel's barn; the default profile counts bytes instead, for between processes ten sheaves are far too few. */
enum { KERNEL_BARN_FULL = 10, TINY_MAX_ORDER = 1 };
static const uint64_t default_barn_bytes = 16u << 20;
static const uint64_t default_max_cached_bytes = 32u << 20;

static uint32_t
knob(uint32_t asked, uint32_t otherwise)
{
	return asked == 0 ? otherwise : asked == LAYOUT_KNOB_NONE ? 0 : asked;
}

static int
check_number(const char *field, uint64_t value, uint64_t max, char *why, size_t why_size)
{
	if (value <= max)
		return 0;
	snprintf(why, why_size, "%s %llu is above its limit of %llu", field, (unsigned long long)value, (unsigned long long)max);
	return -EINVAL;
}

static int
check_options(const struct cache_options *o, char *why, size_t why_size)
{
	size_t length = strlen(o->name);

	if (length == 0 || length >= sizeof((struct cache *)0)->name) {
		snprintf(why, why_size, "a cache's name has 1 to %zu bytes, this one has %zu", sizeof((struct cache *)0)->name - 1, length);
		return length ? -ENAMETOOLONG : -EINVAL;
	}
	if (o->align & (o->align - 1) || o->align > LAYOUT_PAGE_BYTES) {
		snprintf(why, why_size, "align %llu is no power of two up to %d", (unsigned long long)o->align, LAYOUT_PAGE_BYTES);
		return -EINVAL;
	}
	if (o->flags & ~(uint32_t)(LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_SHARED)) {
		snprintf(why, why_size, "unknown cache flags 0x%x", o->flags & ~(uint32_t)(LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_SHARED));
		return -EINVAL;
	}
	if (check_number("size", o->size, LAYOUT_MAX_OBJECT_BYTES, why, why_size) < 0 ||
	    (o->sheaf_capacity != LAYOUT_KNOB_NONE &&
	     check_number("sheaf_capacity", o->sheaf_capacity, LAYOUT_MAX_SHEAF, why, why_size) < 0) ||
	    check_number("sheaf_round_up", o->sheaf_round_up, 1, why, why_size) < 0 ||
	    (o->barn_full != LAYOUT_KNOB_NONE && check_number("barn_full", o->barn_full, 1u << 20, why, why_size) < 0) ||
	    (o->min_partial != LAYOUT_KNOB_NONE && check_number("min_partial", o->min_partial, 1u << 20, why, why_size) < 0) ||
	    check_number("min_order", o->min_order, LAYOUT_MAX_ORDER, why, why_size) < 0 ||
	    (o->max_order != LAYOUT_KNOB_NONE && check_number("max_order", o->max_order, LAYOUT_MAX_ORDER, why, why_size) < 0) ||
	    (o->max_order && check_number("min_order", o->min_order, knob(o->max_order, 0), why, why_size) < 0) ||
	    check_number("min_objects", o->min_objects, LAYOUT_MAX_SLAB_OBJECTS, why, why_size) < 0)
		return -EINVAL;
	return 0;
}

static void
set_geometry(struct cache *k, const struct cache_options *o)
{
	bool tiny = k->arena->options.profile == ARENA_PROFILE_TINY;
	unsigned min_objects = o->min_objects ? o->min_objects : geometry_min_objects(topology_online_cpus());
	unsigned max_order = knob(o->max_order, tiny ? TINY_MAX_ORDER : GEOMETRY_MAX_ORDER);

	k->align = o->align ? (uint32_t)o->align : 8;
	if (k->align < 8)
		k->align = 8;
	k->object_size = (uint32_t)o->size;
	k->object_bytes = (k->object_size + k->align - 1) / k->align * k->align;
	k->recip = (uint32_t)(((1ull << 32) + k->object_bytes - 1) / k->object_bytes);
	k->min_order = (uint32_t)geometry_min_order_for(k->object_bytes);
	k->order = (uint32_t)geometry_order(k->object_bytes, o->min_order, max_order < o->min_order ? o->min_order : max_order, min_objects);
	k->n_slab_objects = geometry_objects(k->object_bytes, k->order);
}

static void
set_knobs(struct cache *k, const struct cache_options *o)
{
	enum arena_profile profile = k->arena->options.profile;
	uint64_t share = k->arena->options.limit_bytes / 8;
	uint64_t sheaf_bytes, full;

	k->flags = o->flags;
	k->is_sheafless = o->sheaf_capacity == LAYOUT_KNOB_NONE || (o->sheaf_capacity == 0 && profile == ARENA_PROFILE_TINY);
	/* The kernel takes no request below its formula; who turns the knob here gets what it says, but in the kernel's profile. */
	if (k->is_sheafless)
		k->capacity = 1;
	else if (o->sheaf_capacity && !o->sheaf_round_up && profile != ARENA_PROFILE_KERNEL)
		k->capacity = o->sheaf_capacity;
	else
		k->capacity = geometry_sheaf_request(k->object_bytes, o->sheaf_capacity, o->sheaf_round_up);
	sheaf_bytes = (uint64_t)k->capacity * k->object_bytes;
	k->max_cached = o->max_cached ? o->max_cached : default_max_cached_bytes;
	if (!o->max_cached && k->max_cached > share)
		k->max_cached = share;
	full = default_barn_bytes < share ? default_barn_bytes / sheaf_bytes : share / sheaf_bytes;
	if (full < KERNEL_BARN_FULL)
		full = KERNEL_BARN_FULL;
	k->barn_full = k->is_sheafless ? 0 : knob(o->barn_full, profile == ARENA_PROFILE_DEFAULT ? (uint32_t)full : KERNEL_BARN_FULL);
	k->min_partial = knob(o->min_partial,
		profile == ARENA_PROFILE_TINY ? 0 : geometry_min_partial(k->object_bytes, GEOMETRY_MIN_PARTIAL_MIN, GEOMETRY_MIN_PARTIAL_MAX));
}

/* registry_lock held. */
static struct cache *
find_locked(struct arena *arena, const char *name)
{
	for (unsigned id = 1; id <= arena->n_caches; id++)
		if (strcmp(arena->caches[id]->name, name) == 0)
			return arena->caches[id];
	return NULL;
}

static int
match(const struct cache *k, const struct cache_options *o, char *why, size_t why_size)
{
	uint32_t align = o->align < 8 ? 8 : (uint32_t)o->align;

	if (o->size == 0 || (o->size == k->object_size && align == k->align && o->flags == k->flags)) {
		if (o->sheaf_capacity || o->barn_full || o->min_partial || o->min_order || o->max_order || o->min_objects || o->max_cached)
			log_info("cache '%s' is there already: the knobs of a later opener are ignored", k->name);
		return 0;
	}
	snprintf(why, why_size, "cache '%s' is there with size %u, align %u, flags 0x%x; asked for size %llu, align %u, flags 0x%x", k->name,
		k->object_size, k->align, k->flags, (unsigned long long)o->size, align, o->flags);
	return -EEXIST;
}

static int
make_locked(struct arena *arena, const struct cache_options *o, struct cache **cachep, char *why, size_t why_size)
{
	struct layout_cache *shown;
	struct cache *k;

	if (o->size == 0) {
		snprintf(why, why_size, "there is no cache '%s' in arena '%s' (size 0 opens an existing one)", o->name, arena->name);
		return -ENOENT;
	}
	if (arena->n_caches + 1 >= LAYOUT_MAX_CACHES) {
		snprintf(why, why_size, "arena '%s' has its %d caches", arena->name, LAYOUT_MAX_CACHES - 1);
		return -ENOSPC;
	}
	k = calloc(1, sizeof *k + arena->topology.n_nodes * sizeof k->nodes[0]);
	if (!k) {
		snprintf(why, why_size, "no memory in slabd for another cache");
		return -ENOMEM;
	}
	k->arena = arena;
	k->id = (uint16_t)(arena->n_caches + 1);
	strcpy(k->name, o->name);
	set_geometry(k, o);
	set_knobs(k, o);
	k->n_nodes = arena->topology.n_nodes;
	for (unsigned i = 0; i < k->n_nodes; i++)
		node_init(&k->nodes[i], k, i);
	shown = &arena->shown[k->id];
	shown->object_bytes = k->object_bytes;
	shown->flags = k->flags;
	strcpy(shown->name, k->name);
	shown->recip = k->recip;
	arena->n_caches++;
	/* order: CACHE release - cache and description are whole before a slab can name them */
	atomic_write_release(&arena->caches[k->id], k);
	*cachep = k;
	return 0;
}

int
cache_open(struct arena *arena, const struct cache_options *options, struct cache **cachep, char *why, size_t why_size)
{
	struct cache *k;
	int r;

	r = check_options(options, why, why_size);
	if (r < 0)
		return r;
	pthread_mutex_lock(&arena->registry_lock);
	k = find_locked(arena, options->name);
	if (k)
		r = match(k, options, why, why_size);
	else
		r = make_locked(arena, options, &k, why, why_size);
	pthread_mutex_unlock(&arena->registry_lock);
	if (r == 0)
		*cachep = k;
	return r;
}

void
cache_free(struct cache *k)
{
	for (unsigned i = 0; i < k->n_nodes; i++)
		node_deinit(&k->nodes[i]);
	free(k);
}
