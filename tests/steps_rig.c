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

static void
start_on(unsigned n_loops, const struct topology_source *source)
{
	struct slabd_options o = {
		.n_threads = n_loops,
		.n_arenas = 1,
		.arenas = {{.name = "default",
			.limit_bytes = 8 << 20,
			.page_kind = LADDER_4K,
			.profile = ARENA_PROFILE_DEFAULT,
			.source = source}},
	};
	char why[256];

	main_pid = getpid();
	strcpy(rig.folder, "/tmp/slabd-steps-XXXXXX");
	NEED(mkdtemp(rig.folder), "no folder");
	snprintf(rig.socket, sizeof(rig.socket), "%s/s", rig.folder);
	o.socket = rig.socket;
	NEED(slabd_new(&rig.slabd, &o, why, sizeof(why)) == 0, "slabd: %s", why);
	rig.arena = rig.slabd->arenas[0];
	NEED(pthread_create(&rig.thread, NULL, run, rig.slabd) == 0, "no thread");
}

void
rig_start(unsigned n_loops)
{
	start_on(n_loops, NULL);
}

static bool
is_near_or_far(uint32_t os_node)
{
	return os_node == 0 || os_node == RIG_FAR_OS_NODE;
}

static int
two_distance(uint32_t from, uint32_t to)
{
	return from == to ? 10 : 20;
}

static int
near_of_cpu(uint32_t cpu)
{
	(void)cpu;
	return 0;
}

void
rig_start_two_nodes(unsigned n_loops)
{
	static const struct topology_source two = {.n_os_nodes = RIG_FAR_OS_NODE + 1,
		.n_os_cpus = 1,
		.has_memory = is_near_or_far,
		.distance = two_distance,
		.node_of_cpu = near_of_cpu};

	start_on(n_loops, &two);
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
		NEED(i < RIG_WAIT_S * 5000, "%llu sessions have ended, not %llu", (unsigned long long)rig.arena->n_dead,
			(unsigned long long)n);
		usleep(200);
	}
}

void
rig_wait_connections(uint32_t n)
{
	uint32_t n_now = 0;

	for (int i = 0; i < RIG_WAIT_S * 5000; i++) {
		n_now = 0;
		for (unsigned j = 0; j < rig.slabd->n_loops; j++)
			n_now += (uint32_t)atomic_read(&rig.slabd->loops[j].n_conns);
		if (n_now == n)
			return;
		usleep(200);
	}
	NEED(false, "slabd has %u connections, not %u", n_now, n);
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

/* Slabs of 16 objects, sheaves of 8. */
struct slabc_cache_options
rig_cache_options(uint32_t flags)
{
	struct slabc_cache_options o = SLABC_CACHE_OPTIONS_INIT;

	o.flags = flags;
	o.sheaf_capacity = RIG_CAPACITY;
	o.min_order = o.max_order = RIG_SLAB_ORDER;
	return o;
}

struct slabc_cache *
rig_open_with(struct slabc *s, const struct slabc_cache_options *o)
{
	struct slabc_cache *k = rig_cache(s, "mutants", RIG_OBJECT_BYTES, o);

	NEED(k->capacity == RIG_CAPACITY, "sheaves have %u entries", k->capacity);
	return k;
}

struct slabc_cache *
rig_open_cache(struct slabc *s, uint32_t flags)
{
	struct slabc_cache_options o = rig_cache_options(flags);

	return rig_open_with(s, &o);
}

void *
rig_get(struct slabc_cache *k)
{
	void *p = slabc_alloc(k);

	NEED(p, "allocation: %s", slabc_last_error());
	return p;
}

void
rig_get_some(struct slabc_cache *k, uint32_t n, void **pv)
{
	for (uint32_t i = 0; i < n; i++)
		pv[i] = rig_get(k);
}

void
rig_get_far(struct slabc_cache *k, uint32_t n, void **pv)
{
	union proto_request request = {
		.refill = {.cache = k->v.cache, .n_sheaves = 1, .capacity = n, .node = RIG_FAR_OS_NODE}};
	union proto_reply reply;
	struct sheaf *s;

	NEED(session_call(k->c, PROTO_OP_REFILL, &request, &reply, CLIENT_FOR_EVER) == 0, "REFILL: %s", slabc_last_error());
	s = mapping_sheaf(k->c, reply.refill.slot);
	NEED(s, "no sheaf");
	sheaf_open(k, s, reply.refill.slot);
	for (uint32_t i = 0; i < n; i++) {
		struct slab_object o;

		pv[i] = sheaf_take(k, s);
		NEED(pv[i], "a sheaf of %u objects has %u", n, i);
		/* In a child the ledger is not the one of the slabd that serves it. */
		if (rig.arena)
			NEED(slab_find(rig.arena, arena_cache(rig.arena, k->v.cache), rig_place(k->c, pv[i]), &o) &&
					rig.arena->slabs[o.slab].node == 1,
				"an object of the far node is near");
	}
	barn_put(k, reply.refill.slot, s, LAYOUT_HOLDER_APP);
}

slabc_ref
rig_share(struct slabc *s, const void *p)
{
	slabc_ref ref = slabc_ref_of(s, p);

	NEED(ref, "%s", slabc_last_error());
	return ref;
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
