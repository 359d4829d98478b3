"""The speed of copies, by where the two arrays lie in their pages.

    python -m hocket.lab.memory.copies [--bytes 64K]

Prints GB/s by (to - from) mod 4096: of the C library's memcpy, of hocket's copy (system/copy.h), and of the kernel's,
into and out of a TCP socket.  A buffer of the kernel is taken to begin with a page: so it does if all earlier bytes
have been read.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy

from hocket.bench.harness.limits import copy
from hocket.lab.program import arguments

PAGE = 4096
BEHIND = (0, 1, 8, 16, 31, 32, 48, 64, 256, 2048, 4064, 4095)
TURNS, MOST = 60, 64 << 10

Act = Callable[[], object]


def main(argv: Sequence[str] | None = None) -> int:
    nbytes = arguments("hocket.lab.memory.copies", __doc__, argv, bytes=64 << 10).bytes
    if not 0 < nbytes <= MOST:
        raise SystemExit(f"--bytes {nbytes}: 1 to {MOST}, which the kernel keeps until they are received")
    print(f"| (to - from) mod {PAGE} | memcpy, GB/s | hocket | into a socket | out of one |")
    print("|---|---|---|---|---|", flush=True)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
        listener.accept()[0] as receiver,
    ):
        for end in (sender, receiver):
            end.settimeout(10)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for behind in BEHIND:
            page, ahead, to = (_room(nbytes, place) for place in (0, -behind, behind))
            send, receive = _through(sender, receiver, ahead, page)
            seconds = [
                _best(partial(copy, to, page, ours=False)),
                _best(partial(copy, to, page, ours=True)),
                _best(send, after=receive),
            ]
            send, receive = _through(sender, receiver, page, to)
            seconds.append(_best(receive, before=send))
            print(f"| {behind} | {' | '.join(f'{nbytes / each * 1e-9:.1f}' for each in seconds)} |", flush=True)
    return 0


def _room(nbytes: int, place: int) -> numpy.ndarray:
    """Bytes that begin at `place` of a page."""
    room = numpy.ones(nbytes + 2 * PAGE, numpy.uint8)
    at = (place - room.ctypes.data) % PAGE
    return room[at : at + nbytes]


def _through(
    sender: socket.socket, receiver: socket.socket, out: numpy.ndarray, into: numpy.ndarray
) -> tuple[Act, Act]:
    """Functions that send `out`, which the kernel's buffers hold, and receive it in `into`."""
    return lambda: sender.sendall(out.data), lambda: receiver.recv_into(into.data, into.nbytes, socket.MSG_WAITALL)


def _best(act: Act, before: Act = int, after: Act = int) -> float:
    """Seconds of `act`, once; what goes before and after it does not count."""
    best = float("inf")
    for _ in range(TURNS):
        before()
        begin = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - begin)
        after()
    return best


if __name__ == "__main__":
    sys.exit(main())
