#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The corpus through the fuzz targets: each input that was worth keeping, and real packets of every op, once.  With seconds: through the fuzzers of
# `make fuzz`, which go on from there for so long each; what they find lies in build/fuzz/found.
# usage: tests/check-fuzz.sh build/release [seconds [targets]]
cd "$(dirname "$0")/.." || exit 1
build=$1
seconds=$2
targets=${3:-codec session}
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}abort_on_error=1"

work=$(mktemp -d /tmp/slabd-fuzz-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/seeds" && "$build/tests/fuzz_seeds" "$work/seeds" || exit 1

if [ -z "$seconds" ]; then
	"$build/tests/fuzz_codec" tests/fuzz/corpus/codec "$work/seeds" || exit 1
	"$build/tests/fuzz_session" tests/fuzz/corpus/session || exit 1
	exit 0
fi
if [ ! -x build/fuzz/tests/fuzz_session ]; then
	echo "skipped: fuzz: there is no clang to build fuzzers with"
	exit 0
fi
mkdir -p build/fuzz/found
for target in $targets; do
	mkdir "$work/$target" && cp tests/fuzz/corpus/"$target"/* "$work/$target" || exit 1
	[ "$target" = codec ] && cp "$work"/seeds/* "$work/$target"
	echo "fuzz_$target: $seconds s"
	build/fuzz/tests/fuzz_"$target" -max_total_time="$seconds" -max_len=2048 -len_control=0 -timeout=120 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/found/"$target"- "$work/$target" >"$work/log" 2>&1 || {
		tail -40 "$work/log"
		echo "FAILED: fuzz_$target"
		exit 1
	}
	grep -E 'DONE|number_of_executed' "$work/log"
done
