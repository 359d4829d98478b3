"""The price of links that heal, and of HOCKET_CHECK=payload: CPU time of a message's two ends, over loopback.

    python -m hocket.lab.healing [BYTES...]

Streams of tcp as they are inside a host, such that heal, as channels between hosts have them in a LAN (one) and over a
long link (cut: in pieces; four: four streams), and such that are checked, in turns: the best of 15 blocks.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from hocket.bench.harness import limits
from hocket.transports.tcp.healing import HealingStreams
from hocket.transports.tcp.long.many import ManyStreams
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.transport import tuned

SIZES = (8, 4096, 65536, 1 << 20, 16 << 20)
KINDS = ("plain", "plain again", "heals", "one", "cut", "four", "checked")
BLOCKS, BYTES, MOST = 15, 64 << 20, 2000


def main(sizes: Sequence[int] = SIZES) -> None:
    print("| bytes | " + " | ".join(f"{kind}: send, receive us" for kind in KINDS) + " | both, beside plain |")
    print("|---" * (len(KINDS) + 2) + "|")
    for size in sizes:
        ends = {kind: _pair(kind) for kind in KINDS}
        best = dict.fromkeys(KINDS, (1.0, 1.0))
        for _ in range(BLOCKS):
            for kind, (out, into, *_) in ends.items():
                for _ in range(max(1, min(MOST, BYTES // size) // BLOCKS)):
                    took = limits.through(out.send, into.recv, size)
                    best[kind] = min(best[kind][0], took[0]), min(best[kind][1], took[1])
        shown = [f"{send * 1e6:.2f}, {receive * 1e6:.2f}" for send, receive in best.values()]
        ratios = [f"{sum(each) / sum(best['plain']):.2f}" for each in best.values()]
        print(f"| {size} | {' | '.join(shown)} | {', '.join(ratios)} |", flush=True)


def _pair(kind: str) -> tuple[Any, ...]:
    """The sender, the receiver, and what they need to live."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        b, _ = server.accept()
    for sock in (a, b):
        tuned(sock).setblocking(False)
    if kind.startswith("plain"):
        return SocketStreams(a), SocketStreams(b)
    ear, bell = os.pipe()
    unused, other = socket.socketpair()
    into = HealingStreams(unused, False, bell, kind == "checked")
    into.receive_from(b)
    out = HealingStreams(a, False, bell, kind == "checked")
    if kind in ("heals", "checked"):
        return out, into, ear, other
    many = ManyStreams(out), ManyStreams(into)
    if kind != "one":
        many[0].cut()
    more = [_pair("heals") for _ in range(3 if kind == "four" else 0)]
    for number, (sends, receives, *_) in enumerate(more, 1):
        many[0].keep(number, sends)
        many[1].keep(number, receives)
        many[0].sends(number)
        many[1].receives(number)
    many[0].use = 15
    return *many, ear, other, more


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or SIZES)
