/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread blocks: what a thread has of each cache, from its first call to its exit.
 *
 * A block is one anonymous mapping, not malloc'd: the first call may come from a signal handler that interrupted malloc.  Its main[] is
 * what the hot path reads; until a thread has a block it reads no_sheaves[], whose sheaf is always empty and full.  Blocks are on one list
 * (library_lock), so that whoever closes a handle can take back the sheaves of all threads: the handle's rule that no other thread is in a
 * call on it makes that safe.
 *
 * A free that a handler cannot make goes into deferred[]: appended by the thread's handlers (which nest), emptied by the thread outside of
 * them.  An entry is taken by swapping its k with NULL; n_deferred only moves by compare-and-swap; holes are passed over.
 */
#include "client/internal.h"

#include <string.h>
#include <sys/mman.h>

__thread struct thread_local_state tls __attribute__((tls_model("initial-exec"))) = {.main = no_sheaves};

struct sheaf no_sheaf __attribute__((aligned(64)));
struct sheaf *const no_sheaves[CLIENT_MAX_HANDLES] = {[0 ... CLIENT_MAX_HANDLES - 1] = &no_sheaf};

const struct thread_cache thread_cache_none = {
	.main_slot = CLIENT_NO_SLOT,
	.spare_slot = CLIENT_NO_SLOT,
	.foreign_slot = CLIENT_NO_SLOT,
	.record_slot = CLIENT_NO_SLOT,
	.away_slot = CLIENT_NO_SLOT,
	.home_os_node = UINT16_MAX,
	.n_home = UINT32_MAX,
};

_Static_assert(offsetof(struct thread_block, main) % 64 != 0, "no main[0] where a page or line begins");

struct thread_block *library_threads;
static uint64_t numbers_used[CLIENT_MAX_THREADS / 64]; /* library_lock */
static pthread_key_t exit_key;

static inline bool
is_amid(const struct thread_cache *t, const struct sheaf *main)
{
	return sheaf_is_entered(main) ||
	       (!MUTANT(ONLY_MAIN_IS_ENTERED) && (sheaf_is_entered(atomic_read(&t->foreign)) || sheaf_is_entered(atomic_read(&t->away))));
}

bool
thread_is_amid(const struct slabc_cache *k)
{
	return is_amid(tls.block ? &tls.block->cache[k->v.index] : &thread_cache_none, atomic_read(&tls.main[k->v.index]));
}

static inline void
enter(void)
{
	atomic_write(&tls.in_library, 1);
	atomic_compiler_barrier();
}

bool
thread_enter(const struct slabc_cache *k)
{
	if (atomic_read(&tls.in_library))
		return false;
	if (k && !MUTANT(NO_GUARD) && thread_is_amid(k))
		return false;
	enter();
	return true;
}

void
thread_leave(void)
{
	atomic_compiler_barrier();
	atomic_write(&tls.in_library, 0);
}

struct thread_block *
thread_enter_quick(const struct slabc_cache *k)
{
	struct thread_block *tb = tls.block;
	const struct thread_cache *t;

	if (!tb || !k->is_plain)
		return NULL;
	t = &tb->cache[k->v.index];
	if (t->k != k || (atomic_read(&tls.in_library) | atomic_read(&tb->n_deferred) | atomic_read(&k->n_owed) | atomic_read(&k->is_destroyed) |
			  atomic_read(&k->c->is_forked) | atomic_read(&k->c->is_stale)))
		return NULL;
	if (!MUTANT(NO_GUARD) && is_amid(t, tb->main[k->v.index]))
		return NULL;
	enter();
	return tb;
}

/* library_lock held. */
static bool
take_number(uint32_t *numberp)
{
	for (uint32_t i = 0; i < CLIENT_MAX_THREADS / 64; i++) {
		if (~numbers_used[i] != 0) {
			uint32_t bit = (uint32_t)__builtin_ctzll(~numbers_used[i]);

			numbers_used[i] |= UINT64_C(1) << bit;
			*numberp = i * 64 + bit;
			return true;
		}
	}
	return false;
}

static int
block_new(struct thread_block **tbp)
{
	struct thread_block *tb = mmap(NULL, sizeof(*tb), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool has_number;

	if (tb == MAP_FAILED)
		return error_set(ENOMEM, "no memory for a thread's first call: %s", strerror(errno));
	memcpy(tb->main, no_sheaves, sizeof(tb->main));
	pthread_mutex_lock(&library_lock);
	has_number = take_number(&tb->number);
	if (has_number) {
		tb->next = library_threads;
		tb->linkp = &library_threads;
		if (tb->next)
			tb->next->linkp = &tb->next;
		library_threads = tb;
	}
	pthread_mutex_unlock(&library_lock);
	if (!has_number) {
		munmap(tb, sizeof(*tb));
		return error_set(ENOMEM, "%d threads of this process have objects already", CLIENT_MAX_THREADS);
	}
	pthread_setspecific(exit_key, tb);
	tls.main = tb->main;
	tls.block = tb;
	inline_show(tb->main);
	*tbp = tb;
	return 0;
}

/* library_lock held. Has the thread a record of a cache of the session? */
static bool
block_has_session(const struct thread_block *tb, const struct slabc *c)
{
	for (uint32_t i = 0; i < tb->n_caches; i++)
		if (tb->cache[i].k && tb->cache[i].k->c == c)
			return true;
	return false;
}

int
thread_get(struct slabc_cache *k, struct thread_block **tbp)
{
	struct thread_block *tb = tls.block;
	uint32_t i = k->v.index;

	if (!tb) {
		int r = block_new(&tb);

		if (r < 0)
			return r;
	}
	if (tb->cache[i].k != k) {
		pthread_mutex_lock(&library_lock);
		if (!block_has_session(tb, k->c))
			atomic_add(&k->c->session->n_threads, 1);
		tb->cache[i] = thread_cache_none;
		tb->cache[i].k = k;
		if (tb->n_caches <= i)
			tb->n_caches = i + 1;
		pthread_mutex_unlock(&library_lock);
	}
	if (k->mark & SHEAF_NODED)
		node_learn(k, &tb->cache[i]);
	*tbp = tb;
	return 0;
}

void
thread_drop(struct thread_block *tb, uint32_t i, bool is_forgotten)
{
	struct thread_cache *t = &tb->cache[i], had = *t;
	struct sheaf *s = atomic_read(&tb->main[i]);

	if (!had.k)
		return;
	atomic_write(&tb->main[i], &no_sheaf);
	*t = thread_cache_none;
	/* Also of what is forgotten: the program is told of lost claims. */
	foreign_drop(had.k, tb, &had);
	rack_drop(had.k, tb, is_forgotten);
	if (is_forgotten)
		return;
	node_drop(had.k, tb, &had);
	if (had.k->debug && had.main_slot != CLIENT_NO_SLOT)
		debug_check_idle(had.k, s);
	if (had.k->debug && had.spare_slot != CLIENT_NO_SLOT)
		debug_check_idle(had.k, had.spare);
	if (had.main_slot != CLIENT_NO_SLOT)
		barn_put(had.k, (uint32_t)had.main_slot, s, thread_holder(tb));
	if (had.spare_slot != CLIENT_NO_SLOT)
		barn_put(had.k, (uint32_t)had.spare_slot, had.spare, thread_holder(tb));
	if (!block_has_session(tb, had.k->c))
		atomic_add(&had.k->c->session->n_threads, -1u);
}

/* The thread ends, or its block is wanted no more. */
static void
thread_exit(void *arg)
{
	struct thread_block *tb = arg;

	atomic_write(&tls.in_library, 1);
	atomic_compiler_barrier();
	thread_drain(tb);
	pthread_mutex_lock(&library_lock);
	for (uint32_t i = 0; i < tb->n_caches; i++)
		thread_drop(tb, i, false);
	*tb->linkp = tb->next;
	if (tb->next)
		tb->next->linkp = tb->linkp;
	numbers_used[tb->number / 64] &= ~(UINT64_C(1) << (tb->number % 64));
	pthread_mutex_unlock(&library_lock);
	inline_show(NULL);
	tls.main = no_sheaves;
	tls.block = NULL;
	munmap(tb, sizeof(*tb));
	thread_leave();
}

int
thread_key_make(void)
{
	return pthread_key_create(&exit_key, thread_exit);
}

void
thread_forget_all(void)
{
	/* The blocks stay mapped, this thread's in case a call of it was interrupted. */
	library_threads = NULL;
	memset(numbers_used, 0, sizeof(numbers_used));
	pthread_setspecific(exit_key, NULL);
	inline_show(NULL);
	tls.main = no_sheaves;
	tls.block = NULL;
}

bool
thread_defer(struct thread_block *tb, struct slabc_cache *k, void *p)
{
	uint32_t n = atomic_read(&tb->n_deferred);

	do {
		if (n >= CLIENT_MAX_DEFERRED)
			return false;
	} while (!atomic_cas(&tb->n_deferred, &n, n + 1));
	atomic_write(&tb->deferred[n].p, p);
	/* order: DEFERRED release - p is there before k shows the entry */
	atomic_write_release(&tb->deferred[n].k, k);
	return true;
}

void
thread_forget_deferred(struct slabc_cache *k)
{
	for (struct thread_block *tb = library_threads; tb; tb = tb->next) {
		for (uint32_t i = 0; i < CLIENT_MAX_DEFERRED; i++) {
			struct slabc_cache *old = k;

			atomic_cas(&tb->deferred[i].k, &old, (struct slabc_cache *)NULL);
		}
	}
}

void
thread_drain(struct thread_block *tb)
{
	/* Bounded, as a handler may come again and again. */
	for (uint32_t tries = 0; tries < 2 * CLIENT_MAX_DEFERRED; tries++) {
		uint32_t n = atomic_read(&tb->n_deferred);
		struct thread_deferred *d;
		struct slabc_cache *k;
		int64_t deadline = 0;
		void *p;

		if (n == 0)
			return;
		d = &tb->deferred[n - 1];
		/* order: DEFERRED acquire - pairs with thread_defer() */
		k = atomic_read_acquire(&d->k);
		/* In a handler that interrupted this very sheaf: not now. */
		if (k && thread_is_amid(k))
			return;
		k = atomic_swap(&d->k, (struct slabc_cache *)NULL);
		p = atomic_read(&d->p);
		atomic_cas(&tb->n_deferred, &n, n - 1);
		if (k && thread_get(k, &tb) == 0 && thread_free_one(k, tb, p, &deadline) == -ENOTCONN) {
			thread_defer(tb, k, p);
			return;
		}
	}
}

/* library_lock held. Takes one put-off free out of any thread's block. */
static bool
take_deferred(const struct slabc *c, const struct slabc_cache *only, struct thread_deferred *takenp)
{
	for (struct thread_block *tb = library_threads; tb; tb = tb->next) {
		for (uint32_t i = 0; i < CLIENT_MAX_DEFERRED; i++) {
			struct thread_deferred *d = &tb->deferred[i];
			/* order: DEFERRED acquire - pairs with thread_defer() */
			struct slabc_cache *k = atomic_read_acquire(&d->k);

			if (!k || (only ? k != only : k->c != c))
				continue;
			takenp->p = atomic_read(&d->p);
			takenp->k = k;
			if (atomic_cas(&d->k, &k, (struct slabc_cache *)NULL))
				return true;
		}
	}
	return false;
}

void
thread_drain_all(const struct slabc *c, const struct slabc_cache *k)
{
	for (;;) {
		struct thread_deferred taken;
		int64_t deadline = 0;
		struct thread_block *tb;
		bool is_taken;

		pthread_mutex_lock(&library_lock);
		is_taken = take_deferred(c, k, &taken);
		pthread_mutex_unlock(&library_lock);
		if (!is_taken)
			break;
		if (thread_get(taken.k, &tb) == 0)
			thread_free_one(taken.k, tb, taken.p, &deadline);
	}
	/* Nobody opens or closes handles of it meanwhile. */
	for (uint32_t id = 0; id < LAYOUT_MAX_CACHES; id++)
		for (struct slabc_cache *h = c->handles[id]; h; h = h->next)
			if (!k || h == k)
				owed_pay_all(h);
}
