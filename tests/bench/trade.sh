#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench-trade: what sheaves buy, and what they cost. Speed, messages, locks and idle memory by sheaf capacity and number of processes.
#
# The pattern is one that makes caches work: by turns a burst (512 allocations, 512 frees in the same order) and 1,024 random steps among 4,096 slots.
# Each figure has a slabd of its own, so that nothing idle is left over from another. At the end one setting in which list_lock really is contended.
# Environment: SLABD, SLABCTL, BENCH, OUT, HUGE_PAGES (slabd.sh), and
#   CAPACITIES="none 4 28 60 252"   PROCESSES="1 2 4"   SECONDS_PER_RUN=0.5   RUNS=3
set -u

here=$(dirname "$0")
# shellcheck source=tests/bench/slabd.sh
. "$here/slabd.sh"

: "${CAPACITIES:=none 4 28 60 252}"
: "${PROCESSES:=1 2 4}"
: "${SECONDS_PER_RUN:=0.5}"
: "${RUNS:=3}"

bench_set_up
csv=$OUT/trade.csv
"$BENCH" --trade --columns >"$csv" || fail "bench failed"

# trade CAPACITY PROCESSES SLABD-ARGUMENT...: the run of RUNS with the median speed
trade() {
	capacity=$1
	processes=$2
	shift 2
	: >"$folder/runs"
	run=0
	while [ "$run" -lt "$RUNS" ]; do
		run=$((run + 1))
		slabd_start "$@"
		"$BENCH" --trade --socket="$socket" --slabctl="$SLABCTL" --capacity="$capacity" --processes="$processes" \
			--seconds="$SECONDS_PER_RUN" >>"$folder/runs" || fail "capacity $capacity, processes $processes: the bench failed"
		slabd_stop
	done
	sort -t, -k3,3n "$folder/runs" | sed -n "$(((RUNS + 1) / 2))p"
}

for processes in $PROCESSES; do
	for capacity in $CAPACITIES; do
		echo "capacity $capacity, processes: $processes" >&2
		trade "$capacity" "$processes" --threads=1 >>"$csv"
	done
done

echo "machine     $(machine)"
echo "pattern     bursts of 512 and random steps, 256-byte objects, calls timed; median of $RUNS runs of $SECONDS_PER_RUN s"
echo
awk -F, 'NR == 1 {
	printf "%9s %8s | %14s %9s | %12s %12s %10s | %11s\n", "processes", "capacity", "units/s", "ns/unit", "trips/unit", "locks/unit",
		"contended", "idle bytes"
	next
}
{
	printf "%9d %8s | %14d %9.1f | %12.6f %12.6f %9.3f%% | %11d\n", $1, $2, $3, $4, $5, $6, 100 * $7, $8
}' "$csv"

echo
echo "list_lock contended: slabd with 2 threads, 4 pinned processes. Shares of the processes' time:"
echo
printf '%8s | %12s %12s %10s %10s | %10s %12s %10s %10s\n' capacity units/s locks/unit contended hold/ns lock messages 'run queue' 'own work'
head -n 1 "$csv" >"$OUT/contended.csv"
for capacity in none 4; do
	trade "$capacity" 4 --threads=2 >>"$OUT/contended.csv"
done
awk -F, 'NR > 1 {
	printf "%8s | %12d %12.6f %9.3f%% %10d | %9.2f%% %11.2f%% %9.2f%% %9.2f%%\n", $2, $3, $6, 100 * $7, $13, 100 * $9, 100 * $10, 100 * $11,
		100 * $12
}' "$OUT/contended.csv"
echo
echo "lock: slabd's threads waited for list_lock. messages: calls of over 2 us, less lock and run queue. run queue: ready, but no CPU."

if ! command -v gnuplot >/dev/null; then
	echo "$0: gnuplot is not installed: no plot" >&2
	exit 0
fi
for processes in $PROCESSES; do
	awk -F, -v p="$processes" 'NR > 1 && $1 == p { print $8, $3, $2 }' "$csv" >"$folder/$processes.dat"
done
gnuplot -c "$here/trade.gp" "$OUT/trade" "$folder" "$PROCESSES" "$(machine)" || fail "gnuplot failed"
echo "$OUT/trade.svg and $OUT/trade.png show it; $csv and $OUT/contended.csv have the figures."
