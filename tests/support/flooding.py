"""A stranger that floods a port: python flooding.py ADDRESS PORT RATE SECONDS KIND.

It says that it has begun, and how many connections it made: on a busy machine it takes longer for a quarter of them.

silent: they say nothing until they are closed, 0.3 s later; hello: a whole hello of another key; closed: at once.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import struct
import sys
import time

PLACE = 0xFFFFFFFF, bytes(16), 1
HELLO = struct.pack("!6sHIII16sH16s64s32s", b"hocket", 3, 0, 1, *PLACE, b"rendezvous", b"x", bytes(32))
NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT


def knock(place: tuple[str, int], number: int) -> socket.socket | None:
    """A connection that is on its way, from one of 250 addresses, as each has no more than 28,000 ports a minute."""
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.IPPROTO_IP, NO_PORT, 1)
        sock.bind((f"127.9.9.{number % 250 + 1}", 0))
        sock.connect(place)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        return None
    return sock


def flood(place: tuple[str, int], rate: float, seconds: float, kind: str) -> int:
    made, begun = 0, time.monotonic()
    open_: collections.deque[socket.socket] = collections.deque()
    while (now := time.monotonic() - begun) < seconds or (made < rate * seconds / 4 and now < 20 * seconds):
        if made >= now * rate:
            time.sleep(0.0005)
            continue
        made += 1
        if made == 200:
            print("begun", flush=True)
        sock = knock(place, made)
        if sock is None:
            continue
        if kind == "closed":
            sock.close()
            continue
        open_.append(sock)
        if kind == "hello" and len(open_) > 20:
            with contextlib.suppress(OSError):
                open_[-20].send(HELLO + os.urandom(32))
        while len(open_) > 0.3 * rate:
            open_.popleft().close()
    return made


if __name__ == "__main__":
    host, port, rate, seconds, kind = sys.argv[1:]
    print(flood((host, int(port)), float(rate), float(seconds), kind), flush=True)
