/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghost ledger, the comparing side: see ghost.h.
 *
 * The view reads slabd's arena segment and word table as the process's own session maps them, and believes neither slabd's counters nor the
 * library.  Of a stopped worker the lane is steady; of running ones nothing is read but the rings' heads and tails.
 */
#include "tests/ghost.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shm/sheaf.h"
#include "shm/word.h"

enum { MAX_SHOWN_FAILURES = 40, MARK_SHIFT = 2, MARK_RING = 0xff };

const char *const ghost_op_names[GHOST_OPS] = {"between calls", "open", "close", "alloc (bulk)", "alloc", "ref_of", "free (bulk)", "free",
	"between calls", "ref_of", "deref, valid, adopt own", "between calls", "adopt", "free of another's", "between calls"};

/* What a lane's note says of an object of it. */
enum fate { FATE_HELD, FATE_MAYBE, FATE_GONE };

void
ghost_fail(struct ghost_view *view, const char *format, ...)
{
	va_list args;

	if (++view->n_failures > MAX_SHOWN_FAILURES)
		return;
	printf("FAILED: ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* Where a process maps the memfd of that name; 0: nowhere. */
static uintptr_t
find_mapping(int pid, const char *name)
{
	char path[64], line[512];
	uintptr_t found = 0;
	FILE *maps;

	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	while (maps && !found && fgets(line, sizeof line, maps))
		if (strstr(line, name))
			found = strtoul(line, NULL, 16);
	if (maps)
		fclose(maps);
	return found;
}

static int
find_cache(struct ghost_view *view, uint32_t i, const char *name)
{
	for (uint32_t id = 1; id < LAYOUT_MAX_CACHES; id++) {
		if (view->caches[id].recip && strncmp(view->caches[id].name, name, sizeof view->caches[id].name) == 0) {
			view->cache[i] = id;
			return 0;
		}
	}
	ghost_fail(view, "the arena segment names no cache '%s'", name);
	return -1;
}

int
ghost_view_init(struct ghost_view *view, struct slabc *c, struct slabc_cache *const *k, const char *const *names)
{
	void *p = slabc_alloc(k[GHOST_KEPT]);
	slabc_ref ref = p ? slabc_ref_of(c, p) : 0;
	uintptr_t arena = find_mapping((int)getpid(), "/memfd:slabd:arena"), words = find_mapping((int)getpid(), "/memfd:slabd:words");

	*view = (struct ghost_view){.c = c, .client = slabc_client_id(c)};
	if (!arena || !words || !ref) {
		ghost_fail(view, "this process maps no arena, or cannot make a reference: %s", slabc_last_error());
		return -1;
	}
	view->arena = (const struct layout_arena *)arena;
	view->caches = (const struct layout_cache *)(arena + LAYOUT_ARENA_CACHES_OFF);
	view->pages = (const struct layout_page *)(arena + LAYOUT_ARENA_PAGES_OFF);
	view->words = (const uint32_t *)words;
	view->base = (char *)p - ((uint64_t)(uint32_t)ref << LAYOUT_PLACE_SHIFT);
	slabc_free(k[GHOST_KEPT], p);
	for (uint32_t i = 0; i < GHOST_CACHES; i++) {
		view->k[i] = k[i];
		if (find_cache(view, i, names[i]) < 0)
			return -1;
	}
	view->mark = malloc(((size_t)view->arena->n_pages << LAYOUT_PLACE_PAGE_SHIFT) >> MARK_SHIFT);
	return view->mark ? 0 : -1;
}

void
ghost_view_deinit(struct ghost_view *view)
{
	free(view->mark);
}

/* The word of the object at place, and which of the view's caches it is of; NULL: no object of them. */
static const uint32_t *
word_of(const struct ghost_view *view, uint32_t place, uint32_t *cachep)
{
	const struct layout_page *page = &view->pages[place >> LAYOUT_PLACE_PAGE_SHIFT];
	uint32_t recip, i = 0, id = atomic_read_acquire(&page->cache);
	uint64_t x;

	while (i < GHOST_CACHES && view->cache[i] != id)
		i++;
	if (i == GHOST_CACHES)
		return NULL;
	recip = view->caches[id].recip;
	x = (uint64_t)((place << LAYOUT_PLACE_SHIFT) & (LAYOUT_PAGE_BYTES - 1)) * recip + atomic_read_acquire(&page->prod);
	if ((uint32_t)x >= recip || x >> 32 >= view->arena->n_words)
		return NULL;
	if (cachep)
		*cachep = i;
	return &view->words[x >> 32];
}

/* The word at place; 0 if no object is there any more. */
static uint32_t
read_word(const struct ghost_view *view, uint32_t place)
{
	const uint32_t *word = word_of(view, place, NULL);

	return word ? atomic_read_acquire(word) : 0;
}

static slabc_ref
make_ref(const struct ghost_view *view, uint32_t place, uint32_t generation)
{
	uint32_t page = place >> LAYOUT_PLACE_PAGE_SHIFT, i = 0;

	while (i < view->arena->n_segments && page - view->arena->segments[i].first_page >= view->arena->segments[i].n_pages)
		i++;
	return (uint64_t)(i + 1) << 56 | (uint64_t)atomic_read_acquire(&view->pages[page].incarnation) << 48 | (uint64_t)generation << 32 |
	       place;
}

/* The word that a reference leads to, if it is still the same life of the object; else 0. */
static uint32_t
read_ref(const struct ghost_view *view, slabc_ref ref)
{
	uint32_t w = read_word(view, (uint32_t)ref);

	return make_ref(view, (uint32_t)ref, word_generation(w)) == ref ? w : 0;
}

static struct ghost_stamp
read_stamp(const struct ghost_view *view, uint32_t place)
{
	const struct ghost_stamp *stamp = (const struct ghost_stamp *)(view->base + ((uint64_t)place << LAYOUT_PLACE_SHIFT));

	return (struct ghost_stamp){.who = atomic_read(&stamp->who), .ref = atomic_read(&stamp->ref)};
}

static bool
has_cache(const struct ghost_view *view, uint32_t id)
{
	for (uint32_t i = 0; id && i < GHOST_CACHES; i++)
		if (view->cache[i] == id)
			return true;
	return false;
}

/* Every object of the caches that a word stands for. */
static void
walk_objects(const struct ghost_view *view, void (*visit)(void *ctx, uint32_t cache, uint32_t place, uint32_t w), void *ctx)
{
	for (uint32_t page = 0; page < view->arena->n_pages; page++) {
		uint32_t id = atomic_read_acquire(&view->pages[page].cache), cache = 0, off = 0, bytes;

		if (!has_cache(view, id))
			continue;
		bytes = view->caches[id].object_bytes;
		while (off < LAYOUT_PAGE_BYTES && !word_of(view, (page << LAYOUT_PLACE_PAGE_SHIFT) + (off >> LAYOUT_PLACE_SHIFT), &cache))
			off += 1u << LAYOUT_PLACE_SHIFT;
		for (; off < LAYOUT_PAGE_BYTES; off += bytes) {
			uint32_t place = (page << LAYOUT_PLACE_PAGE_SHIFT) + (off >> LAYOUT_PLACE_SHIFT);
			uint32_t last = page + ((off + bytes - 1) >> LAYOUT_PAGE_SHIFT);

			/* What is left over at the end of a slab is no object. */
			if (last >= view->arena->n_pages || view->pages[last].slab != view->pages[page].slab ||
				view->pages[last].cache != id)
				break;
			visit(ctx, cache, place, read_word(view, place));
		}
	}
}

/* The stopped victim */

static bool
read_from(int pid, void *to, uintptr_t from, size_t n)
{
	struct iovec local = {.iov_base = to, .iov_len = n};
	struct iovec remote = {.iov_base = (void *)from, .iov_len = n};

	return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static void
look_into_sheaf(const struct ghost_view *view, int pid, uintptr_t address, uint32_t client, struct ghost_death *death)
{
	uint32_t entries[LAYOUT_MAX_SHEAF];
	struct sheaf sheaf;

	if (!read_from(pid, &sheaf, address, sizeof sheaf) || sheaf.size == 0 || sheaf.size > LAYOUT_MAX_SHEAF ||
		!read_from(pid, entries, address + sizeof sheaf, sheaf.size * sizeof entries[0]))
		return;
	death->n_unsettled += sheaf.busy & SHEAF_UNSETTLED ? sheaf.size : 0;
	for (uint32_t i = 0; i < sheaf.size; i++)
		death->n_named_in_sheaf += word_owner(read_word(view, entries[i])) == client;
}

struct look {
	uint32_t client;
	struct ghost_death *death;
};

static void
look_at_word(void *ctx, uint32_t cache, uint32_t place, uint32_t w)
{
	struct look *look = ctx;

	(void)cache;
	(void)place;
	look->death->n_closing += word_owner(w) == look->client && word_state(w) == WORD_CLOSING;
}

void
ghost_look(const struct ghost_view *view, int pid, uint32_t client, struct ghost_death *death)
{
	static struct layout_slot slots[LAYOUT_MAX_SLOTS];
	uintptr_t session = find_mapping(pid, "/memfd:slabd:session");
	struct look look = {.client = client % GHOST_SLOTS, .death = death};
	struct layout_session head;

	*death = (struct ghost_death){0};
	if (!session || !read_from(pid, &head, session, sizeof head) || head.n_slots > LAYOUT_MAX_SLOTS || head.client != look.client ||
		!read_from(pid, slots, session + LAYOUT_SESSION_SLOTS_OFF, head.n_slots * sizeof slots[0]))
		return;
	death->has_session = true;
	for (uint32_t i = 0; i < head.n_slots; i++)
		if (slots[i].holder != LAYOUT_HOLDER_SLABD)
			look_into_sheaf(view, pid, session + (uintptr_t)slots[i].off * LAYOUT_SLOT_UNIT, look.client, death);
	walk_objects(view, look_at_word, &look);
}

static enum fate
fate_of(const struct ghost *ghost, const struct ghost_note *note, uint32_t progress, uint32_t cache, uint32_t i)
{
	if (note->op == GHOST_CLOSE && ghost_is_reclaimed(cache))
		return FATE_MAYBE;
	if (note->cache != cache || i < note->first || i >= note->first + note->n)
		return FATE_HELD;
	switch (note->op) {
	case GHOST_FREE:
		return FATE_MAYBE;
	case GHOST_FREE_EACH:
		return i - note->first < progress ? FATE_GONE : i - note->first == progress ? FATE_MAYBE : FATE_HELD;
	case GHOST_GAP:
		return FATE_GONE;
	case GHOST_PASS:
		return ghost->ring[note->from][note->to].head == note->at ? FATE_HELD : FATE_GONE;
	default:
		return FATE_HELD;
	}
}

/* Entries of held[] that a stopped lane may mean. */
static uint32_t
n_entries(const struct ghost_note *note, uint32_t cache)
{
	return note->n_held[cache] + (note->op == GHOST_ALLOC_EACH && note->cache == cache ? note->n : 0);
}

/* Is the stamp to be there already? */
static bool
is_stamped(const struct ghost_note *note, uint32_t cache, uint32_t i)
{
	return i < note->n_held[cache] && !(note->op == GHOST_STAMP && note->cache == cache && i >= note->first);
}

/* An object that a lane holds for certain; false: it does not. */
static bool
check_held(struct ghost_view *view, uint32_t lane, uint32_t client, const char *doing, uint32_t place, bool has_stamp)
{
	uint32_t w = read_word(view, place);
	struct ghost_stamp stamp;

	if (word_owner(w) != client % GHOST_SLOTS || word_state(w) == WORD_CLOSING) {
		ghost_fail(view, "lane %u, client %u (in %s): object at place %u is held, and its word is %08x", lane, client, doing, place,
			w);
		return false;
	}
	if (!has_stamp)
		return true;
	stamp = read_stamp(view, place);
	if (stamp.who != ghost_who(client, place) || (stamp.ref && stamp.ref != make_ref(view, place, word_generation(w)))) {
		ghost_fail(view, "lane %u, client %u: object at place %u, word %08x, has the stamp %016llx %016llx of somebody else", lane,
			client, place, w, (unsigned long long)stamp.who, (unsigned long long)stamp.ref);
		return false;
	}
	return true;
}

void
ghost_snapshot(struct ghost_view *view, const struct ghost *ghost, uint32_t lane, struct ghost_snapshot *snapshot)
{
	const struct ghost_lane *l = &ghost->lane[lane];

	snapshot->note = *ghost_now(l);
	snapshot->progress = l->progress;
	snapshot->client = snapshot->note.op == GHOST_OPEN ? 0 : l->client;
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++) {
		snapshot->n[cache] = snapshot->n_freed[cache] = 0;
		for (uint32_t i = 0; i < n_entries(&snapshot->note, cache); i++) {
			enum fate fate = fate_of(ghost, &snapshot->note, snapshot->progress, cache, i);
			uint32_t n = snapshot->n[cache], place = ghost_place(l, l->held[cache][i]), w;
			bool has_stamp = is_stamped(&snapshot->note, cache, i);

			if (!l->held[cache][i])
				continue;
			w = read_word(view, place);
			/* What GAP and PASS say is gone is in the note's numbers, or in the ring. */
			if (fate == FATE_GONE || (fate == FATE_MAYBE && word_owner(w) != l->client % GHOST_SLOTS)) {
				snapshot->n_freed[cache] += fate == FATE_MAYBE || snapshot->note.op == GHOST_FREE_EACH;
				continue;
			}
			if (fate == FATE_HELD)
				check_held(view, lane, l->client, ghost_op_names[snapshot->note.op], place, has_stamp);
			snapshot->object[cache][n].place = place;
			snapshot->object[cache][n].generation = word_generation(w);
			snapshot->object[cache][n].ref = make_ref(view, place, word_generation(w));
			snapshot->object[cache][n].who = fate == FATE_HELD && has_stamp ? ghost_who(l->client, place) : 0;
			snapshot->object[cache][n].may_be_gone = fate == FATE_MAYBE;
			snapshot->n[cache]++;
		}
	}
}

/* The dead */

/* Takes what a dead client left: it must resolve, be adoptable, and be gone once freed. */
static void
take_orphan(struct ghost_view *view, uint32_t lane, uint32_t cache, slabc_ref ref, uint64_t who)
{
	void *p = slabc_deref(view->c, ref);

	if (!p || slabc_adopt(view->c, ref) != p) {
		ghost_fail(view, "lane %u: its orphan %016llx, word %08x, cannot be %s: %s", lane, (unsigned long long)ref,
			read_word(view, (uint32_t)ref), p ? "adopted" : "resolved", slabc_last_error());
		return;
	}
	if (who && read_stamp(view, (uint32_t)ref).who != who)
		ghost_fail(view, "lane %u: its orphan %016llx has the stamp %016llx", lane, (unsigned long long)ref,
			(unsigned long long)read_stamp(view, (uint32_t)ref).who);
	errno = 0;
	slabc_free(view->k[cache], p);
	if (errno)
		ghost_fail(view, "lane %u: its orphan %016llx cannot be freed: %s", lane, (unsigned long long)ref, slabc_last_error());
	errno = 0;
	if (slabc_adopt(view->c, ref) || errno != ESTALE)
		ghost_fail(view, "lane %u: its orphan %016llx could be adopted after it was freed", lane, (unsigned long long)ref);
}

static void
settle_kept(struct ghost_view *view, uint32_t lane, const struct ghost_snapshot *s, uint32_t i, struct ghost_sums *sums)
{
	uint32_t place = s->object[GHOST_KEPT][i].place, w = read_word(view, place), owner = word_owner(w);
	bool is_named = owner == s->client % GHOST_SLOTS;

	if (is_named && (word_state(w) != WORD_SHARED || word_generation(w) != s->object[GHOST_KEPT][i].generation)) {
		ghost_fail(view, "lane %u: object at place %u of the dead client %u has the word %08x", lane, place, s->client, w);
	} else if (is_named) {
		take_orphan(view, lane, GHOST_KEPT, s->object[GHOST_KEPT][i].ref, s->object[GHOST_KEPT][i].who);
		sums->n_adopted[GHOST_KEPT]++;
	} else if (s->object[GHOST_KEPT][i].may_be_gone) {
		sums->n_freed[GHOST_KEPT]++;
	} else {
		ghost_fail(view, "lane %u: object at place %u, held by client %u when it died, was not kept: word %08x", lane, place,
			s->client, w);
	}
}

static void
settle_reclaim(struct ghost_view *view, uint32_t lane, const struct ghost_snapshot *s, uint32_t cache, uint32_t i, struct ghost_sums *sums)
{
	uint32_t place = s->object[cache][i].place, w = read_word(view, place);

	errno = 0;
	if (word_owner(w) == s->client % GHOST_SLOTS)
		ghost_fail(view, "lane %u: object at place %u still names the dead client %u: word %08x", lane, place, s->client, w);
	else if (slabc_deref(view->c, s->object[cache][i].ref) || errno != ESTALE)
		ghost_fail(view, "lane %u: the reference %016llx of an object of the dead client %u resolves", lane,
			(unsigned long long)s->object[cache][i].ref, s->client);
	sums->n_gone[cache]++;
}

/* What the dead was in the midst of taking from a ring. */
static void
settle_item(struct ghost_view *view, const struct ghost *ghost, const struct ghost_snapshot *s, const struct ghost_item *item,
	struct ghost_sums *sums)
{
	bool is_adopt = s->note.op == GHOST_ADOPT;
	uint32_t w = read_ref(view, item->ref), owner = word_owner(w);
	int r;

	if (!word_is_live(w)) {
		if (is_adopt && item->cache == GHOST_KEPT)
			ghost_fail(view, "ring %u to %u: object %016llx of client %u is gone; client %u was adopting it", s->note.from,
				s->note.to, (unsigned long long)item->ref, item->sender, s->client);
		*(is_adopt ? &sums->n_gone[item->cache] : &sums->n_freed[item->cache]) += 1;
		return;
	}
	if (owner != item->sender % GHOST_SLOTS && owner != WORD_ORPHAN &&
		!(is_adopt && item->cache == GHOST_KEPT && owner == s->client % GHOST_SLOTS))
		ghost_fail(view, "ring %u to %u: object %016llx of client %u is named by %u after the death of client %u", s->note.from,
			s->note.to, (unsigned long long)item->ref, item->sender, owner, s->client);
	r = slabc_free_ref(view->c, item->ref);
	if (r == 0) {
		sums->n_adopted[item->cache]++;
	} else {
		if (r != -ESTALE || item->cache == GHOST_KEPT || !ghost_has_ended(ghost, item->sender))
			ghost_fail(view, "ring %u to %u: object %016llx of client %u cannot be freed by reference: %s", s->note.from,
				s->note.to, (unsigned long long)item->ref, item->sender, slabc_last_error());
		sums->n_gone[item->cache]++;
	}
}

struct leftovers {
	struct ghost_view *view;
	uint32_t client;
	uint32_t n[GHOST_CACHES];
	struct {
		uint32_t place, w;
	} object[GHOST_CACHES][GHOST_MAX_BATCH];
};

static void
find_leftover(void *ctx, uint32_t cache, uint32_t place, uint32_t w)
{
	struct leftovers *left = ctx;

	if (word_owner(w) != left->client || (cache == GHOST_KEPT && left->view->mark[place >> MARK_SHIFT]))
		return;
	if (left->n[cache] < GHOST_MAX_BATCH) {
		left->object[cache][left->n[cache]].place = place;
		left->object[cache][left->n[cache]].w = w;
	}
	left->n[cache]++;
}

/* Objects that a lane may have got in the call under way, without knowing. */
static uint32_t
n_unknown_allowed(const struct ghost_note *note)
{
	return note->op == GHOST_ALLOC ? note->n : note->op == GHOST_ALLOC_EACH ? 1 : 0;
}

/* Of the lane's late frees the i-th last; false: it has taken effect. */
static bool
is_late(const struct ghost_view *view, const struct ghost_lane *l, uint32_t i, slabc_ref *refp)
{
	uint32_t n = ghost_now(l)->n_late;

	if (i >= n)
		return false;
	*refp = l->late[(n - 1 - i) % GHOST_MAX_LATE];
	return word_is_live(read_ref(view, *refp));
}

/* What the dead had freed, claimed or not, is gone. */
static void
settle_late(struct ghost_view *view, const struct ghost *ghost, uint32_t lane, const struct ghost_snapshot *s)
{
	slabc_ref ref;

	for (uint32_t i = 0; i < GHOST_MAX_LATE; i++)
		if (is_late(view, &ghost->lane[lane], i, &ref))
			ghost_fail(view, "lane %u: object %016llx, word %08x, was freed by client %u before it died, and is still there", lane,
				(unsigned long long)ref, read_ref(view, ref), s->client);
}

/* Words that still name the dead: those in the rings, what others freed and have not claimed, and what an allocation had just named. */
static void
settle_leftovers(struct ghost_view *view, const struct ghost *ghost, uint32_t lane, const struct ghost_snapshot *s, struct ghost_sums *sums)
{
	struct leftovers left = {.view = view, .client = s->client % GHOST_SLOTS};
	uint32_t allowed = n_unknown_allowed(&s->note);
	slabc_ref ref;

	if (s->client == 0)
		return;
	memset(view->mark, 0, ((size_t)view->arena->n_pages << LAYOUT_PLACE_PAGE_SHIFT) >> MARK_SHIFT);
	for (uint32_t from = 0; from < ghost->n_lanes; from++) {
		for (uint32_t to = 0; to < ghost->n_lanes; to++) {
			const struct ghost_ring *ring = &ghost->ring[from][to];
			uint32_t head = atomic_read_acquire(&ring->head);

			for (uint32_t i = atomic_read_acquire(&ring->tail); i - head > GHOST_RING_ROOM; i++)
				view->mark[(uint32_t)ring->item[i % GHOST_RING_ROOM].ref >> MARK_SHIFT] = MARK_RING;
		}
	}
	/* After the rings: what leaves one by then is here. */
	for (uint32_t other = 0; other < ghost->n_lanes; other++)
		for (uint32_t i = 0; i < GHOST_MAX_LATE; i++)
			if (is_late(view, &ghost->lane[other], i, &ref))
				view->mark[(uint32_t)ref >> MARK_SHIFT] = MARK_RING;
	walk_objects(view, find_leftover, &left);
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++)
		if (ghost_is_reclaimed(cache) && left.n[cache])
			ghost_fail(view,
				"lane %u: %u objects to be reclaimed still name the dead client %u; the first at place %u, word %08x", lane,
				left.n[cache], s->client, left.object[cache][0].place, left.object[cache][0].w);
	if (left.n[GHOST_KEPT] > (s->note.cache == GHOST_KEPT ? allowed : 0))
		ghost_fail(view, "lane %u: %u objects name the dead client %u and it never had them; the first at place %u, word %08x",
			lane, left.n[GHOST_KEPT], s->client, left.object[GHOST_KEPT][0].place, left.object[GHOST_KEPT][0].w);
	for (uint32_t i = 0; i < left.n[GHOST_KEPT] && i < GHOST_MAX_BATCH; i++) {
		take_orphan(view, lane, GHOST_KEPT,
			make_ref(view, left.object[GHOST_KEPT][i].place, word_generation(left.object[GHOST_KEPT][i].w)), 0);
		sums->n_allocated[GHOST_KEPT]++;
		sums->n_adopted[GHOST_KEPT]++;
	}
}

void
ghost_settle(struct ghost_view *view, struct ghost *ghost, uint32_t lane, const struct ghost_snapshot *s, struct ghost_sums *sums)
{
	struct ghost_ring *ring = &ghost->ring[s->note.from][s->note.to];
	bool is_taking = s->note.op == GHOST_ADOPT || s->note.op == GHOST_CONSUME;

	for (uint32_t i = 0; i < s->n[GHOST_KEPT]; i++)
		settle_kept(view, lane, s, i, sums);
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++)
		for (uint32_t i = 0; ghost_is_reclaimed(cache) && i < s->n[cache]; i++)
			settle_reclaim(view, lane, s, cache, i, sums);
	/* Objects that ALLOC_EACH had recorded, but not yet counted. */
	for (uint32_t cache = 0; cache < GHOST_CACHES; cache++) {
		for (uint32_t i = s->note.n_held[cache]; i < n_entries(&s->note, cache); i++)
			sums->n_allocated[cache] += ghost->lane[lane].held[cache][i] != NULL;
		sums->n_freed[cache] += s->n_freed[cache];
		sums->n_compared += s->n[cache];
	}
	if (is_taking && atomic_read(&ring->tail) != s->note.at)
		ghost_fail(view, "lane %u: the ring's tail is %u, its note says %u", lane, atomic_read(&ring->tail), s->note.at);
	for (uint32_t i = 0; is_taking && i < s->note.n; i++)
		settle_item(view, ghost, s, &ring->item[(s->note.at + i) % GHOST_RING_ROOM], sums);
	if (is_taking || s->note.op == GHOST_TAKEN)
		atomic_write_release(&ring->tail, s->note.at + s->note.n);
	settle_late(view, ghost, lane, s);
	settle_leftovers(view, ghost, lane, s, sums);
}

/* The world stopped */

static void
mark(struct ghost_view *view, uint32_t place, uint8_t who)
{
	uint8_t *m = &view->mark[place >> MARK_SHIFT];

	if (*m)
		ghost_fail(view, "object at place %u, word %08x, is with two: lane %d and lane %d (-1: a ring)", place,
			read_word(view, place), *m == MARK_RING ? -1 : *m - 1, who == MARK_RING ? -1 : who - 1);
	*m = who;
}

static void
compare_lane(struct ghost_view *view, const struct ghost *ghost, uint32_t lane, struct ghost_sums *sums)
{
	const struct ghost_lane *l = &ghost->lane[lane];
	const struct ghost_note *note = ghost_now(l);

	for (uint32_t cache = 0; note->op != GHOST_OPEN && cache < GHOST_CACHES; cache++) {
		for (uint32_t i = 0; i < n_entries(note, cache); i++) {
			enum fate fate = fate_of(ghost, note, l->progress, cache, i);
			uint32_t place = ghost_place(l, l->held[cache][i]);

			if (!l->held[cache][i] || fate == FATE_GONE)
				continue;
			if (fate == FATE_MAYBE && word_owner(read_word(view, place)) != l->client % GHOST_SLOTS)
				continue;
			if (fate == FATE_HELD)
				check_held(view, lane, l->client, ghost_op_names[note->op], place, is_stamped(note, cache, i));
			mark(view, place, (uint8_t)(lane + 1));
			sums->n_compared++;
		}
	}
}

/* Has slabd had its time to reap it? All workers are stopped, and what they closed has ended; but one may be in the call. */
static bool
is_reaped(const struct ghost *ghost, uint32_t client)
{
	for (uint32_t lane = 0; lane < ghost->n_lanes; lane++)
		if (ghost->lane[lane].client == client && ghost_now(&ghost->lane[lane])->op != GHOST_OPEN)
			return false;
	return ghost_has_ended(ghost, client);
}

static void
compare_item(struct ghost_view *view, const struct ghost *ghost, const struct ghost_item *item, const struct ghost_note *consumer,
	uint32_t consumer_client)
{
	uint32_t w = read_ref(view, item->ref), owner = word_owner(w), place = (uint32_t)item->ref;
	struct ghost_stamp stamp;

	if (consumer && consumer->op == GHOST_CONSUME && (owner == 0 || word_state(w) == WORD_CLOSING)) {
		if (owner && owner != consumer_client % GHOST_SLOTS)
			ghost_fail(view, "object %016llx, word %08x, is being freed by somebody else than client %u",
				(unsigned long long)item->ref, w, consumer_client);
		if (owner)
			mark(view, place, MARK_RING);
		return;
	}
	if (!word_is_live(w)) {
		if (item->cache == GHOST_KEPT || !ghost_has_ended(ghost, item->sender))
			ghost_fail(view, "object %016llx, passed on by client %u, is lost: word %08x", (unsigned long long)item->ref,
				item->sender, read_word(view, place));
		return;
	}
	mark(view, place, MARK_RING);
	if (ghost_is_reclaimed(item->cache) && owner == item->sender % GHOST_SLOTS && is_reaped(ghost, item->sender))
		ghost_fail(view, "object %016llx, passed on by client %u, which is dead, was not reclaimed: word %08x",
			(unsigned long long)item->ref, item->sender, w);
	if (owner != item->sender % GHOST_SLOTS && owner != WORD_ORPHAN && !(consumer && owner == consumer_client % GHOST_SLOTS))
		ghost_fail(
			view, "object %016llx, passed on by client %u, has the word %08x", (unsigned long long)item->ref, item->sender, w);
	stamp = read_stamp(view, place);
	if (!consumer && (stamp.who != ghost_who(item->sender, place) || stamp.ref != item->ref))
		ghost_fail(view, "object %016llx, passed on by client %u, has the stamp %016llx %016llx", (unsigned long long)item->ref,
			item->sender, (unsigned long long)stamp.who, (unsigned long long)stamp.ref);
}

static void
compare_ring(struct ghost_view *view, const struct ghost *ghost, uint32_t from, uint32_t to, struct ghost_sums *sums)
{
	const struct ghost_ring *ring = &ghost->ring[from][to];
	const struct ghost_note *note = ghost_now(&ghost->lane[to]);
	bool is_here = note->from == from && note->to == to;
	uint32_t i = ring->tail;

	if (is_here && note->op == GHOST_TAKEN)
		i = note->at + note->n;
	for (; i != ring->head; i++) {
		bool is_taking = is_here && (note->op == GHOST_ADOPT || note->op == GHOST_CONSUME) && i - note->at < note->n;

		compare_item(view, ghost, &ring->item[i % GHOST_RING_ROOM], is_taking ? note : NULL, ghost->lane[to].client);
		sums->n_compared++;
	}
}

struct compare {
	struct ghost_view *view;
	const struct ghost *ghost;
	uint32_t n_unknown[GHOST_MAX_LANES];
};

static void
compare_word(void *ctx, uint32_t cache, uint32_t place, uint32_t w)
{
	struct compare *compare = ctx;
	const struct ghost *ghost = compare->ghost;
	uint8_t m = compare->view->mark[place >> MARK_SHIFT];
	uint32_t lane = 0, owner = word_owner(w);

	(void)cache;
	if (owner == 0)
		return;
	while (lane < ghost->n_lanes &&
		(ghost->lane[lane].client % GHOST_SLOTS != owner || ghost_now(&ghost->lane[lane])->op == GHOST_OPEN))
		lane++;
	if (m == MARK_RING || (lane < ghost->n_lanes && m == lane + 1))
		return;
	if (lane == ghost->n_lanes)
		ghost_fail(compare->view, "object at place %u names client slot %u, which is %s, and no lane and no ring has it: word %08x",
			place, owner, owner == compare->view->client % GHOST_SLOTS ? "this process" : "dead", w);
	else if (m)
		ghost_fail(compare->view, "object at place %u of lane %d names lane %u: word %08x", place, m - 1, lane, w);
	else if (++compare->n_unknown[lane] > n_unknown_allowed(ghost_now(&ghost->lane[lane])))
		ghost_fail(compare->view, "object at place %u names lane %u, client %u (in %s), which does not have it: word %08x", place,
			lane, ghost->lane[lane].client, ghost_op_names[ghost_now(&ghost->lane[lane])->op], w);
}

void
ghost_compare(struct ghost_view *view, const struct ghost *ghost, struct ghost_sums *sums)
{
	struct compare compare = {.view = view, .ghost = ghost};
	slabc_ref ref;

	memset(view->mark, 0, ((size_t)view->arena->n_pages << LAYOUT_PLACE_PAGE_SHIFT) >> MARK_SHIFT);
	for (uint32_t lane = 0; lane < ghost->n_lanes; lane++)
		compare_lane(view, ghost, lane, sums);
	for (uint32_t from = 0; from < ghost->n_lanes; from++)
		for (uint32_t to = 0; to < ghost->n_lanes; to++)
			compare_ring(view, ghost, from, to, sums);
	/* Freed, and nobody else has it. */
	for (uint32_t lane = 0; lane < ghost->n_lanes; lane++)
		for (uint32_t i = 0; i < GHOST_MAX_LATE; i++)
			if (is_late(view, &ghost->lane[lane], i, &ref))
				mark(view, (uint32_t)ref, MARK_RING);
	walk_objects(view, compare_word, &compare);
}

static void
count_word(void *ctx, uint32_t cache, uint32_t place, uint32_t w)
{
	uint64_t *n_namedp = ctx;

	(void)cache;
	(void)place;
	*n_namedp += word_owner(w) != 0;
}

uint64_t
ghost_count_named(const struct ghost_view *view)
{
	uint64_t n_named = 0;

	walk_objects(view, count_word, &n_named);
	return n_named;
}
