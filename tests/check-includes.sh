#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Layers: shm and proto know nobody else; server and client never include each other.
cd "$(dirname "$0")/.." || exit 1
bad=0
forbid() { # forbid FOLDER PATTERN
	if grep -nE "#include \"($2)/" "$1"/*.[ch] "$1"/*/*.[ch] 2>/dev/null; then
		echo "check-includes: $1 must not include $2"
		bad=1
	fi
}
forbid shm 'proto|server|client'
forbid proto 'shm|server|client'
forbid server 'client'
forbid client 'server'
if grep -nE '#include <(event2|systemd|numa|ini)' shm/*.[ch] proto/*.[ch] client/*.[ch] client/*/*.[ch]; then
	echo "check-includes: a library of slabd's in another layer"
	bad=1
fi
if grep -nE '#include <msgpack' shm/*.[ch] server/*.[ch] client/*.[ch] client/*/*.[ch]; then
	echo "check-includes: msgpack outside proto"
	bad=1
fi
# No explicit memory order outside shm/atomic.h.
if grep -nE '__atomic_|memory_order_|__sync_' server/*.[ch] client/*.[ch] client/*/*.[ch] proto/*.[ch] shm/*.[ch] | grep -v '^shm/atomic.h:'; then
	echo "check-includes: memory orders are shm/atomic.h's"
	bad=1
fi
# How long something takes, and who lives, is not asked of a clock that can be set; a debug cache's record has a date (client/debug.c).
if grep -nE 'CLOCK_REALTIME|CLOCK_TAI|gettimeofday\(|[^_a-z]time\((NULL|0)\)|pthread_(mutex|cond)_timed|sem_timedwait' server/*.[ch] client/*.[ch] client/*/*.[ch] \
	proto/*.[ch] shm/*.[ch] | grep -v '^client/debug.c:' | grep -v 'Of CLOCK_REALTIME'; then
	echo "check-includes: time is CLOCK_MONOTONIC's"
	bad=1
fi
[ $bad = 0 ] && echo "check-includes: ok"
exit $bad
