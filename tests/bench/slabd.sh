# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# What run.sh, peers.sh and trade.sh share: a private slabd, the pool of huge pages, and what to say of the machine and of slabd.
# The pool belongs to us while we hold a lock on the kernel's file of it, as the tests do. Reads SLABD, SLABCTL, BENCH, OUT, HUGE_PAGES from the environment. Everything is put back at the end.

: "${SLABD:=build/release/slabd}"
: "${SLABCTL:=build/release/slabctl}"
: "${BENCH:=build/release/bench}"
: "${OUT:=build/bench}"
: "${HUGE_PAGES:=512}"

pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
pool_before=
slabd_pid=
folder=

fail() {
	echo "$0: $*" >&2
	exit 1
}

slabd_stop() {
	[ -n "$slabd_pid" ] || return 0
	kill "$slabd_pid" 2>/dev/null
	n_waits=0
	while kill -0 "$slabd_pid" 2>/dev/null; do
		n_waits=$((n_waits + 1))
		[ "$n_waits" -lt 100 ] || kill -KILL "$slabd_pid" 2>/dev/null
		sleep 0.05
	done
	wait "$slabd_pid" 2>/dev/null
	slabd_pid=
}

clean_up() {
	slabd_stop
	# Others may use the pool: what they have made of it since stays.
	[ -z "$pool_before" ] || [ "$(cat "$pool")" != "$HUGE_PAGES" ] || echo "$pool_before" >"$pool"
	[ -z "$folder" ] || rm -rf "$folder"
}

# Once, before all else.
bench_set_up() {
	trap clean_up EXIT
	trap 'exit 130' INT TERM HUP
	for program in "$SLABD" "$SLABCTL" "$BENCH"; do
		[ -x "$program" ] || fail "$program is not there"
	done
	mkdir -p "$OUT" || exit 1
	folder=$(mktemp -d) || exit 1
	socket=$folder/slabd.sock
	if [ -w "$pool" ]; then
		exec 9<"$pool"
		flock -w 600 9 || fail "another test has the pool of huge pages"
	fi
	if [ -w "$pool" ] && [ "$(cat "$pool")" -lt "$HUGE_PAGES" ]; then
		pool_before=$(cat "$pool")
		echo "$HUGE_PAGES" >"$pool"
	fi
}

ask() {
	timeout 20 "$SLABCTL" --socket="$socket" "$@"
}

# Starts a slabd with these arguments and waits until it answers, 10 s at most.
slabd_start() {
	"$SLABD" --socket="$socket" "$@" >"$folder/log" 2>&1 &
	slabd_pid=$!
	n_waits=0
	until ask status >/dev/null 2>&1; do
		n_waits=$((n_waits + 1))
		if [ "$n_waits" -ge 200 ] || ! kill -0 "$slabd_pid" 2>/dev/null; then
			cat "$folder/log" >&2
			fail "slabd does not answer"
		fi
		sleep 0.05
	done
}

# A string or number out of JSON on stdin, of the first line that has it.
field() {
	sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p; t
		s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" | head -n 1
}

# What pages it is, while there are some: idle ones go back. To $folder/status.
status_under_load() {
	"$BENCH" --socket="$socket" --pattern=batch64k --cache=bench.pages --seconds=0.5 >/dev/null &
	pages_pid=$!
	sleep 0.7
	ask --json status >"$folder/status"
	wait "$pages_pid" || fail "the bench failed"
}

# After status_under_load and the runs: all that a figure depends on. $1: of how many runs, $2: of how many seconds.
conditions() {
	ask --json caches >"$folder/caches"
	echo "machine     $(machine)"
	echo "pages       $(field page_kind <"$folder/status"); in one run of batch64k $(field bytes_huge <"$folder/status") bytes of huge pages," \
		"$(field bytes_4k <"$folder/status") of small ones. $(field page_note <"$folder/status")"
	echo "knobs       sheaf capacity $(field capacity <"$folder/caches"), barn_full $(field barn_full <"$folder/caches")," \
		"min_partial $(field min_partial <"$folder/caches"), max_cached $(field max_cached <"$folder/caches")," \
		"profile $(field profile <"$folder/status"), threads $(field n_threads <"$folder/status")"
	echo "units       256 bytes: allocate, write the first word, free; ns a unit and worker, median of $1 runs of $2 s"
}

machine() {
	cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
	echo "$(nproc) x ${cpu:-$(uname -m)}, Linux $(uname -r), $(date +%Y-%m-%d)"
}
