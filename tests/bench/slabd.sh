# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# What run.sh and trade.sh share: a private slabd, the pool of huge pages, and what to say of the machine.
# Reads SLABD, SLABCTL, BENCH, OUT, HUGE_PAGES from the environment. Everything is put back at the end.

: "${SLABD:=build/release/slabd}"
: "${SLABCTL:=build/release/slabctl}"
: "${BENCH:=build/release/bench}"
: "${OUT:=build/bench}"
: "${HUGE_PAGES:=512}"

pool=/proc/sys/vm/nr_hugepages
pool_before=
slabd_pid=
folder=

fail() {
	echo "$0: $*" >&2
	exit 1
}

slabd_stop() {
	[ -n "$slabd_pid" ] || return 0
	kill "$slabd_pid" 2>/dev/null
	n_waits=0
	while kill -0 "$slabd_pid" 2>/dev/null; do
		n_waits=$((n_waits + 1))
		[ "$n_waits" -lt 100 ] || kill -KILL "$slabd_pid" 2>/dev/null
		sleep 0.05
	done
	wait "$slabd_pid" 2>/dev/null
	slabd_pid=
}

clean_up() {
	slabd_stop
	# Others may use the pool: what they have made of it since stays.
	[ -z "$pool_before" ] || [ "$(cat "$pool")" != "$HUGE_PAGES" ] || echo "$pool_before" >"$pool"
	[ -z "$folder" ] || rm -rf "$folder"
}

# Once, before all else.
bench_set_up() {
	trap clean_up EXIT
	trap 'exit 130' INT TERM HUP
	for program in "$SLABD" "$SLABCTL" "$BENCH"; do
		[ -x "$program" ] || fail "$program is not there"
	done
	mkdir -p "$OUT" || exit 1
	folder=$(mktemp -d) || exit 1
	socket=$folder/slabd.sock
	if [ -w "$pool" ] && [ "$(cat "$pool")" -lt "$HUGE_PAGES" ]; then
		pool_before=$(cat "$pool")
		echo "$HUGE_PAGES" >"$pool"
	fi
}

ask() {
	timeout 20 "$SLABCTL" --socket="$socket" "$@"
}

# Starts a slabd with these arguments and waits until it answers, 10 s at most.
slabd_start() {
	"$SLABD" --socket="$socket" "$@" >"$folder/log" 2>&1 &
	slabd_pid=$!
	n_waits=0
	until ask status >/dev/null 2>&1; do
		n_waits=$((n_waits + 1))
		if [ "$n_waits" -ge 200 ] || ! kill -0 "$slabd_pid" 2>/dev/null; then
			cat "$folder/log" >&2
			fail "slabd does not answer"
		fi
		sleep 0.05
	done
}

# A string or number out of JSON on stdin, of the first line that has it.
field() {
	sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p; t
		s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" | head -n 1
}

machine() {
	cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
	echo "$(nproc) x ${cpu:-$(uname -m)}, Linux $(uname -r), $(date +%Y-%m-%d)"
}
