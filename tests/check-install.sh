#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix, builds the examples against that copy by pkg-config, and uninstalls: nothing must be left.
# usage: check-install.sh BUILD   (the release build's folder)
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() {
	echo "check-install: $1"
	exit 1
}
make -s install PREFIX=/usr DESTDIR="$tmp/stage" >/dev/null || fail "install with DESTDIR"
[ -x "$tmp/stage/usr/sbin/slabd" ] || fail "slabd is not where it belongs"
grep -q "$tmp" "$tmp/stage/usr/lib/pkgconfig/libslabclient.pc" && fail "DESTDIR has got into the pkg-config file"
make -s uninstall PREFIX=/usr DESTDIR="$tmp/stage" || fail "uninstall"
left=$(find "$tmp/stage" ! -type d)
[ -z "$left" ] || fail "uninstall has left $left"
make -s install PREFIX="$tmp/prefix" >/dev/null || fail "install"
PKG_CONFIG_PATH="$tmp/prefix/lib/pkgconfig" make -s -C examples OUT="$tmp/examples" || fail "the examples do not build against the installed copy"
LD_LIBRARY_PATH="$tmp/prefix/lib" ldd "$tmp/examples/pipeline" | grep -q "$tmp/prefix/lib/libslabclient.so" || fail "the example does not use the installed copy"
echo '#include <slabclient-inline.h>
int main(int argc, char **argv) { return argc > 1 && slabc_alloc((struct slabc_cache *)(void *)argv); }' >"$tmp/inline.c"
# shellcheck disable=SC2046
"${CC:-cc}" "$tmp/inline.c" -o "$tmp/inline" $(PKG_CONFIG_PATH="$tmp/prefix/lib/pkgconfig" pkg-config --cflags --libs libslabclient) ||
	fail "slabclient-inline.h does not build against the installed copy"
"$tmp/prefix/sbin/slabd" --version >/dev/null || fail "the installed slabd does not start"
"$tmp/prefix/bin/slabctl" --version >/dev/null || fail "the installed slabctl does not start"
echo "check-install: ok"
