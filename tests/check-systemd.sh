#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Slabd under a real systemd: the units as installed, in a box (tests/systemd/box.sh) that boots the systemd of this machine on an overlay of its root.
# usage: check-systemd.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
skip() {
	echo "check-systemd: skipped: $1"
	exit 0
}
[ "$(id -u)" = 0 ] || skip "only root can boot a systemd in a box"
for tool in /lib/systemd/systemd systemd-analyze systemd-sysusers setpriv unshare; do
	command -v $tool >/dev/null || skip "$tool is not installed"
done
[ -x "$build/tests/attach" ] || {
	echo "check-systemd: there is no $build/tests/attach: make $build/tests/attach first"
	exit 1
}
tmp=$(mktemp -d) || exit 1
box=
cleanup() {
	[ -n "$box" ] && kill -TERM "$box" 2>/dev/null && wait "$box"
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 143' TERM INT HUP
unshare --mount --pid --fork --cgroup --net true 2>"$tmp/why" || skip "no namespaces here: $(cat "$tmp/why")"

make -s install VARIANT="$(basename "$build")" PREFIX=/usr DESTDIR="$tmp/stage" >/dev/null || exit 1
# Found by the loader without asking ldconfig, which would write into the box's view of the host's cache.
mkdir -p "$tmp/stage/usr/lib/x86_64-linux-gnu"
cp -a "$tmp"/stage/usr/lib/libslabclient.so* "$tmp/stage/usr/lib/x86_64-linux-gnu/"
install -m 755 "$build/tests/attach" "$tmp/stage/usr/bin/slabd-test-attach"

# Some 5 seconds on an idle machine, some 30 on one with four busy loops.
timeout --signal=TERM --kill-after=30 150 tests/systemd/box.sh bash "$PWD/tests/systemd/boot.sh" "$tmp/stage" "$PWD/tests/systemd/script.sh" "$tmp/out" >"$tmp/box" 2>&1 &
box=$!
wait "$box"
rc=$?
box=
cat "$tmp/box" "$tmp/out" 2>/dev/null
if [ $rc -ne 0 ] || ! grep -q '^checks [0-9]*, failed 0$' "$tmp/out"; then
	echo "check-systemd: failed (the box ended with $rc)"
	exit 1
fi
echo "check-systemd: ok"
