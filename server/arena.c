/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and unmakes an arena's segments; the page ladder.
 *
 * Each node has a segment for each kind of page the arena may use, all in one place space, so that the ladder can step down at any unit
 * without anybody mapping anything anew.  Pages are committed by segment_commit() before a slab lies in them and punched when a unit is
 * free; one of hugetlb pages, of which a hole cannot be read when the pool is empty, waits for its last reader (readers.h).
 * Transparent huge pages are 4 KiB pages of which the kernel makes one after that (segment_collapse()); a unit of which it cannot stays as it is.
 * That takes milliseconds, and on a busy machine a hundred: at the start for the reserve, which nobody waits for but who starts slabd; later between
 * requests, never in one (arena_collapse(), by slabd.c's timer).
 *
 * What becomes of a unit is in the ledger before and after it happens (ledger.h), so that whoever adopts the arena does the rest.
 */
#include "server/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "server/cache.h"
#include "server/clock.h"
#include "server/log.h"
#include "server/recall.h"
#include "server/repair.h"
#include "shm/atomic.h"
#include "shm/segment.h"
#include "shm/step.h"

enum { GIANT_UNIT_ORDER = 18, HUGE_UNIT_ORDER = 9, SMALL_UNIT_ORDER = 4 };

_Static_assert((int)GIANT_UNIT_ORDER <= (int)PAGES_MAX_ORDER, "a unit is a block");

/* Between two askings of a pool that is empty. */
#define ASK_AGAIN_NS 100000000

static const uint64_t huge_bytes = (uint64_t)LAYOUT_PAGE_BYTES << HUGE_UNIT_ORDER;
static const uint64_t giant_bytes = (uint64_t)LAYOUT_PAGE_BYTES << GIANT_UNIT_ORDER;

/* A segment of the ladder's: its rungs, the kind and unit of its pages, and what it is called. */
struct rung {
	unsigned ladder;
	unsigned kind;
	unsigned unit_order;
	const char *name;
};

/* From the top.  THP and 4 KiB pages are one segment; of its two lines the first that the ladder has counts. */
static const struct rung rungs[] = {
	{LADDER_1G, LAYOUT_PAGES_1G, GIANT_UNIT_ORDER, "1 GiB pages"},
	{LADDER_HUGE, LAYOUT_PAGES_HUGE, HUGE_UNIT_ORDER, "2 MiB pages"},
	{LADDER_THP, LAYOUT_PAGES_4K, HUGE_UNIT_ORDER, "transparent huge pages"},
	{LADDER_4K, LAYOUT_PAGES_4K, SMALL_UNIT_ORDER, "4 KiB pages"},
};

enum { N_RUNGS = sizeof rungs / sizeof rungs[0] };

static unsigned
ladder_of(const struct arena_options *options)
{
	return options->page_kind == LADDER_DEFAULT ? LADDER_AUTO : options->page_kind;
}

/* The rung below segment i on its node: the next segment, if the ladder has one. */
static struct arena_segment *
next_rung(struct arena *arena, unsigned i)
{
	return i + 1 < arena->n_segments && arena->segments[i + 1].node == arena->segments[i].node ? &arena->segments[i + 1] : NULL;
}

struct segment_extent
arena_extent(const struct arena_segment *s, uint32_t first, uint32_t n)
{
	return (struct segment_extent){
		.fd = s->fd,
		.pages = s->kind,
		.off = (uint64_t)first * LAYOUT_PAGE_BYTES,
		.bytes = (uint64_t)n * LAYOUT_PAGE_BYTES,
	};
}

const char *
arena_kind_name(const struct arena_segment *s)
{
	return s->kind == LAYOUT_PAGES_1G     ? "1 GiB pages"
	       : s->kind == LAYOUT_PAGES_HUGE ? "2 MiB pages"
	       : s->is_thp                    ? "transparent huge pages"
					      : "4 KiB pages";
}

/* What gives more pages of the kind. */
static const char *
remedy_of(unsigned kind)
{
	switch (kind) {
	case LAYOUT_PAGES_1G:
		return "write to /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages, or boot with hugepagesz=1G hugepages=N";
	case LAYOUT_PAGES_HUGE:
		return "raise vm.nr_hugepages, or choose --page-kind=thp";
	default:
		return "free memory, or raise the memory limit of slabd's control group";
	}
}

/* As after a segment could not be made. */
static const char *
remedy_of_segment(unsigned kind, int r)
{
	if (r == -ENOSYS || r == -EPERM || r == -EINVAL)
		return "the kernel, or a seccomp filter, refuses memfd_create() of such pages, or its seals";
	return remedy_of(kind);
}

/* What STATUS shows from now on. */
__attribute__((format(printf, 2, 3))) static void
note(struct arena *arena, const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&arena->ledger_lock);
	va_start(args, format);
	vsnprintf(arena->page_note, sizeof arena->page_note, format, args);
	va_end(args);
	log_warning("arena '%s': %s", arena->name, arena->page_note);
	pthread_mutex_unlock(&arena->ledger_lock);
}

/* Says once for each way down the ladder, and reason, what happened and what would change it. */
static void
note_shortage(struct arena_segment *s, int r)
{
	struct arena *arena = s->arena;
	const struct arena_segment *next = next_rung(arena, (unsigned)(s - arena->segments));

	if (s->said_commit == r)
		return;
	s->said_commit = r;
	note(arena, "wanted %s on node %u, got %s: %s; %s", arena_kind_name(s), arena->topology.os_node[s->node], next ? arena_kind_name(next) : "none",
		strerror(-r), remedy_of(s->kind));
}

/* Asks for a transparent huge page in the place of a unit's small ones. */
static void
collapse_unit(struct arena_segment *s, const struct segment_extent *extent)
{
	uint32_t unit = (uint32_t)(extent->off / huge_bytes);
	int r = segment_collapse(extent);

	if (r == 0) {
		bitset_set(&s->collapsed, unit);
		atomic_write(&s->units[unit], LEDGER_UNIT_COLLAPSED);
		atomic_add(&s->arena->thp_bytes, extent->bytes);
		return;
	}
	/* A client has a page of it in the kernel's hands just now. */
	if (r == -EAGAIN && !bitset_test(&s->retried, unit)) {
		bitset_set(&s->retried, unit);
		bitset_set(&s->waiting, unit);
		return;
	}
	if (s->said_collapse == r)
		return;
	s->said_collapse = r;
	note(s->arena, "wanted transparent huge pages on node %u, got 4 KiB pages: %s; %s", s->arena->topology.os_node[s->node],
		strerror(-r),
		r == -EINVAL ? "it takes Linux 6.1 with /sys/kernel/mm/transparent_hugepage/shmem_enabled other than deny"
			     : "vm.compact_memory=1 may help, or choose --page-kind=4k");
}

/*
 * A unit that is GIVING goes.  Where the system does not take it, it stays so, and is counted as committed, since it is there; it is tried again, or committed
 * anew.  By who moves units of the segment.
 */
static void
let_unit_go(struct arena_segment *s, uint32_t unit)
{
	struct segment_extent extent = arena_extent(s, unit << s->unit_order, 1u << s->unit_order);
	int r = segment_give_back(&extent);

	STEP(UNIT_CHANGED);
	if (r < 0) {
		if (s->said_give_back != r)
			log_error("arena '%s': %s could not be given back, and stay: %s", s->arena->name, arena_kind_name(s), strerror(-r));
		s->said_give_back = r;
		return;
	}
	atomic_write_release(&s->units[unit], LEDGER_UNIT_ABSENT);
	atomic_add(&s->n_going, -1u);
	atomic_add(&s->arena->committed_bytes, -extent.bytes);
}

void
arena_let_go(struct arena_segment *s)
{
	for (uint32_t unit = 0; atomic_read(&s->n_going) && unit < s->n_pages >> s->unit_order; unit++)
		if (s->units[unit] == LEDGER_UNIT_GIVING)
			let_unit_go(s, unit);
}

static int
commit_unit(void *ctx, uint32_t first, uint32_t n)
{
	struct arena_segment *s = ctx;
	bool was_going = s->units[first >> s->unit_order] == LEDGER_UNIT_GIVING;
	struct arena *arena = s->arena;
	uint64_t bytes = (uint64_t)n * LAYOUT_PAGE_BYTES, committed = atomic_read(&arena->committed_bytes);
	struct segment_extent extent = arena_extent(s, first, n);
	uint32_t n_misplaced = 0;
	int r;

	/* A pool that was empty a moment ago is not asked for each slab anew. */
	if (s->ask_again_ns && next_rung(arena, (unsigned)(s - arena->segments)) && clock_now_ns() < s->ask_again_ns)
		return -ENOMEM;
	/* Added only if it fits: a try that fails must not make another segment's fail. */
	do {
		if (!was_going && committed + bytes > arena->options.limit_bytes)
			return -ENOSPC;
	} while (!was_going && !atomic_cas(&arena->committed_bytes, &committed, committed + bytes));
	atomic_write_release(&s->units[first >> s->unit_order], LEDGER_UNIT_COMMITTING);
	STEP(UNIT_COMMITTING);
	/* (Pages of hugetlb are of no control group's memory.) */
	if (s->kind == LAYOUT_PAGES_4K && !cgroup_has_room(&arena->cgroup, bytes))
		r = -ENOMEM;
	else
		r = segment_commit(&extent, arena->options.source ? -1 : topology_bind_node(&arena->topology, s->node), &n_misplaced);
	STEP(UNIT_CHANGED);
	atomic_write_release(&s->units[first >> s->unit_order], r < 0 ? LEDGER_UNIT_GIVING : LEDGER_UNIT_COMMITTED);
	atomic_add(&s->n_going, (r < 0) - (uint32_t)was_going);
	if (r < 0) {
		let_unit_go(s, first >> s->unit_order);
		note_shortage(s, r);
		s->ask_again_ns = clock_now_ns() + ASK_AGAIN_NS;
		return -ENOMEM;
	}
	if (n_misplaced && atomic_add(&arena->n_misplaced, n_misplaced) == 0)
		log_warning("arena '%s': %u pages lie on another node than %u, which was asked for", arena->name, n_misplaced,
			arena->topology.os_node[s->node]);
	if (!s->is_thp)
		return 0;
	if (arena->is_made)
		bitset_set(&s->waiting, first >> s->unit_order);
	else
		collapse_unit(s, &extent);
	return 0;
}

static void
give_back_unit(void *ctx, uint32_t first, uint32_t n)
{
	struct arena_segment *s = ctx;
	uint64_t bytes = (uint64_t)n * LAYOUT_PAGE_BYTES;

	atomic_write_release(&s->units[first >> s->unit_order], LEDGER_UNIT_GIVING);
	atomic_add(&s->n_going, 1);
	STEP(UNIT_GIVING);
	let_unit_go(s, first >> s->unit_order);
	s->ask_again_ns = 0;
	if (s->is_thp) {
		bitset_clear(&s->waiting, first >> s->unit_order);
		bitset_clear(&s->retried, first >> s->unit_order);
	}
	if (s->is_thp && bitset_test(&s->collapsed, first >> s->unit_order)) {
		bitset_clear(&s->collapsed, first >> s->unit_order);
		atomic_add(&s->arena->thp_bytes, -bytes);
	}
}

static uint64_t
mark_unit(void *ctx)
{
	return readers_last(&((struct arena_segment *)ctx)->arena->readers);
}

static uint64_t
kept_from(void *ctx)
{
	return readers_oldest(&((struct arena_segment *)ctx)->arena->readers);
}

static const struct pages_ops page_ops = {.commit = commit_unit, .give_back = give_back_unit};
static const struct pages_ops hugetlb_ops = {.commit = commit_unit, .give_back = give_back_unit, .mark = mark_unit, .kept_from = kept_from};

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

static void
deinit_thp(struct arena_segment *s)
{
	bitset_deinit(&s->collapsed);
	bitset_deinit(&s->waiting);
	bitset_deinit(&s->retried);
}

int
arena_add_segment(struct arena *arena, const struct ledger_segment *as, int fd)
{
	struct arena_segment *s = &arena->segments[arena->n_segments];
	int r;

	*s = (struct arena_segment){.arena = arena,
		.fd = fd,
		.kind = as->kind,
		.node = as->node,
		.unit_order = as->unit_order,
		.is_thp = as->is_thp,
		.first_page = as->first_page,
		.n_pages = as->n_pages};
	s->fd_readonly = segment_reopen_readonly(s->fd);
	r = s->fd_readonly < 0 ? s->fd_readonly : bitset_init(&s->collapsed, s->n_pages >> s->unit_order);
	if (r == 0)
		r = bitset_init(&s->waiting, s->n_pages >> s->unit_order);
	if (r == 0)
		r = bitset_init(&s->retried, s->n_pages >> s->unit_order);
	if (r == 0)
		r = pages_init(&s->pages, s->n_pages, s->unit_order, 0, s->kind == LAYOUT_PAGES_4K ? &page_ops : &hugetlb_ops, s);
	if (r < 0) {
		deinit_thp(s);
		close(s->fd);
		if (s->fd_readonly >= 0)
			close(s->fd_readonly);
		return r;
	}
	arena->n_segments++;
	arena->n_pages = s->first_page + s->n_pages;
	return 0;
}

/* n_pages is a multiple of the rung's unit. */
static int
add_segment(struct arena *arena, unsigned node, const struct rung *rung, uint32_t n_pages)
{
	uint32_t align = 1u << rung->unit_order;
	struct ledger_segment as = {
		.first_page = (arena->n_pages + align - 1) & ~(align - 1),
		.n_pages = n_pages,
		.node = (uint16_t)node,
		.kind = (uint8_t)rung->kind,
		.is_thp = rung->ladder == LADDER_THP,
		.unit_order = rung->unit_order,
	};
	char name[64];
	int r;

	snprintf(name, sizeof name, "slabd:data:%u:%s", node,
		rung->kind == LAYOUT_PAGES_1G     ? "1g"
		: rung->kind == LAYOUT_PAGES_HUGE ? "2m"
						  : "4k");
	r = segment_create(name, (uint64_t)n_pages * LAYOUT_PAGE_BYTES, rung->kind, SEGMENT_SEAL_SEAL);
	return r < 0 ? r : arena_add_segment(arena, &as, r);
}

uint32_t
arena_count_units(const struct arena *arena)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < arena->n_segments; i++)
		n += arena->segments[i].n_pages >> arena->segments[i].unit_order;
	return n;
}

void
arena_point_units(struct arena *arena)
{
	uint8_t *units = arena->units;

	for (unsigned i = 0; i < arena->n_segments; i++) {
		arena->segments[i].units = units;
		units += arena->segments[i].n_pages >> arena->segments[i].unit_order;
	}
}

/* Is this line of rungs[] a segment of such an arena? How many pages? */
static uint32_t
rung_pages(const struct arena_options *o, unsigned i)
{
	unsigned ladder = ladder_of(o);
	uint64_t unit = (uint64_t)LAYOUT_PAGE_BYTES << rungs[i].unit_order;

	if (!(ladder & rungs[i].ladder) || (rungs[i].ladder == LADDER_4K && ladder & LADDER_THP))
		return 0;
	return (uint32_t)(o->limit_bytes / unit * unit / LAYOUT_PAGE_BYTES);
}

uint64_t
arena_rounds_to(const struct arena_options *o)
{
	uint64_t unit = ladder_of(o) == LADDER_1G ? giant_bytes : huge_bytes;

	return (o->limit_bytes + unit - 1) / unit * unit;
}

static int
check(const struct arena_options *o, unsigned n_nodes, char *why, size_t why_size)
{
	struct arena_options rounded = *o;
	unsigned n_kinds = 0;
	uint64_t reach = 0;

	rounded.limit_bytes = arena_rounds_to(o);
	for (unsigned node = 0; node < n_nodes; node++)
		for (unsigned i = 0; i < N_RUNGS; i++) {
			uint64_t align = 1ull << rungs[i].unit_order, n_pages = rung_pages(&rounded, i);

			n_kinds += node == 0 && n_pages;
			reach = n_pages ? (reach + align - 1) / align * align + n_pages : reach;
		}
	if (o->reserve_bytes > rounded.limit_bytes) {
		snprintf(why, why_size, "reserve %llu is above arena-size %llu", (unsigned long long)o->reserve_bytes,
			(unsigned long long)rounded.limit_bytes);
		return -EINVAL;
	}
	if (o->client_min > rounded.limit_bytes || (o->client_max && o->client_max < o->client_min)) {
		snprintf(why, why_size, "client-min %llu is above %s", (unsigned long long)o->client_min,
			o->client_min > rounded.limit_bytes ? "the arena's size" : "client-max");
		return -EINVAL;
	}
	if (reach > LAYOUT_MAX_PAGES) {
		snprintf(why, why_size,
			"arena-size %llu is above the %llu bytes that places reach here (32 GiB by %u nodes and %u kinds of page)",
			(unsigned long long)o->limit_bytes, (unsigned long long)LAYOUT_MAX_PAGES / (n_kinds * n_nodes) * LAYOUT_PAGE_BYTES,
			n_nodes, n_kinds);
		return -EINVAL;
	}
	return 0;
}

int
arena_check(const struct arena_options *options, char *why, size_t why_size)
{
	struct topology topology;
	int r = topology_init(&topology);

	if (r < 0) {
		snprintf(why, why_size, "the machine's NUMA nodes could not be read: %s", strerror(-r));
		return r;
	}
	r = check(options, topology.n_nodes, why, why_size);
	topology_deinit(&topology);
	return r;
}

/* One node's segments, from the top of the ladder. */
static int
add_rungs(struct arena *arena, unsigned node, char *why, size_t why_size)
{
	unsigned n_before = arena->n_segments;
	int r = 0;

	for (unsigned i = 0; i < N_RUNGS; i++) {
		uint32_t n_pages = rung_pages(&arena->options, i);

		if (n_pages == 0)
			continue;
		r = add_segment(arena, node, &rungs[i], n_pages);
		if (r < 0)
			note(arena, "no segment of %s on node %u: %s; %s", rungs[i].name, arena->topology.os_node[node], strerror(-r),
				remedy_of_segment(rungs[i].kind, r));
	}
	if (arena->n_segments > n_before)
		return 0;
	snprintf(why, why_size, "%s", arena->page_note);
	return r < 0 ? r : -EINVAL;
}

static int
add_segments(struct arena *arena, char *why, size_t why_size)
{
	int r = 0;

	for (unsigned node = 0; node < arena->topology.n_nodes && r == 0; node++)
		r = add_rungs(arena, node, why, why_size);
	return r;
}

int
arena_commit_reserve(struct arena *arena, char *why, size_t why_size)
{
	uint64_t missing = 0;
	int r = 0;

	for (unsigned i = 0; i < arena->n_segments && r == 0; i++) {
		struct arena_segment *s = &arena->segments[i];
		uint64_t unit = (uint64_t)LAYOUT_PAGE_BYTES << s->unit_order, got;
		struct pages_counters c;

		if (i == 0 || s->node != arena->segments[i - 1].node)
			missing = arena->options.reserve_bytes / arena->topology.n_nodes;
		s->pages.reserve_units = (uint32_t)((missing + unit - 1) / unit);
		r = pages_reserve(&s->pages);
		if (r == 0) {
			missing = 0;
			continue;
		}
		if (!next_rung(arena, i))
			break;
		pages_count(&s->pages, &c);
		got = (uint64_t)c.n_committed * LAYOUT_PAGE_BYTES;
		s->pages.reserve_units = (uint32_t)(got / unit);
		missing -= missing < got ? missing : got;
		r = 0;
	}
	if (r < 0)
		snprintf(why, why_size, "the reserve of %llu bytes could not be committed: %s; %s", (unsigned long long)arena->options.reserve_bytes,
			strerror(-r), arena->page_note);
	return r;
}

/* What an adopter will go by. */
static void
write_head(struct arena *arena)
{
	struct ledger_head *head = arena->ledger;

	*head = (struct ledger_head){
		.magic = LEDGER_MAGIC,
		.layout_hash = layout_hash,
		.ledger_hash = ledger_hash,
		.layout_version = LAYOUT_VERSION,
		.ledger_bytes = arena->ledger_bytes,
		.arena_bytes = arena->bytes,
		.words_bytes = arena->words_bytes,
		.limit_bytes = arena->options.limit_bytes,
		.reserve_bytes = arena->options.reserve_bytes,
		.page_kind = arena->options.page_kind,
		.profile = arena->options.profile,
		.n_pages = arena->n_pages,
		.n_nodes = arena->topology.n_nodes,
		.n_segments = arena->n_segments,
		.n_units = arena_count_units(arena),
		.max_slabs = arena->max_slabs,
	};
	ledger_sign(head);
	memcpy(head->name, arena->name, sizeof head->name);
	if (getrandom(&head->first_generation, sizeof head->first_generation, 0) < 0)
		head->first_generation = (uint32_t)getpid();
	for (unsigned i = 0; i < arena->n_segments; i++) {
		const struct arena_segment *s = &arena->segments[i];

		head->segments[i] = (struct ledger_segment){
			.first_page = s->first_page,
			.n_pages = s->n_pages,
			.node = (uint16_t)s->node,
			.kind = (uint8_t)s->kind,
			.is_thp = s->is_thp,
			.unit_order = s->unit_order,
			.os_node = arena->topology.os_node[s->node],
		};
	}
}

static int
make_tables(struct arena *arena, char *why, size_t why_size)
{
	uint64_t limit_pages = arena->options.limit_bytes / LAYOUT_PAGE_BYTES;
	/* Objects of 8 bytes everywhere at most, and as much again for blocks that are in use for one run. */
	uint64_t n_words = limit_pages * (LAYOUT_PAGE_BYTES / 8) * 2;
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
	r = make_table("slabd:ledger", ledger_bytes(arena_count_units(arena), arena->max_slabs, arena->words_bytes / sizeof(uint32_t)),
		&arena->ledger_fd, NULL, &map, &arena->ledger_bytes);
	if (r < 0)
		goto failed;
	arena->ledger = map;
	write_head(arena);
	ledger_point(arena);
	arena_point_units(arena);
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
arena_begin(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size)
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
	arena->options.limit_bytes = arena_rounds_to(options);
	snprintf(arena->name, sizeof arena->name, "%s", options->name);
	arena->options.name = arena->name;
	arena->fd = arena->fd_readonly = arena->words_fd = arena->words_fd_readonly = arena->ledger_fd = -1;
	arena->next_client = 1;
	pthread_mutex_init(&arena->ledger_lock, NULL);
	pthread_mutex_init(&arena->registry_lock, NULL);
	pthread_mutex_init(&arena->quota_lock, NULL);
	pthread_mutex_init(&arena->orphans_lock, NULL);
	readers_init(&arena->readers);
	cgroup_init(&arena->cgroup);
	/* Attaching and reaping must not starve behind refills. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&arena->sessions_lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	r = options->source ? topology_init_from(&arena->topology, options->source) : topology_init(&arena->topology);
	if (r < 0) {
		snprintf(why, why_size, "the machine's NUMA nodes could not be read: %s", strerror(-r));
		arena_free(arena);
		return r;
	}
	arena->recall_error = recall_probe();
	*arenap = arena;
	return 0;
}

int
arena_new(struct arena **arenap, const struct arena_options *options, char *why, size_t why_size)
{
	struct arena *arena;
	int r = arena_begin(&arena, options, why, why_size);

	if (r < 0)
		return r;
	r = check(&arena->options, arena->topology.n_nodes, why, why_size);
	if (r == 0)
		r = add_segments(arena, why, why_size);
	if (r == 0)
		r = make_tables(arena, why, why_size);
	if (r == 0)
		r = arena_commit_reserve(arena, why, why_size);
	if (r < 0) {
		arena_free(arena);
		return r;
	}
	show_arena(arena);
	arena->is_made = true;
	*arenap = arena;
	return 0;
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
	if (arena->repair)
		repair_cancel(arena->repair);
	free(arena->repair);
	for (unsigned id = 1; id < LAYOUT_MAX_CACHES; id++)
		if (arena->caches[id])
			cache_free(arena->caches[id]);
	for (unsigned i = 0; i < arena->n_segments; i++) {
		pages_deinit(&arena->segments[i].pages);
		deinit_thp(&arena->segments[i]);
		close(arena->segments[i].fd);
		close(arena->segments[i].fd_readonly);
	}
	close_table(arena->fd, arena->fd_readonly, arena->head, arena->bytes);
	close_table(arena->words_fd, arena->words_fd_readonly, arena->words, arena->words_bytes);
	close_table(arena->ledger_fd, -1, arena->ledger, arena->ledger_bytes);
	if (arena->words_runs.blocks)
		words_deinit(&arena->words_runs);
	topology_deinit(&arena->topology);
	free(arena->census);
	pthread_mutex_destroy(&arena->ledger_lock);
	pthread_mutex_destroy(&arena->registry_lock);
	pthread_mutex_destroy(&arena->quota_lock);
	pthread_mutex_destroy(&arena->orphans_lock);
	roots_deinit(&arena->roots);
	readers_deinit(&arena->readers);
	cgroup_deinit(&arena->cgroup);
	pthread_rwlock_destroy(&arena->sessions_lock);
	free(arena);
}

void
arena_get_access(struct arena *arena, struct access *access)
{
	pthread_rwlock_rdlock(&arena->sessions_lock);
	*access = arena->options.access;
	pthread_rwlock_unlock(&arena->sessions_lock);
}

void
arena_set_access(struct arena *arena, const struct arena_options *options)
{
	pthread_rwlock_wrlock(&arena->sessions_lock);
	arena->options.access = options->access;
	arena->options.max_sessions = options->max_sessions;
	arena->options.client_max = options->client_max;
	arena->options.client_min = options->client_min;
	arena->options.user_max = options->user_max;
	arena->options.is_node_strict = options->is_node_strict;
	arena->options.max_orphans = options->max_orphans;
	atomic_write(&arena->options.max_faults, options->max_faults);
	pthread_rwlock_unlock(&arena->sessions_lock);
	pthread_mutex_lock(&arena->registry_lock);
	arena->options.max_caches = options->max_caches;
	pthread_mutex_unlock(&arena->registry_lock);
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

uint32_t
arena_segment_of(const struct arena *arena, uint32_t page)
{
	uint32_t i = 0;

	while (i < arena->n_segments && page - arena->segments[i].first_page >= arena->segments[i].n_pages)
		i++;
	return i;
}

void
arena_pages_free(struct arena *arena, uint32_t page, unsigned order)
{
	struct arena_segment *s = &arena->segments[arena_segment_of(arena, page)];

	pages_free(&s->pages, page - s->first_page, order);
}

/* May the limit let such a run be?  Asked before the first of many units is committed; commit_unit() has the last word. */
static bool
has_room(struct arena_segment *s, uint32_t n_pages)
{
	struct pages_counters c;
	uint64_t missing;

	pages_count(&s->pages, &c);
	missing = n_pages > c.n_free ? (uint64_t)(n_pages - c.n_free) * LAYOUT_PAGE_BYTES : 0;
	return atomic_read(&s->arena->committed_bytes) + missing <= s->arena->options.limit_bytes;
}

int
arena_run_alloc(struct arena *arena, unsigned node, uint32_t n_pages, uint32_t *pagep)
{
	int worst = -ENOMEM;

	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct arena_segment *s = &arena->segments[i];
		uint32_t first;
		int r;

		if (s->node != node)
			continue;
		r = has_room(s, n_pages) ? pages_alloc_run(&s->pages, n_pages, &first) : -ENOSPC;
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
arena_run_free(struct arena *arena, uint32_t page, uint32_t n_pages)
{
	struct arena_segment *s = &arena->segments[arena_segment_of(arena, page)];

	pages_free_run(&s->pages, page - s->first_page, n_pages);
}

void
arena_trim(struct arena *arena)
{
	for (unsigned i = 0; i < arena->n_segments; i++) {
		struct arena_segment *s = &arena->segments[i];

		pages_trim(&s->pages);
		if (!atomic_read(&s->n_going) || !pages_try_hold(&s->pages))
			continue;
		arena_let_go(s);
		pages_let_go(&s->pages);
	}
}

bool
arena_has_thp(const struct arena *arena)
{
	for (unsigned i = 0; i < arena->n_segments; i++)
		if (arena->segments[i].is_thp)
			return true;
	return false;
}

/* The segment's lowest unit that waits, from `from` on.  BITSET_NONE: there is none, or units come or go just now. */
static uint32_t
collapse_next(struct arena_segment *s, uint32_t from)
{
	uint32_t unit;

	if (!pages_try_hold(&s->pages))
		return BITSET_NONE;
	unit = bitset_first(&s->waiting, from);
	if (unit != BITSET_NONE) {
		struct segment_extent extent = arena_extent(s, unit << s->unit_order, 1u << s->unit_order);

		bitset_clear(&s->waiting, unit);
		collapse_unit(s, &extent);
	}
	pages_let_go(&s->pages);
	return unit;
}

bool
arena_collapse(struct arena *arena, uint64_t max_ns)
{
	uint64_t until = clock_now_ns() + max_ns;

	for (unsigned i = 0; i < arena->n_segments; i++) {
		uint32_t unit = arena->segments[i].is_thp ? collapse_next(&arena->segments[i], 0) : BITSET_NONE;

		while (unit != BITSET_NONE) {
			if (clock_now_ns() >= until)
				return true;
			unit = collapse_next(&arena->segments[i], unit + 1);
		}
	}
	return false;
}

uint64_t
arena_kept_bytes(struct arena_segment *s)
{
	return (uint64_t)pages_kept(&s->pages) * LAYOUT_PAGE_BYTES;
}
