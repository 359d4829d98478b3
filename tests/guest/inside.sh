# The guest's first process once its files are there (init.sh): the network, the RDMA devices, the command, the end.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
control=/run/guest
network() {
  # Both ends of the cable are in one namespace (rxe works in no other), so the table of local addresses is asked only for
  # what came in by the cable: then what goes from one end to the other leaves by it.
  for i in all default; do echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local; echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter; done
  echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
  ip -batch - <<X
link set lo up
link add veth0 address 02:00:00:77:00:01 mtu 4200 type veth peer name veth1 address 02:00:00:77:00:02 mtu 4200
rule add pref 5 iif veth0 lookup local
rule add pref 5 iif veth1 lookup local
rule add pref 6 from 10.77.0.1 to 10.77.0.2 lookup 77
rule add pref 6 from 10.77.0.2 to 10.77.0.1 lookup 78
rule add pref 100 lookup local
rule del pref 0
addr add 10.77.0.1/24 dev veth0
addr add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
route add 10.77.0.0/24 dev veth0 table 77
route add 10.77.0.0/24 dev veth1 table 78
X
}
folders() {
  mkdir -p /dev/pts /dev/shm /run/lock
  mount -t devpts p /dev/pts && mount -t tmpfs shm /dev/shm || return
  local out; out=$(<$control/out); [ -n "$out" ] || return 0
  mkdir -p "$out" && mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out "$out"
}
devices() { printf 'link add rxe%d type rxe netdev veth%d\n' 0 0 1 1 | rdma -b -; }
off() { sync; echo o >/proc/sysrq-trigger; sleep 99; }

ulimit -l unlimited; ulimit -n 65536
{ folders && network && devices; } >$control/setup 2>&1 || {
  { echo "guest: the set-up failed"; cat $control/setup; } >/dev/console; off
}
for p in /sys/class/virtio-ports/*/name; do
  d=${p%/name}; case $(<$p) in o) stdout=/dev/${d##*/};; e) stderr=/dev/${d##*/};; esac
done
( . $control/command ) </dev/null >$stdout 2>$stderr
echo $? >$control/code
off
