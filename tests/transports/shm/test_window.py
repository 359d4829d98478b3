"""A rank's window in the hands of a peer of the same host that is hostile: the reader gets an error, never SIGBUS."""

from __future__ import annotations

import array
import fcntl
import os
import socket
from pathlib import Path

import pytest

from hocket.collectives.plans.instr import Instr
from hocket.conformance.ends import End, Side, data, pieces
from hocket.errors import TransportError
from hocket.transports.shm import transport
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.window import Window
from support import jobs

MIB = 1 << 20


def borrowed(owner: Window) -> Window:
    """A window as a peer maps it, from a descriptor of its own."""
    return Window(os.dup(owner.fd))


LIAR = """
import os, struct, sys, time
import numpy as np, hocket

lied = os.path.join(os.path.dirname(__file__), "lied")
comm = hocket.init(transport="shm", timeout=60)
shm = comm.world.transports["shm"]
if comm.rank == 1:
    comm.send(np.arange(5000, dtype=np.uint8), 0)           # too long for a line: the line says where it lies
    mine = shm.window.view(0, shm.window.size)
    line = struct.pack("<II", 1, 5000 | 1 << 30)            # the first packet, its length, and that it lies elsewhere
    lines = [at for at in range(8192, shm.window.size, 64) if mine[at : at + 8] == line]
    assert len(lines) == 1
    mine[lines[0] + 16 : lines[0] + 24] = struct.pack("<Q", {where})
    open(lied, "w").close()
    sys.stdin.readline()
else:
    y = np.zeros(5000, np.uint8)
    while not os.path.exists(lied):
        time.sleep(0.01)
    try:
        comm.recv(y, 1)
    except hocket.Error as error:
        print(type(error).__name__, error)
    print(y.any())
"""


@pytest.mark.parametrize("where", ["1 << 33", pytest.param("shm.window.size - 4999", marks=pytest.mark.more)])
def test_bytes_beyond_the_end_of_a_window_are_an_error_of_its_reader(where: str) -> None:
    """The end of the memory, not that of the 64 GiB of addresses kept for it."""
    with jobs.Job(2, LIAR.format(where=where), env={"HOCKET_TIMEOUT": "60"}) as job:
        out, err = job.processes[0].communicate(timeout=90)
        assert job.processes[0].returncode == 0, (job.processes[0].returncode, err)
    error, *_, touched = out.splitlines()
    assert touched == "False" and error.startswith(("TransportError", "PeerLostError")), out


def test_a_window_ends_where_its_memory_does() -> None:
    mine = Window()
    theirs = borrowed(mine)
    assert theirs.size == mine.size
    with pytest.raises(ValueError, match="outside of the window"):
        theirs.view(mine.size, 1)
    offset = mine.alloc(MIB)  # it grows, and who borrowed it sees that
    mine.view(offset, 1)[0] = 7
    assert theirs.view(offset, MIB)[0] == 7
    with pytest.raises(ValueError, match="outside of the window"):
        theirs.view(offset, MIB + 1)
    theirs.leave()
    assert theirs.view(offset, MIB)[0] == 7
    with pytest.raises(ValueError, match="outside of the window"):
        theirs.view(offset, MIB + 1)


def test_a_block_beyond_the_end_of_a_peers_window_is_refused() -> None:
    mine, their_own = Window(), Window()
    theirs = borrowed(their_own)
    rings = RingChannels(0, [mine, theirs])
    for at in (their_own.size, 1 << 33, theirs.reserved // 2):
        with pytest.raises(TransportError, match="outside its window"):
            rings.open(1, {"at": at, "reads": []})
    rings.open(1, RingChannels(1, [mine, their_own]).offer())


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="this kernel knows no NUMA nodes")
def test_slots_lie_on_the_node_of_their_reader() -> None:
    """The kernel tells that a block for a reader on node 0 is asked of it.  A node that is none is no error."""
    mine = Window()
    block = mine.alloc(64 * 4096, 0)
    mine.alloc(64 * 4096, 1023)
    plain = mine.alloc(64 * 4096)
    told = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines() if "memfd:hocket" in line]
    how = {int(at, 16) - mine.address: policy for at, policy, *_ in told}
    assert how[block].startswith("prefer") and how[max(at for at in how if at <= plain)] == "default"
    mine.release(block, 64 * 4096, 0)
    assert mine.alloc(64 * 4096) != block and mine.alloc(64 * 4096, 0) == block  # holes too


def test_each_readers_slots_are_asked_of_its_node() -> None:
    windows = [Window() for _ in range(3)]
    windows[1].node = 0
    rings = [RingChannels(rank, windows) for rank in range(3)]
    sides = [Side(*rings[0].open(peer, rings[peer].offer()), rings[0]) for peer in (1, 2)]
    sender = End(0, [None, *sides])
    for peer in (1, 2):
        sender.run(Instr("send", [peer], src=pieces(0, 8192)), tag=1, source=data(8192))
    assert [node for _, _, node in rings[0].blocks] == [-1, 0, -1]


@pytest.mark.parametrize("offer", [{}, None, {"at": "8192", "reads": []}, {"at": -1, "reads": []}, {"at": 8192}])
def test_an_offer_that_is_none_is_refused(offer: object) -> None:
    rings = RingChannels(0, [Window(), Window()])
    with pytest.raises(TransportError, match="does not say where its block is"):
        rings.open(1, offer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "seals", "size"),
    [(0, 0, MIB), (0, fcntl.F_SEAL_SHRINK, 4096), (os.MFD_HUGETLB, fcntl.F_SEAL_SHRINK, 64 * MIB)],
    ids=["it can shrink", "it is too small", "its pages may not be there"],
)
def test_memory_that_may_be_gone_when_it_is_touched_is_refused(kind: int, seals: int, size: int) -> None:
    """Huge pages are not reserved by a mapping like ours: with none left, reading the token would be the end."""
    fd = os.memfd_create("hocket", os.MFD_ALLOW_SEALING | kind)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(TransportError, match="not a sealed hocket window"):
        Window(fd)


def test_descriptors_that_were_not_asked_for_are_not_kept() -> None:
    ours, theirs = socket.socketpair()
    window = Window()
    before = len(os.listdir("/proc/self/fd"))
    with ours, theirs:
        theirs.sendmsg([b"w"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [window.fd] * 2))])
        with pytest.raises(TransportError):
            transport._receive(ours)
        assert len(os.listdir("/proc/self/fd")) == before


def test_channels_take_memory_as_they_are_used() -> None:
    """Most of 64 ranks never talk to each other."""
    windows = [Window() for _ in range(2)]
    before = windows[0].size
    members = [windows[i % 2] for i in range(64)]  # all on this host
    rings = RingChannels(0, members)
    assert windows[0].size - before < 300 << 10, windows[0].size
    rings.close()


def test_memory_comes_back_when_all_have_closed() -> None:
    """Not before: the other may still be reading."""
    mine, theirs = Window(), Window()
    one, other = RingChannels(0, [mine, borrowed(theirs)]), RingChannels(1, [borrowed(mine), theirs])
    first = one.offset
    ends = one.open(1, other.offer()), other.open(0, one.offer())
    one.close()
    again = RingChannels(0, [mine, borrowed(theirs)])
    assert again.offset != first
    other.close()
    assert RingChannels(0, [mine, borrowed(theirs)]).offset == first
    del ends


def test_dropped_channels_are_closed() -> None:
    mine, theirs = Window(), Window()
    one, other = RingChannels(0, [mine, borrowed(theirs)]), RingChannels(1, [borrowed(mine), theirs])
    one.open(1, other.offer()), other.open(0, one.offer())
    first = one.offset
    del one, other
    assert RingChannels(0, [mine, borrowed(theirs)]).offset == first
