#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How many instructions the fast path takes, counted by callgrind, and how many it may: an allocation and a free by the shared library, with owner
# words and without; and, inlined, a pair of them with the loop around it and the write between.  Also that the library's function runs seldom
# where it is inlined.  The bounds are those of gcc 12 at -O2; a compiler that needs a few more is no fault: SLACK, in instructions.
# usage: check-instructions.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=$1
: "${SLACK:=0}"
command -v callgrind_annotate >/dev/null || { echo "check-instructions: SKIPPED: valgrind is not installed"; exit 0; }
case $("${CC:-cc}" -dumpversion) in
12*) ;;
*) SLACK=$((SLACK + 6)) ;;
esac
tmp=$(mktemp -d) || exit 1
pid=
trap '[ -n "$pid" ] && kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
	echo "check-instructions: $1" >&2
	exit 1
}
"$build/slabd" --socket="$tmp/s" --arena-size=64M 2>"$tmp/log" &
pid=$!
i=0
until "$build/slabctl" --socket="$tmp/s" status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "slabd did not start: $(cat "$tmp/log")"
	sleep 0.1
done

# usage: count PROGRAM words|wordless PAIRS: "function instructions" a line
count() {
	SLABD_SOCKET=$tmp/s timeout 100 valgrind --tool=callgrind --callgrind-out-file="$tmp/out" "$1" "$2" "$3" >"$tmp/said" 2>&1 ||
		fail "$1 $2: $(cat "$tmp/said")"
	callgrind_annotate --show=Ir --threshold=100 "$tmp/out" | sed 's/,//g; s/([ 0-9.]*%)//' |
		sed -n 's/^ *\([0-9][0-9]*\) .*:\(slabc_[a-z]*\|pairs\)\( \[.*\]\)*$/\2 \1/p'
}

# usage: check WHAT FUNCTION BOUND: what 10,000 pairs more take more, of the two counts
check() {
	awk -v f="$2" '$1 == f { n[FILENAME] += $2 } END { printf "%.2f\n", (n[ARGV[2]] - n[ARGV[1]]) / 10000 }' "$tmp/10000" "$tmp/20000" >"$tmp/each"
	each=$(cat "$tmp/each")
	echo "check-instructions: $1: $each, at most $3"
	awk -v each="$each" -v bound="$3" -v slack="$SLACK" 'BEGIN { exit !(each <= bound + slack + 0.5) }' || fail "$1: too many"
}

two_counts() {
	for n in 10000 20000; do
		count "$1" "$2" $n >"$tmp/$n"
	done
}

two_counts "$build/tests/instructions" words
check "slabc_alloc" slabc_alloc 33
check "slabc_free" slabc_free 40
two_counts "$build/tests/instructions" wordless
check "slabc_alloc, SLABC_NO_OWNER" slabc_alloc 20
check "slabc_free, SLABC_NO_OWNER" slabc_free 36
two_counts "$build/tests/instructions-inline" words
check "pair inlined, with its loop" pairs 73
check "of it in the library" slabc_alloc 0
two_counts "$build/tests/instructions-inline" wordless
check "pair inlined, with its loop, SLABC_NO_OWNER" pairs 57
check "of it in the library" slabc_alloc 0
