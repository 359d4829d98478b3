#!/usr/bin/env bash
# Guess: TCP_INFO of an MPTCP socket counts the bytes of the connection: it is the socket that the program has, and
# setsockopt(TCP_CONGESTION) on it changes all of its paths.
# Seen (Linux 6.18.44, two paths of 100 Mbit/s): TCP_INFO is that of the first subflow alone.  It says that about half
# of the bytes were acknowledged.  When that path's interface is down it stands still, while the connection goes on over
# the other one.  So a program that measures its rate by TCP_INFO measures half of it, or nothing.  MPTCP_INFO counts all.
# Needs user namespaces, or root; all happens in network namespaces of its own.
set -euo pipefail
if [ "${1:-}" != inside ]; then exec unshare --user --map-root-user --net bash "$0" inside; fi
folder=$(mktemp -d)
unshare --net sleep 60 & other=$!
trap 'kill $other; rm -rf "$folder"' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
there() { nsenter --target $other --net "$@"; }
for i in 0 1; do
    ip link add v$i type veth peer name v$i netns $other
    ip addr add 10.99.$i.1/24 dev v$i
    there ip addr add 10.99.$i.2/24 dev v$i
    for run in "" there; do
        $run ip link set v$i up
        $run tc qdisc add dev v$i root tbf rate 100mbit burst 128kb latency 50ms
    done
done
ip mptcp limits set subflow 4
there ip mptcp limits set subflow 4
ip mptcp endpoint add 10.99.1.1 dev v1 subflow
cat > "$folder/server.py" <<'PY'
import socket

with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as server:
    server.bind(("10.99.0.2", 7000))
    server.listen()
    link = server.accept()[0]
    while link.recv(1 << 18):
        pass
PY
cat > "$folder/client.py" <<'PY'
import socket
import struct
import subprocess
import time

SOL_MPTCP, MPTCP_INFO = 284, 1
link = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
while link.connect_ex(("10.99.0.2", 7000)):
    time.sleep(0.1)


def counted() -> tuple[int, int]:
    """Bytes that are acknowledged, by TCP_INFO and by MPTCP_INFO."""
    return (struct.unpack_from("Q", link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128), 120)[0],
            struct.unpack_from("Q", link.getsockopt(SOL_MPTCP, MPTCP_INFO, 96), 72)[0])


link.sendall(b"x")
time.sleep(0.5)  # the second path joins
link.sendall(bytes(10_000_000))
time.sleep(1.5)
first, all_ = counted()
print(f"10,000,001 bytes were sent; TCP_INFO says {first}, MPTCP_INFO {all_}")
assert all_ == 10_000_001 and 3_000_000 < first < 7_000_000, "changed"
subprocess.run(["ip", "link", "set", "v0", "down"], check=True)
link.sendall(bytes(2_000_000))
for _ in range(100):
    time.sleep(0.1)
    if counted()[1] == 12_000_001:
        break
print("the first path down, 2,000,000 more: TCP_INFO", counted()[0], "MPTCP_INFO", counted()[1])
assert counted()[1] == 12_000_001 and counted()[0] < first + 100_000, "changed"
PY
there python3 "$folder/server.py" & server=$!
timeout 30 python3 "$folder/client.py"
wait $server
