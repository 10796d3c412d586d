/*
 * foreign_revoked.pml - slabd takes the foreign sheaf of a client that lives, by revocation, and makes its claims.  Is the object doubled or
 * lost when another thread of that client, its owner or a third client frees or adopts it meanwhile, or when that client or slabd dies at any step?
 *
 * foreign_sheaf.pml has the claims themselves, recall.pml why a revoked sheaf that is not busy may be taken: here that is one step.
 * Client 1 owns the object, SHARED, generation 1, and may free it.  Client 2's first thread puts it into its foreign sheaf (entry and word, then
 * size), and settles it unless slabd has it; its second thread frees it by reference at the same time (the application's double free).
 * Client 3 adopts, frees and allocates.
 *
 * slabd claims from exactly the recorded word straight to unowned, as the entry goes out of the sheaf, under the lock.  A word that names
 * client 2, CLOSING, counts only when client 2 is dead and its ordinary sheaves are drained; else the second thread is at it.
 *
 * The record is the thread's, which fills it anew, with another object's word, when slabd has emptied the sheaf; earlier the free would be lost.
 *
 * MUTANTS: LIVE_MINE NO_CAS TAKE_BUSY ORDINARY_TAKE ENTRY_FIRST RECORD_REUSED
 */
#include "states.h"

byte word, led, user;
byte fw;                               /* the foreign sheaf's record: word as read */
byte was;                              /* that word, whatever became of the record since */
bit  fn, settled, busy, gone;          /* its size; an ordinary sheaf now; its owner is in the bracket; slabd has it */
bit  in1, in2, in3;                    /* ordinary sheaves */
bit  dead2, stopped1, stopped2a, stopped2b, stopped3, reaped2, crash;

inline close_ref(c, ok)                /* free by reference, or one's own: straight to CLOSING */
{
	atomic {
		w = word;
		ok = (OWN(w) != 0 && ST(w) == SHARED && GEN(w) == 1);
		if
		:: ok -> word = W(c, CLOSING, 1); user = 0
		:: else
		fi;
		w = 0
	}
}

proctype owner()                       /* client 1 */
{
	bit ok;
	atomic { cas(word, W(1, SHARED, 1), W(1, CLOSING, 1), ok); if :: ok -> user = 0 :: else fi }
	if
	:: ok -> in1 = 1; word = W(0, 0, 1)
	:: else
	fi;
	stopped1 = 1
}

proctype freer()                       /* client 2, the thread with the foreign sheaf */
{
	byte w;
	bit ok;
	{
		atomic {
			busy = 1; w = word;
			ok = (OWN(w) != 0 && OWN(w) != 2 && ST(w) == SHARED && GEN(w) == 1);
			if
			:: ok -> user = 4
			:: else
			fi
		}
		if
		:: ok -> atomic { fw = w; was = w }; fn = 1
		:: else
		fi;
		atomic { w = 0; ok = 0; busy = 0 }
		if
		:: true -> skip                        /* sleeps for ever */
		:: atomic { !gone -> busy = 1 }        /* flushes, if slabd has it not: the bracket, then the look */
			if
			:: fn ->
				atomic {
					cas(word, fw, W(2, CLOSING, GEN(fw)), ok);
					if
					:: ok -> assert(user == 4); user = 0
					:: else
					fi
				}
				if
				:: !ok -> fn = 0
				:: else
				fi
			:: else
			fi;
			settled = 1;
			if
			:: fn -> word = W(0, 0, GEN(fw))
			:: else
			fi;
			busy = 0
#ifdef RECORD_REUSED                           /* as soon as the sheaf is slabd's */
		:: gone -> fw = W(1, SHARED, 0)
#else
		:: gone && !fn -> fw = W(1, SHARED, 0) /* the next filling */
#endif
		:: gone -> skip
		fi
	} unless { dead2 };
	atomic { w = 0; ok = 0; stopped2a = 1 }
}

proctype freer2()                      /* client 2, another thread: by reference, into its own sheaf */
{
	byte w;
	bit ok;
	{
		close_ref(2, ok);
		if
		:: ok -> in2 = 1; word = W(0, 0, 1)
		:: else
		fi
	} unless { dead2 };
	atomic { w = 0; ok = 0; stopped2b = 1 }
}

proctype third()
{
	byte w, t;
	bit ok;
	do
	:: t < 2 && user != 3 ->                                                /* adopts */
		atomic {
			t++; w = word;
			if
			:: OWN(w) != 0 && OWN(w) != 3 && ST(w) == SHARED && GEN(w) == 1 ->
				assert(user == 1 || user == 4); word = W(3, SHARED, 1); user = 3
			:: else
			fi;
			w = 0
		}
	:: t < 2 && user == 3 -> t++;                                           /* frees its own */
		w = word;
		if
		:: OWN(w) == 3 && ST(w) == OWNED -> user = 0; in3 = 1; word = W(0, 0, GEN(w))
		:: atomic { OWN(w) == 3 && ST(w) == SHARED && word == w -> word = W(3, CLOSING, GEN(w)); user = 0 }
			in3 = 1; word = W(0, 0, GEN(w))
		:: else
		fi
	:: t < 2 && in3 && OWN(word) == 0 && GEN(word) < 3 -> t++;              /* allocates, perhaps shares */
		word = W(3, OWNED, GEN(word) + 1);
		atomic { in3 = 0; assert(user == 0); user = 3 }
		if
		:: cas(word, W(3, OWNED, GEN(word)), W(3, SHARED, GEN(word)), ok)
		:: true
		fi
	:: atomic { t < 2 && led == FREE && !in3 -> t++; led = OUT; in3 = 1 }
	:: break
	od;
	atomic { w = 0; t = 0; ok = 0; stopped3 = 1 }
}

inline mark_free()
{
	atomic {
		if
		:: led == OUT -> assert(user == 0); led = FREE
		:: else                                                             /* a check fails: dropped and counted */
		fi
	}
}

inline take_bit(c, s)                  /* from an ordinary sheaf */
{
	if
	:: s ->
		w = word;
		ok = (OWN(w) == 0 || OWN(w) == c);
		if
		:: OWN(w) == c -> cas(word, w, W(0, 0, GEN(w)), ok)
		:: else
		fi;
		s = 0;
		if
		:: ok -> mark_free()
		:: else
		fi
	:: else
	fi
}

inline claim()                         /* of an unsettled entry, straight to unowned */
{
	w = word;
	if
	:: w == fw -> skip
#ifdef LIVE_MINE                               /* a claim that names a living client is taken for this sheaf's */
	:: w != fw && w == W(2, CLOSING, GEN(fw)) -> skip
#else
	:: w != fw && w == W(2, CLOSING, GEN(fw)) && dead2 && reaped2 == 0 && !in2 && stopped2b -> skip
#endif
	:: else -> assert(w != was); ok = 0
	fi;
	if
#ifdef NO_CAS                                  /* looked at, then stored */
	:: ok -> word = W(0, 0, GEN(fw)); user = (user == 4 -> 0 : user)
#else
	:: ok ->
		atomic {
			cas(word, w, W(0, 0, GEN(fw)), ok);
			if
			:: ok -> assert(user == 4 || user == 0); user = 0
			:: else
			fi
		}
#endif
	:: else
	fi
}

inline take_foreign()
{
	if
	:: fn ->
		ok = 1;
#ifdef ORDINARY_TAKE                           /* as if it were settled */
		w = word; ok = (OWN(w) == 0 || OWN(w) == 2);
		if
		:: OWN(w) == 2 -> cas(word, w, W(0, 0, GEN(w)), ok)
		:: else
		fi;
#else
		if
		:: settled ->
			w = word; ok = (OWN(w) == 0 || OWN(w) == 2);
			if
			:: OWN(w) == 2 -> cas(word, w, W(0, 0, GEN(w)), ok)
			:: else
			fi
		:: else -> claim()
		fi;
#endif
#ifdef ENTRY_FIRST                             /* marked FREE, then out of the sheaf */
		if
		:: ok -> mark_free()
		:: else
		fi;
		fn = 0
#else
		fn = 0;
		if
		:: ok -> mark_free()
		:: else
		fi
#endif
	:: else
	fi
}

inline walk(c)
{
	atomic {
		w = word;
		if
		:: led == OUT && OWN(w) == c && ST(w) == CLOSING -> word = W(0, 0, GEN(w)); ok = 1
		:: led == OUT && OWN(w) == c && ST(w) == OWNED -> word = W(c, SHARED, GEN(w)); ok = 0
		:: else -> ok = 0
		fi;
		w = 0
	}
	if
	:: ok -> mark_free()
	:: else
	fi
}

#define IN_SHEAF (in1 || in2 || in3 || (settled && fn))

inline audit()
{
	atomic {
		if
		:: led == OUT && OWN(word) == 0 && !IN_SHEAF -> assert(user == 0); led = FREE
		:: else
		fi
	}
}

#define PLACES ((led == FREE) + in1 + in2 + in3 + (settled && fn) + (led == OUT && OWN(word) != 0))

proctype slabd()
{
	byte w;
	bit ok;
start:	{
		do
#ifdef TAKE_BUSY                               /* taken though its owner is at it */
		:: atomic { !gone && !dead2 -> gone = 1 }
#else
		:: atomic { !gone && !dead2 && !busy -> gone = 1 }
#endif
			take_foreign(); atomic { w = 0; ok = 0 }
		:: gone && fn -> take_foreign(); atomic { w = 0; ok = 0 }            /* after a crash */
		:: dead2 && stopped2a && stopped2b && !reaped2 ->
			if
			:: settled -> take_foreign(); take_bit(2, in2)
			:: else -> take_bit(2, in2); take_foreign()
			fi;
			walk(2);
			atomic { assert(OWN(word) != 2); reaped2 = 1; w = 0; ok = 0 }
		:: stopped1 && stopped2a && stopped2b && stopped3 && (!dead2 || reaped2) && (!gone || !fn) -> break
		od
	} unless { crash };
	if
	:: crash -> crash = 0; w = 0; ok = 0; audit(); goto start
	:: else
	fi;
	assert(PLACES == 1)
}

proctype killer()                      /* nobody, client 2, slabd, or the one and then the other */
{
	byte k;
	do
	:: k < 2 && !dead2 -> k++; dead2 = 1
	:: k < 2 && !crash -> k = 2; crash = 1
	:: break
	od;
	k = 0
}

init {
	atomic {
		led = OUT; user = 1; word = W(1, SHARED, 1);
		fw = W(1, SHARED, 0);          /* what lay in the sheaf in its last life */
		if
		:: run owner()
		:: stopped1 = 1
		fi;
		if
		:: run freer2()
		:: stopped2b = 1
		fi;
		run freer(); run third(); run slabd(); run killer()
	}
}
