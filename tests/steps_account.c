/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account: where each object is, by walking the ledger, every sheaf and the node barns, without a line of server/audit.c; and the
 * sentences that are made of it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/audit.h"
#include "server/session.h"
#include "tests/steps_rig.h"

enum { MAX_WORDS = 1 << 20 };

uint32_t
rig_place(const struct slabc *c, const void *p)
{
	return (uint32_t)((uint64_t)((const char *)p - c->base) >> LAYOUT_PLACE_SHIFT);
}

enum slab_state
rig_ledger(const struct slabc_cache *k, const void *p)
{
	struct slab_object o;

	if (!slab_find(rig.arena, arena_cache(rig.arena, k->v.cache), rig_place(k->c, p), &o))
		return SLAB_FREE;
	return slab_get(rig.arena, o.word);
}

uint32_t
rig_word(const struct slabc_cache *k, const void *p)
{
	return atomic_read_acquire(sheaf_word(&k->v, rig_place(k->c, p)));
}

static uint8_t in_sheaves[MAX_WORDS], in_barns[MAX_WORDS];
static uint8_t is_strange[MAX_WORDS];

static void wrong(struct account *a, uint32_t *counter, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void
wrong(struct account *a, uint32_t *counter, const char *format, ...)
{
	char sentence[RIG_SENTENCE_BYTES];
	va_list args;

	++*counter;
	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	if (!a->first[0])
		strcpy(a->first, sentence);
	if (!a->first_of_ledger[0] && counter != &a->n_lost && counter != &a->n_closing)
		strcpy(a->first_of_ledger, sentence);
}

static void
count_sheaves(void)
{
	for (struct session *s = rig.arena->first_session; s; s = s->next) {
		for (uint32_t slot = 0; s->map && slot < s->n_slots; slot++) {
			struct cache *cache = arena_cache(rig.arena, s->slots[slot].cache);
			const struct sheaf *sheaf;
			uint32_t size;

			if (!cache)
				continue;
			sheaf = session_sheaf(s, slot);
			/* Its entries are others' objects still, or claimed and named. */
			if (atomic_read_acquire(&sheaf->busy) & SHEAF_UNSETTLED)
				continue;
			size = atomic_read_acquire(&sheaf->size);
			for (uint32_t i = 0; i < size && i < s->slots[slot].capacity; i++) {
				struct slab_object o;
				uint32_t owner;

				if (!slab_find(rig.arena, cache, atomic_read(&sheaf->entry[i]), &o) || o.word >= MAX_WORDS)
					continue;
				owner = word_owner(atomic_read(&rig.arena->words[o.word]));
				in_sheaves[o.word]++;
				is_strange[o.word] |= owner != 0 && owner != s->client;
			}
		}
	}
}

static void
count_barns(void)
{
	for (uint32_t id = 1; arena_cache(rig.arena, id); id++) {
		struct cache *cache = arena_cache(rig.arena, id);

		for (unsigned n = 0; n < cache->n_nodes; n++) {
			for (const struct node_sheaf *s = cache->nodes[n].first_full; s; s = s->next) {
				struct slab_object o;

				for (uint32_t i = 0; i < s->size; i++)
					if (slab_find(rig.arena, cache, s->at[i].place, &o) && o.word < MAX_WORDS)
						in_barns[o.word]++;
			}
		}
	}
}

static void
judge_object(struct account *a, uint32_t place, uint32_t word, bool at_rest)
{
	static const char *const names[] = {"FREE", "BARN", "OUT", "?"};
	enum slab_state state = slab_get(rig.arena, word);
	uint32_t w = atomic_read_acquire(&rig.arena->words[word]);

	a->n_objects++;
	a->n_free += state == SLAB_FREE;
	a->n_barn += state == SLAB_BARN;
	a->n_out += state == SLAB_OUT;
	if (state != SLAB_OUT && in_sheaves[word])
		wrong(a, &a->n_doubled, "doubled: place %#x is %s in the ledger and lies in a client's sheaf", place, names[state]);
	if (state != SLAB_OUT && (w & WORD_LOW_MASK))
		wrong(a, &a->n_named, "place %#x is %s in the ledger and its word names client %u", place, names[state], word_owner(w));
	if (in_sheaves[word] > 1)
		wrong(a, &a->n_doubled, "doubled: place %#x lies in %u sheaves", place, in_sheaves[word]);
	if (!at_rest)
		return;
	if (in_sheaves[word] && is_strange[word])
		wrong(a, &a->n_doubled, "doubled: place %#x is held by client %u and lies in another one's sheaf", place, word_owner(w));
	if (state == SLAB_OUT && !(w & WORD_LOW_MASK) && !in_sheaves[word])
		wrong(a, &a->n_lost, "lost: place %#x is OUT in the ledger, its word names nobody, and it is in no sheaf", place);
	if (state == SLAB_OUT && (w & WORD_OWNER_MASK) && word_state(w) == WORD_CLOSING)
		wrong(a, &a->n_closing, "place %#x is left CLOSING by client %u", place, word_owner(w));
	if (in_barns[word] != (state == SLAB_BARN))
		wrong(a, &a->n_miscounted, "place %#x is %s in the ledger and %u times in the node barn", place, names[state],
			in_barns[word]);
}

static void
judge_slab(struct account *a, uint32_t number, bool at_rest)
{
	const struct slab *slab = &rig.arena->slabs[number];
	struct cache *cache = arena_cache(rig.arena, atomic_read_acquire(&slab->cache));
	uint32_t before = a->n_free;

	/* A slab on its way out of the map is nobody's. */
	if (!cache || rig.arena->page_map[slab->first_page].cache != cache->id)
		return;
	for (uint32_t i = 0; i < slab->n_objects; i++)
		judge_object(a, slab_place(rig.arena, cache, number, i), slab->first_word + i, at_rest);
	if (at_rest && a->n_free - before != slab->n_free)
		wrong(a, &a->n_miscounted, "slab %u counts %u free objects, and the ledger says FREE of %u", number, slab->n_free,
			a->n_free - before);
}

static void
lock_all(bool takes)
{
	for (uint32_t id = 1; arena_cache(rig.arena, id); id++)
		for (unsigned n = 0; n < arena_cache(rig.arena, id)->n_nodes; n++)
			(takes ? node_lock : node_unlock)(&arena_cache(rig.arena, id)->nodes[n]);
}

static void
account_begin(bool at_rest)
{
	struct words_counters words;

	words_count(&rig.arena->words_runs, &words);
	NEED(words.n_high_water < MAX_WORDS, "too many words");
	if (at_rest) {
		pthread_rwlock_rdlock(&rig.arena->sessions_lock);
		lock_all(true);
	}
	memset(in_sheaves, 0, words.n_high_water);
	memset(in_barns, 0, words.n_high_water);
	memset(is_strange, 0, words.n_high_water);
}

static void
account_end(bool at_rest)
{
	if (!at_rest)
		return;
	lock_all(false);
	pthread_rwlock_unlock(&rig.arena->sessions_lock);
}

void
account_take(struct account *a, bool at_rest)
{
	*a = (struct account){0};
	account_begin(at_rest);
	count_sheaves();
	count_barns();
	for (uint32_t number = 1; number <= rig.arena->n_slabs; number++)
		judge_slab(a, number, at_rest);
	account_end(at_rest);
}

uint32_t
account_of_client(uint32_t client, uint32_t *n_not_sharedp)
{
	uint32_t n = 0;

	*n_not_sharedp = 0;
	account_begin(true);
	for (uint32_t number = 1; number <= rig.arena->n_slabs; number++) {
		const struct slab *slab = &rig.arena->slabs[number];

		for (uint32_t i = 0; slab->cache && i < slab->n_objects; i++) {
			uint32_t w = atomic_read(&rig.arena->words[slab->first_word + i]);

			if (word_owner(w) != client || slab_get(rig.arena, slab->first_word + i) != SLAB_OUT)
				continue;
			n++;
			*n_not_sharedp += word_state(w) != WORD_SHARED;
		}
	}
	account_end(true);
	return n;
}

void
rig_judge(const char *format, ...)
{
	char story[RIG_SENTENCE_BYTES / 2];
	struct account a;
	struct audit audit;
	va_list args;

	va_start(args, format);
	vsnprintf(story, sizeof(story), format, args);
	va_end(args);
	account_take(&a, true);
	NEED(audit_run(rig.arena, 0, &audit) == 0, "the audit fails");
	HOLDS(audit.n_lost == 0 && audit.n_doubled == 0, "%s: audit says %llu lost, %llu doubled; %s", story,
		(unsigned long long)audit.n_lost, (unsigned long long)audit.n_doubled, a.first);
	HOLDS(!a.first[0], "%s: %s", story, a.first);
	HOLDS(audit.n_undecided == 0, "%s: audit says %llu undecided", story, (unsigned long long)audit.n_undecided);
}

void
rig_judge_ledger(const char *format, ...)
{
	char story[RIG_SENTENCE_BYTES / 2];
	struct account a;
	va_list args;

	va_start(args, format);
	vsnprintf(story, sizeof(story), format, args);
	va_end(args);
	account_take(&a, true);
	HOLDS(!a.first_of_ledger[0], "%s: %s", story, a.first_of_ledger);
}

void
rig_judge_holder(const struct slabc_cache *k, const void *p, const char *story)
{
	HOLDS(rig_ledger(k, p) == SLAB_OUT, "%s: the ledger says that an object is free, which client %u holds", story, k->v.me);
	HOLDS(word_owner(rig_word(k, p)) == k->v.me, "%s: an object's word names client %u, not client %u, which holds it", story,
		word_owner(rig_word(k, p)), k->v.me);
}
