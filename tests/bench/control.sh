#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench-control: what a message costs beside bare sockets of the same kind, one client and 64 at the same pace; medians of RUNS, in turn.
# Then what it costs slabd: its CPU time and its counters over one client's messages, as fast as they come; once each.
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

# What slabd has done for the cache of that measure: CPU ns of all its threads, holds of list_lock, slabs touched, sheaves granted and taken back.
snapshot() {
	# Those of before are gone: that costs too.
	while ask --json clients | grep -q '"client_id"'; do
		sleep 0.05
	done
	cat /proc/"$slabd_pid"/task/*/schedstat | awk '{ ns += $1 } END { printf "%.0f ", ns }'
	ask --json caches | awk -v name="\"control.$1\"" '
		function number(key) { return match($0, "\"" key "\": [0-9]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) : 0 }
		index($0, name) { said = number("lock_acquired") " " number("n_slabs_touched") " " number("n_sheaves_granted") + number("n_sheaves_taken") }
		END { print said ? said : "0 0 0" }'
}

# cost WHAT ROUNDS: what these took more than a tenth of them, by which the coming and going of the client falls out
cost() {
	said=
	for n in $(($2 / 10)) $(($2 / 10)) "$2"; do
		"$CONTROL" "$1" "$socket" 1 "$n" 0 >/dev/null || fail "control $1 failed"
		said="$said $(snapshot "$1")"
	done
	echo "$said" | awk '{ print $9 - 2 * $5 + $1, $10 - 2 * $6 + $2, $11 - 2 * $7 + $3, $12 - 2 * $8 + $4 }'
}

# work WHAT ROUNDS: what these took, the coming and going of the client included
work() {
	before=$(snapshot "$1")
	"$CONTROL" "$1" "$socket" 1 "$2" 0 >/dev/null || fail "control $1 failed"
	echo "$before $(snapshot "$1")" | awk '{ print $5 - $1, $6 - $2, $7 - $3, $8 - $4 }'
}

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
echo
{
	cost one "$ROUNDS"
	cost many "$ROUNDS"
	# The client keeps what it has: later rounds would send nothing.
	work sheaves 10
	"$CONTROL" parse "$socket" 1 1000 0
} | awk -v rounds="$((ROUNDS - ROUNDS / 10))" '
	NR == 1 { printf "%-58s %8.2f\n", "slabd: CPU us a message (REFILL of 1 object, its FLUSH)", $1 / rounds / 2 / 1e3 }
	NR == 2 { printf "%-58s %8.2f\n", "slabd: million objects granted and taken back a CPU second", rounds * 2 * 896 / $1 * 1e3 }
	NR == 3 { printf "%-58s %8.2f\n", "slabd: holds of list_lock a sheaf granted or taken back", $2 / $4 }
	NR == 3 { printf "%-58s %8.2f\n", "slabd: slabs touched a hold", $3 / $2 }
	NR == 4 { printf "%-58s %8.0f\n", "ns to unpack a REFILL", $1 }'
