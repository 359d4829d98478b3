#!/bin/busybox sh
# The guest's first process, in its initrd (fill.sh): this machine's files, what the cache adds, and memory above both.
b=/bin/busybox
$b mount -t devtmpfs d /dev; $b mount -t proc p /proc; $b mount -t sysfs s /sys
for m in $($b cat /modules); do $b insmod /m/$m; done
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $o,ro,cache=loose host /host
$b mount -t 9p -o $o,ro,cache=loose extra /extra
$b mount -t 9p -o $o control /control
$b mount -t tmpfs t /t; $b mkdir /t/upper /t/work /t/root
$b mount -t overlay -o lowerdir=/extra:/host,upperdir=/t/upper,workdir=/t/work,xino=off o /t/root
for d in dev proc sys; do $b mount --move /$d /t/root/$d; done
$b mount -t tmpfs run /t/root/run; $b mkdir /t/root/run/guest; $b mount --move /control /t/root/run/guest
exec $b switch_root /t/root /bin/bash /run/guest/inside.sh
