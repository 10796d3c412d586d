/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Debug caches: who writes where he may not, and who had the object.
 *
 * What lies around an object, shm/debug.h draws.  An object that was popped is made new by debug_allocated(): if its seal says that it was freed by
 * this library, its red zones and its poison must be whole.  A free looks at the red zones before it closes the word (debug_check()), and fills the
 * object with poison while the word is closed and the object in no sheaf (debug_freed()).  So only who holds an object writes its red zones, its
 * record and its poison, and each is whole before the seal says so: a kill in between leaves an object that is not looked at, but for one that was
 * carved and never allocated before.  What the dead held slabd frees without touching it: its seal says "in use", and its bytes may be any.
 *
 * Everything here may have been written by any client of the arena: it is compared and copied, and leads nowhere.  A fault that was told is put right,
 * so that it is told once.
 *
 * Call sites are words, made where they happen: addresses mean nothing to another process, and a dead one cannot be asked.  A frame's words are kept
 * by its address, in a table that only grows; signal handlers that find their thread inside the library may come by, so it has no lock.
 */
#include "client/internal.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/debug.h"

enum {
	MAX_FRAMES = 8,
	MAX_OWN_FRAMES = 8, /* of this library, which are left out */
	N_FRAMES = 4096,
	FRAME_TEXT_BYTES = 56,
	MAX_PROBES = 16,
};

enum { FRAME_NONE = 0, FRAME_WRITING = 1 };

/* What an address is called. text "": it is this library's. */
struct frame {
	uint64_t pc; /* or FRAME_ */
	char text[FRAME_TEXT_BYTES];
};

static struct frame *frames; /* set once */

/* What is wrong around an object, or in it. */
struct damage {
	enum fault fault;
	int32_t off; /* of the first byte, from the object's */
	uint8_t byte;
};

static void
prepare(void)
{
	struct frame *made, *none = NULL;
	void *pc[1];

	if (atomic_read(&frames))
		return;
	backtrace(pc, 1); /* its first call loads a library */
	made = mmap(NULL, N_FRAMES * sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* Without it names are looked up each time. */
	if (made != MAP_FAILED && !atomic_cas(&frames, &none, made))
		munmap(made, N_FRAMES * sizeof(*made));
}

bool
debug_init(struct slabc_cache *k, uint32_t object_size, uint32_t object_bytes)
{
	if (object_size == 0 || object_size > LAYOUT_MAX_OBJECT_BYTES || object_bytes > LAYOUT_MAX_SLOT_BYTES ||
		object_bytes < object_size + DEBUG_ZONE_BYTES / 2 + debug_record_bytes(k->debug) + DEBUG_ZONE_BYTES)
		return false;
	k->v.object_bytes = object_size;
	prepare();
	return true;
}

/* Call sites */

/* Is it in the same module as this file, and that one the library?  Where it is linked into the program, its frames are named as others are. */
static bool
is_own(const Dl_info *info)
{
	static const char here;
	Dl_info own;

	return dladdr(&here, &own) && own.dli_fbase == info->dli_fbase && strstr(own.dli_fname, "libslabclient");
}

/* Of a return address: what it is called, in room bytes. */
static void
name_frame(const void *pc, char *text, size_t room)
{
	const char *call = (const char *)pc - 1, *file;
	Dl_info info;

	if (!dladdr(call, &info)) {
		snprintf(text, room, "%p", pc);
	} else if (is_own(&info)) {
		*text = '\0';
	} else if (info.dli_sname) {
		snprintf(text, room, "%.40s+0x%zx", info.dli_sname, (size_t)((const char *)pc - (const char *)info.dli_saddr));
	} else {
		file = strrchr(info.dli_fname, '/');
		snprintf(text, room, "%.32s+0x%zx", file ? file + 1 : info.dli_fname, (size_t)((const char *)pc - (const char *)info.dli_fbase));
	}
}

static void
find_frame(const void *pc, char *text)
{
	uint64_t key = (uint64_t)(uintptr_t)pc, h = key * UINT64_C(0x9e3779b97f4a7c15) >> 40;
	struct frame *table = atomic_read(&frames);

	for (uint32_t i = 0; table && i < MAX_PROBES; i++) {
		struct frame *f = &table[(h + i) % N_FRAMES];
		/* order: FRAME acquire - its text is whole */
		uint64_t there = atomic_read_acquire(&f->pc), none = FRAME_NONE;

		if (there == key) {
			memcpy(text, f->text, sizeof(f->text));
			return;
		}
		if (there != FRAME_NONE || !atomic_cas(&f->pc, &none, (uint64_t)FRAME_WRITING))
			continue;
		name_frame(pc, f->text, sizeof(f->text));
		memcpy(text, f->text, sizeof(f->text));
		/* order: FRAME release - pairs with the look above */
		atomic_write_release(&f->pc, key);
		return;
	}
	name_frame(pc, text, FRAME_TEXT_BYTES);
}

/* Where the program called the library, innermost first.  A sanitizer's backtrace() is a frame above ours: nothing counts before the first of those. */
static void
make_site(char *site)
{
	void *pc[MAX_FRAMES + MAX_OWN_FRAMES];
	int n = backtrace(pc, MAX_FRAMES + MAX_OWN_FRAMES), first = 0, n_named = 0;
	char text[FRAME_TEXT_BYTES];
	size_t used = 0;

	memset(site, 0, LAYOUT_SITE_BYTES);
	for (int i = n - 1; i >= 0; i--) {
		find_frame(pc[i], text);
		first = *text ? first : i;
	}
	for (int i = first; i < n && n_named < MAX_FRAMES; i++) {
		size_t length;

		find_frame(pc[i], text);
		length = strlen(text);
		if (length == 0)
			continue;
		/* Whole frames only. */
		if (used + length + 3 >= LAYOUT_SITE_BYTES)
			break;
		used += (size_t)sprintf(site + used, "%s%s", n_named++ ? " < " : "", text);
	}
}

static void
make_track(const struct slabc_cache *k, struct layout_track *track)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	track->client = k->c->id;
	track->tid = (uint32_t)syscall(SYS_gettid);
	track->time_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	make_site(track->site);
}

/* Objects and what lies around them */

static char *
address(const struct slabc_cache *k, uint32_t place)
{
	return k->v.base + ((uint64_t)place << LAYOUT_PLACE_SHIFT);
}

static uint32_t
place_of(const struct slabc_cache *k, const void *p)
{
	return (uint32_t)((uint64_t)((const char *)p - k->v.base) >> LAYOUT_PLACE_SHIFT);
}

static uint32_t
record_off(const struct slabc_cache *k)
{
	return debug_record_off(k->slot_bytes, k->debug);
}

static struct layout_record *
record_at(const struct slabc_cache *k, char *p)
{
	return (struct layout_record *)(void *)(p + record_off(k));
}

static uint64_t
seal(const struct slabc_cache *k, uint32_t place, bool is_free)
{
	const struct layout_page *page = &k->v.pages[place >> LAYOUT_PLACE_PAGE_SHIFT];

	return debug_seal(place, k->v.cache, k->slot_bytes, atomic_read(&page->incarnation), is_free);
}

/* The first of n bytes at p + off that is not as it should be; the fault in *damage if there is one. */
static bool
compare(const char *p, int32_t off, uint32_t n, uint8_t expected, enum fault fault, struct damage *damage)
{
	const uint8_t *at = (const uint8_t *)p + off;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t byte = atomic_read(&at[i]);

		if (byte == expected)
			continue;
		*damage = (struct damage){.fault = fault, .off = off + (int32_t)i, .byte = byte};
		return true;
	}
	return false;
}

static bool
look_at_zones(const struct slabc_cache *k, const char *p, struct damage *damage)
{
	uint32_t size = k->v.object_bytes;

	return k->debug & LAYOUT_CACHE_RED_ZONE &&
	       (compare(p, (int32_t)size, record_off(k) - size, DEBUG_ZONE, FAULT_OVERRUN, damage) ||
		       compare(p, -DEBUG_ZONE_BYTES, DEBUG_ZONE_BYTES, DEBUG_ZONE, FAULT_UNDERRUN, damage));
}

static bool
look_at_poison(const struct slabc_cache *k, const char *p, struct damage *damage)
{
	uint32_t size = k->v.object_bytes;

	return k->debug & LAYOUT_CACHE_POISON && (compare(p, 0, size - 1, DEBUG_POISON_FREE, FAULT_AFTER_FREE, damage) ||
							 compare(p, (int32_t)size - 1, 1, DEBUG_POISON_END, FAULT_AFTER_FREE, damage));
}

static void
fill_zones(const struct slabc_cache *k, char *p)
{
	uint32_t size = k->v.object_bytes;

	if (!(k->debug & LAYOUT_CACHE_RED_ZONE))
		return;
	memset(p + size, DEBUG_ZONE, record_off(k) - size);
	memset(p - DEBUG_ZONE_BYTES, DEBUG_ZONE, DEBUG_ZONE_BYTES);
}

static void
fill_poison(const struct slabc_cache *k, char *p)
{
	if (!(k->debug & LAYOUT_CACHE_POISON))
		return;
	memset(p, DEBUG_POISON_FREE, k->v.object_bytes - 1);
	p[k->v.object_bytes - 1] = (char)DEBUG_POISON_END;
}

/* Telling */

__attribute__((format(printf, 4, 5))) static size_t
add(char *text, size_t room, size_t used, const char *format, ...)
{
	va_list args;
	int n;

	if (used >= room)
		return used;
	va_start(args, format);
	n = vsnprintf(text + used, room - used, format, args);
	va_end(args);
	return n < 0 ? used : used + (size_t)n;
}

static size_t
add_track(char *text, size_t room, size_t used, const char *what, const struct layout_track *track)
{
	char site[LAYOUT_SITE_BYTES];
	struct timespec now;
	uint64_t now_ns;

	if (track->client == 0)
		return used;
	memcpy(site, track->site, sizeof(site));
	site[sizeof(site) - 1] = '\0';
	for (char *c = site; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	clock_gettime(CLOCK_REALTIME, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	return add(text, room, used, "; %s by client %u, thread %u, %.3f s ago at %s", what, track->client, track->tid,
		now_ns > track->time_ns ? (double)(now_ns - track->time_ns) / 1e9 : 0.0, *site ? site : "?");
}

/*
 * "at SITE; freed by client .. at SITE; allocated by ..", the latest first; object NULL: of none.  With a lock held no site is made: dladdr() takes
 * one of its own.
 */
static void
describe(const struct slabc_cache *k, char *object, bool is_locked, char *text, size_t room)
{
	char site[LAYOUT_SITE_BYTES] = "";
	struct layout_record record;
	size_t used;

	if (!is_locked)
		make_site(site);
	used = add(text, room, 0, "at %s", is_locked ? "its thread's end, a shrinking or a closing" : *site ? site : "?");
	if (!object || !(k->debug & LAYOUT_CACHE_USER))
		return;
	memcpy(&record, record_at(k, object), sizeof(record));
	if (record.seal >> 1 != seal(k, place_of(k, object), false) >> 1)
		return;
	if (record.seal & 1)
		used = add_track(text, room, used, "freed", &record.freed);
	used = add_track(text, room, used, "allocated", &record.allocated);
	if (!(record.seal & 1))
		add_track(text, room, used, "before that freed", &record.freed);
}

/* Where the page map leads from a byte: high half the word, low half how far into its object. The page is the cache's, or 0. */
static uint64_t
look_up(const struct slabc_cache *k, uint64_t off)
{
	const struct layout_page *page = &k->v.pages[off >> LAYOUT_PAGE_SHIFT];

	if (off >= k->v.span || atomic_read(&page->cache) != k->v.cache)
		return 0;
	return (off & (LAYOUT_PAGE_BYTES - 1)) * k->v.recip + page->prod;
}

/* The object that p points to or into; NULL: none of the cache. */
static char *
object_at(const struct slabc_cache *k, const void *p)
{
	uint64_t off = (uint64_t)((const char *)p - k->v.base), x = look_up(k, off), in_object = (uint32_t)x / k->v.recip, start = off - in_object;
	bool is_inside;

	if (x == 0 || in_object > off || !sheaf_word_at(&k->v, k->v.base + start, &is_inside))
		return NULL;
	/* What is left over at the end of a slab is no object: its record would lie in pages that may not be there. */
	if (look_up(k, start) >> 32 != look_up(k, start + k->slot_bytes - 1) >> 32)
		return NULL;
	return k->v.base + start;
}

static void
post(struct slabc_cache *k, enum fault kind, const void *p, uint64_t n, const char *details)
{
	union proto_request request = {.fault = {.cache = k->v.cache, .kind = kind, .place = (uint64_t)((const char *)p - k->v.base), .n = n}};

	request.fault.thread = (uint32_t)syscall(SYS_gettid);
	snprintf(request.fault.details, sizeof(request.fault.details), "%s", details);
	session_post(k->c, PROTO_OP_FAULT, &request);
}

void
debug_tell(struct slabc_cache *k, enum fault kind, const void *p, uint64_t n)
{
	char details[sizeof(((struct proto_fault_request *)NULL)->details)];

	describe(k, object_at(k, p), false, details, sizeof(details));
	error_add("; thread %u %s", (unsigned)syscall(SYS_gettid), details);
	if (k->debug & LAYOUT_CACHE_SANITY || (n & (n - 1)) == 0)
		post(k, kind, p, n, details);
}

/* What was written where nobody may.  -EINVAL. */
static int
tell_written(struct slabc_cache *k, char *p, const struct damage *damage, const char *when, bool is_locked)
{
	static const char *const sentences[] = {
		[FAULT_OVERRUN] = "somebody wrote behind it",
		[FAULT_UNDERRUN] = "somebody wrote before it",
		[FAULT_AFTER_FREE] = "somebody wrote into it after it was freed",
	};
	char sites[480], details[sizeof(((struct proto_fault_request *)NULL)->details)];

	describe(k, p, is_locked, sites, sizeof(sites));
	snprintf(details, sizeof(details), "byte %d of %u is 0x%02x, found when it was %s %s", damage->off, k->v.object_bytes, damage->byte, when,
		sites);
	post(k, damage->fault, p, atomic_add(&k->n_written, 1) + 1, details);
	return error_set(EINVAL, "object %p of cache '%s': %s; thread %u: %s", (void *)p, k->name, sentences[damage->fault],
		(unsigned)syscall(SYS_gettid), details);
}

/* Steps of an object's life */

void *
debug_take(struct slabc_cache *k, struct sheaf *s)
{
	void *p;

	/* A handler that interrupted this very sheaf. */
	if (sheaf_is_entered(s) || bulk_pop(k, s, 1, &p) == 0)
		return NULL;
	return p;
}

void
debug_allocated(struct slabc_cache *k, void *object)
{
	char *p = object;
	struct layout_record *record = record_at(k, p);
	uint64_t in_use = seal(k, place_of(k, p), false), found = atomic_read(&record->seal);
	struct damage damage;

	if (found == (in_use | 1) && (look_at_zones(k, p, &damage) || look_at_poison(k, p, &damage)))
		tell_written(k, p, &damage, "allocated", false);
	fill_zones(k, p);
	if (k->debug & LAYOUT_CACHE_USER) {
		if (found >> 1 != in_use >> 1)
			memset(&record->freed, 0, sizeof(record->freed));
		make_track(k, &record->allocated);
	}
	atomic_compiler_barrier();
	/* Before the poison goes: who dies now leaves an object that nobody looks at. */
	if (!MUTANT(SEAL_LATE))
		atomic_write(&record->seal, in_use);
	atomic_compiler_barrier();
	if (k->debug & LAYOUT_CACHE_POISON)
		memset(p, DEBUG_POISON_IN_USE, k->v.object_bytes);
	STEP(DEBUG_MADE);
	if (MUTANT(SEAL_LATE))
		atomic_write(&record->seal, in_use);
}

int
debug_check(struct slabc_cache *k, uint32_t place, const uint32_t *word, uint32_t w)
{
	char *p = address(k, place);
	struct damage damage;
	int r;

	if (!look_at_zones(k, p, &damage))
		return 0;
	/* Another client's by now, or a free one: then the free fails by its word.  order: WORD acquire - the red zones were read before it is */
	atomic_fence_acquire();
	if (atomic_read(word) != w)
		return 0;
	r = tell_written(k, p, &damage, "freed", false);
	fill_zones(k, p);
	return r;
}

void
debug_freed(struct slabc_cache *k, uint32_t place)
{
	char *p = address(k, place);
	struct layout_record *record = record_at(k, p);

	if (k->debug & LAYOUT_CACHE_USER)
		make_track(k, &record->freed);
	if (!MUTANT(SEAL_FIRST))
		fill_poison(k, p);
	atomic_compiler_barrier();
	if (!MUTANT(SEAL_FIRST))
		STEP(DEBUG_POISONED);
	/* Last, so that it vouches for the poison. */
	atomic_write(&record->seal, seal(k, place, true));
	if (MUTANT(SEAL_FIRST)) {
		STEP(DEBUG_POISONED);
		fill_poison(k, p);
	}
}

void
debug_check_idle(struct slabc_cache *k, struct sheaf *s)
{
	uint32_t size;

	sheaf_enter(s);
	size = atomic_read(&s->size);
	for (uint32_t i = 0; atomic_read(&s->floor) != UINT32_MAX && i < size; i++) {
		uint32_t place = atomic_read(&s->entry[i]);
		char *p = address(k, place);
		struct damage damage;

		if (atomic_read(&record_at(k, p)->seal) != seal(k, place, true) || !look_at_poison(k, p, &damage))
			continue;
		tell_written(k, p, &damage, "given back", true);
		fill_poison(k, p);
	}
	sheaf_leave(s);
}
