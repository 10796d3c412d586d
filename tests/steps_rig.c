/* SPDX-License-Identifier: Apache-2.0 */
/* See steps_rig.h. */
#include "tests/steps_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CUnit/CUnit.h>

#include "server/audit.h"
#include "server/session.h"

enum { MAX_WORDS = 1 << 20 };

int rig_report_fd = -1;
struct rig rig;

/* Judging */

static void
remove_folder(void)
{
	DIR *d = rig.folder[0] ? opendir(rig.folder) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(rig.folder);
	rig.folder[0] = '\0';
}

static pid_t main_pid;

void
rig_need(bool ok, const char *file, int line, const char *format, ...)
{
	char sentence[RIG_SENTENCE_BYTES];
	va_list args;

	if (ok)
		return;
	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	fprintf(stderr, "%s:%d: could not be played: %s\n", file, line, sentence);
	dprintf(rig_report_fd >= 0 ? rig_report_fd : STDOUT_FILENO, "could not be played: %s:%d: %s\n", file, line, sentence);
	if (getpid() == main_pid)
		remove_folder();
	_exit(2);
}

void
rig_holds(bool ok, const char *file, int line, const char *format, ...)
{
	char sentence[RIG_SENTENCE_BYTES];
	va_list args;

	if (ok) {
		if (rig_report_fd < 0)
			CU_assertImplementation(CU_TRUE, (unsigned)line, "holds", file, "", CU_FALSE);
		return;
	}
	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	if (rig_report_fd >= 0) {
		dprintf(rig_report_fd, "%s\n", sentence);
		remove_folder();
		_exit(1);
	}
	CU_assertImplementation(CU_FALSE, (unsigned)line, sentence, file, "", CU_FALSE);
}

/* Time */

static struct timespec
until(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += RIG_WAIT_S;
	return t;
}

static bool
wait_sem(sem_t *sem)
{
	struct timespec t = until();
	int r;

	while ((r = sem_timedwait(sem, &t)) < 0 && errno == EINTR)
		;
	return r == 0;
}

struct play {
	void (*play)(void);
};

static void *
play_thread(void *arg)
{
	((struct play *)arg)->play();
	return NULL;
}

void
rig_elsewhere(void (*play)(void))
{
	struct play arg = {play};
	struct timespec t = until();
	pthread_t thread;

	NEED(pthread_create(&thread, NULL, play_thread, &arg) == 0, "no thread");
	NEED(pthread_timedjoin_np(thread, NULL, &t) == 0, "a thread hangs");
}

/* Steps */

static struct {
	void (*play)(void);
	void (*always)(enum step step);
	enum step step;
	uint32_t skip;
	uint32_t is_armed;
	uint32_t was_played;
} hook;

static uint8_t met[STEP_COUNT];

void
rig_met(enum step step)
{
	atomic_write(&met[step], 1);
}

enum step
rig_first_unmet(void)
{
	enum step step = 0;

	while (step < STEP_COUNT && met[step])
		step++;
	return step;
}

static void
on_step(enum step step)
{
	uint32_t armed = 1;

	rig_met(step);
	if (hook.always)
		hook.always(step);
	if (!atomic_read_acquire(&hook.is_armed) || step != hook.step)
		return;
	if (atomic_read(&hook.skip) > 0) {
		atomic_add(&hook.skip, -1u);
		return;
	}
	if (!atomic_cas(&hook.is_armed, &armed, 0))
		return;
	atomic_write_release(&hook.was_played, 1);
	hook.play();
}

void
rig_at(enum step step, uint32_t skip, void (*play)(void))
{
	hook.play = play;
	hook.step = step;
	hook.skip = skip;
	hook.was_played = 0;
	atomic_write_release(&hook.is_armed, play != NULL);
	step_hook = on_step;
}

void
rig_always(void (*play)(enum step step))
{
	hook.always = play;
	step_hook = on_step;
}

bool
rig_was_played(void)
{
	return atomic_read_acquire(&hook.was_played);
}

/* slabd and its clients */

static void *
run(void *arg)
{
	slabd_run(arg);
	return NULL;
}

void
rig_start(unsigned n_loops)
{
	struct slabd_options o = {
		.n_threads = n_loops,
		.arena = {.name = "default", .limit_bytes = 8 << 20, .page_kind = ARENA_PAGES_4K, .profile = ARENA_PROFILE_DEFAULT},
	};
	char why[256];

	main_pid = getpid();
	strcpy(rig.folder, "/tmp/slabd-steps-XXXXXX");
	NEED(mkdtemp(rig.folder), "no folder");
	snprintf(rig.socket, sizeof(rig.socket), "%s/s", rig.folder);
	o.socket = rig.socket;
	NEED(slabd_new(&rig.slabd, &o, why, sizeof(why)) == 0, "slabd: %s", why);
	rig.arena = rig.slabd->arena;
	NEED(pthread_create(&rig.thread, NULL, run, rig.slabd) == 0, "no thread");
}

void
rig_stop(void)
{
	struct timespec t = until();

	rig_at(STEP_ALLOC_ENTERED, 0, NULL);
	rig_always(NULL);
	slabd_stop(rig.slabd);
	NEED(pthread_timedjoin_np(rig.thread, NULL, &t) == 0, "slabd does not stop");
	slabd_free(rig.slabd);
	remove_folder();
	rig.slabd = NULL;
	rig.arena = NULL;
}

struct slabc *
rig_open(const char *socket)
{
	struct slabc_options o = SLABC_OPTIONS_INIT;
	struct slabc *c = NULL;

	o.socket = socket;
	o.timeout_ms = RIG_WAIT_S * 1000;
	NEED(slabc_open(&c, &o) == 0, "slabc_open: %s", slabc_last_error());
	return c;
}

struct slabc_cache *
rig_cache(struct slabc *c, const char *name, size_t size, const struct slabc_cache_options *options)
{
	struct slabc_cache *k = NULL;

	NEED(slabc_cache_open(c, name, size, options, &k) == 0, "slabc_cache_open: %s", slabc_last_error());
	return k;
}

void
rig_wait_ended(uint64_t n)
{
	for (int i = 0; atomic_read_acquire(&rig.arena->n_dead) < n; i++) {
		NEED(i < RIG_WAIT_S * 5000, "%llu sessions have ended, not %llu", (unsigned long long)rig.arena->n_dead, (unsigned long long)n);
		usleep(200);
	}
}

void
rig_give_back(struct slabc_cache *k, uint32_t slot, uint32_t from)
{
	union proto_request request = {.flush = {.cache = k->v.cache, .n_sheaves = 1}};
	union proto_reply reply;

	NEED(barn_take(&k->c->slots[slot], from, LAYOUT_HOLDER_RETURNED), "the slot is not mine");
	barn_push(&k->shown->returned, k->c->slots, slot);
	NEED(session_call(k->c, PROTO_OP_FLUSH, &request, &reply, CLIENT_FOR_EVER) == 0, "FLUSH: %s", slabc_last_error());
}

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

/* The account */

static uint8_t in_sheaves[MAX_WORDS], in_barns[MAX_WORDS];
static uint8_t is_strange[MAX_WORDS];

static void
wrong(struct account *a, uint32_t *counter, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void
wrong(struct account *a, uint32_t *counter, const char *format, ...)
{
	va_list args;

	++*counter;
	if (a->first[0])
		return;
	va_start(args, format);
	vsnprintf(a->first, sizeof(a->first), format, args);
	va_end(args);
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
					if (slab_find(rig.arena, cache, s->place[i], &o) && o.word < MAX_WORDS)
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
		wrong(a, &a->n_miscounted, "place %#x is %s in the ledger and %u times in the node barn", place, names[state], in_barns[word]);
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
	NEED(audit_run(rig.arena, NULL, &audit) == 0, "the audit fails");
	HOLDS(audit.n_lost == 0 && audit.n_doubled == 0, "%s: audit says %llu lost, %llu doubled; %s", story, (unsigned long long)audit.n_lost,
		(unsigned long long)audit.n_doubled, a.first);
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
	HOLDS(a.n_doubled == 0 && a.n_named == 0 && a.n_miscounted == 0, "%s: %s", story, a.first);
}

/* Children */

static struct stage *my_stage;

void
actor_fork(struct actor *a, void (*act)(struct stage *stage))
{
	struct stage *stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	NEED(stage != MAP_FAILED, "no stage");
	*stage = (struct stage){0};
	sem_init(&stage->go, 1, 0);
	sem_init(&stage->reached, 1, 0);
	sem_init(&stage->more, 1, 0);
	a->stage = stage;
	fflush(NULL);
	a->pid = fork();
	NEED(a->pid >= 0, "no child");
	if (a->pid > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(60);
	main_pid = 0;
	my_stage = stage;
	NEED(wait_sem(&stage->go), "a child was not called");
	act(stage);
	stage_stop();
}

void
actor_go(struct actor *a)
{
	strcpy(a->stage->socket, rig.socket);
	sem_post(&a->stage->go);
}

void
actor_reached(struct actor *a)
{
	NEED(wait_sem(&a->stage->reached), "a child did not get there");
}

void
actor_more(struct actor *a)
{
	sem_post(&a->stage->more);
}

void
actor_died(struct actor *a)
{
	int status;

	for (int i = 0; waitpid(a->pid, &status, WNOHANG) == 0; i++) {
		if (i == RIG_WAIT_S * 5000)
			kill(a->pid, SIGKILL);
		NEED(i < RIG_WAIT_S * 5000, "a child goes on and on");
		usleep(200);
	}
	NEED(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a child ended with status %#x", (unsigned)status);
}

void
actor_kill(struct actor *a)
{
	kill(a->pid, SIGKILL);
	actor_died(a);
}

void
actor_free(struct actor *a)
{
	munmap(a->stage, sizeof(*a->stage));
}

void
stage_reached(struct stage *stage)
{
	sem_post(&stage->reached);
}

void
stage_wait_more(struct stage *stage)
{
	NEED(wait_sem(&stage->more), "a child was left waiting");
}

void
stage_stop(void)
{
	for (;;)
		pause();
}

void
stage_die(void)
{
	kill(getpid(), SIGKILL);
}

void
stage_halt(void)
{
	stage_reached(my_stage);
	stage_stop();
}
