/* SPDX-License-Identifier: Apache-2.0 */
/* Registry of caches: names, knobs and their defaults by profile (design.md, section 6). */
#include "server/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/geometry.h"
#include "server/log.h"
#include "server/session.h"
#include "server/stash.h"
#include "server/topology.h"
#include "shm/atomic.h"
#include "shm/debug.h"

/* The kernel's barn at the least; the profiles that count bytes do so because between processes ten sheaves are far too few. */
enum { KERNEL_BARN_FULL = 10, MAX_BARN_FULL = 1 << 20, MAX_MIN_PARTIAL = 1 << 20, MAX_CPU_PARTIAL = 1 << 16, MAX_BARN_EMPTY = LAYOUT_MAX_SLOTS };

_Static_assert((int)MAX_BARN_EMPTY <= UINT16_MAX, "it is shown in 16 bits");

static const uint32_t all_flags = LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_SHARED | LAYOUT_CACHE_NO_OWNER | LAYOUT_CACHE_RUNS | LAYOUT_CACHE_DEBUG_ALL;

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

/* A heap packed by first fit keeps nothing idle, in slabs as small as can be: who asks for anything else asks for another policy. */
static int
check_slob(const struct cache_options *o, char *why, size_t why_size)
{
	const struct {
		const char *name;
		uint32_t asked;
		bool may_be_none;
	} knobs[] = {{"sheaf_capacity", o->sheaf_capacity, true}, {"barn_full", o->barn_full, true}, {"cpu_partial", o->cpu_partial, true},
		{"min_partial", o->min_partial, true}, {"min_order", o->min_order, false}, {"max_order", o->max_order, true},
		{"min_objects", o->min_objects, false}, {"barn_empty", o->barn_empty, true}};

	for (unsigned i = 0; i < sizeof knobs / sizeof knobs[0]; i++) {
		if (knobs[i].asked == 0 || (knobs[i].may_be_none && knobs[i].asked == LAYOUT_KNOB_NONE))
			continue;
		snprintf(why, why_size, "cache '%s': %s %u does not go with policy slob, which keeps nothing idle and has the smallest slabs", o->name,
			knobs[i].name, knobs[i].asked);
		return -EINVAL;
	}
	return 0;
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
	if (o->flags & ~all_flags) {
		snprintf(why, why_size, "unknown cache flags 0x%x", o->flags & ~all_flags);
		return -EINVAL;
	}
	if (o->flags & LAYOUT_CACHE_NO_OWNER && o->flags & (LAYOUT_CACHE_RECLAIM | LAYOUT_CACHE_SHARED)) {
		snprintf(why, why_size, "cache '%s': SLABC_NO_OWNER goes with neither SLABC_RECLAIM nor SLABC_SHARED: both need the words that it does without",
			o->name);
		return -ENOTSUP;
	}
	if (o->flags & LAYOUT_CACHE_NO_OWNER && o->flags & LAYOUT_CACHE_DEBUG_ALL) {
		snprintf(why, why_size, "cache '%s': SLABC_NO_OWNER does not go with SLABC_DEBUG, whose checks need the words", o->name);
		return -ENOTSUP;
	}
	if (o->flags & LAYOUT_CACHE_RUNS && (o->flags != LAYOUT_CACHE_RUNS || o->size > LAYOUT_PAGE_BYTES)) {
		snprintf(why, why_size, "cache '%s': a cache of runs has pages of %d bytes and no other flag", o->name, LAYOUT_PAGE_BYTES);
		return -EINVAL;
	}
	if (check_number("size", o->size, LAYOUT_MAX_OBJECT_BYTES, why, why_size) < 0 ||
	    (o->sheaf_capacity != LAYOUT_KNOB_NONE &&
	     check_number("sheaf_capacity", o->sheaf_capacity, LAYOUT_MAX_SHEAF, why, why_size) < 0) ||
	    check_number("sheaf_round_up", o->sheaf_round_up, 1, why, why_size) < 0 ||
	    (o->barn_full != LAYOUT_KNOB_NONE && check_number("barn_full", o->barn_full, MAX_BARN_FULL, why, why_size) < 0) ||
	    (o->min_partial != LAYOUT_KNOB_NONE && check_number("min_partial", o->min_partial, MAX_MIN_PARTIAL, why, why_size) < 0) ||
	    check_number("min_order", o->min_order, LAYOUT_MAX_ORDER, why, why_size) < 0 ||
	    (o->max_order != LAYOUT_KNOB_NONE && check_number("max_order", o->max_order, LAYOUT_MAX_ORDER, why, why_size) < 0) ||
	    (o->max_order && check_number("min_order", o->min_order, knob(o->max_order, 0), why, why_size) < 0) ||
	    check_number("min_objects", o->min_objects, LAYOUT_MAX_SLAB_OBJECTS, why, why_size) < 0 ||
	    (o->cpu_partial != LAYOUT_KNOB_NONE && check_number("cpu_partial", o->cpu_partial, MAX_CPU_PARTIAL, why, why_size) < 0) ||
	    (o->barn_empty != LAYOUT_KNOB_NONE && check_number("barn_empty", o->barn_empty, MAX_BARN_EMPTY, why, why_size) < 0) ||
	    check_number("policy", o->policy, CACHE_POLICY_SLOB, why, why_size) < 0)
		return -EINVAL;
	return o->policy == CACHE_POLICY_SLOB ? check_slob(o, why, why_size) : 0;
}

static struct profile
profile_of_arena(const struct arena *arena)
{
	return profile_of(arena->options.profile, topology_online_cpus(), arena->options.limit_bytes);
}

/* What the profile makes of the kernel's capacity, for who asked for none. */
static uint32_t
profile_capacity(const struct profile *profile, uint32_t object_bytes)
{
	uint32_t capacity = geometry_sheaf_request(object_bytes, 0, false) * profile->capacity_factor;

	return capacity < LAYOUT_MAX_SHEAF ? capacity : LAYOUT_MAX_SHEAF;
}

static uint32_t
profile_min_partial(const struct profile *profile, uint32_t object_bytes)
{
	uint32_t n = geometry_min_partial(object_bytes, 0, UINT32_MAX) * profile->partial_factor;

	if (n < profile->min_partial_min)
		n = profile->min_partial_min;
	return n < profile->min_partial_max ? n : profile->min_partial_max;
}

uint32_t
cache_objects(const struct cache *k, uint32_t order)
{
	uint32_t n = geometry_objects(k->object_bytes, order);

	return k->head && (LAYOUT_PAGE_BYTES << order) - n * k->object_bytes < k->head ? n - 1 : n;
}

static void
set_geometry(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);
	unsigned min_objects = o->min_objects ? o->min_objects : geometry_min_objects(topology_online_cpus()) * profile.objects_factor;
	unsigned max_order = knob(o->max_order, profile.max_order);

	k->align = o->align ? (uint32_t)o->align : 8;
	if (k->align < 8)
		k->align = 8;
	k->object_size = (uint32_t)o->size;
	k->object_bytes = (k->object_size + k->align - 1) / k->align * k->align;
	if (k->flags & LAYOUT_CACHE_DEBUG) {
		struct debug_shape shape = debug_shape(k->object_size, k->align, k->flags);

		k->object_bytes = shape.object_bytes;
		k->head = shape.head;
	}
	k->recip = (uint32_t)(((1ull << 32) + k->object_bytes - 1) / k->object_bytes);
	k->min_order = (uint32_t)geometry_min_order_for(k->head + k->object_bytes);
	k->order = (uint32_t)geometry_order(k->object_bytes, o->min_order, max_order < o->min_order ? o->min_order : max_order, min_objects);
	if (k->policy == CACHE_POLICY_SLOB || k->order < k->min_order)
		k->order = k->min_order;
	k->n_slab_objects = cache_objects(k, k->order);
}

/* A run is carved for who asks for it and goes back when it is freed: nothing is kept. */
static void
set_runs(struct cache *k)
{
	k->flags = LAYOUT_CACHE_RUNS;
	k->align = k->object_size = k->object_bytes = LAYOUT_PAGE_BYTES;
	k->recip = 1;
	k->n_slab_objects = 1;
	k->policy = CACHE_POLICY_SLUB;
	k->is_sheafless = true;
	k->capacity = 1;
}

/* Once for a cache: is_sheafless stays. */
static void
set_sheafless(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);

	k->is_sheafless = k->policy == CACHE_POLICY_SLOB || o->sheaf_capacity == LAYOUT_KNOB_NONE ||
			  (o->sheaf_capacity == 0 && profile.is_sheafless);
}

static void
set_capacity(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);

	/* The kernel takes no request below its formula; who turns the knob here gets what it says, but in the kernel's profile. */
	if (k->is_sheafless)
		k->capacity = 1;
	else if (o->sheaf_capacity && !o->sheaf_round_up && !profile.is_kernel_capacity)
		k->capacity = o->sheaf_capacity;
	else if (!o->sheaf_capacity && !o->sheaf_round_up)
		k->capacity = profile_capacity(&profile, k->object_bytes);
	else
		k->capacity = geometry_sheaf_request(k->object_bytes, o->sheaf_capacity, o->sheaf_round_up);
}

/* An eighth of the arena: what is kept idle in one place by default at most. */
static uint64_t
default_share(const struct cache *k)
{
	return k->arena->options.limit_bytes / 8;
}

static void
set_max_cached(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);
	uint64_t share = default_share(k);

	k->max_cached = o->max_cached ? o->max_cached : profile.max_cached;
	if (!o->max_cached && k->max_cached > share)
		k->max_cached = share;
}

static void
set_barn_full(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);
	uint64_t share = default_share(k), sheaf_bytes = (uint64_t)k->capacity * k->object_bytes, full;

	full = profile.barn_bytes < share ? profile.barn_bytes / sheaf_bytes : share / sheaf_bytes;
	if (full < KERNEL_BARN_FULL)
		full = KERNEL_BARN_FULL;
	k->barn_full = k->is_sheafless ? 0 : knob(o->barn_full, profile.barn_full ? profile.barn_full : (uint32_t)full);
}

/* What a client may keep with objects. */
static uint32_t
max_full(const struct cache *k)
{
	uint64_t n = k->max_cached / ((uint64_t)k->capacity * k->object_bytes);

	return n < UINT16_MAX ? (uint32_t)n : UINT16_MAX;
}

/* By default as many as that: a program that frees in bursts what it allocated in bursts needs a sheaf for each it had. */
static void
set_barn_empty(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);
	uint32_t n = max_full(k) > PROFILE_MIN_EMPTY ? max_full(k) : PROFILE_MIN_EMPTY;

	k->is_empty_default = o->barn_empty == 0;
	if (profile.barn_empty)
		n = profile.barn_empty;
	k->barn_empty = k->is_sheafless ? 0 : knob(o->barn_empty, n < MAX_BARN_EMPTY ? n : MAX_BARN_EMPTY);
}

static void
set_min_partial(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);

	k->min_partial = k->policy == CACHE_POLICY_SLOB ? 0 : knob(o->min_partial, profile_min_partial(&profile, k->object_bytes));
}

/* Without sheaves nothing is kept idle unless it is asked for: then it is the SLUB of before sheaves. */
static void
set_cpu_partial(struct cache *k, const struct cache_options *o)
{
	struct profile profile = profile_of_arena(k->arena);
	uint32_t n = k->is_sheafless ? 0 : geometry_cpu_partial(k->object_bytes) * profile.cpu_partial_factor;

	k->cpu_partial = k->policy == CACHE_POLICY_SLOB || k->flags & LAYOUT_CACHE_RUNS ? 0 : knob(o->cpu_partial, n);
	k->cpu_partial_slabs = geometry_cpu_partial_slabs(k->cpu_partial, k->n_slab_objects);
}

static void
set_knobs(struct cache *k, const struct cache_options *o)
{
	set_sheafless(k, o);
	set_capacity(k, o);
	set_max_cached(k, o);
	set_barn_full(k, o);
	set_barn_empty(k, o);
	set_min_partial(k, o);
	set_cpu_partial(k, o);
}

/* What clients go by, in one store. */
static void
show_knobs(struct cache *k)
{
	uint64_t knobs = k->capacity | (uint64_t)max_full(k) << 16 | (uint64_t)k->barn_empty << 32;

	atomic_write(&k->arena->shown[k->id].knobs, k->is_sheafless ? 0 : knobs);
}

/* What an adopter goes by; recip, which says that there is such a cache, comes last. */
static void
write_ledger(const struct cache *k)
{
	struct ledger_cache *l = &k->arena->ledger_caches[k->id];

	atomic_write(&l->flags, k->flags);
	atomic_write(&l->object_size, k->object_size);
	atomic_write(&l->align, k->align);
	atomic_write(&l->object_bytes, k->object_bytes);
	atomic_write(&l->head, k->head);
	atomic_write(&l->order, k->order);
	atomic_write(&l->min_order, k->min_order);
	atomic_write(&l->n_slab_objects, k->n_slab_objects);
	atomic_write(&l->capacity, k->capacity);
	atomic_write(&l->is_sheafless, (uint32_t)k->is_sheafless);
	atomic_write(&l->barn_full, k->barn_full);
	atomic_write(&l->barn_empty, k->barn_empty);
	atomic_write(&l->is_empty_default, (uint32_t)k->is_empty_default);
	atomic_write(&l->min_partial, k->min_partial);
	atomic_write(&l->cpu_partial, k->cpu_partial);
	atomic_write(&l->cpu_partial_slabs, k->cpu_partial_slabs);
	atomic_write(&l->policy, (uint32_t)k->policy);
	atomic_write(&l->max_cached, k->max_cached);
	memcpy(l->name, k->name, sizeof l->name);
	atomic_write_release(&l->recip, k->recip);
}

/* registry_lock held. */
static struct cache *
find_locked(struct arena *arena, const char *name)
{
	for (struct cache *k = arena_cache_after(arena, 0); k; k = arena_cache_after(arena, k->id))
		if (strcmp(k->name, name) == 0)
			return k;
	return NULL;
}

int
cache_parse_debug(const char *text)
{
	static const char letters[] = "FZPU";
	int flags = 0;

	for (; *text && *text != ','; text++) {
		const char *letter = strchr(letters, *text);

		if (!letter)
			return -EINVAL;
		flags |= LAYOUT_CACHE_SANITY << (letter - letters);
	}
	for (const char *name = text; *name; name++)
		if (name[0] == ',' && (name[1] == ',' || !name[1]))
			return -EINVAL;
	return flags ? flags : -EINVAL;
}

/* Is the cache one of "FZ,name,other*"?  Without names all are. */
static bool
debug_names(const char *setting, const char *cache)
{
	const char *name = strchr(setting, ',');

	if (!name)
		return true;
	while (name) {
		size_t n = strcspn(++name, ",");

		if (n > 0 && name[n - 1] == '*' ? strncmp(name, cache, n - 1) == 0 : strlen(cache) == n && strncmp(name, cache, n) == 0)
			return true;
		name = strchr(name, ',');
	}
	return false;
}

/* LAYOUT_CACHE_DEBUG and the checks, as its opener and the arena's setting want them; 0: none. */
static uint32_t
debug_flags(const struct arena *arena, const struct cache_options *o)
{
	uint32_t flags = o->flags & LAYOUT_CACHE_DEBUG_ALL;
	const char *setting = arena->options.debug;

	if (flags == LAYOUT_CACHE_DEBUG)
		flags = LAYOUT_CACHE_DEBUG_ALL;
	if (*setting && debug_names(setting, o->name) && !(o->flags & (LAYOUT_CACHE_NO_OWNER | LAYOUT_CACHE_RUNS)))
		flags |= (uint32_t)cache_parse_debug(setting);
	return flags ? flags | LAYOUT_CACHE_DEBUG : 0;
}

/* registry_lock held.  0: none is left. */
static uint16_t
take_id_locked(struct arena *arena)
{
	for (unsigned i = 0; i < LAYOUT_MAX_CACHES - 1; i++) {
		unsigned id = (arena->ledger->last_cache + i) % (LAYOUT_MAX_CACHES - 1) + 1;

		if (arena->caches[id])
			continue;
		atomic_write(&arena->ledger->last_cache, id);
		if (id > arena->max_cache)
			atomic_write(&arena->max_cache, id);
		return (uint16_t)id;
	}
	return 0;
}

enum { FLAGS_BYTES = 96 };

/* "SLABC_RECLAIM|SLABC_SHARED", or "none". */
static void
flags_names(uint32_t flags, char *names)
{
	static const struct {
		uint32_t flag;
		const char *name;
	} known[] = {{LAYOUT_CACHE_RECLAIM, "SLABC_RECLAIM"}, {LAYOUT_CACHE_SHARED, "SLABC_SHARED"}, {LAYOUT_CACHE_NO_OWNER, "SLABC_NO_OWNER"}};
	int n = 0;

	snprintf(names, FLAGS_BYTES, "none");
	for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
		if (flags & known[i].flag)
			n += snprintf(names + n, FLAGS_BYTES - (size_t)n, "%s%s", n ? "|" : "", known[i].name);
		flags &= ~known[i].flag;
	}
	if (flags)
		snprintf(names + n, FLAGS_BYTES - (size_t)n, "%s0x%x", n ? "|" : "", flags);
}

/* Of a later opener: knobs that would have made another cache than there is. */
static void
log_ignored(const struct cache *k, const struct cache_options *o)
{
	struct cache wanted = {.arena = k->arena, .policy = o->policy ? (enum cache_policy)o->policy : k->policy};
	struct cache_options like = *o;
	char list[256] = "";
	size_t n = 0;

	like.size = k->object_size;
	set_geometry(&wanted, &like);
	set_knobs(&wanted, &like);
	const struct {
		const char *name;
		bool is_asked;
		uint64_t wanted, has;
	} knobs[] = {
		{"sheaf_capacity", o->sheaf_capacity || o->sheaf_round_up, wanted.is_sheafless ? 0 : wanted.capacity, k->is_sheafless ? 0 : k->capacity},
		{"barn_full", o->barn_full, wanted.barn_full, k->barn_full},
		{"min_partial", o->min_partial, wanted.min_partial, k->min_partial},
		{"order (of min_order, max_order, min_objects)", o->min_order || o->max_order || o->min_objects, wanted.order, k->order},
		{"max_cached", o->max_cached, wanted.max_cached, k->max_cached},
		{"cpu_partial", o->cpu_partial, wanted.cpu_partial, k->cpu_partial},
		{"policy", o->policy, wanted.policy, k->policy},
		{"barn_empty", o->barn_empty, wanted.barn_empty, k->barn_empty},
	};

	for (unsigned i = 0; i < sizeof knobs / sizeof knobs[0] && n < sizeof list; i++)
		if (knobs[i].is_asked && knobs[i].wanted != knobs[i].has)
			n += (size_t)snprintf(list + n, sizeof list - n, "%s%s %llu, not %llu", n ? "; " : "", knobs[i].name,
				(unsigned long long)knobs[i].has, (unsigned long long)knobs[i].wanted);
	if (n > 0)
		log_info("cache '%s' of arena '%s' is there already: the knobs of a later opener are ignored: client %u (pid %d, '%s') gets %s", k->name,
			k->arena->name, o->opener ? o->opener->id : 0, o->opener ? o->opener->pid : 0, o->opener ? o->opener->label : "", list);
}

static int
match(const struct cache *k, const struct cache_options *o, char *why, size_t why_size)
{
	uint32_t align = o->align < 8 ? 8 : (uint32_t)o->align, flags = k->flags & ~(uint32_t)LAYOUT_CACHE_DEBUG_ALL;
	char has[FLAGS_BYTES], wanted[FLAGS_BYTES];

	if (o->size == 0 || (o->size == k->object_size && align == k->align && (o->flags & ~(uint32_t)LAYOUT_CACHE_DEBUG_ALL) == flags)) {
		if (o->flags & LAYOUT_CACHE_DEBUG_ALL && debug_flags(k->arena, o) != (k->flags & LAYOUT_CACHE_DEBUG_ALL))
			log_notice("cache '%s' is there already, with%s SLABC_DEBUG: another wish of a later opener is ignored", k->name,
				k->flags & LAYOUT_CACHE_DEBUG ? "" : "out");
		if (!(k->flags & LAYOUT_CACHE_RUNS))
			log_ignored(k, o);
		return 0;
	}
	flags_names(flags, has);
	flags_names(o->flags & ~(uint32_t)LAYOUT_CACHE_DEBUG_ALL, wanted);
	snprintf(why, why_size,
		"cache '%s' is there with size %u, align %u, flags %s; asked for size %llu, align %u, flags %s: choose another name, or slabctl "
		"destroy %s",
		k->name, k->object_size, k->align, has, (unsigned long long)o->size, align, wanted, k->name);
	return -EEXIST;
}

/* A cache with its knobs appears.  registry_lock held. */
static void
show_locked(struct cache *k)
{
	struct arena *arena = k->arena;
	struct layout_cache *shown = &arena->shown[k->id];

	k->n_nodes = arena->topology.n_nodes;
	for (unsigned i = 0; i < k->n_nodes; i++)
		node_init(&k->nodes[i], k, i);
	atomic_write(&shown->object_bytes, k->object_bytes);
	atomic_write(&shown->flags, (uint16_t)k->flags);
	atomic_write(&shown->object_size, (uint16_t)k->object_size);
	strcpy(shown->name, k->name);
	show_knobs(k);
	atomic_write(&shown->recip, k->recip);
	arena->n_caches++;
	/* order: CACHE release - cache and description are whole before a slab can name them */
	atomic_write_release(&arena->caches[k->id], k);
}

/* A client that read the id from a page before it went meets a cache in which nothing is an object. */
static void
hide(struct arena *arena, uint32_t id)
{
	struct layout_cache *shown = &arena->shown[id];

	atomic_write(&shown->recip, 0);
	atomic_write(&shown->object_bytes, 0);
	atomic_write(&shown->flags, 0);
	atomic_write(&shown->object_size, 0);
	atomic_write(&shown->knobs, 0);
	memset(shown->name, 0, sizeof shown->name);
}

static int
make_locked(struct arena *arena, const struct cache_options *o, struct cache **cachep, char *why, size_t why_size)
{
	struct cache *k;

	if (o->size == 0) {
		snprintf(why, why_size, "there is no cache '%s' in arena '%s' (size 0 opens an existing one)", o->name, arena->name);
		return -ENOENT;
	}
	if (arena->n_caches + 1 >= LAYOUT_MAX_CACHES) {
		snprintf(why, why_size, "arena '%s' has its %d caches", arena->name, LAYOUT_MAX_CACHES - 1);
		return -ENOSPC;
	}
	if (arena->options.max_caches && arena->n_caches >= arena->options.max_caches) {
		snprintf(why, why_size, "arena '%s' has its %u caches; max-caches= in [arena %s] says how many", arena->name,
			arena->options.max_caches, arena->name);
		return -EDQUOT;
	}
	k = calloc(1, sizeof *k + arena->topology.n_nodes * sizeof k->nodes[0]);
	if (!k) {
		snprintf(why, why_size, "no memory in slabd for another cache");
		return -ENOMEM;
	}
	k->arena = arena;
	k->id = take_id_locked(arena);
	strcpy(k->name, o->name);
	if (o->flags & LAYOUT_CACHE_RUNS) {
		set_runs(k);
	} else {
		k->policy = o->policy ? (enum cache_policy)o->policy : CACHE_POLICY_SLUB;
		k->flags = (o->flags & ~(uint32_t)LAYOUT_CACHE_DEBUG_ALL) | debug_flags(arena, o);
		set_geometry(k, o);
		set_knobs(k, o);
	}
	write_ledger(k);
	show_locked(k);
	*cachep = k;
	return 0;
}

static bool
is_sound(const struct ledger_cache *l)
{
	uint64_t recip = l->flags & LAYOUT_CACHE_RUNS ? 1 : l->object_bytes ? ((1ull << 32) + l->object_bytes - 1) / l->object_bytes : 0;

	return l->object_bytes > 0 && l->object_bytes <= LAYOUT_MAX_SLOT_BYTES && l->object_size <= l->object_bytes && l->head % 8 == 0 && l->head < LAYOUT_PAGE_BYTES && l->object_bytes % 8 == 0 && l->recip == recip &&
	       !(l->flags & ~all_flags) && l->min_order <= l->order && l->order <= LAYOUT_MAX_ORDER && l->capacity > 0 &&
	       l->capacity <= LAYOUT_MAX_SHEAF && l->n_slab_objects > 0 && l->n_slab_objects <= LAYOUT_MAX_SLAB_OBJECTS && l->is_sheafless <= 1 &&
	       l->barn_empty <= MAX_BARN_EMPTY && l->is_empty_default <= 1 &&
	       l->head + (uint64_t)l->n_slab_objects * l->object_bytes <= (uint64_t)LAYOUT_PAGE_BYTES << l->order && l->policy <= CACHE_POLICY_SLOB &&
	       l->name[0] && memchr(l->name, '\0', sizeof l->name);
}

int
cache_adopt(struct arena *arena, uint32_t id, char *why, size_t why_size)
{
	const struct ledger_cache *l = &arena->ledger_caches[id];
	struct cache *k;

	if (!l->recip) {
		hide(arena, id);
		return 0;
	}
	if (!is_sound(l)) {
		snprintf(why, why_size, "cache %u has objects of %u bytes, recip %u, order %u, capacity %u, flags 0x%x", id, l->object_bytes, l->recip,
			l->order, l->capacity, l->flags);
		return -EBADMSG;
	}
	k = calloc(1, sizeof *k + arena->topology.n_nodes * sizeof k->nodes[0]);
	if (!k) {
		snprintf(why, why_size, "no memory for cache %u", id);
		return -ENOMEM;
	}
	k->arena = arena;
	k->id = (uint16_t)id;
	k->flags = l->flags;
	k->object_size = l->object_size;
	k->align = l->align;
	k->object_bytes = l->object_bytes;
	k->head = l->head;
	k->recip = l->recip;
	k->order = l->order;
	k->min_order = l->min_order;
	k->n_slab_objects = l->n_slab_objects;
	k->capacity = l->capacity;
	k->is_sheafless = l->is_sheafless;
	k->barn_full = l->barn_full;
	k->barn_empty = l->barn_empty;
	k->is_empty_default = l->is_empty_default;
	k->min_partial = l->min_partial;
	k->cpu_partial = l->cpu_partial;
	k->cpu_partial_slabs = l->cpu_partial_slabs;
	k->policy = (enum cache_policy)l->policy;
	k->max_cached = l->max_cached;
	memcpy(k->name, l->name, sizeof k->name);
	if (id > arena->max_cache)
		arena->max_cache = id;
	show_locked(k);
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

struct cache *
cache_find(struct arena *arena, const char *name)
{
	struct cache *k;

	pthread_mutex_lock(&arena->registry_lock);
	k = find_locked(arena, name);
	pthread_mutex_unlock(&arena->registry_lock);
	return k;
}

const char *
cache_policy_name(enum cache_policy policy)
{
	return policy == CACHE_POLICY_SLOB ? "slob" : "slub";
}

int
cache_tune(struct cache *k, const struct cache_tuning *t, char *why, size_t why_size)
{
	const struct cache_options o = {.sheaf_capacity = t->sheaf_capacity, .barn_full = t->barn_full, .min_partial = t->min_partial,
		.max_cached = t->max_cached, .cpu_partial = t->cpu_partial, .barn_empty = t->barn_empty};

	if (t->set & ~(uint32_t)CACHE_TUNE_ALL) {
		snprintf(why, why_size, "unknown knobs 0x%x", t->set & ~(uint32_t)CACHE_TUNE_ALL);
		return -EINVAL;
	}
	if (t->set & CACHE_TUNE_CAPACITY && (k->is_sheafless || o.sheaf_capacity == LAYOUT_KNOB_NONE || k->flags & LAYOUT_CACHE_RUNS)) {
		snprintf(why, why_size, "cache '%s' has %s: whether it has can only be said when it is made", k->name,
			k->is_sheafless || k->flags & LAYOUT_CACHE_RUNS ? "no sheaves" : "sheaves");
		return -EINVAL;
	}
	if (k->policy == CACHE_POLICY_SLOB && t->set & (CACHE_TUNE_BARN_FULL | CACHE_TUNE_BARN_EMPTY | CACHE_TUNE_MIN_PARTIAL | CACHE_TUNE_CPU_PARTIAL)) {
		snprintf(why, why_size, "cache '%s' has the policy slob, which keeps nothing idle: no barn_full, barn_empty, min_partial or cpu_partial",
			k->name);
		return -EINVAL;
	}
	if (t->set & CACHE_TUNE_CPU_PARTIAL && k->flags & LAYOUT_CACHE_RUNS) {
		snprintf(why, why_size, "cache '%s' is one of runs of pages, of which clients set none aside: no cpu_partial", k->name);
		return -EINVAL;
	}
	if (t->set & CACHE_TUNE_BARN_FULL && k->is_sheafless) {
		snprintf(why, why_size, "cache '%s' has no sheaves that could lie in a barn: no barn_full", k->name);
		return -EINVAL;
	}
	if ((t->set & CACHE_TUNE_CAPACITY && check_number("sheaf_capacity", o.sheaf_capacity, LAYOUT_MAX_SHEAF, why, why_size) < 0) ||
	    (t->set & CACHE_TUNE_BARN_FULL && o.barn_full != LAYOUT_KNOB_NONE &&
	     check_number("barn_full", o.barn_full, MAX_BARN_FULL, why, why_size) < 0) ||
	    (t->set & CACHE_TUNE_MIN_PARTIAL && o.min_partial != LAYOUT_KNOB_NONE &&
	     check_number("min_partial", o.min_partial, MAX_MIN_PARTIAL, why, why_size) < 0) ||
	    (t->set & CACHE_TUNE_BARN_EMPTY && o.barn_empty != LAYOUT_KNOB_NONE &&
	     check_number("barn_empty", o.barn_empty, MAX_BARN_EMPTY, why, why_size) < 0) ||
	    (t->set & CACHE_TUNE_CPU_PARTIAL && o.cpu_partial != LAYOUT_KNOB_NONE &&
	     check_number("cpu_partial", o.cpu_partial, MAX_CPU_PARTIAL, why, why_size) < 0))
		return -EINVAL;
	if (t->set & CACHE_TUNE_CAPACITY)
		set_capacity(k, &o);
	if (t->set & CACHE_TUNE_MAX_CACHED)
		set_max_cached(k, &o);
	if (t->set & CACHE_TUNE_BARN_FULL)
		set_barn_full(k, &o);
	if (t->set & CACHE_TUNE_BARN_EMPTY || (k->is_empty_default && t->set & (CACHE_TUNE_CAPACITY | CACHE_TUNE_MAX_CACHED)))
		set_barn_empty(k, &o);
	if (t->set & CACHE_TUNE_MIN_PARTIAL)
		set_min_partial(k, &o);
	if (t->set & CACHE_TUNE_CPU_PARTIAL)
		set_cpu_partial(k, &o);
	write_ledger(k);
	show_knobs(k);
	return 0;
}

void
cache_remove(struct cache *k)
{
	struct arena *arena = k->arena;

	pthread_mutex_lock(&arena->registry_lock);
	atomic_write_release(&arena->ledger_caches[k->id].recip, 0);
	hide(arena, k->id);
	/* What sessions had drawn of it has come back, if not from each what it drew: its id's next cache begins with nothing. */
	for (struct session *s = arena->first_session; s; s = s->next) {
		if (!(k->flags & LAYOUT_CACHE_NO_OWNER))
			atomic_write(s->bytes_drawn, *s->bytes_drawn - s->n_drawn[k->id] * (int64_t)k->object_bytes);
		atomic_write(&s->n_drawn[k->id], 0);
		stash_forget(s, k->id);
	}
	atomic_write_release(&arena->caches[k->id], NULL);
	arena->n_caches--;
	pthread_mutex_unlock(&arena->registry_lock);
	cache_free(k);
}

uint64_t
cache_left(struct cache *k, uint64_t n_allocated)
{
	int64_t n = atomic_read(&k->n_dead_drawn);

	if (!(k->flags & LAYOUT_CACHE_NO_OWNER) || n <= 0)
		return 0;
	return (uint64_t)n < n_allocated ? (uint64_t)n : n_allocated;
}

uint64_t
cache_count_out(struct cache *k)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < k->n_nodes; i++) {
		node_lock(&k->nodes[i]);
		n += k->nodes[i].n_objects - k->nodes[i].n_free - k->nodes[i].n_barn;
		node_unlock(&k->nodes[i]);
	}
	return n;
}

void
cache_free(struct cache *k)
{
	for (unsigned i = 0; i < k->n_nodes; i++)
		node_deinit(&k->nodes[i]);
	free(k);
}
