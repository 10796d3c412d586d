#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# box.sh COMMAND... - runs it as process 1 of new pid, mount, cgroup, uts, ipc and net namespaces, in a cgroup of its own, with a pure cgroup v2 tree on
# /sys/fs/cgroup and a /run of its own.  Nothing outside changes: at the end, however it comes, every process in the cgroup is killed and it is removed.
# Never run a systemd outside of such a box: at its start it moves all processes of its root cgroup.
set -eu
top=/sys/fs/cgroup/unified
[ -d $top ] || top=/sys/fs/cgroup
cg=$top/slabd-test-$$
mkdir "$cg"
cleanup() {
	rc=$?
	trap - EXIT TERM INT HUP
	echo 1 >"$cg/cgroup.kill" 2>/dev/null || true
	# A killed process leaves its cgroup a moment later.
	for _ in $(seq 500); do
		find "$cg" -depth -type d -exec rmdir {} + 2>/dev/null || true
		[ -d "$cg" ] || break
		sleep 0.02
	done
	[ -d "$cg" ] && echo "box.sh: $cg is left" >&2
	exit $rc
}
trap cleanup EXIT
# To the inner systemd a TERM means "re-execute": the box ends by the cgroup's kill instead.
trap 'exit 143' TERM INT HUP
# The child enters the cgroup first, so that the cgroup namespace is rooted there and this shell stays outside and can remove it.
setsid bash -c 'echo $$ >"$1"/cgroup.procs; shift
	exec unshare --mount --propagation private --cgroup --pid --fork --kill-child --uts --ipc --net --mount-proc -- bash -c "
		mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run && exec \"\$@\"" box "$@"' \
	box "$cg" "$@" </dev/null &
wait $!
