#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slabclient-inline.h: a program that includes it makes few calls of the library, in C99, C++ and with another compiler, linked to the shared library
# or the static one, and as a plugin; a program with the header of another layout, or a plugin that came after the library, makes every call
# there, and runs as right.  usage: check-inline.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=$1
tmp=$(mktemp -d) || exit 1
pid=
trap '[ -n "$pid" ] && kill "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
	echo "check-inline: $1"
	exit 1
}
mkdir "$tmp/src" "$tmp/include" "$tmp/other"
cp client/slabclient.h "$build/slabclient-inline.h" "$tmp/include"
cp client/slabclient.h "$tmp/other"
cp tests/inline.c "$tmp/src/inline.c"
cp tests/inline.c "$tmp/src/inline.cc"
wrap=-Wl,--wrap=slabc_alloc,--wrap=slabc_free
so="-L$build -lslabclient -Wl,-rpath,$PWD/$build"
warn="-pedantic -Wall -Wextra -Wshadow -Wcast-qual -Werror -O2 -pthread"
export SLABD_SOCKET="$tmp/s"

# usage: run fast|slow WHAT PROGRAM...: the share of calls that reached the library
run() {
	expected=$1
	what=$2
	shift 2
	said=$(timeout 60 "$@" 2>&1) || fail "$what: $said"
	echo "$said" | awk -v expected="$expected" '{ ok = expected == "fast" ? $1 > 0 && 10 * $3 < $1 : $1 > 0 && $3 == $1 } END { exit !ok }' ||
		fail "$what is not $expected: $said"
	echo "check-inline: $what: $said"
}

"$build/slabd" --socket="$tmp/s" --arena-size=64M 2>"$tmp/log" &
pid=$!
i=0
until "$build/slabctl" --socket="$tmp/s" status >/dev/null 2>&1; do
	i=$((i + 1))
	[ $i -lt 100 ] || fail "slabd did not start: $(cat "$tmp/log")"
	sleep 0.1
done

# shellcheck disable=SC2086
{
	"${CC:-cc}" -std=c99 $warn -Wstrict-prototypes -I"$tmp/include" "$tmp/src/inline.c" -o "$tmp/c99" $wrap $so || fail "C99"
	run fast "C99" "$tmp/c99"
	"${CC:-cc}" -std=gnu11 -no-pie -fno-pie $warn -I"$tmp/include" "$tmp/src/inline.c" -o "$tmp/no-pie" $wrap $so || fail "no PIE"
	run fast "no PIE" "$tmp/no-pie"
	"${CC:-cc}" -O0 -I"$tmp/include" "$tmp/src/inline.c" -pthread -o "$tmp/O0" $wrap $so || fail "without optimisation"
	run fast "without optimisation" "$tmp/O0"
	"${CC:-cc}" $warn -I"$tmp/include" "$tmp/src/inline.c" -o "$tmp/static" $wrap "$build/libslabclient.a" -lmsgpackc || fail "static library"
	run fast "static library" "$tmp/static"
	if command -v g++ >/dev/null; then
		g++ -std=c++11 $warn -I"$tmp/include" "$tmp/src/inline.cc" -o "$tmp/cxx" $wrap $so || fail "C++"
		run fast "C++" "$tmp/cxx"
	fi
	if command -v clang >/dev/null; then
		clang $warn -I"$tmp/include" "$tmp/src/inline.c" -o "$tmp/clang" $wrap $so || fail "clang"
		run fast "clang" "$tmp/clang"
	fi

	# A plugin that brings the library with it, and one that finds it there.
	"${CC:-cc}" $warn -DPLUGIN -fPIC -shared -I"$tmp/include" "$tmp/src/inline.c" -o "$tmp/plugin.so" $wrap $so || fail "plugin"
	cat >"$tmp/host.c" <<'END'
#include <dlfcn.h>
#include <stddef.h>
int main(int argc, char **argv)
{
	void *h = NULL;
	for (int i = 1; i < argc; i++)
		if (!(h = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)))
			return 3;
	return ((int (*)(void))dlsym(h, "inline_main"))();
}
END
	"${CC:-cc}" "$tmp/host.c" -o "$tmp/host" -ldl || fail "host"
	run fast "plugin" "$tmp/host" "$tmp/plugin.so"
	run slow "plugin after the library" "$tmp/host" "$PWD/$build/libslabclient.so" "$tmp/plugin.so"

	# Another layout: another hash, and all but the index somewhere else.
	hash=$(sed -n 's/.* //p' "$build/layout_name.h")
	sed -e "s/$hash/0123456789abcdef/g" -e '/^struct slabc_inline_sheaf {/,/^};/s/ limit;/ was_size;/; /^struct slabc_inline_sheaf {/,/^};/s/ size;/ limit;/
		/^struct slabc_inline_sheaf {/,/^};/s/ was_size;/ size;/' \
		-e 's|^\tchar \*base; .*|\tuint64_t more[3];\n&|' "$build/slabclient-inline.h" >"$tmp/other/slabclient-inline.h"
	[ "$(diff "$build/slabclient-inline.h" "$tmp/other/slabclient-inline.h" | grep -c '^>')" -ge 6 ] || fail "the header was not changed"
	"${CC:-cc}" $warn -I"$tmp/other" "$tmp/src/inline.c" -o "$tmp/other/c" $wrap $so || fail "another layout"
	run slow "another layout" "$tmp/other/c"
}
