/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of roots.  n <= room; sorted[0..n) in strictly rising order of strcmp(), which is that of bytes.
 *
 * A stale root that is looked up goes at once; those that a listing meets, or that fill the table, go in one pass over it.
 */
#include "server/root.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "server/arena.h"
#include "shm/atomic.h"
#include "shm/step.h"
#include "shm/word.h"

void
roots_init(struct roots *roots, struct root *table, uint32_t *n_seenp)
{
	*roots = (struct roots){.table = table, .n_seenp = n_seenp};
	pthread_mutex_init(&roots->lock, NULL);
}

void
roots_deinit(struct roots *roots)
{
	free(roots->sorted);
	pthread_mutex_destroy(&roots->lock);
}

/* Where the name is, or would go. */
static uint32_t
find_locked(const struct roots *roots, const char *name, bool *is_therep)
{
	uint32_t low = 0, high = roots->n;

	*is_therep = false;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(roots->sorted[middle]->name, name);

		if (order < 0)
			low = middle + 1;
		else
			high = middle;
		if (order == 0)
			*is_therep = true;
	}
	return low;
}

/* One store, and no adopter finds it. */
static void
drop_locked(struct roots *roots, struct root *root)
{
	atomic_write(&root->ref, 0);
	if (root - roots->table < roots->first_free)
		roots->first_free = (uint32_t)(root - roots->table);
}

/* An entry of the table; there is one, since n < ROOT_MAX. */
static struct root *
take_locked(struct roots *roots)
{
	uint32_t i = roots->first_free;

	while (i < *roots->n_seenp && roots->table[i].ref)
		i++;
	if (i == *roots->n_seenp)
		atomic_write_release(roots->n_seenp, i + 1);
	roots->first_free = i + 1;
	return &roots->table[i];
}

static void
remove_locked(struct roots *roots, uint32_t i)
{
	drop_locked(roots, roots->sorted[i]);
	roots->n--;
	memmove(&roots->sorted[i], &roots->sorted[i + 1], (roots->n - i) * sizeof roots->sorted[0]);
}

static bool
stands(const struct arena *arena, const struct root *root)
{
	struct ref_object o;

	return ref_find(arena, root->ref, &o);
}

static void
sweep_locked(struct arena *arena, struct roots *roots)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < roots->n; i++) {
		if (stands(arena, roots->sorted[i]))
			roots->sorted[n++] = roots->sorted[i];
		else
			drop_locked(roots, roots->sorted[i]);
	}
	roots->n = n;
}

/* The root of that name, if it stands. */
static struct root *
get_locked(struct arena *arena, struct roots *roots, const char *name)
{
	bool is_there;
	uint32_t i = find_locked(roots, name, &is_there);

	if (!is_there)
		return NULL;
	if (stands(arena, roots->sorted[i]))
		return roots->sorted[i];
	remove_locked(roots, i);
	return NULL;
}

/* The index has room for one more: 0, or -ENOMEM. */
static int
make_room_locked(struct roots *roots)
{
	uint32_t room = roots->room ? roots->room * 2 : 64;
	struct root **more;

	if (roots->n < roots->room)
		return 0;
	more = reallocarray(roots->sorted, room, sizeof *more);
	if (!more)
		return -ENOMEM;
	roots->sorted = more;
	roots->room = room;
	return 0;
}

static int
insert_locked(struct arena *arena, struct roots *roots, const char *name, uint64_t ref)
{
	struct root *root;
	bool is_there;
	uint32_t i;
	int r;

	if (roots->n == ROOT_MAX)
		sweep_locked(arena, roots);
	if (roots->n == ROOT_MAX)
		return -ENOSPC;
	r = make_room_locked(roots);
	if (r < 0)
		return r;
	root = take_locked(roots);
	strcpy(root->name, name);
	atomic_compiler_barrier();
	/* It is there from here on, for an adopter too. */
	atomic_write(&root->ref, ref);
	i = find_locked(roots, name, &is_there);
	memmove(&roots->sorted[i + 1], &roots->sorted[i], (roots->n - i) * sizeof roots->sorted[0]);
	roots->sorted[i] = root;
	roots->n++;
	return 0;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp((*(struct root *const *)a)->name, (*(struct root *const *)b)->name);
}

int
roots_adopt(struct roots *roots)
{
	int r = 0;

	if (*roots->n_seenp > ROOT_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < *roots->n_seenp && r == 0; i++) {
		struct root *root = &roots->table[i];

		if (!root->ref)
			continue;
		if (!root->name[0] || !memchr(root->name, '\0', sizeof root->name))
			return -EINVAL;
		r = make_room_locked(roots);
		if (r == 0)
			roots->sorted[roots->n++] = root;
	}
	if (roots->n)
		qsort(roots->sorted, roots->n, sizeof roots->sorted[0], by_name);
	for (uint32_t i = 1; i < roots->n && r == 0; i++)
		if (by_name(&roots->sorted[i - 1], &roots->sorted[i]) == 0)
			r = -EINVAL;
	return r;
}

static void
unlink_watch(struct root_watch *watch)
{
	*watch->prevp = watch->next;
	if (watch->next)
		watch->next->prevp = watch->prevp;
	watch->prevp = NULL;
}

static void
tell_locked(struct roots *roots, const char *name)
{
	struct root_watch *next;

	for (struct root_watch *watch = roots->first_watch; watch; watch = next) {
		next = watch->next;
		if (strcmp(watch->name, name) != 0)
			continue;
		unlink_watch(watch);
		/* Where there is no room for a byte, there is one to read. */
		send(watch->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}

static int
check_ref(const struct arena *arena, uint64_t ref, char *why, size_t why_size)
{
	struct ref_object o;

	if (!ref_find(arena, ref, &o)) {
		if (o.cache && o.flags & LAYOUT_CACHE_NO_OWNER) {
			snprintf(why, why_size, "cache '%.48s' has no object words (SLABC_NO_OWNER): its objects can have no root",
				arena->shown[o.cache].name);
			return -ENOTSUP;
		}
		snprintf(why, why_size, "the reference is stale: the object was freed, or is another one now");
		return -ESTALE;
	}
	if (word_state(o.word) != WORD_SHARED) {
		snprintf(why, why_size, "the object is not shared: publish what slabc_ref_of() returned");
		return -EINVAL;
	}
	return 0;
}

int
root_publish(struct arena *arena, const char *name, uint64_t ref, bool may_replace, char *why, size_t why_size)
{
	struct roots *roots = &arena->roots;
	struct root *root;
	int r = check_ref(arena, ref, why, why_size);

	if (r < 0)
		return r;
	pthread_mutex_lock(&roots->lock);
	root = get_locked(arena, roots, name);
	if (!root) {
		r = insert_locked(arena, roots, name, ref);
	} else if (may_replace) {
		atomic_write(&root->ref, ref);
	} else {
		r = -EEXIST;
	}
	if (r == 0)
		tell_locked(roots, name);
	pthread_mutex_unlock(&roots->lock);
	if (r == -EEXIST)
		snprintf(why, why_size, "there is a root '%.120s' already, and its object is alive; SLABC_REPLACE takes its name", name);
	else if (r == -ENOSPC)
		snprintf(why, why_size, "arena '%s' has its %d roots", arena->name, ROOT_MAX);
	else if (r == -ENOMEM)
		snprintf(why, why_size, "no memory in slabd for another root");
	return r;
}

bool
root_unpublish(struct arena *arena, const char *name)
{
	struct roots *roots = &arena->roots;
	bool is_there;
	uint32_t i;

	pthread_mutex_lock(&roots->lock);
	is_there = get_locked(arena, roots, name) != NULL;
	if (is_there) {
		i = find_locked(roots, name, &is_there);
		remove_locked(roots, i);
	}
	pthread_mutex_unlock(&roots->lock);
	return is_there;
}

bool
root_lookup(struct arena *arena, const char *name, uint64_t *refp)
{
	struct root *root;

	pthread_mutex_lock(&arena->roots.lock);
	root = get_locked(arena, &arena->roots, name);
	if (root)
		*refp = root->ref;
	pthread_mutex_unlock(&arena->roots.lock);
	return root != NULL;
}

bool
root_next(struct arena *arena, const char *prefix, const char *after, char *name, uint64_t *refp, struct ref_object *op)
{
	struct roots *roots = &arena->roots;
	size_t length = strlen(prefix);
	bool is_there, is_found = false, is_stale = false;
	uint32_t i;

	pthread_mutex_lock(&roots->lock);
	i = find_locked(roots, strcmp(after, prefix) < 0 ? prefix : after, &is_there);
	for (; i < roots->n && !is_found; i++) {
		const struct root *root = roots->sorted[i];

		if (strcmp(root->name, after) <= 0)
			continue;
		if (strncmp(root->name, prefix, length) != 0)
			break;
		is_found = ref_find(arena, root->ref, op);
		is_stale = is_stale || !is_found;
		if (is_found) {
			strcpy(name, root->name);
			*refp = root->ref;
		}
	}
	if (is_stale)
		sweep_locked(arena, roots);
	pthread_mutex_unlock(&roots->lock);
	return is_found;
}

bool
root_watch(struct arena *arena, struct root_watch *watch, uint64_t *refp)
{
	struct roots *roots = &arena->roots;
	struct root *root;

	pthread_mutex_lock(&roots->lock);
	root = get_locked(arena, roots, watch->name);
	if (MUTANT(WATCH_LATE))
		pthread_mutex_unlock(&roots->lock);
	STEP(WATCH_LOOKED);
	if (MUTANT(WATCH_LATE))
		pthread_mutex_lock(&roots->lock);
	if (root) {
		*refp = root->ref;
	} else {
		watch->next = roots->first_watch;
		watch->prevp = &roots->first_watch;
		if (watch->next)
			watch->next->prevp = &watch->next;
		roots->first_watch = watch;
	}
	pthread_mutex_unlock(&roots->lock);
	return root != NULL;
}

void
root_unwatch(struct arena *arena, struct root_watch *watch)
{
	pthread_mutex_lock(&arena->roots.lock);
	if (watch->prevp)
		unlink_watch(watch);
	pthread_mutex_unlock(&arena->roots.lock);
}

uint32_t
root_count(struct arena *arena)
{
	uint32_t n;

	pthread_mutex_lock(&arena->roots.lock);
	n = arena->roots.n;
	pthread_mutex_unlock(&arena->roots.lock);
	return n;
}
