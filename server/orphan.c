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
	MAX_TOLD = 8, /* clients of whom a line is logged at once */
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

	if (filter->shares)
		return filter->shares[client].left > 0 && is_dead(arena, client);
	return orphan_owner(arena, client, now, &owner) && (!filter->client_id || owner.id == filter->client_id) &&
	       owner.age_ns >= filter->min_age_ns;
}

static void
count_share(struct orphan_share *share, uint32_t cache, uint64_t bytes)
{
	share->cache = share->n == 0 || share->cache == cache ? cache : 0;
	share->n++;
	share->bytes += bytes;
	share->left -= bytes < share->left ? bytes : share->left;
}

/* Lock held.  Returns how many were freed. */
static uint64_t
reclaim_slab(struct arena *arena, struct cache *cache, struct node *node, uint32_t number, const struct orphan_filter *filter,
	struct node_discard *discard)
{
	struct slab *slab = &arena->slabs[number];
	uint32_t n_objects = slab->n_objects, last_client = 0;
	bool is_last_wanted = false;
	int64_t now = (int64_t)clock_now_ns();
	uint64_t n = 0, object_bytes = slab_object_bytes(arena, cache, number);

	/* An emptied slab may be retired in the midst of it; its last object was then the one. */
	for (uint32_t i = 0; i < n_objects && slab->n_free < n_objects; i++) {
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
		if (filter->shares) {
			count_share(&filter->shares[last_client], cache->id, object_bytes);
			is_last_wanted = filter->shares[last_client].left > 0;
		}
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
		n = reclaim_slab(arena, cache, node, number, filter, &discard);
		node_unlock(node);
		node_discard(arena, &discard);
		*n_freedp += n;
		*bytesp += n * object_bytes;
	}
	if (number > atomic_read_acquire(&arena->n_slabs))
		number = 0;
	pthread_rwlock_unlock(&arena->sessions_lock);
	return number;
}

/* One of the dead that has left something. */
struct ended {
	int64_t ns; /* 0: nobody knows, as of the forgotten, and of names that nobody ever had */
	uint32_t client;
};

static int
compare_ended(const void *a, const void *b)
{
	const struct ended *x = a, *y = b;

	return x->ns != y->ns ? (x->ns < y->ns ? -1 : 1) : (x->client > y->client) - (x->client < y->client);
}

/* What is done to keep within max-orphans. */
struct bound {
	struct stats_census census;
	struct ended ended[WORD_ORPHAN];
	struct orphan_share shares[WORD_ORPHAN + 1];
	uint32_t n_ended;
	uint64_t max;
};

/* Who must lose how much: of who died first all, of the last of them what is too much still.  false: there is not too much. */
static bool
share_out(struct arena *arena, struct bound *b)
{
	uint64_t bytes = 0, excess;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	b->max = arena->options.max_orphans;
	if (b->max)
		stats_count(arena, &b->census);
	for (uint32_t client = 1; b->max && client <= WORD_ORPHAN; client++) {
		if (b->census.bytes[client] == 0 || !is_dead(arena, client))
			continue;
		bytes += b->census.bytes[client];
		b->ended[b->n_ended++] = (struct ended){
			.ns = client <= LAYOUT_MAX_CLIENTS && arena->named[client] ? arena->dead[client].ended_ns : 0, .client = client};
	}
	pthread_rwlock_unlock(&arena->sessions_lock);
	if (bytes <= b->max)
		return false;
	excess = bytes - b->max;
	qsort(b->ended, b->n_ended, sizeof b->ended[0], compare_ended);
	for (uint32_t i = 0; i < b->n_ended && excess > 0; i++) {
		uint64_t had = b->census.bytes[b->ended[i].client], left = had < excess ? had : excess;

		b->shares[b->ended[i].client].left = left;
		excess -= left;
	}
	return true;
}

static void
log_share(struct arena *arena, const struct bound *b, uint32_t client)
{
	const struct orphan_share *share = &b->shares[client];
	char of[64] = "of several caches", label[32] = "";
	struct orphan_owner owner = {.id = client};
	const struct cache *cache;

	pthread_rwlock_rdlock(&arena->sessions_lock);
	cache = share->cache ? arena_cache(arena, share->cache) : NULL;
	if (cache)
		snprintf(of, sizeof of, "of cache '%s'", cache->name);
	if (orphan_owner(arena, client, (int64_t)clock_now_ns(), &owner))
		snprintf(label, sizeof label, "%s", owner.label);
	pthread_rwlock_unlock(&arena->sessions_lock);
	log_warning("arena '%s': the dead have left more than max-orphans, %llu bytes: %llu objects %s, %llu bytes, are freed, "
		    "which client %u (pid %d, uid %u, '%s') left %llu s ago",
		arena->name, (unsigned long long)b->max, (unsigned long long)share->n, of, (unsigned long long)share->bytes, owner.id, owner.pid,
		owner.uid, label, (unsigned long long)owner.age_ns / 1000000000);
}

/* A line for each of the first that lose something; how many more there are is for the dead to say, or for who writes names into words. */
static void
log_bound(struct arena *arena, const struct bound *b)
{
	uint64_t n_objects = 0, bytes = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->n_ended; i++) {
		const struct orphan_share *share = &b->shares[b->ended[i].client];

		if (share->n == 0)
			continue;
		if (n++ < MAX_TOLD) {
			log_share(arena, b, b->ended[i].client);
		} else {
			n_objects += share->n;
			bytes += share->bytes;
		}
	}
	if (n > MAX_TOLD)
		log_warning("arena '%s': and %llu objects, %llu bytes, of %u more clients", arena->name, (unsigned long long)n_objects,
			(unsigned long long)bytes, n - MAX_TOLD);
}

void
orphan_bound(struct arena *arena)
{
	struct bound *b;

	/* Two at a time would both free what is too much. */
	pthread_mutex_lock(&arena->orphans_lock);
	b = calloc(1, sizeof *b);
	if (b && share_out(arena, b)) {
		const struct orphan_filter filter = {.shares = b->shares};
		uint64_t n, n_all = 0, bytes;
		uint32_t from = 0;

		do {
			from = orphan_reclaim(arena, &filter, from, &n, &bytes);
			n_all += n;
		} while (from);
		log_bound(arena, b);
		atomic_add(&arena->n_orphans_dropped, n_all);
	}
	free(b);
	pthread_mutex_unlock(&arena->orphans_lock);
}
