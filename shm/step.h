/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbered steps and mutants, for tests only (built with SLAB_STEPS; in every other build both vanish).
 *
 * STEP(x) marks an instant between two stores that matter.  A test sets step_hook and then kills the process there, or does there what
 * another process might do in that instant; so an interleaving is played, not hoped for.
 * MUTANT(x) is true while the test asks for that rule to be broken (tests/test_mutants.c shows that each one is noticed).  The names are those of
 * the models in tests/model.
 */
#ifndef SLAB_SHM_STEP_H
#define SLAB_SHM_STEP_H

#define STEP_LIST(X)                                                                                                                       \
	X(ALLOC_LOOKED)     /* main found, and not busy: nothing written */                                                                \
	X(ALLOC_ENTERED)    /* busy, size, entry and word read */                                                                          \
	X(ALLOC_NAMED)      /* word names the owner, sheaf not yet shrunk */                                                               \
	X(ALLOC_SHRUNK)     /* size written, still busy */                                                                                 \
	X(FREE_LOOKED)      /* as ALLOC_LOOKED */                                                                                          \
	X(FREE_ENTERED)                                                                                                                    \
	X(FREE_CLOSED)      /* word CLOSING, nothing pushed */                                                                             \
	X(FREE_GROWN)       /* entry and size written, word not cleared */                                                                 \
	X(FREE_CLEARED)                                                                                                                    \
	X(BULK_ALLOC_NAMED) /* all words named, size not yet written */                                                                    \
	X(BULK_FREE_GROWN)  /* size written, no word cleared */                                                                            \
	X(BULK_FREE_CLEARING) /* some words cleared */                                                                                     \
	X(CLAIM_READ)       /* foreign word read, compare-and-swap not yet made */                                                         \
	X(CLAIM_MADE)                                                                                                                      \
	X(SHARE_READ)       /* own word read, to be made SHARED; compare-and-swap not yet made */                                          \
	X(FOREIGN_OPENED)   /* a foreign sheaf is unsettled, and empty */                                                                  \
	X(FOREIGN_RECORDED) /* entry and word as read are written, size not */                                                             \
	X(FOREIGN_GROWN)    /* size written, nothing claimed */                                                                            \
	X(SETTLE_LOST)      /* a claim lost, its entry a tombstone */                                                                      \
	X(SETTLE_MOVED)     /* another entry in its place, and still where it was */                                                       \
	X(SETTLE_DECIDED)   /* every entry is claimed, the sheaf still unsettled */                                                        \
	X(SETTLE_SETTLED)   /* an ordinary sheaf, no word cleared */                                                                       \
	X(SETTLE_CLEARING)  /* some words cleared */                                                                                       \
	X(SWAP)             /* main and spare exchanged */                                                                                 \
	X(RACK_TAKEN)       /* a sheaf is out of the rack, and not yet main */                                                             \
	X(RACK_FILLED)      /* some came from the barn */                                                                                  \
	X(RACK_GIVEN)       /* some are out of the rack, still the thread's */                                                             \
	X(RACK_PUT)                                                                                                                        \
	X(BARN_HANDED)      /* holder says BARN, slot not yet on the list */                                                               \
	X(BARN_TAKEN)       /* slot off the list, holder not yet changed */                                                                \
	X(BARN_READ)        /* head of a list read, compare-and-swap not yet made */                                                       \
	X(BARN_OPENING)     /* holder is the taker's, the sheaf not yet opened */                                                          \
	X(BARN_OPENED)                                                                                                                     \
	X(REFILL_SENT)      /* request written, answer not yet read */                                                                     \
	X(FLUSH_HANDED)     /* holder says RETURNED, slot not yet on the list */                                                           \
	X(GRANT_MARKED)     /* ledger says OUT, entry not written */                                                                       \
	X(GRANT_WRITTEN)    /* entries written, size not */                                                                                \
	X(GRANT_SIZED)      /* size written, holder still slabd */                                                                         \
	X(TAKE_SIZED)       /* size read */                                                                                                \
	X(TAKE_CHECKED)     /* one entry read and accepted, word not cleared */                                                            \
	X(TAKE_CLEARED)     /* word cleared, entry still in the sheaf */                                                                   \
	X(TAKE_REMOVED)     /* entry out of the sheaf, ledger still OUT */                                                                 \
	X(REAP_ORDINARY)    /* ordinary sheaves of the dead empty, unsettled ones not */                                                   \
	X(REAP_DRAINED)     /* sheaves of the dead empty, words not walked */                                                              \
	X(REAP_WALKED)      /* words walked, the sessions still there */                                                                   \
	X(RECLAIM_READ)     /* a dead owner's word read, compare-and-swap not yet made */                                                  \
	X(ORPHAN_READ)      /* a dead client's object found, to be adopted or freed; compare-and-swap not yet made */                      \
	X(FORGET_READ)      /* word read of a dead one whose name is to be forgotten; compare-and-swap not yet made */                     \
	X(PREFILL_LOOKED)   /* the spare has enough objects, and is not yet the application's */                                           \
	X(RECALL_CHOSEN)    /* a thread's sheaf is to be revoked, nothing written */                                                       \
	X(RECALL_REVOKED)   /* floor and limit written, no barrier yet */                                                                  \
	X(RECALL_TAKEN)     /* holder says RECALLED, the sheaf not emptied */                                                              \
	X(GIVE_CHECKED)     /* the receiver lives, the word not yet its */                                                                 \
	X(GIVE_READ)        /* the giver's word read, compare-and-swap not yet made */                                                     \
	X(AUDIT_FIRST_LOOK) /* words read, sheaves not */                                                                                  \
	X(AUDIT_LOOKED_AGAIN) /* some sheaves read, words read again */                                                                    \
	X(AUDIT_SECOND_LOOK) /* sheaves read, words not read again */                                                                      \
	X(MAP_BUMPED)       /* page map: new incarnation written, rest still old */                                                        \
	X(DEREF_READ)       /* page map read, word not */                                                                                  \
	X(SLAB_DESCRIBED)   /* descriptor whole, its cache not yet written */                                                              \
	X(SLAB_NAMED)       /* descriptor names its cache, page map does not */                                                            \
	X(SLAB_RETIRED)     /* descriptor names no cache, page map still does */                                                           \
	X(UNIT_COMMITTING)  /* ledger says so, no page yet */                                                                              \
	X(UNIT_GIVING)      /* ledger says so, pages still there */                                                                        \
	X(UNIT_CHANGED)     /* pages came or went, ledger says COMMITTING or GIVING */                                                     \
	X(SESSION_ASKED)    /* somebody wants a session, and is not counted */                                                             \
	X(SESSION_KEPT)     /* descriptors of a session in the store, ledger does not know it */                                           \
	X(SESSION_ENTERED)  /* ledger knows it, its client does not */                                                                     \
	X(REQUEST_DONE)     /* a request is carried out, its answer not sent */                                                            \
	X(SESSION_ENDED)    /* ledger knows it no more, its descriptors are in the store */                                             \
	X(WATCH_LOOKED)     /* no such root; who waits for it is not yet listed */                                                         \
	X(LOG_READY)        /* the log has room for a line, which is not yet written */                                                    \
	X(DEBUG_MADE)       /* debug cache: sealed as in use, and full of new bytes */                                                     \
	X(DEBUG_POISONED)   /* debug cache: full of poison, not sealed as free */

#define MUTANT_LIST(X)                                                                                                                     \
	X(SHRINK_FIRST)                                                                                                                    \
	X(CLEAR_FIRST)                                                                                                                     \
	X(WORD_LEFT)                                                                                                                       \
	X(WORDS_FIRST)                                                                                                                     \
	X(PUSH_FIRST)                                                                                                                      \
	X(CLAIM_TO_ZERO)                                                                                                                   \
	X(PLAIN_RECLAIM)                                                                                                                   \
	X(PLAIN_ORPHAN)                                                                                                                    \
	X(GIVE_UNLOCKED)                                                                                                                   \
	X(NO_RETRY)                                                                                                                        \
	X(POINTER_FREE)                                                                                                                    \
	X(FREE_NOT_CLOSED)                                                                                                                 \
	X(LEDGER_FIRST)                                                                                                                    \
	X(STASH_UNLOCKED)                                                                                                                  \
	X(NO_LOCK)                                                                                                                         \
	X(NO_SECOND_LOOK)                                                                                                                  \
	X(HAND_OVER_BEFORE_CLEAR)                                                                                                          \
	X(TRUST_SIZE)                                                                                                                      \
	X(READ_TWICE)                                                                                                                      \
	X(CHECK_THEN_MARK)                                                                                                                 \
	X(NO_WORD_CHECK)                                                                                                                   \
	X(NO_BARRIER)                                                                                                                      \
	X(NO_SECOND_BARRIER)                                                                                                               \
	X(IGNORE_BUSY)                                                                                                                     \
	X(LOOK_FIRST)                                                                                                                      \
	X(CLEAR_AFTER_LEAVE)                                                                                                               \
	X(NO_WITHDRAW)                                                                                                                     \
	X(LENT_BEFORE_LET_GO)                                                                                                              \
	X(LENT_IDLE)                                                                                                                       \
	X(REVOKED_NOT_LOOKED_AT)                                                                                                           \
	X(GENERATION_RESET)                                                                                                                \
	X(NO_INCARNATION)                                                                                                                  \
	X(SIZE_FIRST)                                                                                                                      \
	X(CLAIM_AS_NOW)                                                                                                                    \
	X(LOSER_RETRIES)                                                                                                                   \
	X(MINE_IS_CLAIMED)                                                                                                                 \
	X(HAND_OVER_UNSETTLED)                                                                                                             \
	X(CLEAR_UNSETTLED)                                                                                                                 \
	X(SLABD_NO_CAS)                                                                                                                    \
	X(TAKE_UNOWNED)                                                                                                                    \
	X(FOREIGN_FIRST)                                                                                                                   \
	X(AUDIT_COUNTS)                                                                                                                    \
	X(LIVE_MINE)                                                                                                                       \
	X(ORDINARY_TAKE)                                                                                                                   \
	X(RECORD_REUSED)                                                                                                                   \
	X(SHOW_LATE)                                                                                                                       \
	X(NO_GUARD)                                                                                                                        \
	X(ONLY_MAIN_IS_ENTERED)                                                                                                            \
	X(WATCH_LATE)                                                                                                                      \
	X(LOG_UNLOCKED)                                                                                                                    \
	X(SEAL_FIRST)                                                                                                                      \
	X(SEAL_LATE)                                                                                                                       \
	X(DRAIN_LOOKED_AT_FIRST)

#define STEP_ENUM(x) STEP_##x,
enum step { STEP_LIST(STEP_ENUM) STEP_COUNT };
#define MUTANT_ENUM(x) MUTANT_##x,
enum mutant { MUTANT_NONE, MUTANT_LIST(MUTANT_ENUM) MUTANT_COUNT };

#ifdef SLAB_STEPS
extern void (*step_hook)(enum step step);
extern enum mutant step_mutant;
extern const char *const step_names[STEP_COUNT];
extern const char *const step_mutant_names[MUTANT_COUNT];
#define STEP(x)                                                                                                                            \
	do {                                                                                                                               \
		if (step_hook)                                                                                                             \
			step_hook(STEP_##x);                                                                                               \
	} while (0)
#define MUTANT(x) (step_mutant == MUTANT_##x)
#else
#define STEP(x) ((void)0)
#define MUTANT(x) (0)
#endif

#endif
