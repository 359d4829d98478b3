"""RDMA devices over the stand-in for libibverbs: which port is used, who is connected, which memory is registered.

Run as over_fake.py is.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_verbs import PINS, get, pin, put

from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError
from hocket.transports.verbs.channels import ReadEnd, WriteEnd
from hocket.transports.verbs.device import Device
from hocket.transports.verbs.ends import Path
from hocket.transports.verbs.port import choose
from hocket.transports.verbs.transport import VerbsTransport


class Link:
    """A writer and a reader on two devices' first ports, without ranks."""

    def __init__(self, nqp: int = 2, tamper: Callable[[dict[str, Any]], None] = lambda answer: None) -> None:
        self.devices = [Device("fake0"), Device("fake1")]
        gids = [device.gid(1, 2) for device in self.devices]
        self.writer, self.reader = WriteEnd(self.devices[0], nqp), ReadEnd(self.devices[1])
        self.answer = self.reader.attach(Path(1, 2, gids[0], 0, 3), self.writer.offer)
        tamper(self.answer)
        self.writer.connect(Path(1, 2, gids[1], 0, 3), self.answer)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc: object) -> None:
        self.writer.close()
        self.reader.close()
        for device in self.devices:
            device.close()


def test_an_answer_is_not_believed() -> None:
    def wrong(**change: Any) -> Callable[[dict[str, Any]], None]:
        return lambda answer: answer.update(change)

    numbers = ([1] * 3, [1], [], list(range(9)), [2**40, 1])
    for change in (*({"qps": each_} for each_ in numbers), {"ring": -1}, {"psn": "x"}):
        with pytest.raises((TransportError, TypeError, ValueError, OverflowError)):
            Link(tamper=wrong(**change))
    with pytest.raises((TransportError, ValueError)):
        Path(1, 2, b"short", 0, 3)


# ------------------------------------------------------------------------------------------------------- the devices

def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VerbsTransport.available() is None
    put(devices=0)
    assert VerbsTransport.available() == "there is no RDMA device"
    with pytest.raises(TransportError, match="there is no RDMA device"):
        choose()
    with pytest.raises(ArgumentError, match=r"no RDMA device fake0; known: \(no device\)"):
        choose("fake0")
    put(devices=-1)
    assert VerbsTransport.available() == "this kernel has no RDMA (Function not implemented)"


def test_the_port_that_is_asked_for() -> None:
    assert choose().text == "fake0 port 1"
    assert choose("fake1:1").text == "fake1 port 1"
    assert [family for family, *_ in choose("fake1").gids] == ["RoCE v1", "RoCE v1", "RoCE v2, IPv4"]
    assert [(f, i) for f, i, _ in choose("fake1:1:2").gids] == [("RoCE v2, IPv4", 2)]
    for setting, words in (
        ("mlx5_0", "HOCKET_RDMA=mlx5_0: no RDMA device mlx5_0; known: fake0, fake1"),
        ("fake0:2", "HOCKET_RDMA=fake0:2: fake0 has 1 port"),
        ("fake0:257", "HOCKET_RDMA=fake0:257: fake0 has 1 port"),
        ("fake0:1:3", "fake0 port 1 has no address"),
        ("fake0:1:9", "fake0 port 1 has no address"),
    ):
        with pytest.raises((ArgumentError, TransportError), match=words):
            choose(setting)
    put(down=1)
    assert choose().text == "fake1 port 1"
    with pytest.raises(TransportError, match="fake0 port 1 is down"):
        choose("fake0")
    put(down=3)
    with pytest.raises(TransportError, match="fake0 port 1 is down; fake1 port 1 is down"):
        choose()


def test_ports_without_a_kind_of_address_in_common() -> None:
    port = choose("fake0:1:0")
    with pytest.raises(TransportError, match=r"no kind of address in common \(here RoCE v1; there RoCE v2, IPv4\)"):
        port.path(choose("fake1:1:2").address)
    port.device.close()


# ------------------------------------------------------------------------------------------- the registration cache

@pytest.fixture
def device() -> Iterator[Device]:
    made = Device("fake0")
    yield made
    made.close()


def test_registered_for_as_long_as_it_lives(device: Device) -> None:
    x = np.zeros(1000, np.uint8)
    assert pin(device, x) and pin(device, x) and device.pinned == get("mrs") == 1
    assert device.pin(x.ctypes.data + 10, 100, x) and get("mrs") == 1, "a part of it"
    del x
    assert device.pinned == get("mrs") == 0
    assert not device.pin(0, 8, device) and not device.pin(1 << 46, 8, device) and device.pinned == 0
    assert not device.pin(id(device), 8, 7), "an owner that cannot be watched"


def test_another_array_at_the_same_place(device: Device) -> None:
    memory = mmap.mmap(-1, 1 << 16)
    first, second = np.frombuffer(memory, np.uint8), np.frombuffer(memory, np.uint8)[100:]
    assert pin(device, first) and pin(device, second) and device.pinned == get("mrs") == 1
    assert get("pinned") == second.nbytes, "it is the second's now"
    del first
    assert device.pinned == 1


def test_more_arrays_than_there_is_room_for(device: Device) -> None:
    arrays = [np.zeros(64, np.uint8) for _ in range(PINS + 44)]
    for array in arrays:
        assert pin(device, array)
    assert device.pinned == get("mrs") == PINS
    assert pin(device, arrays[-1]) and pin(device, arrays[44]) and get("mrs") == PINS
    put(refuse_mr=1, refuse_errno=12)  # no more memory may be locked: the oldest gives way
    assert pin(device, arrays[0]) and device.pinned == PINS
    put(refuse_mr=-1)
    assert not pin(device, np.zeros(64, np.uint8)) and device.pinned == 0, "all gave way, in vain"


def test_memory_that_cannot_be_registered_costs_others_nothing(device: Device) -> None:
    arrays = [np.zeros(64, np.uint8) for _ in range(9)]
    assert all(pin(device, array) for array in arrays)
    constant = np.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), np.uint8)
    assert not pin(device, constant) and device.pinned == 9


def test_close_twice(device: Device) -> None:
    reader, writer = ReadEnd(device), WriteEnd(device, 2)
    device.close()
    assert get("pds") == 1, "not before what was made with it"
    for each_ in (reader, writer, writer, reader):
        each_.close()
    device.close()
    device.close()
    with pytest.raises(TransportError, match="fake0 is closed"):
        WriteEnd(device, 2)


def test_a_reactor_is_not_needed_to_free() -> None:
    reactor = Reactor()
    reactor.close()
    with Link():
        assert get("qps") == 4
