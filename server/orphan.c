/* SPDX-License-Identifier: Apache-2.0 */
#include "server/orphan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/clock.h"
#include "server/log.h"
#include "server/ref.h"
#include "server/stats.h"
#include "shm/atomic.h"
#include "shm/step.h"
#include "shm/word.h"

enum {
	PAGES_A_TURN = 1 << 18, /* that orphan_next() looks at */
	OBJECTS_A_TURN = 1 << 16, /* also of orphan_reclaim() */
	SLABS_A_TURN = 1024,      /* that orphan_reclaim() walks */
	MAX_LOST_GIVES = 64, /* each is lost to another thread of the giver */
};

static bool
is_dead(const struct arena *arena, uint32_t client)
{
	return client == WORD_ORPHAN || (client != 0 && !arena->sessions[client]);
}

bool
orphan_owner(const struct arena *arena, uint32_t client, int64_t now, struct orphan_owner *owner)
{
	const struct session_dead *dead;

	if (!is_dead(arena, client))
		return false;
	*owner = (struct orphan_owner){.id = client, .label = ""};
	if (client == WORD_ORPHAN) {
		owner->age_ns = arena->ledger->forgotten_ns ? now - arena->ledger->forgotten_ns : 0;
		return true;
	}
	owner->id = client | arena->incarnations[client] << 14;
	/* None: a client wrote a name that nobody ever had. Such an object has no age. */
	dead = arena->named[client] ? &arena->dead[client] : NULL;
	if (dead) {
		owner->pid = dead->pid;
		owner->uid = dead->uid;
		owner->label = dead->label;
		owner->age_ns = now - dead->ended_ns;
	}
	return true;
}

/* Locks the node of the slab that the page map named, if it still is the cache's; NULL: it is not. */
static struct node *
lock_slab(struct arena *arena, struct cache *cache, uint32_t number)
{
	const struct slab *slab = &arena->slabs[number];
	struct node *node = &cache->nodes[slab->node % cache->n_nodes];

	node_lock(node);
	if (atomic_read_acquire(&slab->cache) == cache->id && slab->node == node->index)
		return node;
	node_unlock(node);
	return NULL;
}

/* The first orphan of the slab at or above place `from`.  Lock held. */
static uint64_t
first_of_slab(struct arena *arena, const struct cache *cache, uint32_t number, uint64_t from)
{
	const struct slab *slab = &arena->slabs[number];
	uint64_t start = (uint64_t)slab->first_page << LAYOUT_PLACE_PAGE_SHIFT, ahead = from > start ? from - start : 0;

	ahead <<= LAYOUT_PLACE_SHIFT;
	ahead -= ahead < cache->head ? ahead : cache->head;
	for (uint64_t i = (ahead + cache->object_bytes - 1) / cache->object_bytes; i < slab->n_objects; i++) {
		/* order: WORD acquire - what the dead wrote */
		uint32_t index = slab->first_word + (uint32_t)i, w = atomic_read_acquire(&arena->words[index]);

		if (word_state(w) == WORD_SHARED && is_dead(arena, word_owner(w)) && slab_get(arena, index) == SLAB_OUT)
			return ref_make(arena, slab_place(arena, cache, number, (uint32_t)i), w);
	}
	return 0;
}

void
orphan_next(struct arena *arena, struct cache *cache, uint64_t from, uint64_t *refp, uint64_t *nextp)
{
	uint32_t n_pages = 0, n_objects = 0;
	uint64_t page = from >> LAYOUT_PLACE_PAGE_SHIFT;

	*refp = *nextp = 0;
	for (; page < arena->n_pages; page++) {
		const struct layout_page *entry = &arena->page_map[page];
		struct node *node;
		uint32_t number;

		if (n_pages++ >= PAGES_A_TURN || n_objects >= OBJECTS_A_TURN) {
			*nextp = page << LAYOUT_PLACE_PAGE_SHIFT > from ? page << LAYOUT_PLACE_PAGE_SHIFT : from;
			return;
		}
		if (atomic_read_acquire(&entry->cache) != cache->id)
			continue;
		number = atomic_read(&entry->slab);
		node = lock_slab(arena, cache, number);
		if (!node)
			continue;
		*refp = first_of_slab(arena, cache, number, from);
		n_objects += arena->slabs[number].n_objects;
		/* All pages of the slab were looked at. */
		page = arena->slabs[number].first_page + slab_pages(&arena->slabs[number]) - 1;
		node_unlock(node);
		if (*refp)
			return;
	}
}

static bool
change(uint32_t *word, uint32_t from, uint32_t to)
{
	STEP(ORPHAN_READ);
	if (!MUTANT(PLAIN_ORPHAN))
		return atomic_cas(word, &from, to);
	atomic_write(word, to);
	return true;
}

int
orphan_adopt(struct session *session, uint64_t ref, char *why, size_t why_size)
{
	struct arena *arena = session->arena;
	struct ref_object o;

	if (!ref_find(arena, ref, &o))
		snprintf(why, why_size, "the orphan was freed, or is another object now");
	else if (!is_dead(arena, word_owner(o.word)))
		snprintf(why, why_size, "the orphan has been adopted: a client who lives holds it");
	else if (word_state(o.word) != WORD_SHARED)
		snprintf(why, why_size, "the object is not shared");
	/* From exactly the dead name: who came first has changed it. */
	else if (!change(&arena->words[o.index], o.word, word_with(o.word, session->client, WORD_SHARED)))
		snprintf(why, why_size, "another client took the orphan");
	else
		return 0;
	return -ESTALE;
}

/* The receiver's work is held, and it lives. */
static int
give_to(struct session *giver, const struct session *receiver, uint64_t ref, char *why, size_t why_size)
{
	struct arena *arena = giver->arena;
	struct ref_object o;

	for (int tries = 0; tries < MAX_LOST_GIVES; tries++) {
		if (!ref_find(arena, ref, &o) && o.cache && o.flags & LAYOUT_CACHE_NO_OWNER) {
			snprintf(why, why_size, "the object's cache has no object words (SLABC_NO_OWNER): nothing says whose it is");
			return -ENOTSUP;
		}
		if (word_owner(o.word) != giver->client || !word_is_live(o.word)) {
			snprintf(why, why_size, "the object is not the giver's: only what one holds can be given");
			return -EINVAL;
		}
		STEP(GIVE_READ);
		if (atomic_cas(&arena->words[o.index], &o.word, word_with(o.word, receiver->client, WORD_SHARED)))
			return 0;
	}
	snprintf(why, why_size, "the object's word changed %d times while it was being given", MAX_LOST_GIVES);
	return -EINVAL;
}

int
orphan_give(struct session *giver, uint64_t ref, uint32_t client_id, char *why, size_t why_size)
{
	uint32_t client = client_id & WORD_OWNER_MASK;
	struct session *receiver = client <= LAYOUT_MAX_CLIENTS ? giver->arena->sessions[client] : NULL;
	int r;

	if (receiver && receiver->id != client_id)
		receiver = NULL;
	if (receiver && !MUTANT(GIVE_UNLOCKED))
		pthread_mutex_lock(&receiver->work);
	if (!receiver || receiver->state == SESSION_DYING) {
		snprintf(why, why_size, "no client %u lives; the object stays the giver's", client_id);
		r = -ESRCH;
	} else if (receiver->is_readonly) {
		snprintf(why, why_size, "client %u, '%s', may only read: it could not free what it was given", client_id, receiver->label);
		r = -EACCES;
	} else {
		STEP(GIVE_CHECKED);
		r = give_to(giver, receiver, ref, why, why_size);
	}
	if (receiver && !MUTANT(GIVE_UNLOCKED))
		pthread_mutex_unlock(&receiver->work);
	return r;
}

/* The first dead client above that who left any. 0: none. */
static uint32_t
first_left(const struct arena *arena, const struct stats_census *counts, uint32_t after)
{
	for (uint32_t client = after + 1; client <= WORD_ORPHAN; client++)
		if (counts->n[client] && is_dead(arena, client))
			return client;
	return 0;
}

static void
describe_group(const struct cache *cache, const struct stats_census *counts, uint32_t client, struct orphan_group *group)
{
	group->cache = cache->id;
	group->client = client;
	group->n = counts->n[client];
	group->bytes = counts->bytes[client];
	snprintf(group->cache_name, sizeof group->cache_name, "%s", cache->name);
	orphan_owner(cache->arena, client, (int64_t)clock_now_ns(), &group->owner);
	/* The record may go with the lock. */
	snprintf(group->label, sizeof group->label, "%s", group->owner.label);
	group->owner.label = group->label;
}

/* What was counted of the cache: for others not long ago, or here, by now; NULL: not all of it yet.  Locks held. */
static const struct stats_census *
count_cache(struct arena *arena, struct census *census, struct orphan_walk *walk, bool is_row)
{
	if (census->of_cache.place.cache == walk->cache && census_is_fresh(&census->of_cache, walk->asked_ns, is_row))
		return &census->of_cache.counts;
	if (walk->count.place.cache != walk->cache)
		census_start(&walk->count, walk->cache);
	if (!census_step(arena, &walk->count))
		return NULL;
	census->of_cache = walk->count;
	return &census->of_cache.counts;
}

/* One portion.  ORPHAN_E_MORE, or 0: the group, or that there is none, is known. */
static int
list_part(struct arena *arena, struct census *census, struct orphan_walk *walk, struct orphan_group *group)
{
	/* The cache of the last group may have more of them. */
	bool is_row = walk->cache == walk->after_cache;
	struct cache *cache = arena_cache_after(arena, walk->cache ? walk->cache - 1 : 0);
	const struct stats_census *counts;
	uint32_t client;

	while (cache && cache->flags & LAYOUT_CACHE_NO_OWNER)
		cache = arena_cache_after(arena, cache->id);
	if (!cache)
		return 0;
	walk->cache = cache->id;
	counts = count_cache(arena, census, walk, is_row && walk->after_client);
	if (!counts)
		return ORPHAN_E_MORE;
	client = first_left(arena, counts, cache->id == walk->after_cache ? walk->after_client : 0);
	if (client) {
		describe_group(cache, counts, client, group);
		return 0;
	}
	walk->cache = cache->id + 1;
	return ORPHAN_E_MORE;
}

int
orphan_walk_new(struct orphan_walk **walkp, uint64_t asked_ns, uint32_t after_cache, uint32_t after_client)
{
	*walkp = calloc(1, sizeof **walkp);
	if (!*walkp)
		return -ENOMEM;
	**walkp = (struct orphan_walk){.asked_ns = asked_ns, .cache = after_cache, .after_cache = after_cache, .after_client = after_client};
	return 0;
}

int
orphan_list(struct arena *arena, struct orphan_walk *walk, struct orphan_group *group)
{
	struct census *census;
	int r = -ENOMEM;

	*group = (struct orphan_group){0};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	pthread_mutex_lock(&arena->registry_lock);
	census = census_of(arena);
	if (census)
		r = list_part(arena, census, walk, group);
	pthread_mutex_unlock(&arena->registry_lock);
	pthread_rwlock_unlock(&arena->sessions_lock);
	return r;
}

static bool
is_wanted(const struct arena *arena, const struct orphan_filter *filter, uint32_t client, int64_t now)
{
	struct orphan_owner owner;

	return orphan_owner(arena, client, now, &owner) && (!filter->client_id || owner.id == filter->client_id) &&
	       owner.age_ns >= filter->min_age_ns;
}

/* Lock held.  Returns how many were freed, at most max. */
static uint64_t
reclaim_slab(struct arena *arena, struct node *node, uint32_t number, const struct orphan_filter *filter, uint64_t max, struct node_discard *discard)
{
	struct slab *slab = &arena->slabs[number];
	uint32_t n_objects = slab->n_objects, last_client = 0;
	bool is_last_wanted = false;
	int64_t now = (int64_t)clock_now_ns();
	uint64_t n = 0;

	/* An emptied slab may be retired in the midst of it; its last object was then the one. */
	for (uint32_t i = 0; i < n_objects && slab->n_free < n_objects && n < max; i++) {
		uint32_t index = slab->first_word + i, w = atomic_read(&arena->words[index]);

		if (!word_owner(w) || slab_get(arena, index) != SLAB_OUT)
			continue;
		if (word_owner(w) != last_client) {
			last_client = word_owner(w);
			is_last_wanted = is_wanted(arena, filter, last_client, now);
		}
		/* Who adopts it at this moment keeps it. */
		if (!is_last_wanted || !change(&arena->words[index], w, word_cleared(w)))
			continue;
		node_put_free(arena, node, number, index, discard);
		n++;
	}
	return n;
}

uint32_t
orphan_reclaim(struct arena *arena, const struct orphan_filter *filter, uint32_t from, uint64_t *n_freedp, uint64_t *bytesp)
{
	uint32_t number = from ? from : 1, n_walked = 0, n_objects = 0;

	*n_freedp = *bytesp = 0;
	pthread_rwlock_rdlock(&arena->sessions_lock);
	for (; number <= atomic_read_acquire(&arena->n_slabs) && n_walked < SLABS_A_TURN && n_objects < OBJECTS_A_TURN;
		number++, n_walked++) {
		uint64_t left = filter->max_bytes ? filter->max_bytes - *bytesp : UINT64_MAX;
		struct cache *cache = arena_cache(arena, atomic_read_acquire(&arena->slabs[number].cache));
		struct node_discard discard = {0};
		uint64_t n, object_bytes;
		struct node *node;

		if (!cache || (filter->cache && cache->id != filter->cache) || cache->flags & LAYOUT_CACHE_NO_OWNER)
			continue;
		node = lock_slab(arena, cache, number);
		if (!node)
			continue;
		object_bytes = slab_object_bytes(arena, cache, number);
		n_objects += arena->slabs[number].n_objects;
		n = reclaim_slab(arena, node, number, filter, left / object_bytes + (left % object_bytes != 0), &discard);
		node_unlock(node);
		node_discard(arena, &discard);
		*n_freedp += n;
		*bytesp += n * object_bytes;
		if (filter->max_bytes && *bytesp >= filter->max_bytes) {
			number = UINT32_MAX;
			break;
		}
	}
	if (number > atomic_read_acquire(&arena->n_slabs))
		number = 0;
	pthread_rwlock_unlock(&arena->sessions_lock);
	return number;
}

/* What the dead have beyond the limit; the census is of all clients. */
static uint64_t
count_excess(struct arena *arena, struct stats_census *census, uint64_t *maxp)
{
	uint64_t bytes = 0;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	*maxp = arena->options.max_orphans;
	if (*maxp)
		stats_count(arena, census);
	for (uint32_t client = 1; *maxp && client <= WORD_ORPHAN; client++)
		bytes += is_dead(arena, client) ? census->bytes[client] : 0;
	pthread_rwlock_unlock(&arena->sessions_lock);
	return bytes > *maxp ? bytes - *maxp : 0;
}

/* Who of the dead that have any died first; the forgotten before all others. 0: nobody. */
static uint32_t
first_dead(struct arena *arena, const struct stats_census *census)
{
	uint32_t found = 0;
	int64_t first_ns = 0;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	for (uint32_t client = 1; client <= WORD_ORPHAN; client++) {
		const struct session_dead *dead = client <= LAYOUT_MAX_CLIENTS && arena->named[client] ? &arena->dead[client] : NULL;
		int64_t ended_ns = dead ? dead->ended_ns : 0;

		if (census->bytes[client] == 0 || !is_dead(arena, client) || (found && ended_ns >= first_ns))
			continue;
		found = client;
		first_ns = ended_ns;
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	return found;
}

/* false: there is no such cache, or the client is not dead. */
static bool
describe(struct arena *arena, uint32_t cache, uint32_t client, struct orphan_group *group)
{
	const struct cache *k;
	bool is_there;

	*group = (struct orphan_group){.cache = cache, .client = client};
	pthread_rwlock_rdlock(&arena->sessions_lock);
	k = arena_cache(arena, cache);
	is_there = k && orphan_owner(arena, client, (int64_t)clock_now_ns(), &group->owner);
	if (is_there) {
		snprintf(group->cache_name, sizeof group->cache_name, "%s", k->name);
		snprintf(group->label, sizeof group->label, "%s", group->owner.label);
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	return is_there;
}

/* Of one of the dead, in one cache: returns the bytes freed. */
static uint64_t
drop_group(struct arena *arena, const struct orphan_group *group, uint64_t excess, uint64_t max)
{
	uint64_t n = 0, bytes = 0;
	uint32_t from = 0;

	do {
		const struct orphan_filter filter = {.cache = group->cache, .client_id = group->owner.id, .max_bytes = excess - bytes};
		uint64_t n_now, bytes_now;

		from = orphan_reclaim(arena, &filter, from, &n_now, &bytes_now);
		n += n_now;
		bytes += bytes_now;
	} while (from && bytes < excess);
	if (n)
		log_warning("arena '%s': the dead have left more than max-orphans, %llu bytes: %llu objects of cache '%s', %llu bytes, are freed, "
			    "which client %u (pid %d, uid %u, '%s') left %llu s ago",
			arena->name, (unsigned long long)max, (unsigned long long)n, group->cache_name, (unsigned long long)bytes, group->owner.id,
			group->owner.pid, group->owner.uid, group->label, (unsigned long long)group->owner.age_ns / 1000000000);
	atomic_add(&arena->n_orphans_dropped, n);
	return bytes;
}

void
orphan_bound(struct arena *arena)
{
	struct stats_census *census;
	uint64_t excess, max;
	uint32_t client;

	/* Two at a time would both free what is too much. */
	pthread_mutex_lock(&arena->orphans_lock);
	census = malloc(sizeof *census);
	excess = census ? count_excess(arena, census, &max) : 0;
	while (excess > 0 && (client = first_dead(arena, census)) != 0) {
		for (uint32_t cache = 1; cache < LAYOUT_MAX_CACHES && excess > 0; cache++) {
			struct orphan_group group;
			uint64_t bytes;

			if (!describe(arena, cache, client, &group))
				continue;
			bytes = drop_group(arena, &group, excess, max);
			excess -= bytes < excess ? bytes : excess;
		}
		census->bytes[client] = 0;
	}
	free(census);
	pthread_mutex_unlock(&arena->orphans_lock);
}
