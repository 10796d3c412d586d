#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The layout hash: one field more, less, wider, or one constant changed, and it is another; and a program built so is refused by slabd, by name.
# usage: check-layout.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=$1
tmp=$(mktemp -d) || exit 1
pid=
trap '[ -n "$pid" ] && kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
	echo "check-layout: $1"
	exit 1
}
hash_of() { # of the layout in $tmp/shm; leaves the generated source in $tmp/hash.c
	(cd "$tmp" && awk -f "$OLDPWD/tests/layout_hash.awk" shm/layout.h shm/sheaf.h shm/word.h >gen.c && cc -std=gnu11 -I. -o gen gen.c && ./gen >hash.c &&
		sed -n 's/.*layout_hash = \(0x[0-9a-f]*\).*/\1/p' hash.c)
}
fresh() {
	rm -rf "$tmp/shm"
	cp -r shm "$tmp/shm"
}
fresh
before=$(hash_of)
[ -n "$before" ] || fail "no hash"
grep -q "$before" "$build/layout_hash.c" || fail "the build's hash is not that of its layout"
n=0
while IFS='|' read -r file what from to; do
	fresh
	sed "s/$from/$to/" "shm/$file" >"$tmp/shm/$file"
	cmp -s "shm/$file" "$tmp/shm/$file" && fail "$what: nothing was changed"
	# The static assertions would notice most of these; here the hash must.
	sed -i 's/^_Static_assert.*//' "$tmp/shm/layout.h"
	after=$(hash_of)
	[ -n "$after" ] || fail "$what: does not build"
	[ "$after" != "$before" ] || fail "$what: the hash is the same"
	n=$((n + 1))
done <<'END'
layout.h|a wider field|^	uint8_t incarnation;|	uint16_t incarnation;
layout.h|a renamed field|^	uint32_t slab;|	uint32_t slab_number;
layout.h|two fields in one|^	uint32_t next;|	uint32_t next, more;
layout.h|a longer name|^	char name\[48\];|	char name[56];
layout.h|a constant|LAYOUT_MAX_SLOTS = 16384|LAYOUT_MAX_SLOTS = 8192
sheaf.h|a wider field of the sheaf|^	uint32_t limit;|	uint64_t limit;
word.h|another bit|WORD_SHARED 0x4000u|WORD_SHARED 0xc000u
END
# The last variant, linked into slabctl in place of the right hash.
objects="$(find "$build/client/ctl" "$build/proto" -name '*.o') $build/client/reach.o"
# shellcheck disable=SC2086
cc -I. -o "$tmp/slabctl" $objects "$tmp/hash.c" -lmsgpackc || fail "slabctl does not link"
"$build/slabd" --socket="$tmp/s" --arena-size=2M 2>"$tmp/log" &
pid=$!
i=0
until "$build/slabctl" --socket="$tmp/s" status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "slabd did not start: $(cat "$tmp/log")"
	sleep 0.1
done
said=$("$tmp/slabctl" --socket="$tmp/s" status 2>&1) && fail "a program of another layout was let in"
for h in "$before" "$after"; do
	echo "$said" | grep -q "${h#0x}" || fail "the refusal does not name $h: $said"
done
echo "check-layout: ok, $n changes noticed; refused with: $said"
