"""Does MSG_ZEROCOPY save copies?  CPU seconds of both ends for each GB, by size of a send, over loopback.

    python -m hocket.lab.wire.zero_copy

The kernel says of each completion whether it copied all the same (SO_EE_CODE_ZEROCOPY_COPIED).
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import threading
import time

MSG_ZEROCOPY, SO_ZEROCOPY, COPIED = 0x4000000, 60, 1
TOTAL, BLOCKS = 1 << 28, 5
SIZES = (65536, 131072, 1 << 20)


def completions(link: socket.socket) -> tuple[int, int]:
    """(sends that are complete, those of them that the kernel copied), of what has been told by now."""
    done = copied = 0
    while True:
        try:
            _, ancillary, _, _ = link.recvmsg(0, 512, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            return done, copied
        for _, _, data in ancillary:
            _, _, _, code, _, low, high = struct.unpack_from("IBBBBII", data)
            done += high - low + 1
            copied += (high - low + 1) * (code == COPIED)


def through(size: int, zero: bool) -> tuple[float, int, int]:
    """CPU seconds a GB, and the completions, all and copied."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = socket.create_connection(server.getsockname())
        into, _ = server.accept()
    room, data, sends, done, copied = bytearray(1 << 20), bytearray(size), 0, 0, 0
    if zero:
        out.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)

    def read() -> None:
        while into.recv_into(room):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    began, left = time.process_time(), TOTAL
    while left > 0:
        try:
            left -= out.send(data, MSG_ZEROCOPY if zero else 0)
            sends += zero
        except OSError as why:
            if why.errno != errno.ENOBUFS:  # too many are not complete
                raise
        if zero:
            more = completions(out)
            done, copied = done + more[0], copied + more[1]
    while done < sends:
        select.select([], [], [out], 0.1)
        more = completions(out)
        done, copied = done + more[0], copied + more[1]
    out.close()
    reader.join()
    into.close()
    return (time.process_time() - began) / TOTAL * 1e9, done, copied


def main() -> None:
    print("| bytes of a send | copied: CPU s/GB | MSG_ZEROCOPY: CPU s/GB | completions, copied all the same |")
    print("|---|---|---|---|")
    for size in SIZES:
        found = [(through(size, False), through(size, True)) for _ in range(BLOCKS)]
        plain, zero = min(each[0][0] for each in found), min(each[1][0] for each in found)
        print(f"| {size} | {plain:.3f} | {zero:.3f} | {found[0][1][1]}, {found[0][1][2]} |", flush=True)


if __name__ == "__main__":
    main()
