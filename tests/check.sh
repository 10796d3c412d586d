#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests of a build, or those in PARTS, and closes with the sums in CUnit's form.  A part that is no CUnit program counts as one test.
# usage: BUILD=build/release tests/check.sh
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build/release}
parts=${PARTS:-includes orders symbols layout unit fastpath instructions request inline mutants corpus it it-inline storm kills hostile fail install manuals examples systemd demo}
logs=$build/check
demo_s=30
mkdir -p "$logs"
SLABD=$build/slabd SLABCTL=$build/slabctl SLABD_KEEPER=$build/slabd-keeper
export SLABD SLABCTL SLABD_KEEPER

# Half the kills beside one loop, half with two that meet at the list_locks; and some while slabd takes back all that is idle.
storm() {
	"$build/tests/stress_kill" --kills=250 --threads=1 || return 1
	"$build/tests/stress_kill" --kills=250 --threads=2 || return 1
	"$build/tests/stress_kill" --kills=100 --threads=2 --recall
}

# At each step, in the library that has them, and at instructions of the one that is used.
kills() {
	build/steps/tests/kill_points || return 1
	"$build/tests/kill_step"
}

# Nobody waits long for a demo: five seconds, on a machine that does other things too.
demo() {
	start=$(date +%s)
	make -s demo || return 1
	took=$(($(date +%s) - start))
	echo "demo: $took s"
	[ "$took" -lt "$demo_s" ] || {
		echo "FAILED: the demo takes less than $demo_s s"
		return 1
	}
}

run() {
	case $1 in
	includes | orders) tests/check-$1.sh ;;
	layout) tests/check-layout.sh "$build" ;;
	symbols) tests/check-symbols.sh "$build/libslabclient.so" ;;
	unit) "$build/tests/unit" ;;
	fastpath | instructions | request | inline) tests/check-$1.sh "$build" ;;
	mutants) tests/check-mutants.sh build/steps/tests/test_mutants ;;
	# Its stories as they are, built like the rest: a sanitizer's look at them.
	unmutated) "$build-steps/tests/test_mutants" ;;
	it) "$build/tests/it" ;;
	# The same, the fast path of the tests' own processes inlined.
	it-inline) "$build/tests/it-inline" ;;
	storm) storm ;;
	# A shortage at calls of libc, a sample of them; check-long has all.
	fail) BUILD=$build "$build/tests/fail" ;;
	kills) kills ;;
	corpus) tests/check-fuzz.sh "$build" ;;
	hostile) "$build/tests/fuzz_client" --seconds=12 ;;
	install) tests/check-install.sh ;;
	manuals) tests/check-manuals.sh ;;
	examples) tests/check-examples.sh "$build" ;;
	systemd) tests/check-systemd.sh "$build" ;;
	demo) demo ;;
	esac
}

failed=
for part in $parts; do
	echo "=== $part"
	{
		run "$part" 2>&1
		echo $? >"$logs/$part.rc"
	} | tee "$logs/$part.log"
	[ "$(cat "$logs/$part.rc")" = 0 ] || failed="$failed $part"
done
grep -hi 'skipped' $(for part in $parts; do echo "$logs/$part.log"; done)
for part in $parts; do
	awk -v part="$part" -v rc="$(cat "$logs/$part.rc")" '
		$1 == "suites" { suites += $2 }
		$1 == "tests" { ran += $3; passed += $4; bad += $5; seen = 1 }
		$1 == "asserts" { asserts += $3; asserts_bad += $5 }
		END {
			if (!seen) { suites = 1; ran = 1; passed = rc == 0; bad = rc != 0 }
			else if (rc != 0 && bad == 0) { ran++; bad++ }
			print suites, ran, passed, bad, asserts + 0, asserts_bad + 0
		}' "$logs/$part.log"
done | awk '
	{ suites += $1; ran += $2; passed += $3; bad += $4; asserts += $5; asserts_bad += $6 }
	END {
		print ""
		print "Run Summary:    Type  Total    Ran Passed Failed Inactive"
		printf "              suites %6d %6d    n/a %6d %8d\n", suites, suites, 0, 0
		printf "               tests %6d %6d %6d %6d %8d\n", ran, ran, passed, bad, 0
		printf "             asserts %6d %6d %6d %6d      n/a\n", asserts, asserts, asserts - asserts_bad, asserts_bad
	}'
if [ -n "$failed" ]; then
	echo "failed:$failed (logs in $logs)"
	exit 1
fi
