#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# boot.sh STAGE SCRIPT OUT - process 1 of box.sh: makes a root (an overlay of the running one, its upper layer in memory, with the files of STAGE put
# over it) and becomes systemd there, which runs SCRIPT as a unit; its output goes to OUT, and its exit status is the box's.
set -eu
stage=$1 script=$2 out=$3
mkdir /run/ov
mount -t tmpfs tmpfs /run/ov
mkdir /run/ov/{upper,work,root}
R=/run/ov/root
mount -t overlay -o lowerdir=/,upperdir=/run/ov/upper,workdir=/run/ov/work overlay $R
cp -a "$stage/." $R/
mount -t proc proc $R/proc
mount -t sysfs -o ro sysfs $R/sys
mount -t cgroup2 none $R/sys/fs/cgroup
mount -t tmpfs -o mode=755,nosuid tmpfs $R/dev
for d in null zero full random urandom tty; do
	touch $R/dev/$d
	mount --bind /dev/$d $R/dev/$d
done
mkdir $R/dev/{pts,shm,mqueue,hugepages}
ln -s /proc/self/fd $R/dev/fd
ln -s pts/ptmx $R/dev/ptmx # PrivateDevices= wants it
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts $R/dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs $R/dev/shm
mount -t tmpfs -o mode=1777 tmpfs $R/tmp
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs $R/run
# Slabd's units as installed, and the targets they need: nothing that the host has enabled is started.
mkdir $R/run/units
for u in sysinit basic sockets paths timers slices shutdown umount final exit local-fs local-fs-pre multi-user; do
	cp /lib/systemd/system/$u.target $R/run/units/
done
cp /lib/systemd/system/systemd-exit.service $R/run/units/
cp "$stage"/usr/lib/systemd/system/slabd.* $R/run/units/
sed -i '/^\(Wants\|Requires\)=.*\(swap\|local-fs\)/d' $R/run/units/*.target
# There is no journal in here.
mkdir $R/run/units/slabd.service.d
printf '[Service]\nStandardOutput=append:/run/slabd.log\nStandardError=append:/run/slabd.log\n' >$R/run/units/slabd.service.d/log.conf
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n' >$R/run/units/default.target
mkdir $R/run/units/default.target.wants
ln -s ../test.service $R/run/units/default.target.wants/
cat >$R/run/units/test.service <<U
[Unit]
DefaultDependencies=no
After=basic.target
FailureAction=exit
SuccessAction=exit
[Service]
Type=oneshot
ExecStart=/bin/bash /run/script
StandardOutput=file:/run/out
StandardError=file:/run/out
U
cp "$script" $R/run/script
: >"$out"
touch $R/run/out
mount --bind "$out" $R/run/out
printf 'uninitialized\n' >$R/run/machine-id
cd $R
mkdir run/oldroot
pivot_root . run/oldroot
umount -l /run/oldroot
exec env -i container=box SYSTEMD_UNIT_PATH=/run/units PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C \
	/lib/systemd/systemd --system --log-target=null --show-status=0 --unit=default.target
