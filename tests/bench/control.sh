#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench-control: what a message costs beside bare sockets of the same kind, one client and 64 at the same pace; medians of RUNS, in turn.
# Environment: as run.sh; CONTROL; RUNS=5  ROUNDS=4000  PACE=10000 (messages a second of all 64 together)
set -u

here=$(dirname "$0")
# shellcheck source=tests/bench/slabd.sh
. "$here/slabd.sh"

: "${CONTROL:=build/release/tests/bench/control/control}"
: "${RUNS:=5}"
: "${ROUNDS:=4000}"
: "${PACE:=10000}"

BENCH=$CONTROL bench_set_up
slabd_start
csv=$OUT/control.csv
echo "measure,clients,p50_us,p99_us" >"$csv"

# measure WHAT CLIENTS ROUNDS PACE
measure() {
	figures=$("$CONTROL" "$1" "$socket" "$2" "$3" "$4") || fail "control $1 failed"
	echo "$1,$2,$figures" | tr ' ' ',' >>"$csv"
}

run=0
while [ "$run" -lt "$RUNS" ]; do
	run=$((run + 1))
	for what in ping one many; do
		measure "$what" 1 "$ROUNDS" 0
	done
	for what in echo one many; do
		measure "$what" 64 $((ROUNDS / 10)) "$PACE"
	done
done
machine
awk -F, '
	function median(key, n, i, j, t, v) {
		n = split(seen[key], v, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
		return v[int((n + 1) / 2)]
	}
	function row(name, what, clients, bare) {
		printf "%-36s %8.1f %8.1f   %6.2f %6.2f\n", name, median(what "," clients ",50"), median(what "," clients ",99"),
			median(what "," clients ",50") / median(bare "," clients ",50"), median(what "," clients ",99") / median(bare "," clients ",99")
	}
	NR > 1 { seen[$1 "," $2 ",50"] = seen[$1 "," $2 ",50"] " " $3; seen[$1 "," $2 ",99"] = seen[$1 "," $2 ",99"] " " $4 }
	END {
		printf "%-36s %8s %8s   %s\n", "us", "p50", "p99", "times the bare one"
		row("bare SEQPACKET ping-pong", "ping", 1, "ping")
		row("REFILL of 1 object", "one", 1, "ping")
		row("REFILL of 896 objects", "many", 1, "ping")
		row("bare epoll echo, 64 clients", "echo", 64, "echo")
		row("REFILL of 1 object, 64 clients", "one", 64, "echo")
		row("REFILL of 896 objects, 64 clients", "many", 64, "echo")
	}' "$csv"
