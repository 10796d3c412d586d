#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench-peers: slabd beside those that do something like it, in one run on one machine, all in turn; medians of RUNS; tables, CSV, plots.
#
#   slabd, slabd-inline         through the shared library, by slabclient-inline.h; objects with owner words
#   noowner, noowner-inline     the same with SLABC_NO_OWNER
#   dpdk                        a mempool, cache of 512 (Debian: dpdk-dev), huge pages
#   boost-node, boost-msm       Boost.Interprocess: cached_node_allocator, managed_shared_memory (libboost-dev)
#   tcmalloc, jemalloc, mimalloc, glibc       private heaps, which share nothing: yardsticks (libtcmalloc-minimal4, libjemalloc2, libmimalloc2.0)
#
# Who is not installed is left out, and said. Who does not finish a pattern within its time and GIVE_UP seconds "did not finish" and is not asked again: DPDK's
# ring cannot be preempted, so more workers than CPUs may stand still. Environment: as slabd.sh, and
#   SHORT=1: to see that it works, figures mean nothing.  RUNS=5   SECONDS_PER_RUN=2   WARM_UP=0.5   GIVE_UP=20   PATTERNS   PROCESSES   PEERS
set -u

here=$(dirname "$0")
# shellcheck source=tests/bench/slabd.sh
. "$here/slabd.sh"

if [ "${SHORT:-0}" = 1 ]; then
	: "${RUNS:=1}" "${SECONDS_PER_RUN:=0.1}" "${WARM_UP:=0.1}" "${GIVE_UP:=3}"
fi
: "${RUNS:=5}" "${SECONDS_PER_RUN:=2}" "${WARM_UP:=0.5}" "${GIVE_UP:=20}"
: "${PATTERNS:=pair batch1k batch64k random4k pipe}"
: "${PROCESSES:=1 2 4}"
: "${PEERS:=slabd slabd-inline noowner noowner-inline dpdk boost-node boost-msm tcmalloc jemalloc mimalloc glibc}"

bench_set_up
csv=$OUT/peers.csv
"$BENCH" --columns >"$csv" || fail "bench failed"

library_of() {
	case $1 in
	tcmalloc) echo libtcmalloc_minimal.so.4 ;;
	jemalloc) echo libjemalloc.so.2 ;;
	mimalloc) echo libmimalloc.so.2 ;;
	esac
}

# Is the peer here?
is_here() {
	case $1 in
	dpdk) [ -x "$BENCH-dpdk" ] && [ "$(cat "$pool")" -ge "$HUGE_PAGES" ] ;;
	boost-*) [ -x "$BENCH-boost" ] ;;
	slabd | slabd-inline | noowner | noowner-inline | glibc) ;;
	# The loader only warns of what it cannot preload.
	tcmalloc | jemalloc | mimalloc) [ -z "$(LD_PRELOAD=$(library_of "$1") "$BENCH" --columns 2>&1 >/dev/null)" ] ;;
	*) fail "no such peer: $1" ;;
	esac
}

# measure PEER PATTERN PROCESSES: a line of the CSV. 3: it did not finish
measure() {
	ours="--socket=$socket --slabctl=$SLABCTL"
	preload=
	case $1 in
	slabd) run="$BENCH --peer=slabd $ours" ;;
	slabd-inline) run="$BENCH-inline --peer=slabd-inline $ours" ;;
	noowner) run="$BENCH --peer=slabd --no-owner $ours" ;;
	noowner-inline) run="$BENCH-inline --peer=slabd-inline --no-owner $ours" ;;
	dpdk) run="$BENCH-dpdk --peer=dpdk" ;;
	boost-*) run="$BENCH-boost --peer=$1" ;;
	*)
		run="$BENCH --peer=malloc"
		preload=$(library_of "$1")
		;;
	esac
	# A cache for each: what one leaves idle is not the next one's.
	# shellcheck disable=SC2086
	LD_PRELOAD=$preload $run --peer-name="$1" --pattern="$2" --processes="$3" --cache="$1.$2.$3" \
		--seconds="$SECONDS_PER_RUN" --warm-up="$WARM_UP" --give-up="$GIVE_UP" 2>"$folder/said"
}

peers=
for peer in $PEERS; do
	if is_here "$peer"; then
		peers="$peers $peer"
	else
		echo "$0: $peer is not here (its package, or for dpdk $HUGE_PAGES huge pages, which root can set): left out" >&2
	fi
done

# Memory: each of ours with a slabd of its own, so that nothing else is in it.
for peer in $peers; do
	echo "memory: $peer" >&2
	case $peer in
	slabd* | noowner*) slabd_start ;;
	esac
	measure "$peer" live 1 >>"$csv" || fail "$peer: $(cat "$folder/said")"
	slabd_stop
done

slabd_start
status_under_load
unfinished=
round=0
while [ "$round" -lt "$RUNS" ]; do
	round=$((round + 1))
	for pattern in $PATTERNS; do
		for processes in $PROCESSES; do
			# A pipe has two ends.
			[ "$pattern" != pipe ] || [ "$processes" = 2 ] || continue
			echo "run $round of $RUNS: $pattern, processes: $processes" >&2
			for peer in $peers; do
				case $unfinished in *" $peer,$pattern,$processes "*) continue ;; esac
				measure "$peer" "$pattern" "$processes" >>"$csv"
				case $? in
				0) ;;
				3) unfinished="$unfinished $peer,$pattern,$processes " ;;
				*) fail "$peer, $pattern, $processes: $(cat "$folder/said")" ;;
				esac
			done
		done
	done
done

conditions "$RUNS" "$SECONDS_PER_RUN"
echo
awk -F, -f "$here/peers.awk" -v peers="$peers" -v patterns="$PATTERNS" -v processes="$PROCESSES" -v out="$OUT" "$csv" || fail "awk failed"
echo
echo "$csv has every run, $OUT/peers-median.csv the medians. In the pipe mallocs have two threads of one process, the others two processes."

if ! command -v gnuplot >/dev/null; then
	echo "$0: gnuplot is not installed: no plots" >&2
	exit 0
fi
gnuplot -c "$here/peers.gp" "$OUT" "$OUT/peers-median.csv" "$peers" "$PATTERNS" "$PROCESSES" "$(machine)" || fail "gnuplot failed"
echo "$OUT/peers-scale, peers-ns and peers-idle (.svg, .png) show them, as far as they were measured."
