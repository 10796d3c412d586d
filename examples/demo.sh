#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The whole of slabd in half a minute: a private slabd, the word pipeline on real text, what slabctl says of it, and the same again with a
# counter killed midway. Exit status 0 only if every step succeeded and no object is left alive.
#
#     make && make -C examples && examples/demo.sh        SLABD, SLABCTL, PIPELINE, WORDS and LD_LIBRARY_PATH may say otherwise
#
# Run by root, it makes the pool of huge pages large enough while it runs, to show them in use.
set -u

here=$(dirname "$0")
: "${SLABD:=$here/../build/release/slabd}"
: "${SLABCTL:=$here/../build/release/slabctl}"
: "${PIPELINE:=$here/pipeline}"
: "${WORDS:=1000000}"

pool=/proc/sys/vm/nr_hugepages
pool_wanted=64
pool_before=
slabd_pid=
folder=

fail() {
	echo "demo.sh: $*" >&2
	exit 1
}

# Ends slabd by its pid, within 5 s or the hard way.
stop_slabd() {
	[ -n "$slabd_pid" ] || return 0
	kill "$slabd_pid" 2>/dev/null
	n=0
	while kill -0 "$slabd_pid" 2>/dev/null; do
		n=$((n + 1))
		[ "$n" -lt 50 ] || kill -KILL "$slabd_pid" 2>/dev/null
		sleep 0.1
	done
	wait "$slabd_pid"
	status=$?
	slabd_pid=
	return "$status"
}

clean_up() {
	stop_slabd
	# Others may use the pool: what they have made of it since stays.
	[ -z "$pool_before" ] || [ "$(cat "$pool")" != "$pool_wanted" ] || echo "$pool_before" >"$pool"
	[ -z "$folder" ] || rm -rf "$folder"
}

trap clean_up EXIT
trap 'exit 130' INT TERM HUP

ask() {
	timeout 20 "$SLABCTL" --socket="$SLABD_SOCKET" "$@"
}

# A number out of slabctl's JSON on stdin.
field() {
	sed -n "s/.*\"$1\": *\\([0-9][0-9]*\\).*/\\1/p"
}

# The audit, shown; fails unless nothing is lost, in two places, or still held by anybody, living or dead.
audit() {
	ask audit || fail "the audit failed"
	json=$(ask --json audit) || fail "the audit failed"
	n_lost=$(echo "$json" | field n_lost)
	n_doubled=$(echo "$json" | field n_doubled)
	n_out=$(echo "$json" | field n_out)
	n_idle=$(echo "$json" | field n_in_sheaves)
	[ "$n_lost $n_doubled" = "0 0" ] || fail "lost: $n_lost, doubled: $n_doubled"
	[ "$n_out" = "$n_idle" ] || fail "$((n_out - n_idle)) objects are still alive"
	echo "audit: nothing lost, nothing doubled, no object alive"
}

# Keeps what slabctl says while objects are out.
watch() {
	until [ -e "$folder/done" ]; do
		ask caches >"$folder/caches.new" 2>/dev/null && ask status >"$folder/status.new" 2>/dev/null || continue
		awk 'NR > 1 && $4 > 0 { out = 1 } END { exit !out }' "$folder/caches.new" || continue
		mv "$folder/caches.new" "$folder/caches"
		mv "$folder/status.new" "$folder/status"
	done
}

for program in "$SLABD" "$SLABCTL" "$PIPELINE"; do
	[ -x "$program" ] || fail "$program is not there; make, and make -C examples"
done
folder=$(mktemp -d) || fail "no folder"
if [ -w "$pool" ] && [ "$(cat "$pool")" -lt "$pool_wanted" ]; then
	pool_before=$(cat "$pool")
	echo "$pool_wanted" >"$pool"
fi

SLABD_SOCKET=$folder/slabd.sock
export SLABD_SOCKET
"$SLABD" --socket="$SLABD_SOCKET" --page-kind=auto >"$folder/log" 2>&1 &
slabd_pid=$!
n=0
until ask status >"$folder/status" 2>/dev/null; do
	n=$((n + 1))
	if [ "$n" -ge 100 ] || ! kill -0 "$slabd_pid" 2>/dev/null; then
		cat "$folder/log" >&2
		fail "slabd does not answer"
	fi
	sleep 0.05
done
grep -E '^(server|n_threads) ' "$folder/status"

echo
echo "== words of the licences on this machine, through shared memory"
watch &
watcher=$!
timeout 60 "$PIPELINE" --words="$WORDS" || fail "the pipeline failed"
: >"$folder/done"
wait "$watcher"
echo
[ -s "$folder/caches" ] || fail "slabctl caches saw nothing"
echo "slabctl caches, while it ran:"
cat "$folder/caches"
echo
grep -E '^(page_kind|page_note|committed_bytes|bytes_huge|bytes_4k) ' "$folder/status"
echo
audit

echo
echo "== again; one counter is killed midway"
timeout 60 "$PIPELINE" --words="$WORDS" --kill-counter || fail "the pipeline with a kill failed"
echo
audit

echo
stop_slabd || fail "slabd ended with status $?"
echo "slabd has ended; all is well"
