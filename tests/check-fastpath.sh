#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The fast path as built: slabc_alloc and slabc_free have no locked instruction and call nothing before their slow tail (objdump); a steady
# random4k and batch1k make no system call (strace).  usage: check-fastpath.sh BUILD
build=$1
tmp=$(mktemp -d) || exit 1
pid=
trap '[ -n "$pid" ] && kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
	echo "check-fastpath: $1"
	exit 1
}
for f in slabc_alloc slabc_free; do
	objdump -d --no-show-raw-insn "$build/libslabclient.so" | awk -v f="<$f>:" '$2 == f { on = 1; next } on && /^$/ { exit } on' >"$tmp/$f"
	[ "$(wc -l <"$tmp/$f")" -gt 20 ] || fail "$f was not found in the library"
	grep -E '\block\b|\bxchg .*\(|mfence' "$tmp/$f" && fail "$f has a locked instruction"
	grep -E '\bcall\b' "$tmp/$f" && fail "$f calls"
	echo "check-fastpath: $f: $(wc -l <"$tmp/$f") instructions in all, none locked, no call"
done
"$build/slabd" --socket="$tmp/s" --arena-size=64M 2>"$tmp/log" &
pid=$!
i=0
until "$build/slabctl" --socket="$tmp/s" status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "slabd did not start: $(cat "$tmp/log")"
	sleep 0.1
done
for load in batch1k random4k; do
	SLABD_SOCKET=$tmp/s strace -f -o "$tmp/trace" "$build/tests/steady" $load || fail "$load did not run"
	n=$(awk '/getppid/ { marks++; next } marks == 1 { n++ } END { print marks == 2 ? n + 0 : "no marks" }' "$tmp/trace")
	[ "$n" = 0 ] || { grep -A5 getppid "$tmp/trace"; fail "$load: $n system calls in 2,000,000 steps"; }
	echo "check-fastpath: $load: no system call in 2,000,000 steps"
done
