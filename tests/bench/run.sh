#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make bench: slabd beside glibc's malloc and tcmalloc, in one run on one machine, peers in turn; medians of RUNS, ratios, and the figures required.
#
# The malloc peers share nothing between processes (their pipe has threads at its ends): they are the yardstick, not rivals.
# Absolute times of a shared machine mean little; read the ratios, each the median over rounds in which both ran in turn. Environment: SLABD, SLABCTL, BENCH, OUT, HUGE_PAGES (slabd.sh), and
#   RUNS=5 (at least 3)   SECONDS_PER_RUN=0.5   WARM_UP=0.5   PATTERNS   PROCESSES   TCMALLOC=libtcmalloc_minimal.so.4
#   STRICT=1: a figure missed is a failure
set -u

here=$(dirname "$0")
# shellcheck source=tests/bench/slabd.sh
. "$here/slabd.sh"

: "${RUNS:=5}"
: "${SECONDS_PER_RUN:=0.5}"
: "${WARM_UP:=0.5}"
: "${PATTERNS:=pair batch1k batch64k random4k pipe}"
: "${PROCESSES:=1 2 4}"
: "${TCMALLOC:=libtcmalloc_minimal.so.4}"
: "${STRICT:=0}"

bench_set_up
slabd_start
csv=$OUT/bench.csv
"$BENCH" --columns >"$csv" || fail "bench failed"

peers="slabd glibc"
# The loader only warns of what it cannot preload.
if [ -z "$(LD_PRELOAD=$TCMALLOC "$BENCH" --columns 2>&1 >/dev/null)" ]; then
	peers="$peers tcmalloc"
else
	echo "$0: $TCMALLOC is not installed (Debian: libtcmalloc-minimal4): no tcmalloc figures" >&2
fi

# measure PEER PATTERN PROCESSES
measure() {
	case $1 in
	# A cache for each pattern and number: what one leaves idle is not the next one's.
	slabd) "$BENCH" --peer=slabd --socket="$socket" --slabctl="$SLABCTL" --cache="bench.$2.$3" \
		--pattern="$2" --processes="$3" --seconds="$SECONDS_PER_RUN" --warm-up="$WARM_UP" ;;
	glibc) "$BENCH" --peer=malloc --peer-name=glibc --pattern="$2" --processes="$3" --seconds="$SECONDS_PER_RUN" --warm-up="$WARM_UP" ;;
	tcmalloc) LD_PRELOAD=$TCMALLOC "$BENCH" --peer=malloc --peer-name=tcmalloc --pattern="$2" --processes="$3" \
		--seconds="$SECONDS_PER_RUN" --warm-up="$WARM_UP" ;;
	esac >>"$csv" || fail "$*: the bench failed"
}

[ "$RUNS" -ge 3 ] || fail "RUNS=$RUNS: at least 3"
status_under_load

run=0
while [ "$run" -lt "$RUNS" ]; do
	run=$((run + 1))
	for pattern in $PATTERNS; do
		for processes in $PROCESSES; do
			# A pipe has two ends.
			[ "$pattern" != pipe ] || [ "$processes" = 2 ] || continue
			echo "run $run of $RUNS: $pattern, processes: $processes" >&2
			for peer in $peers; do
				measure "$peer" "$pattern" "$processes"
			done
		done
	done
done

conditions "$RUNS" "$SECONDS_PER_RUN"
echo

awk -F, -v patterns="$PATTERNS" -v processes="$PROCESSES" -v strict="$STRICT" '
function median(key,    n, i, j, v, a) {
	n = count[key]
	for (i = 1; i <= n; i++) {
		v = value[key, i]
		for (j = i - 1; j >= 1 && a[j] > v; j--)
			a[j + 1] = a[j]
		a[j + 1] = v
	}
	if (n == 0)
		return 0
	return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}
function add(key, v) {
	value[key, ++count[key]] = v
}
NR > 1 {
	add($1 "," $2 "," $3 ",ns", $4)
	add($1 "," $2 "," $3 ",trips", $6)
	add($1 "," $2 "," $3 ",idle", $7)
}
END {
	limit["pair", 1] = 1.6
	limit["batch1k", 1] = limit["batch1k", 2] = 2.5
	printf "%-9s %9s | %9s %9s %9s | %11s %13s | %9s %11s\n", "pattern", "processes", "slabd", "glibc", "tcmalloc", "to tcmalloc", "required",
		"trips/1e6", "idle bytes"
	n_patterns = split(patterns, pattern, " ")
	n_processes = split(processes, process, " ")
	for (i = 1; i <= n_patterns; i++) {
		for (j = 1; j <= n_processes; j++) {
			at = "," pattern[i] "," process[j]
			if (!count["slabd" at ",ns"])
				continue
			slabd = median("slabd" at ",ns")
			tcmalloc = median("tcmalloc" at ",ns")
			# Of each round the ratio, of the ratios the median: the two ran one after the other, so that load and host were about the same.
			for (k = 1; k <= count["tcmalloc" at ",ns"]; k++)
				add("ratio" at, value["slabd" at ",ns", k] / value["tcmalloc" at ",ns", k])
			ratio = median("ratio" at)
			required = ""
			if ((pattern[i], process[j]) in limit && tcmalloc > 0) {
				most = limit[pattern[i], process[j]]
				is_missed = (ratio > most)
				required = sprintf("<= %.1f %s", most, is_missed ? "MISSED" : "met")
				n_missed += is_missed
			}
			tcmalloc_text = ratio_text = "-"
			if (tcmalloc > 0) {
				tcmalloc_text = sprintf("%.2f", tcmalloc)
				ratio_text = sprintf("%.2f x", ratio)
			}
			printf "%-9s %9d | %9.2f %9.2f %9s | %11s %13s | %9.3f %11d\n", pattern[i], process[j], slabd, median("glibc" at ",ns"),
				tcmalloc_text, ratio_text, required, median("slabd" at ",trips") * 1e6, median("slabd" at ",idle")
		}
	}
	exit (strict && n_missed > 0)
}' "$csv"
status=$?
echo
echo "$csv has every run. In the pipe slabd has two processes, malloc two threads of one."
exit "$status"
