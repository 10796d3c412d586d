#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every "order: TAG release" has its "order: TAG acquire" somewhere, and the other way round.
cd "$(dirname "$0")/.." || exit 1
tags() {
	cat shm/*.[ch] server/*.[ch] client/*.[ch] | sed -n "s/.*order: \([A-Z_]*\) $1.*/\1/p" | sort -u
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
tags release >"$tmp/release"
tags acquire >"$tmp/acquire"
if [ ! -s "$tmp/release" ]; then
	echo "check-orders: no tag found at all"
	exit 1
fi
if ! diff "$tmp/release" "$tmp/acquire"; then
	echo "check-orders: < is released and never acquired, > the reverse"
	exit 1
fi
echo "check-orders: ok, $(wc -l <"$tmp/release") tags"
