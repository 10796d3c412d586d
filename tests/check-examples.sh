#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples of a page, built against an installed copy, each do what they say beside a slabd of their own: status 0 in time, and then nothing
# is lost, in two places, held, or an orphan; the test suite among them is run by a slabd, and runs one.  usage: check-examples.sh BUILD   (the release build's folder)
cd "$(dirname "$0")/.." || exit 1
build=$1
tmp=$(mktemp -d) || exit 1
pid=
clean_up() {
	[ -z "$pid" ] || { kill "$pid" && wait "$pid"; } 2>/dev/null
	rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "check-examples: $1"
	exit 1
}
ask() {
	timeout 20 "$build/slabctl" --socket="$tmp/s" "$@"
}
field() {
	sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" "$tmp/audit"
}
# Whether the last audit shows nothing out but what is idle in sheaves, of the living or of the dead.
is_clean() {
	ask --json audit >"$tmp/audit" || fail "the audit failed: $(cat "$tmp/audit")"
	[ "$(field n_lost) $(field n_doubled)" = "0 0" ] || fail "$1: lost or doubled: $(cat "$tmp/audit")"
	ask orphans >"$tmp/orphans" || fail "slabctl orphans failed"
	[ -n "$(field n_out)" ] && [ "$(field n_out)" = "$(field n_in_sheaves)" ] && [ "$(wc -l <"$tmp/orphans")" -le 1 ]
}
make -s install PREFIX="$tmp/prefix" >/dev/null || fail "install"
PKG_CONFIG_PATH="$tmp/prefix/lib/pkgconfig" make -s -C examples OUT="$tmp/examples" CFLAGS="-O2 -g -Werror" || fail "the examples do not build"
"$build/slabd" --socket="$tmp/s" --arena-size=64M 2>"$tmp/log" &
pid=$!
i=0
until ask status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "slabd did not start: $(cat "$tmp/log")"
	sleep 0.1
done
for example in hello pass_ref worker_pool ring; do
	SLABD_SOCKET=$tmp/s LD_LIBRARY_PATH=$tmp/prefix/lib timeout 20 "$tmp/examples/$example" || fail "$example: status $?"
	# slabd learns of the last process's end a moment later.
	i=0
	until is_clean "$example"; do
		i=$((i + 1))
		[ $i -lt 50 ] || fail "$example has left something: $(cat "$tmp/audit" "$tmp/orphans")"
		sleep 0.1
	done
done
mkdir "$tmp/run"
# usage: suite COMMAND...   Its summary is CUnit's, and no slabd or folder stays.
suite() {
	TMPDIR=$tmp/run PATH=$tmp/prefix/sbin:$PATH LD_LIBRARY_PATH=$tmp/prefix/lib timeout 20 "$@" >"$tmp/suite" 2>&1 ||
		fail "$*: status $?: $(cat "$tmp/suite")"
	# (CUnit's words, but not its numbers, which check.sh adds up.)
	[ "$(awk '$1 == "tests" { print $3, $4, $5 }' "$tmp/suite")" = "3 3 0" ] || fail "$*: three tests should pass: $(cat "$tmp/suite")"
	[ -z "$(ls -A "$tmp/run")" ] || fail "$*: has left $(ls -A "$tmp/run")"
}
suite "$tmp/examples/cunit_suite"
suite slabd --ephemeral -- "$tmp/examples/cunit_suite"
echo "check-examples: ok"
