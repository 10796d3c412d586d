#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each rule is kept, and each rule broken on purpose is noticed: runs test_mutants as it is, then once for each mutant.
# A mutant must be noticed by every story that is to notice it; one whose process crashes, hangs or cannot be played counts as a failure.
# usage: tests/check-mutants.sh BINARY
binary=${1:?usage: $0 BINARY}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

timeout 300 "$binary" 2>"$log"
rc=$?
if [ $rc -ne 0 ]; then
	echo "unmutated: FAILED, exit status $rc; the end of the log:"
	tail -n 20 "$log"
fi

passed=0
failed=0
for mutant in $("$binary" --list); do
	timeout 300 "$binary" --mutant="$mutant" 2>"$log"
	mutant_rc=$?
	if [ $mutant_rc -eq 1 ]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "$mutant: not caught as it should be, exit status $mutant_rc (0 missed, 2 crashed or not played, 124 hangs); the end of the log:"
		tail -n 20 "$log"
	fi
done
[ $((passed + failed)) -gt 0 ] || failed=1

total=$((passed + failed))
echo
echo "Run Summary:    Type  Total    Ran Passed Failed Inactive"
printf '              suites %6d %6d    n/a %6d %8d\n' 1 1 0 0
printf '               tests %6d %6d %6d %6d %8d\n' $total $total $passed $failed 0
[ $rc -eq 0 ] && [ $failed -eq 0 ]
