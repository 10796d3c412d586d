/*
 * readers.pml - a unit of pages comes free while clients resolve references into it; slabd punches it only when nobody can be reading there.
 * (who keeps memory that was freed, and until when)
 *
 * The page map says that the object lives (map).  Slabd says that it does not, marks the unit with the number of the last session that came, and
 * looks at the flags of those that came before; while one is up and its session lives, the unit stays committed.  A client puts its flag up
 * before it resolves its first reference, and each of its threads resolves one and then reads, twice.  Session 0, of two threads, was there
 * before; session 1 comes at any time.
 *
 * The stores of map and flag pass a store buffer of one entry each, which is emptied at any time, and by a fence.
 *
 * MUTANTS: SHOW_LATE NO_FENCE NO_SLABD_FENCE LOOK_FIRST MARK_EARLY EARLY_SHOWN
 */
bit map = 1, map_put, committed = 1;
bit flag[2], flag_put[2], is_reader[2], alive[2];
byte n_ever = 1, number[2], n_left[2], mark;

active proctype buffers()
{
end:	do
	:: atomic { flag_put[0] -> flag_put[0] = 0; flag[0] = 1 }
	:: atomic { flag_put[1] -> flag_put[1] = 0; flag[1] = 1 }
	:: atomic { map_put -> map_put = 0; map = 0 }
	od
}

inline become_reader(s)
{
	if
	:: is_reader[s]
	:: else ->
#ifdef EARLY_SHOWN
		is_reader[s] = 1;
#endif
		flag_put[s] = 1;
#ifndef NO_FENCE
		!flag_put[s];                          /* the fence: it is out */
#endif
		is_reader[s] = 1
	fi
}

proctype thread(byte s; byte n_threads)
{
	bit m;
#ifdef SHOW_LATE
	m = map;
	become_reader(s);
#else
	become_reader(s);
	m = map;
#endif
	if
	:: m ->
		assert(committed);                     /* reads: no hole */
		assert(committed)
	:: else                                        /* ESTALE */
	fi;
	atomic {
		n_left[s]++;
		alive[s] = (n_left[s] < n_threads)     /* the last one closes the session */
	}
}

active proctype comer()
{
	atomic { n_ever++; number[1] = n_ever; alive[1] = 1 }
	run thread(1, 1)
}

active proctype slabd()
{
	bit seen;
	byte s;
#ifdef MARK_EARLY
	mark = n_ever;
#endif
#ifdef LOOK_FIRST
	seen = flag[0];
#endif
	map_put = 1;
#ifndef NO_SLABD_FENCE
	!map_put;
#endif
#ifndef MARK_EARLY
	mark = n_ever;
#endif
	s = 0;
	do
	:: s == 2 -> break
	:: s < 2 ->
#ifdef LOOK_FIRST
		if
		:: s == 1 -> seen = flag[1]
		:: else
		fi;
#else
		seen = flag[s];
#endif
		if
		:: seen && number[s] > 0 && number[s] <= mark -> !alive[s] /* kept; looked at again when it has ended */
		:: else
		fi;
		s++
	od;
	committed = 0
}

init
{
	atomic {
		number[0] = 1;
		alive[0] = 1;
		run thread(0, 2);
		run thread(0, 2)
	}
}
