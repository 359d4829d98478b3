#!/usr/bin/env bash
# Guess: bytes that a connection cannot bring are sent again and again, and tcpi_retransmits counts it: so a program that
# looks at that number finds a connection that is silent.
# Seen (Linux 6.18): it does if the other host's interface is down.  If it is the own one, when nothing was on the way, what
# is sent next never leaves; the kernel then "probes" instead (tcpi_probes, the timer of a closed window), and
# tcpi_retransmits is 0 for ever, as are tcpi_unacked and tcpi_lost.  TCP_INFO of a pulled cable depends on its end.
# Needs root, iproute2 and Python.
set -euo pipefail
here="tcpfinda$$" there="tcpfindb$$"
trap 'ip netns del "$here"; ip netns del "$there"; rm -f "/tmp/$here.py"' EXIT
ip netns add "$here"
ip netns add "$there"
ip link add v0 netns "$here" type veth peer name v0 netns "$there"
ip -n "$here" addr add 10.94.0.1/24 dev v0
ip -n "$there" addr add 10.94.0.2/24 dev v0
for space in "$here" "$there"; do ip -n "$space" link set v0 up; done
cat > "/tmp/$here.py" <<'PY'
import os, socket, subprocess, sys, time

_, here, there = sys.argv
ready, tell = os.pipe()
if (child := os.fork()) == 0:
    with open(f"/var/run/netns/{there}") as space:
        import ctypes

        assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
    server = socket.create_server(("10.94.0.2", 7000))
    os.write(tell, b"+")
    links = [server.accept()[0] for _ in range(2)]
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)


def pulled(space: str) -> tuple[int, int]:
    """(retransmits, probes) of a connection 3 s after the interface of this host went down, and it sent 1,000 bytes."""
    link = socket.create_connection(("10.94.0.2", 7000))
    time.sleep(0.3)
    subprocess.run(["ip", "-n", space, "link", "set", "v0", "down"], check=True)
    link.send(bytes(1000))
    time.sleep(3)
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    subprocess.run(["ip", "-n", space, "link", "set", "v0", "up"], check=True)
    time.sleep(1)
    return info[2], info[3]


try:
    with open(f"/var/run/netns/{here}") as space:
        import ctypes

        assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
    own, other = pulled(here), pulled(there)
finally:
    os.kill(child, 9)
print(f"(retransmits, probes) with the own interface down: {own}; with the other one's: {other}")
assert own[0] == 0 and own[1] >= 2, own
PY
python3 "/tmp/$here.py" "$here" "$there"
