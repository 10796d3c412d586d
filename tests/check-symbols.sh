#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the library exports, what the headers declare and what the symbol map lists are the same: functions by slabclient.h, data by
# slabclient-inline.h, which pollutes nothing; both are clean in C99 and C++.  usage: check-symbols.sh LIBRARY
cd "$(dirname "$0")/.." || exit 1
lib=$1
build=$(dirname "$lib")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
hash=$(sed 's/.* //' "$build/layout_name.h")
{
	grep -E '^SLABC_API' client/slabclient.h | sed -n 's/^[^(]*[ *]\(slabc_[a-z_]*\)(.*/\1/p'
	grep -E '^SLABC_API' "$build/slabclient-inline.h" | sed -n 's/ = .*;/;/; s/.*[ *]\(slabc_inline_[a-z0-9_]*\)\(\[\]\)*;$/\1/p'
} | sort -u >"$tmp/header"
nm -D --defined-only "$lib" | awk '$2 ~ /[TBDRV]/ && $3 ~ /^slabc_|^[a-z]/ { sub(/@.*/, "", $3); print $3 }' | sort -u >"$tmp/exported"
sed -n "s/_\*;/_$hash;/; s/^\t*\(slabc_[a-z0-9_]*\);.*/\1/p" client/libslabclient.map | sort -u >"$tmp/map"
diff "$tmp/header" "$tmp/exported" || { echo "check-symbols: < declared, > exported"; exit 1; }
diff "$tmp/header" "$tmp/map" || { echo "check-symbols: < declared, > in the map"; exit 1; }
readelf -d "$lib" | grep -q 'SONAME.*libslabclient\.so\.[0-9]' || { echo "check-symbols: no soname"; exit 1; }
if readelf -d "$lib" | grep -qE 'NEEDED.*(libevent|libsystemd|libnuma)'; then
	echo "check-symbols: the library needs a library of slabd's"
	exit 1
fi
echo '#include "slabclient.h"' >"$tmp/h.c"
cp "$tmp/h.c" "$tmp/h.cc"
cat >"$tmp/use.inc" <<'END'
#include "slabclient.h"
int main(void) { struct slabc_options o = SLABC_OPTIONS_INIT; struct slabc_cache_options k = SLABC_CACHE_OPTIONS_INIT; return o.size + k.size == 0; }
END
cp "$tmp/use.inc" "$tmp/use.c"
cp "$tmp/use.inc" "$tmp/use.cc"
cat >"$tmp/inline.c" <<'END'
#include "slabclient-inline.h"
void use(struct slabc_cache *k);
void use(struct slabc_cache *k) { slabc_free(k, slabc_alloc(k)); }
END
cp "$tmp/inline.c" "$tmp/inline.cc"
for f in h use inline; do
	"${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Wstrict-prototypes -Werror -Iclient -I"$build" -c "$tmp/$f.c" -o "$tmp/o" || exit 1
	if command -v g++ >/dev/null; then
		g++ -std=c++11 -pedantic -Wall -Wextra -Wno-missing-field-initializers -Werror -Iclient -I"$build" -c "$tmp/$f.cc" -o "$tmp/o" || exit 1
	fi
done
# Macros, functions, structs and enumerators of the inline header: all with the prefix.
extra=$(sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p; s/^\([a-z_0-9]*\)(.*/\1/p; s/^struct \([a-z_0-9]*\) {/\1/p; s/^\t\([A-Z_0-9]*\) = .*/\1/p' "$build/slabclient-inline.h" |
	grep -vE '^(slabc_|SLABC_|SLABCLIENT_INLINE_H$|__attribute__$)')
[ -z "$extra" ] || { echo "check-symbols: slabclient-inline.h brings names of its own:"; echo "$extra"; exit 1; }
echo "check-symbols: ok, $(wc -l <"$tmp/header") names"
