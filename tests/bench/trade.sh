#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench-trade: what sheaves buy, and what they cost. Speed, messages, locks and idle memory by sheaf capacity and number of processes.
#
# The pattern is one that makes caches work: by turns a burst (512 allocations, 512 frees in the same order) and 1,024 random steps among 4,096 slots.
# So that the capacity decides, the layers behind the sheaves are kept small: one sheaf in the process barn, the kernel's 10 in the node barn; the row
# "default" has the layers as they come, which hide the capacity. Objects have a page, since slabd gives smaller ones larger sheaves than
# 4, asked or not (the kernel's rule). Each figure has a slabd of its own, so that nothing idle is left over from another.
#
# At the end the time of the processes is split where list_lock is contended as much as 2 CPUs, shared by 4 clients and 2 threads of slabd, make it:
# large sheaves are taken back and granted in one hold each, and no process barn saves a message.
# Environment: SLABD, SLABCTL, BENCH, OUT, HUGE_PAGES (slabd.sh), and
#   CAPACITIES="none 4 28 60 252 default"   PROCESSES="1 2 4"   SECONDS_PER_RUN=0.5   RUNS=3   OBJECT_BYTES=4096
set -u

here=$(dirname "$0")
# shellcheck source=tests/bench/slabd.sh
. "$here/slabd.sh"

: "${CAPACITIES:=none 4 28 60 252 default}"
: "${PROCESSES:=1 2 4}"
: "${SECONDS_PER_RUN:=0.5}"
: "${RUNS:=3}"
: "${OBJECT_BYTES:=256}"

bench_set_up
csv=$OUT/trade.csv
contended=$OUT/contended.csv

# trade median|contended SLABD-ARGUMENT BENCH-ARGUMENT...: of RUNS runs the one with the median speed, or the one that waited longest for list_lock
trade() {
	which=$1
	slabd_argument=$2
	shift 2
	: >"$folder/runs"
	run=0
	while [ "$run" -lt "$RUNS" ]; do
		run=$((run + 1))
		slabd_start "$slabd_argument"
		"$BENCH" --trade --socket="$socket" --slabctl="$SLABCTL" --seconds="$SECONDS_PER_RUN" "$@" >>"$folder/runs" ||
			fail "$*: the bench failed"
		slabd_stop
	done
	case $which in
	median) sort -t, -k3,3n "$folder/runs" | sed -n "$(((RUNS + 1) / 2))p" ;;
	contended) sort -t, -k9,9n "$folder/runs" | tail -n 1 ;;
	esac
}

"$BENCH" --trade --columns >"$csv" || fail "bench failed"
for processes in $PROCESSES; do
	for capacity in $CAPACITIES; do
		echo "capacity $capacity, processes: $processes" >&2
		if [ "$capacity" = default ]; then
			trade median --threads=1 --processes="$processes" --object-bytes="$OBJECT_BYTES" | awk -F, -v OFS=, '{ $2 = "default"; print }'
		else
			trade median --threads=1 --processes="$processes" --object-bytes="$OBJECT_BYTES" --capacity="$capacity" --max-cached=1 \
				--barn-full=10 >"$folder/one"
			got=$(cut -d, -f2 "$folder/one")
			if [ "$got" = "$capacity" ]; then
				cat "$folder/one"
			else
				echo "$0: asked for capacity $capacity, slabd made it $got: left out" >&2
			fi
		fi >>"$csv"
	done
done

echo "machine     $(machine)"
echo "pattern     bursts of 512 and random steps, objects of $OBJECT_BYTES bytes, calls timed; median of $RUNS runs of $SECONDS_PER_RUN s"
echo "barns       one sheaf in a process barn, 10 in the node barn; \"default\": as slabd has them by itself"
echo
awk -F, 'NR == 1 {
	printf "%9s %8s | %12s %10s | %10s %10s %10s %10s | %11s\n", "processes", "capacity", "units/s", "ns/unit", "refills/u", "slow/u", "locks/u",
		"contended", "idle bytes"
	next
}
{
	printf "%9d %8s | %12d %10.1f | %10.6f %10.6f %10.6f %9.3f%% | %11d\n", $1, $2, $3, $4, $5, $14, $6, 100 * $7, $8
}' "$csv"
echo
echo "refills/u: REFILL messages a unit. slow/u: calls of over 2 us a unit. locks/u: list_lock taken."

"$BENCH" --trade --columns >"$contended" || fail "bench failed"
echo "contended list_lock" >&2
# How often both threads of slabd have a CPU at the same time is chance.
RUNS=$((2 * RUNS))
trade contended --threads=2 --processes=4 --capacity=none >>"$contended"
trade contended --threads=2 --processes=4 --capacity=1020 --max-cached=1 --pattern=batch64k >>"$contended"
echo
echo "list_lock under pressure: 256-byte objects, slabd with 2 threads, 4 pinned processes; of $RUNS runs the one that waited most for the lock."
echo "Shares of the processes' time:"
echo
awk -F, 'BEGIN {
	what[2] = "no sheaves, bursts and random steps"
	what[3] = "sheaves of 1,020, no barn, batches of 64 Ki"
	printf "%-44s | %12s %9s %10s %8s | %9s %9s %9s %9s\n", "", "units/s", "locks/u", "contended", "hold ns", "lock", "messages", "run queue",
		"own work"
}
NR > 1 {
	printf "%-44s | %12d %9.6f %9.3f%% %8d | %8.2f%% %8.2f%% %8.2f%% %8.2f%%\n", what[NR], $3, $6, 100 * $7, $13, 100 * $9, 100 * $10, 100 * $11,
		100 * $12
}' "$contended"
echo
echo "lock: slabd's threads waited for list_lock. messages: calls of over 2 us, less lock and run queue. run queue: ready, but no CPU."

if ! command -v gnuplot >/dev/null; then
	echo "$0: gnuplot is not installed: no plot" >&2
	exit 0
fi
for processes in $PROCESSES; do
	awk -F, -v p="$processes" 'NR > 1 && $1 == p { print $8, $3, $2 }' "$csv" >"$folder/$processes.dat"
done
gnuplot -c "$here/trade.gp" "$OUT/trade" "$folder" "$PROCESSES" "$(machine)" "$OBJECT_BYTES" || fail "gnuplot failed"
echo "$OUT/trade.svg and $OUT/trade.png show it; $csv and $contended have the figures."
