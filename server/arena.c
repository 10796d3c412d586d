/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and unmakes an arena's segments; the page ladder.
 *
 * Each node has a segment for each kind of page the arena may use, all in one place space, so that the ladder can step down at any unit
 * without anybody mapping anything anew.  Pages are committed by segment_commit() before a slab lies in them and punched when a unit is free.
 */
#include "server/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "server/cache.h"
#include "server/log.h"
#include "shm/atomic.h"
#include "shm/segment.h"

enum { HUGE_UNIT_ORDER = 9, SMALL_UNIT_ORDER = 4 };

static const uint64_t huge_bytes = (uint64_t)LAYOUT_PAGE_BYTES << HUGE_UNIT_ORDER;

static struct segment_extent
extent_of(const struct arena_segment *s, uint32_t first, uint32_t n)
{
	return (struct segment_extent){
		.fd = s->fd,
		.pages = s->kind,
		.off = (uint64_t)first * LAYOUT_PAGE_BYTES,
		.bytes = (uint64_t)n * LAYOUT_PAGE_BYTES,
	};
}

/* Says once for each way down the ladder what happened and what would change it. */
static void
note_shortage(struct arena_segment *s, int r)
{
	struct arena *arena = s->arena;
	char note[sizeof arena->page_note] = "";

	if (s->kind == LAYOUT_PAGES_HUGE)
		snprintf(note, sizeof note, "wanted 2 MiB pages on node %u, got %s: %s; raise vm.nr_hugepages, or choose --page-kind=4k",
			arena->topology.os_node[s->node], arena->options.page_kind == ARENA_PAGES_AUTO ? "4 KiB pages" : "none", strerror(-r));
	else
		snprintf(note, sizeof note, "no 4 KiB page on node %u: %s; free memory, or raise the memory limit of slabd's control group",
			arena->topology.os_node[s->node], strerror(-r));
	pthread_mutex_lock(&arena->ledger_lock);
	if (strcmp(note, arena->page_note) != 0) {
		memcpy(arena->page_note, note, sizeof note);
		log_warning("arena '%s': %s", arena->name, note);
	}
	pthread_mutex_unlock(&arena->ledger_lock);
	atomic_add(&arena->n_shortages, 1);
}

static int
commit_unit(void *ctx, uint32_t first, uint32_t n)
{
	struct arena_segment *s = ctx;
	struct arena *arena = s->arena;
	uint64_t bytes = (uint64_t)n * LAYOUT_PAGE_BYTES, committed = atomic_read(&arena->committed_bytes);
	struct segment_extent extent = extent_of(s, first, n);
	uint32_t n_misplaced = 0;
	int r;

	/* Added only if it fits: a try that fails must not make another segment's fail. */
	do {
		if (committed + bytes > arena->options.limit_bytes)
			return -ENOSPC;
	} while (!atomic_cas(&arena->committed_bytes, &committed, committed + bytes));
	r = segment_commit(&extent, arena->options.source ? -1 : topology_bind_node(&arena->topology, s->node), &n_misplaced);
	if (r < 0) {
		atomic_add(&arena->committed_bytes, -bytes);
		note_shortage(s, r);
		return -ENOMEM;
	}
	if (n_misplaced && atomic_add(&arena->n_misplaced, n_misplaced) == 0)
		log_warning("arena '%s': %u pages lie on another node than %u, which was asked for", arena->name, n_misplaced,
			arena->topology.os_node[s->node]);
	return 0;
}

static void
give_back_unit(void *ctx, uint32_t first, uint32_t n)
{
	struct arena_segment *s = ctx;
	struct segment_extent extent = extent_of(s, first, n);
	int r = segment_give_back(&extent);

	if (r < 0)
		log_error("arena '%s': pages could not be given back: %s", s->arena->name, strerror(-r));
	atomic_add(&s->arena->committed_bytes, -extent.bytes);
}

static const struct pages_ops page_ops = {commit_unit, give_back_unit};

/* A segment of slabd's metadata, mapped for writing. */
static int
make_table(const char *name, uint64_t bytes, int *fdp, int *fd_readonlyp, void **mapp, uint64_t *bytesp)
{
	int fd, r;

	bytes = (bytes + LAYOUT_PAGE_BYTES - 1) & ~(uint64_t)(LAYOUT_PAGE_BYTES - 1);
	fd = segment_create(name, bytes, LAYOUT_PAGES_4K, SEGMENT_SEAL_SEAL);
	if (fd < 0)
		return fd;
	*fdp = fd;
	if (fd_readonlyp) {
		r = segment_reopen_readonly(fd);
		if (r < 0)
			return r;
		*fd_readonlyp = r;
	}
	*bytesp = bytes;
	return segment_map(fd, bytes, SEGMENT_MAP_WRITE | SEGMENT_MAP_NORESERVE, NULL, mapp);
}

static int
add_segment(struct arena *arena, unsigned node, unsigned kind, uint32_t n_pages, uint64_t reserve)
{
	struct arena_segment *s = &arena->segments[arena->n_segments];
	unsigned unit_order = kind == LAYOUT_PAGES_HUGE ? HUGE_UNIT_ORDER : SMALL_UNIT_ORDER;
	uint64_t unit = (uint64_t)LAYOUT_PAGE_BYTES << unit_order;
	char name[64];
	int r;

	snprintf(name, sizeof name, "slabd:data:%u:%s", node, kind == LAYOUT_PAGES_HUGE ? "2m" : "4k");
	r = segment_create(name, (uint64_t)n_pages * LAYOUT_PAGE_BYTES, kind, SEGMENT_SEAL_SEAL);
	if (r < 0)
		return r;
	*s = (struct arena_segment){.arena = arena, .fd = r, .kind = kind, .node = node, .first_page = arena->n_pages, .n_pages = n_pages};
	r = segment_reopen_readonly(s->fd);
	if (r < 0) {
		close(s->fd);
		return r;
	}
	s->fd_readonly = r;
	r = pages_init(&s->pages, n_pages, unit_order, (uint32_t)((reserve + unit - 1) / unit), &page_ops, s);
	if (r < 0) {
		close(s->fd);
		close(s->fd_readonly);
		return r;
	}
	arena->n_segments++;
	arena->n_pages += n_pages;
	return 0;
}

static int
add_segments(struct arena *arena, char *why, size_t why_size)
{
	const struct arena_options *o = &arena->options;
	unsigned n_kinds = o->page_kind == ARENA_PAGES_AUTO ? 2 : 1, n_nodes = arena->topology.n_nodes;
	uint64_t reach = (uint64_t)LAYOUT_MAX_PAGES / (n_kinds * n_nodes) * LAYOUT_PAGE_BYTES;
	uint32_t n_pages = (uint32_t)(o->limit_bytes / LAYOUT_PAGE_BYTES);
	uint64_t reserve = o->reserve_bytes / n_nodes;
	int r;

	if (o->limit_bytes > reach) {
		snprintf(why, why_size, "arena-size %llu is above the %llu bytes that places reach here (32 GiB by %u nodes and %u kinds of page)",
			(unsigned long long)o->limit_bytes, (unsigned long long)reach, n_nodes, n_kinds);
		return -EINVAL;
	}
	for (unsigned node = 0; node < n_nodes; node++) {
		bool has_huge = false;

		if (o->page_kind != ARENA_PAGES_4K) {
			r = add_segment(arena, node, LAYOUT_PAGES_HUGE, n_pages, reserve);
			has_huge = r == 0;
			if (r < 0 && o->page_kind == ARENA_PAGES_HUGE) {
				snprintf(why, why_size, "no segment of 2 MiB pages: %s; choose --page-kind=auto or 4k", strerror(-r));
				return r;
			}
			if (r < 0)
				log_warning("arena '%s': no segment of 2 MiB pages: %s; going on with 4 KiB pages", arena->name, strerror(-r));
		}
		if (o->page_kind != ARENA_PAGES_HUGE) {
			r = add_segment(arena, node, LAYOUT_PAGES_4K, n_pages, has_huge ? 0 : reserve);
			if (r < 0) {
				snprintf(why, why_size, "no segment of 4 KiB pages: %s", strerror(-r));
				return r;
			}
		}
	}
	return 0;
}

static int
commit_reserve(struct arena *arena, char *why, size_t why_size)
{
	uint64_t missing;
	int r = 0;

	for (unsigned i = 0; i < arena->n_segments && r == 0; i++) {
		struct arena_segment *s = &arena->segments[i];

		r = pages_reserve(&s->pages);
		if (r == 0 || s->kind != LAYOUT_PAGES_HUGE || arena->options.page_kind != ARENA_PAGES_AUTO)
			continue;
		/* The ladder's next rung carries the rest: the small pages of the same node come right after the huge ones. */
		missing = arena->options.reserve_bytes / arena->topology.n_nodes;
		struct pages_counters c;

		pages_count(&s->pages, &c);
		missing -= missing < (uint64_t)c.n_committed * LAYOUT_PAGE_BYTES ? missing : (uint64_t)c.n_committed * LAYOUT_PAGE_BYTES;
		arena->segments[i + 1].pages.reserve_units = (uint32_t)((missing + (LAYOUT_PAGE_BYTES << SMALL_UNIT_ORDER) - 1) /
									(LAYOUT_PAGE_BYTES << SMALL_UNIT_ORDER));
		s->pages.reserve_units = c.n_committed >> HUGE_UNIT_ORDER;
		r = 0;
	}
	if (r < 0)
		snprintf(why, why_size, "the reserve of %llu bytes could not be committed: %s; %s", (unsigned long long)arena->options.reserve_bytes,
			strerror(-r), arena->page_note);
	return r;
}

static int
make_tables(struct arena *arena, char *why, size_t why_size)
{
	uint64_t limit_pages = arena->options.limit_bytes / LAYOUT_PAGE_BYTES;
	/* Objects of 8 bytes everywhere at most, and as much again for blocks that are in use for one run. */
	uint64_t n_words = limit_pages * (LAYOUT_PAGE_BYTES / 8) * 2;
	uint64_t bits_off, none;
	void *map;
	int r;

	if (n_words > UINT32_MAX)
		n_words = UINT32_MAX / WORDS_BLOCK * WORDS_BLOCK;
	r = make_table("slabd:arena", LAYOUT_ARENA_PAGES_OFF + (uint64_t)arena->n_pages * sizeof(struct layout_page), &arena->fd,
		&arena->fd_readonly, &map, &arena->bytes);
	if (r < 0)
		goto failed;
	arena->head = map;
	arena->shown = (struct layout_cache *)((char *)map + LAYOUT_ARENA_CACHES_OFF);
	arena->page_map = (struct layout_page *)((char *)map + LAYOUT_ARENA_PAGES_OFF);
	r = make_table("slabd:words", n_words * sizeof(uint32_t), &arena->words_fd, &arena->words_fd_readonly, &map, &arena->words_bytes);
	if (r < 0)
		goto failed;
	arena->words = map;
	arena->max_slabs = (uint32_t)limit_pages;
	bits_off = ((uint64_t)(arena->max_slabs + 1) * sizeof(struct slab) + LAYOUT_PAGE_BYTES - 1) & ~(uint64_t)(LAYOUT_PAGE_BYTES - 1);
	r = make_table("slabd:ledger", bits_off + n_words / 4, &arena->ledger_fd, NULL, &map, &none);
	if (r < 0)
		goto failed;
	arena->ledger_bytes = none;
	arena->slabs = map;
	arena->bits = (uint32_t *)((char *)map + bits_off);
	r = words_init(&arena->words_runs, n_words);
	if (r < 0)
		goto failed;
	return 0;
failed:
	snprintf(why, why_size, "no memory for the tables of arena '%s': %s", arena->name, strerror(-r));
	return r;
}

static void
show_arena(struct arena *arena)
{
	struct layout_arena *head = arena->head;

	head->hash = layout_hash;
	head->n_pages = arena->n_pages;
	head->n_segments = arena->n_segments;
	head->n_nodes = arena->topology.n_nodes;
	head->n_words = arena->words_bytes / sizeof(uint32_t);
	for (unsigned i = 0; i < arena->n_segments; i++)
		head->segments[i] = (struct layout_segment){
			.first_page = arena->segments[i].first_page,
			.n_pages = arena->segments[i].n_pages,
			.node = (uint16_t)arena->segments[i].node,
			.pages = (uint16_t)arena->segments[i].kind,
			.os_node = arena->topology.os_node[arena->segments[i].node],
		};
}

int
arena_new(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size)
{
	pthread_rwlockattr_t attr;
	struct arena *arena;
	int r;

	arena = calloc(1, sizeof *arena);
	if (!arena) {
		snprintf(why, why_size, "no memory for an arena");
		return -ENOMEM;
	}
	arena->options = *options;
	arena->options.limit_bytes = (options->limit_bytes + huge_bytes - 1) & ~(huge_bytes - 1);
	snprintf(arena->name, sizeof arena->name, "%s", options->name);
	arena->options.name = arena->name;
	arena->fd = arena->fd_readonly = arena->words_fd = arena->words_fd_readonly = arena->ledger_fd = -1;
	arena->next_client = 1;
	if (getrandom(&arena->first_generation, sizeof arena->first_generation, 0) < 0)
		arena->first_generation = (uint32_t)getpid();
	pthread_mutex_init(&arena->ledger_lock, NULL);
	pthread_mutex_init(&arena->registry_lock, NULL);
	/* Attaching and reaping must not starve behind refills. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&arena->sessions_lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	if (options->reserve_bytes > arena->options.limit_bytes) {
		snprintf(why, why_size, "reserve %llu is above arena-size %llu", (unsigned long long)options->reserve_bytes,
			(unsigned long long)arena->options.limit_bytes);
		r = -EINVAL;
		goto failed;
	}
	r = options->source ? topology_init_from(&arena->topology, options->source) : topology_init(&arena->topology);
	if (r < 0) {
		snprintf(why, why_size, "the machine's NUMA nodes could not be read: %s", strerror(-r));
		goto failed;
	}
	r = add_segments(arena, why, why_size);
	if (r == 0)
		r = make_tables(arena, why, why_size);
	if (r == 0)
		r = commit_reserve(arena, why, why_size);
	if (r < 0)
		goto failed;
	show_arena(arena);
	*arenap = arena;
	return 0;
failed:
	arena_free(arena);
	return r;
}

static void
close_table(int fd, int fd_readonly, void *map, uint64_t bytes)
{
	if (map)
		segment_unmap(map, bytes);
	if (fd >= 0)
		close(fd);
	if (fd_readonly >= 0)
		close(fd_readonly);
}

void
arena_free(struct arena *arena)
{
	if (!arena)
		return;
	for (unsigned id = 1; id < LAYOUT_MAX_CACHES; id++)
		if (arena->caches[id])
			cache_free(arena->caches[id]);
	for (unsigned i = 0; i < arena->n_segments; i++) {
		pages_deinit(&arena->segments[i].pages);
		close(arena->segments[i].fd);
		close(arena->segments[i].fd_readonly);
	}
	close_table(arena->fd, arena->fd_readonly, arena->head, arena->bytes);
	close_table(arena->words_fd, arena->words_fd_readonly, arena->words, arena->words_bytes);
	close_table(arena->ledger_fd, -1, arena->slabs, arena->ledger_bytes);
	if (arena->words_runs.blocks)
		words_deinit(&arena->words_runs);
	topology_deinit(&arena->topology);
	free(arena->census);
	pthread_mutex_destroy(&arena->ledger_lock);
	pthread_mutex_destroy(&arena->registry_lock);
	pthread_rwlock_destroy(&arena->sessions_lock);
	free(arena);
}

int
arena_pages_alloc(struct arena *arena, unsigned node, unsigned order, uint32_t *pagep)
{
	int worst = -ENOMEM;

	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct arena_segment *s = &arena->segments[i];
		uint32_t first;
		int r;

		if (s->node != node)
			continue;
		r = pages_alloc(&s->pages, order, &first);
		if (r == 0) {
			*pagep = s->first_page + first;
			return 0;
		}
		if (r == -ENOSPC)
			worst = -ENOSPC;
	}
	return worst;
}

void
arena_pages_free(struct arena *arena, uint32_t page, unsigned order)
{
	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct arena_segment *s = &arena->segments[i];

		if (page - s->first_page < s->n_pages) {
			pages_free(&s->pages, page - s->first_page, order);
			return;
		}
	}
}
