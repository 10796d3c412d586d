#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What check-systemd.sh proves, run as a unit of the systemd in the box.  A check that fails is named, and the rest goes on.
n=0 bad=0
check() { # check SENTENCE COMMAND...
	local what=$1
	shift
	n=$((n + 1))
	if ! "$@"; then
		bad=$((bad + 1))
		echo "FAILED: $what ($*)"
	fi
}
eventually() { # looks again for 20 seconds
	for _ in $(seq 400); do
		"$@" && return 0
		sleep 0.05
	done
	return 1
}
says() { # says TEXT COMMAND...: the output, which is kept in $out, has the text
	local text=$1
	shift
	out=$("$@" 2>&1)
	case $out in *"$text"*) return 0 ;; esac
	echo "        says: $out"
	return 1
}
is() { [ "$1" = "$2" ] || { echo "        is: $1"; return 1; }; }
differs() { [ "$1" != "$2" ]; }
not() { ! "$@"; }
show() { systemctl show -P "$2" "$1"; }
# A member of the group slabd, and a stranger; neither has an account.
member() { setpriv --reuid=20001 --regid=20001 --groups="$(getent group slabd | cut -d: -f3)" "$@"; }
stranger() { setpriv --reuid=20002 --regid=20002 --clear-groups "$@"; }
attach=/usr/bin/slabd-test-attach
conf=/etc/slabd/slabd.conf

echo "systemd $(systemctl --version | head -1)"

check_active() {
	check "slabd is active" is "$(show slabd.service ActiveState)" active
	[ "$(show slabd.service MainPID)" -gt 0 ]
}

# The files that are installed.
check "sysusers makes the user" systemd-sysusers /usr/lib/sysusers.d/slabd.conf
check "tmpfiles makes the folder" systemd-tmpfiles --create /usr/lib/tmpfiles.d/slabd.conf
check "the folder is slabd's" is "$(stat -c %U:%G:%a /run/slabd)" slabd:slabd:755
check "the units are without fault" is "$(systemd-analyze verify --man=no slabd.socket slabd.service 2>&1)" ""
check "exposure is at most 2.5" bash -c 'systemd-analyze security --offline=true --threshold=25 --no-pager /run/units/slabd.service >/run/security'
grep '→' /run/security
check "the sample is right" says "ok" slabd --config=$conf --check-config
check "the sample is right with its comments removed" says "ok" \
	bash -c "sed 's/^#\([a-z-]* = \|\[\)/\1/; s/encoder/slabd/' $conf >/run/all.conf; grep -q '^mode = 0640' /run/all.conf && slabd --config=/run/all.conf --check-config"

# Socket activation: the first client starts slabd, and is served.
check "the socket starts" systemctl start slabd.socket
check "slabd waits to be needed" is "$(show slabd.service ActiveState)" inactive
check "the socket is the group's" is "$(stat -c %U:%G:%a /run/slabd/slabd.sock)" slabd:slabd:660
check "a member is admitted, and slabd started" says ok member $attach
if ! check_active; then
	systemctl --no-pager status slabd.service
	cat /run/slabd.log
	echo "checks $n, failed $bad: slabd does not start, the rest makes no sense"
	exit 1
fi
check "it says what it serves" is "$(show slabd.service StatusText)" "Serving 1 arena, 1073741824 bytes"
check "a stranger is refused by the socket" says "Permission denied" stranger $attach
check "root is admitted" says ok $attach

# As confined as it says, and all works that it needs.
pid=$(show slabd.service MainPID)
check "slabd is its own user" is "$(stat -c %U /proc/$pid)" slabd
check "no capability" grep -q '^CapEff:	0000000000000000$' /proc/$pid/status
check "no new privileges" grep -q '^NoNewPrivs:	1$' /proc/$pid/status
check "system calls are filtered" grep -q '^Seccomp:	2$' /proc/$pid/status
check "pages are committed" says '"committed_bytes"' slabctl --json status

# Readiness: once `systemctl start` returns, the reserve is there and the socket answers; a reserve that cannot be had is a start that fails.
printf '[arena]\nsize = 256M\nreserve = 64M\npage-kind = 4k\n[arena video]\nsize = 16M\nmode = 0640\n[arena secret]\nsize = 16M\nmode = 0600\n' >$conf
printf '[arena frames]\nsize = 16M\nreserve = 4M\npage-kind = thp\n' >>$conf
check "restart" systemctl restart slabd.service
check "the reserve is committed when it is ready" says '"committed_bytes": 67108864' slabctl --json --timeout=1 status
check "it is another process" differs "$(show slabd.service MainPID)" "$pid"
check "it serves four arenas" is "$(show slabd.service StatusText)" "Serving 4 arenas, 318767104 bytes"
[ -d /sys/kernel/mm/transparent_hugepage ] &&
	check "confined as it is, it gets transparent huge pages" says '"bytes_thp": 4194304' slabctl --json --arena=frames status

# Several arenas: who may do what.
check "a member may write where the group may" says ok member $attach default
check "a member may read where the group may" says ok member $attach --read-only video
check "a member may not write there, and is told why" says "may only read arena 'video' (owner" member $attach video
check "a member is refused where only the owner may" says "may not read arena 'secret'" member $attach --read-only secret
check "the refusal is in the log" grep -q "refused: uid 20001 may only read arena 'video'" /run/slabd.log

# Restart with a client attached, and a crash: whoever connects meanwhile is served.
coproc HOLD { exec $attach --hold; }
read -r line <&"${HOLD[0]}"
check "a client holds a session" is "$line" ok
goes_on() { # the client that holds one
	local line
	echo again >&"${HOLD[1]}" && read -r -t 20 line <&"${HOLD[0]}" && is "$line" ok
}
for i in 1 2 3; do
	check "kill $i" systemctl kill -s KILL slabd.service
	check "the client goes on after kill $i" goes_on
	check "who connects after a crash is served" says ok member $attach
	check "slabd was started again" is "$(show slabd.service NRestarts)" $i
	check "and audits its arena" says '"n_lost": 0' slabctl --json audit
done
check "its descriptors are kept" differs "$(show slabd.service NFileDescriptorStore)" 0
check "it says what it adopted" grep -q "arena 'default' adopted from slabd" /run/slabd.log
check "restart" systemctl restart slabd.service
check "the client goes on after a restart" goes_on
check "a member is served after a restart" says ok member $attach

# What does not verify stays in the store until somebody has decided, and its client waits.
spoil() { # turns a bit of the first ledger's layout hash, and the second time turns it back: systemd holds it
	local fd
	for fd in /proc/1/fd/*; do
		case $(readlink "$fd") in */memfd:slabd:ledger*) ;; *) continue ;; esac
		printf "\\x$(printf %02x $((0x$(dd if="$fd" bs=1 skip=12 count=1 status=none | od -An -tx1 | tr -d ' ') ^ 64)))" |
			dd of="$fd" bs=1 seek=12 conv=notrunc status=none
		return
	done
	return 1
}
refuses() { says "layout: the ledger is of" slabctl inspect; }
check "a ledger is spoiled" spoil
check "kill" systemctl kill -s KILL slabd.service
check "slabd does not adopt" eventually refuses
is_active() { is "$(show slabd.service ActiveState)" active; }
check "but is active" eventually is_active
check "and says so" eventually says "Serving nobody" show slabd.service StatusText
check "who connects is told" says "has not adopted" $attach
check "nothing of it is given up" differs "$(show slabd.service NFileDescriptorStore)" 0
check "a second kill" systemctl kill -s KILL slabd.service
check "the next one does not adopt either" eventually refuses
check "the ledger is as it was" spoil
check "a restart tries again" systemctl restart slabd.service
check "it serves" eventually says ok member $attach
check "the client goes on" goes_on
check "and nothing is lost" says '"n_lost": 0' slabctl --json audit

# Drain: the client that holds a session is waited for; slabd stays away until somebody connects, and begins empty.
check "a drain has its time" says "slabd is not drained" slabctl --timeout=1 drain
check "it serves as before" says ok member $attach
restarts=$(show slabd.service NRestarts)
slabctl drain 2>/run/drain &
drain=$!
check "a drain waits" eventually grep -q "1 session is left" /run/drain
check "its status says so" eventually says Draining show slabd.service StatusText
check "who connects is refused" says "it drains" $attach
eval "exec ${HOLD[1]}>&-"
wait "$HOLD_PID"
check "the client had no error" is $? 0
wait $drain
check "the drain has ended" is $? 0
is_gone() { is "$(show slabd.service ActiveState)" inactive; }
check "slabd is gone" eventually is_gone
check "cleanly" is "$(show slabd.service Result)" success
check "and is not restarted" is "$(show slabd.service NRestarts)" "$restarts"
n_adopted=$(grep -c 'adopted from slabd' /run/slabd.log)
check "who connects starts another" says ok member $attach
check "that finds nothing" is "$(grep -c 'adopted from slabd' /run/slabd.log)" "$n_adopted"

# Told to stop, a slabd that does not adopt gives up what there is.
check "a ledger is spoiled" spoil
check "kill" systemctl kill -s KILL slabd.service
check "slabd does not adopt" eventually refuses
check "restart" systemctl restart slabd.service
check "which keeps what there is, and tries again" eventually refuses
check "stop" systemctl stop slabd.service
check "it starts empty" says ok member $attach
check "with nothing to inspect" slabctl inspect >/dev/null

# Reload: modes change for who comes next; what takes a restart is named; an error changes nothing and fails the reload.
pid=$(show slabd.service MainPID)
sed -i 's/^mode = 0600$/mode = 0660/; s/^size = 256M$/size = 512M/' $conf
check "reload" systemctl reload slabd.service
check "the reload is done" eventually grep -q 'reload: done; 1 settings wait' /run/slabd.log
check "the member may now write" says ok member $attach secret
check "the size is named" grep -q "the size of arena 'default' has changed: that takes a restart" /run/slabd.log
check "it is the same process" is "$(show slabd.service MainPID)" "$pid"
check "it is active again" eventually is "$(show slabd.service ActiveState)" active
echo 'mode = 0999' >>$conf
check "a reload of a file with an error fails" not systemctl reload slabd.service 2>/dev/null
check "the error is in the log" grep -q "slabd.conf:[0-9]*: mode = '0999'" /run/slabd.log
check "slabd serves on" says ok member $attach secret
check "it is the same process still" is "$(show slabd.service MainPID)" "$pid"
check "a start with that file fails" not systemctl restart slabd.service 2>/dev/null
systemctl stop slabd.service slabd.socket 2>/dev/null
systemctl reset-failed slabd.service slabd.socket 2>/dev/null
printf '[arena]\nsize = 2G\nreserve = 1G\npage-kind = 1g\n' >$conf
if [ "$(cat /sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages 2>/dev/null)" = 0 ]; then
	check "a reserve that cannot be had fails the start" not systemctl start slabd.service 2>/dev/null
	check "and says what is missing" grep -q "the reserve of 1073741824 bytes could not be committed.*hugepages-1048576kB" /run/slabd.log
	systemctl stop slabd.service slabd.socket 2>/dev/null
	systemctl reset-failed slabd.service slabd.socket 2>/dev/null
fi

# The end.
printf '[arena]\nsize = 64M\n' >$conf
check "start" systemctl start slabd.service
check "stop" systemctl stop slabd.service slabd.socket
check "a clean end" is "$(show slabd.service Result)" success
check "the socket is gone" not test -e /run/slabd/slabd.sock

[ $bad = 0 ] || { echo "--- slabd's log"; tail -60 /run/slabd.log; }
echo "checks $n, failed $bad"
exit $((bad != 0))
