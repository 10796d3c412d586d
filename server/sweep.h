/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweep: caches that nobody has open any more are looked through for lost objects (repair.h), a portion a turn of the loop whose client closed last.
 *
 * session_set_open() marks such a cache if some of it is still OUT, which orphans are too, and its arena; the loop then takes the mark off.  A slab that
 * becomes empty by it goes back.  No lock is held between two portions; short of memory nothing is looked for, and a mark is gone all the same: what is
 * lost there is found when memory is short, or the cache is destroyed.
 */
#ifndef SLAB_SERVER_SWEEP_H
#define SLAB_SERVER_SWEEP_H

struct loop;

/* A session of the loop's has closed a cache, or ended. */
void sweep_wake(struct loop *loop);

/* At the loop's end. */
void sweep_deinit(struct loop *loop);

#endif
