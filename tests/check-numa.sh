#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Placement on two real NUMA nodes: boots a guest (qemu, no KVM needed) whose first program is a shell that runs the tests in which memory has a place,
# as built: suites of tests/it, and tests of tests/unit (their neighbours may want what an older kernel does not have, and are not judged).
# Exit status 0: all passed; 77: skipped, and why; 1: failed.
# usage: tests/check-numa.sh BUILD            the kernel: $SLAB_KERNEL, else build/numa/vmlinuz, else the machine's in /boot
#        tests/check-numa.sh --fetch-kernel   gets Debian's kernel for cloud guests from apt into build/numa/vmlinuz; nothing is installed
cd "$(dirname "$0")/.." || exit 1
guest=build/numa
boot_s=300
suites="numa readers"
units="test_this_machine test_commit_on_a_node test_half_empty_pool"
skipped() {
	echo "check-numa: skipped: $1"
	exit 77
}
fail() {
	echo "check-numa: $1"
	exit 1
}

fetch_kernel() {
	dir=$guest/deb
	mkdir -p "$dir" || return 1
	package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
	[ -n "$package" ] && (cd "$dir" && apt-get -q download "$package") || return 1
	dpkg-deb --fsys-tarfile "$dir"/linux-image-*.deb | tar -xO --wildcards -f - './boot/vmlinuz-*' >$guest/vmlinuz && [ -s $guest/vmlinuz ]
}
if [ "$1" = --fetch-kernel ]; then
	fetch_kernel || fail "apt has no linux-image-cloud-amd64 to give"
	rm -r $guest/deb
	echo "check-numa: $guest/vmlinuz is there"
	exit
fi

build=${1:?usage: tests/check-numa.sh BUILD}
kernel=${SLAB_KERNEL:-$guest/vmlinuz}
[ -s "$kernel" ] || kernel=/boot/vmlinuz-$(uname -r)
for program in qemu-system-x86_64 cpio; do
	command -v $program >/dev/null || skipped "$program is not installed (Debian: qemu-system-x86, cpio)"
done
[ -r "$kernel" ] || skipped "no kernel image for the guest: set SLAB_KERNEL, or run tests/check-numa.sh --fetch-kernel once"

root=$(mktemp -d) && chmod 755 "$root" || exit 1
trap 'rm -rf "$root"' EXIT

# A file, and the libraries that it wants, at their own places.
put() {
	for file in "$1" $(ldd "$1" | grep -o '/[^ ]*\.so[^ ]*'); do
		to=$root$(realpath -s "$file")
		[ -e "$to" ] || { mkdir -p "$(dirname "$to")" && cp -L "$file" "$to"; } || fail "$file could not be copied"
	done
}
here=$(pwd)
for program in "$here/$build/slabd" "$here/$build/slabctl" "$here/$build/tests/it" "$here/$build/tests/unit" "$(command -v mount)" "$(command -v cat)"; do
	put "$program"
done
for folder in proc sys dev tmp run bin root; do
	mkdir -p "$root/$folder"
done
cp -L /bin/sh "$root/bin/sh"
put /bin/sh
# Users and groups by name, as the daemon looks them up.
mkdir -p "$root/etc" && printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$root/etc/passwd" && printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
cat >"$root/init" <<END
#!/bin/sh
PATH=$(dirname "$(command -v mount)"):$(dirname "$(command -v cat)")
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
echo "nodes \$(cat /sys/devices/system/node/has_memory), Linux \$(cat /proc/sys/kernel/osrelease)"
cd $here
$build/tests/unit topology segment 2>/dev/null
SLABD=$build/slabd SLABCTL=$build/slabctl $build/tests/it $suites 2>/tmp/log
it=\$?
[ \$it = 0 ] || cat /tmp/log
echo "guest: it \$it"
echo o >/proc/sysrq-trigger
read -r never
END
chmod +x "$root/init"
mkdir -p $guest
(cd "$root" && find . | cpio -o -H newc --quiet) >$guest/initrd || fail "no initramfs"

start=$(date +%s)
timeout $boot_s qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 4 -m 2G -display none -no-reboot -nodefaults \
	-object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
	-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=21 \
	-kernel "$kernel" -initrd $guest/initrd -serial file:$guest/console \
	-append "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable random.trust_cpu=on" </dev/null
rc=$?
rm -f $guest/initrd
tr -d '\r' <$guest/console
echo "check-numa: $(($(date +%s) - start)) s"
[ $rc = 0 ] || fail "qemu ended with $rc (124: the guest took more than $boot_s s); the console is in $guest/console"
grep -q 'nodes 0-1,' $guest/console || fail "the guest has not two nodes"
for unit in $units; do
	grep -q "Test: $unit \.\.\..*passed" $guest/console || fail "$unit failed in the guest"
done
grep -q 'guest: it 0' $guest/console || fail "integration tests failed in the guest"
