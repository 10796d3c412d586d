#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a request costs, as far as it can be counted on any machine: system calls (strace) and instructions (callgrind), in slabd and in its client.
# A request is a REFILL of one object and the FLUSH that gives it back, in turn; and a sheaf of 896 objects, by the object.  Each is what twice as
# many take more.  The bounds are those of gcc 12 at -O2 and Debian 12's libraries; a compiler that needs more is no fault: SLACK, in percent.
# usage: check-request.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=$1
: "${SLACK:=5}"
case $("${CC:-cc}" -dumpversion) in
12*) ;;
*) SLACK=$((SLACK + 20)) ;;
esac
tmp=$(mktemp -d) || exit 1
pid=
slabd_pid=
trap '[ -n "$slabd_pid" ] && kill "$slabd_pid" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
	echo "check-request: $1" >&2
	exit 1
}

# usage: start TOOL...: a slabd under it
start() {
	"$@" "$build/slabd" --socket="$tmp/s" --arena-size=64M --threads=1 >"$tmp/log" 2>&1 &
	pid=$!
	i=0
	until "$build/slabctl" --socket="$tmp/s" --json status >"$tmp/status" 2>/dev/null; do
		i=$((i + 1))
		[ $i -lt 300 ] || fail "slabd did not start: $(cat "$tmp/log")"
		sleep 0.1
	done
	slabd_pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$tmp/status" | head -n 1)
}

stop() {
	kill "$slabd_pid"
	wait "$pid"
	slabd_pid=
}

# usage: run single|many PAIRS TOOL...: the client under it
run() {
	mode=$1
	pairs=$2
	shift 2
	SLABD_SOCKET=$tmp/s timeout 100 "$@" "$build/tests/instructions" "$mode" "$pairs" >"$tmp/said" 2>&1 || fail "$mode: $(cat "$tmp/said")"
}

# usage: check WHAT LESS MORE N BOUND SLACK
check() {
	awk -v what="$1" -v less="$2" -v more="$3" -v n="$4" -v bound="$5" -v slack="$6" 'BEGIN {
		each = (more - less) / n
		printf "check-request: %s: %.2f, at most %s\n", what, each, bound
		exit !(each <= bound * (1 + slack / 100))
	}' || fail "$1: too many"
}

calls() {
	grep -c '^[0-9]* *[a-z0-9_]*(' "$1"
}

instructions() {
	sed -n 's/^summary: //p' "$1"
}

for n in 500 1000; do
	start strace -f -o "$tmp/slabd.$n"
	run single $n strace -f -o "$tmp/client.$n"
	stop
done
check "system calls of the client" "$(calls "$tmp/client.500")" "$(calls "$tmp/client.1000")" 1000 3 1
# The clock that it looks at besides costs it one now and then.
check "system calls of slabd" "$(calls "$tmp/slabd.500")" "$(calls "$tmp/slabd.1000")" 1000 3 5

command -v callgrind_annotate >/dev/null || { echo "check-request: SKIPPED: valgrind is not installed"; exit 0; }
for n in 500 1000; do
	start valgrind --tool=callgrind --callgrind-out-file="$tmp/slabd.$n"
	run single $n valgrind --tool=callgrind --callgrind-out-file="$tmp/client.$n"
	stop
done
check "instructions of the client" "$(instructions "$tmp/client.500")" "$(instructions "$tmp/client.1000")" 1000 2170 "$SLACK"
check "instructions of slabd" "$(instructions "$tmp/slabd.500")" "$(instructions "$tmp/slabd.1000")" 1000 2810 "$SLACK"
for n in 20 220; do
	start valgrind --tool=callgrind --callgrind-out-file="$tmp/slabd.$n"
	run many $n
	stop
done
check "instructions of slabd, an object granted and taken back" "$(instructions "$tmp/slabd.20")" "$(instructions "$tmp/slabd.220")" 179200 145 "$SLACK"
