"""pyverbs, rdma-core's own, at the other end of hocket's channels; what it says of a device, and what it can share."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from places import DEVICES, freed, held
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs_peer import Peer

from hocket.conformance.ends import End, Side, data
from hocket.tools.doctor import rdma
from hocket.transports.verbs.channels import ReadEnd, WriteEnd
from hocket.transports.verbs.connections import QUEUE_PAIRS
from hocket.transports.verbs.device import Device
from hocket.transports.verbs.port import Port


@pytest.fixture(params=[0, 1], ids=["one device", "across"])
def echoing(request: pytest.FixtureRequest) -> Iterator[tuple[End, Device]]:
    """hocket's end, to whose messages a peer of pyverbs answers with the same bytes."""
    before = held()
    device, peer = Device(DEVICES[0]), Peer(DEVICES[request.param])
    port = Port(device, 1, 1)
    writer, reader = WriteEnd(device, QUEUE_PAIRS), ReadEnd(device)
    reader.stand_beside(writer)
    path, gid = port.path(peer.address), ":".join(port.gids[0][2].hex()[i : i + 4] for i in range(0, 32, 4))
    peer.giving.join(gid, reader.attach(path, peer.giving.offer))
    writer.connect(path, peer.taking.attach(gid, writer.offer))
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(peer.echo()), daemon=True)
    thread.start()
    yield End(0, [None, Side(writer.capsule, reader.capsule, (writer, reader, device))]), device
    assert writer.close(), "the goodbye has arrived"
    thread.join(60)
    assert counted and counted[0] > 0
    reader.close()
    peer.close()
    device.close()
    freed(before)


LENGTHS = [1, 8, 47, 4096, 65535, 65536, 65537, 0, 3, 300_000, *[64] * 600, 1_500_000]
"""Bytes: around a packet's size, more messages than may be under way, and more than the ring."""


def test_messages_to_pyverbs_and_back(echoing: tuple[End, Device]) -> None:
    end, _ = echoing
    for i, length in enumerate(LENGTHS):
        sent = data(length, i)
        assert end.send(sent, tag=i) == "done"
        result, got = end.recv(length, tag=i)
        assert result == "done" and np.array_equal(got, sent), (i, length)


def test_pieces_that_are_invited(echoing: tuple[End, Device]) -> None:
    """Registered memory is written to where pyverbs invites it."""
    end, device = echoing
    sent = data(1_000_000, 5)
    assert device.pin(sent.ctypes.data, sent.nbytes, sent)
    for tag in range(3):
        assert end.send(sent, tag=tag) == "done"
        result, got = end.recv(sent.nbytes, tag=tag)
        assert result == "done" and np.array_equal(got, sent)


def test_what_both_say_of_a_device() -> None:
    for name in DEVICES:
        device, context = Device(name), Context(name=name)
        port = Port(device, 1)
        said = context.query_port(1)
        assert (port.mtu, port.active) == (said.active_mtu, said.state == 4) and device.ports == 1
        for _, index, gid in port.gids:
            assert str(context.query_gid(1, index).gid).replace(":", "") == gid.hex()
        context.close()
        device.close()


def test_doctor_tells_what_pyverbs_knows() -> None:
    said = list(rdma.section())
    assert said[0] == "by pyverbs: 2 devices"
    for name in DEVICES:
        own = next(line for line in said if line.startswith(f"{name}: firmware 0.0.0, "))
        assert own.endswith(", memory windows")
        assert any(line.startswith(f"{name} port 1: active, Ethernet, MTU ") for line in said), said


def test_a_device_is_not_shared() -> None:
    """Why there is no `hocket.init(rdma=...)`: what pyverbs holds must be imported, which this driver refuses."""
    context = Context(name=DEVICES[0])
    pd = PD(context)
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    verbs.ibv_import_device.restype = ctypes.c_void_p
    got = verbs.ibv_import_device(os.dup(context.cmd_fd))
    assert got is None and ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS), (got, ctypes.get_errno())
    pd.close()
    context.close()
