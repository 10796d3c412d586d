/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and stores of memory that another thread or process may touch; the only place where a memory order is chosen.
 *
 * The name says the order: no suffix is relaxed (nobody may conclude anything about other memory), _acquire and _release are what they say,
 * atomic_cas() is both.  Fields keep plain integer types, so that the layout reads the same in C and C++.
 */
#ifndef SLAB_SHM_ATOMIC_H
#define SLAB_SHM_ATOMIC_H

#include <stdbool.h>

#define atomic_read(p) __atomic_load_n((p), __ATOMIC_RELAXED)
/* As atomic_read() and atomic_write() of what this thread alone writes, or others write only behind a barrier: gcc folds address and operand into one. */
#ifdef __SANITIZE_THREAD__
#define atomic_peek(p) atomic_read(p)
#define atomic_poke(p, v) atomic_write(p, v)
#else
#define atomic_peek(p) (*(p))
#define atomic_poke(p, v) (*(p) = (v))
#endif
#define atomic_write(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define atomic_read_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define atomic_write_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define atomic_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)
#define atomic_swap(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
/* Writes v if *p is still *oldp; else puts what is there into *oldp. */
#define atomic_cas(p, oldp, v) __atomic_compare_exchange_n((p), (oldp), (v), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
/* Keeps the compiler, not the machine, from moving accesses across: enough against a signal handler of the same thread and against a kill. */
#define atomic_compiler_barrier() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* Asks for the line, which is soon to be written.  gcc makes a prefetch for reading of it on plain x86-64; old processors ignore the other one. */
#ifdef __x86_64__
#define atomic_prefetch_write(p) __asm__ volatile("prefetchw %0" : : "m"(*(p)))
#else
#define atomic_prefetch_write(p) __builtin_prefetch((p), 1)
#endif

/* Earlier loads, of plain memory too, come before later ones. gcc's TSan knows no fences; what a fence guards there is read by design. */
#ifdef __SANITIZE_THREAD__
#define atomic_fence_acquire() atomic_compiler_barrier()
#else
#define atomic_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#endif

/* Earlier stores are visible to all before later loads are made. Of two threads that each write, fence and read what the other writes, one at least sees it. */
#ifdef __SANITIZE_THREAD__
#define atomic_fence_full()                                                                                                                \
	__extension__({                                                                                                                    \
		int fence_ = 0;                                                                                                            \
		(void)__atomic_fetch_add(&fence_, 0, __ATOMIC_SEQ_CST);                                                                    \
	})
#else
#define atomic_fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

#endif
