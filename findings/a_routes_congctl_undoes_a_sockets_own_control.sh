#!/usr/bin/env bash
# Guess: `ip route ... congctl reno` is the default of sockets that say nothing: who calls setsockopt(TCP_CONGESTION)
# keeps what it chose, and root may choose anything; only `congctl lock` forbids a change.
# Seen (Linux 6.18.44): what a socket chose before connect() is replaced in silence when it connects, with `lock` and
# without: getsockopt says bbr (or whatever it was) before, reno after.  What it chooses after connect() stays, without
# `lock`; with it setsockopt fails with EPERM, for root too, even to the control that the socket has: the errno which
# otherwise says that only root may have a control.  So who chooses before connect() measures another one than it says.
# Needs user namespaces, or root; the route is in a network namespace of its own.
set -euo pipefail
if [ "${1:-}" != inside ]; then exec unshare --user --map-root-user --net bash "$0" inside; fi
ip link set lo up
program='
import socket, sys
CONTROL = socket.IPPROTO_TCP, socket.TCP_CONGESTION
with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as file:
    other = next(each for each in sorted(file.read().split()) if each != "reno")


def of(link):
    return link.getsockopt(*CONTROL, 16).rstrip(b"\0").decode()


def given(link, name):
    try:
        link.setsockopt(*CONTROL, name.encode())
    except PermissionError:
        return "EPERM"
    return of(link)


server, link = socket.create_server(("127.0.0.1", 0)), socket.socket()
found = [given(link, other)]
link.connect(server.getsockname())
found += [of(link), given(link, other), given(link, "reno")]
print(sys.argv[1] + ":", "before connect", found[0], "| after", found[1], "| set again", found[2], "| set to reno", found[3])
wanted = {"none": [other] * 3 + ["reno"], "congctl": [other, "reno", other, "reno"], "lock": [other, "reno", "EPERM", "EPERM"]}
assert found == wanted[sys.argv[1]], f"changed: {found}"
'
python3 -c "$program" none
ip route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1 congctl reno
python3 -c "$program" congctl
ip route replace local 127.0.0.1 dev lo table local proto kernel scope host src 127.0.0.1 congctl lock reno
python3 -c "$program" lock
