#!/usr/bin/env bash
# Guess: root of a network namespace may make each of net.ipv4.tcp_available_congestion_control its default, as the
# namespace has a net.ipv4.tcp_congestion_control of its own; and a control that it cannot have as default, its sockets
# cannot have either.
# Seen (Linux 6.18.44): a control that net.ipv4.tcp_allowed_congestion_control does not name is refused as default,
# with EPERM, to the machine's root too: only the first namespace may have it.  Yet there each socket of root's gets it
# by setsockopt.  So what a container cannot have as its default, a program in it that asks for each socket has.
# (Python's `open(...).write(...)` without a close loses that error: it comes when the file is flushed.)
# Needs user namespaces, or root; and a control that is available and not allowed, as `modprobe tcp_bbr` leaves one.
set -euo pipefail
if [ "${1:-}" != inside ]; then exec unshare --user --map-root-user --net bash "$0" inside; fi
read -r available < /proc/sys/net/ipv4/tcp_available_congestion_control
read -r allowed < /proc/sys/net/ipv4/tcp_allowed_congestion_control
restricted=
for name in $available; do [[ " $allowed " == *" $name "* ]] || restricted=$name; done
[ -n "$restricted" ] || { echo "all of $available are allowed here: modprobe another one"; exit 1; }
as_default() { (echo "$1" > /proc/sys/net/ipv4/tcp_congestion_control) 2> /dev/null && echo taken || echo refused; }
as_sockets() { python3 -c "import socket; socket.socket().setsockopt(6, socket.TCP_CONGESTION, b'$1')" && echo taken; }
found="$(as_default reno) $(as_default "$restricted") $(as_sockets "$restricted")"
echo "available: $available; allowed: $allowed.  reno as default, $restricted as default, $restricted of a socket: $found"
[ "$found" = "taken refused taken" ] || { echo "changed: expected taken refused taken"; exit 1; }
