"""The verbs transport over the stand-in for libibverbs (fake_verbs.c): run by test_verbs.py, in processes that find it.

After every test nothing may be left in the devices, no queue may have overflowed, and nothing may have been given
back too early.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import mmap
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hocket.conformance import GROUP_LAWS, LAWS, Lanes, NotOfferedError, ends
from hocket.conformance.ends import End, data, each
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError
from hocket.transports.verbs import rdma, transport
from hocket.transports.verbs.transport import VerbsTransport

FAKE = ctypes.CDLL("libibverbs.so.1")
FAKE.fake_get.restype = ctypes.c_long
LIVE = ("contexts", "pds", "mrs", "mws", "channels", "cqs", "qps", "pinned")
KNOBS = ("devices", "windows", "max_inline", "down", "delay", "hold", "fail_at", "fail_status", "refuse_errno") + tuple(
    f"refuse_{what}" for what in ("mr", "qp", "cq", "channel", "mw", "modify", "post")
)
LONG = 5 << 17
"""Bytes: two pieces and a half, not copied if they are registered."""
transport.SYSTEM = pathlib.Path(os.environ["FAKE_SYSTEM"])


def get(name: str) -> int:
    return int(FAKE.fake_get(name.encode()))


def put(**knobs: int) -> None:
    for name, value in knobs.items():
        assert FAKE.fake_set(name.encode(), ctypes.c_long(value)) == 0, name


def live() -> dict[str, int]:
    return {name: get(name) for name in LIVE if get(name)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = {name: get(name) for name in KNOBS}
    yield
    put(**before)
    deadline = time.monotonic() + 3.0
    while (gc.collect(), live())[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live() == {} and get("overflows") == 0 and get("misuses") == 0, (live(), get("overflows"), get("misuses"))


@pytest.fixture(autouse=True)
def _nothing_fails_unseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "Traceback" not in caplog.text, caplog.text


class Registered(End):
    """An end that registers its arrays first, as the collectives do."""

    def run(self, *instrs: Any, source: Any = None, target: Any = None, **how: Any) -> str:
        for side in self.sides:
            for array in (source, target) if side is not None else ():
                if array is not None and array.nbytes >= rdma.OFFER_MIN:
                    side.owner[0][self.rank].pin(array.ctypes.data, array.nbytes, array)
        return super().run(*instrs, source=source, target=target, **how)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    with Lanes(VerbsTransport) as made:
        yield made


# ------------------------------------------------------------------------------------------------------- the laws

@pytest.mark.parametrize("law", [*LAWS, *GROUP_LAWS], ids=lambda law: law.__name__)
def test_law(law: Callable[[Any], None], lanes: Lanes) -> None:
    none = law.__name__ == "a_multicast_reaches_every_reader"
    with pytest.raises(NotOfferedError) if none else contextlib.nullcontext():
        law(lanes.sides if law in GROUP_LAWS else lanes.pair)
    assert not get("bad_keys")


@pytest.mark.parametrize("law", [*LAWS, GROUP_LAWS[0]], ids=lambda law: law.__name__)
def test_law_of_registered_arrays(law: Callable[[Any], None], lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("laws", "ends"):
        monkeypatch.setattr(f"hocket.conformance.{module}.End", Registered)
    began = {name: get(name) for name in ("long_writes", "binds", "invalidated")}
    law(lanes.sides if law in GROUP_LAWS else lanes.pair)
    made = {name: get(name) - n for name, n in began.items()}
    if law.__name__ in ("a_message_may_exceed_every_buffer", "both_directions_at_once"):
        pieces = 2 * (5_000_003 // (256 << 10))
        assert made["long_writes"] >= pieces, made
        assert made["binds"] == made["invalidated"] >= (pieces if get("windows") else 0), made


# ------------------------------------------------------------------------------------------------------- failures

def talk(side: Any, rounds: int = 12) -> Callable[[End], str]:
    """Long and short messages to and fro, for as long as it goes: how it ended, and why."""

    def run(end: End) -> str:
        mine, into = data(LONG, end.rank), np.zeros(LONG, np.uint8)
        for i in range(rounds):
            n = LONG if i % 3 == 0 else 70_000 if i % 3 == 1 else 100
            send = ("send", [1 - end.rank], -1, False, ends.pieces(0, n), None)
            recv = ("recv", [1 - end.rank], -1, False, None, ends.pieces(1, n))
            instrs = (send, recv) if end.rank == i % 2 else (recv, send)
            result = end.run(*instrs, source=mine, target=into, timeout=8)
            if result != "done":
                why = end.engine.channel_error(1 - end.rank)
                side[end.rank].close()  # as a rank that fails: the other one hears of it
                return f"{result}: {why}"
            assert np.array_equal(into[:n], data(LONG, 1 - end.rank)[:n])
        return "done"

    return run


def both(pair: tuple[Any, Any], how: Callable[[Any], Callable[[End], Any]] = talk) -> list[Any]:
    return each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [how(pair)] * 2)


@pytest.mark.parametrize("status", range(1, 24))
def test_a_failed_completion_is_said_in_words(status: int, lanes: Lanes) -> None:
    FAKE.ibv_wc_status_str.restype = ctypes.c_char_p
    words, silence = (FAKE.ibv_wc_status_str(n).decode() for n in (status, 12))
    said = 0
    for at in (1, 2, 3, 4, 6, 9, 14, 23):
        pair = lanes.pair()
        put(fail_status=status, fail_at=at)
        began = time.monotonic()
        ended = both(pair)
        assert get("fail_at") == 0, "it was not injected"
        assert all(each.startswith(("lost", "fault")) for each in ended), (at, ended)
        # A rank that does not look at the end that failed hears of it by the peer, who gets no answer.
        assert any(words in each or silence in each for each in ended), (at, words, ended)
        assert time.monotonic() - began < 5, (at, ended)
        said += any(words in each for each in ended)
    assert said >= 3


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_refused_request_is_said(at: int, lanes: Lanes) -> None:
    pair = lanes.pair()
    put(refuse_post=at, refuse_errno=12)
    ended = both(pair)
    assert "fault: the device refused a work request" in ended and "done" not in ended, ended


@pytest.mark.parametrize("what", ["mr", "mw"])
def test_what_cannot_be_registered_is_copied(what: str, lanes: Lanes) -> None:
    if what == "mw":
        put(refuse_mw=-1)
        assert both(lanes.pair()) == ["done", "done"]
        return
    for first in range(1, 8):
        put(refuse_mr=0)
        pair = lanes.pair()
        put(refuse_mr=first, refuse_errno=12)
        assert both(pair) == ["done", "done"]
    put(refuse_mr=0)
    pair, began = lanes.pair(), get("long_writes")
    put(refuse_mr=-1)
    assert both(pair) == ["done", "done"] and get("long_writes") == began


@pytest.mark.parametrize("what", ["mr", "qp", "cq", "channel", "modify"])
def test_a_channel_that_cannot_be_made_is_an_error(what: str, lanes: Lanes) -> None:
    table = lanes.sides(2)
    assert table
    transports = table[0][1].owner[1]  # type: ignore[union-attr]
    for at in range(1, 5):
        put(**{f"refuse_{what}": at}, refuse_errno=12)
        with contextlib.suppress(TransportError):
            for lane in [t.lane(f"x{what}{at}", i, [0, 1]) for i, t in enumerate(transports)]:
                lane.open(1 - transports.index(lane.transport), None)
            assert get(f"refuse_{what}") > 0, "it was refused, and nobody said so"
        put(**{f"refuse_{what}": 0})


def test_no_road_where_nothing_can_be_made() -> None:
    put(refuse_qp=-1, refuse_errno=12)
    words = "no queue pair: Cannot allocate memory.*ulimit -l"
    with pytest.raises(AssertionError, match=words), Lanes(VerbsTransport) as lanes:
        lanes.pair()
    put(refuse_qp=0, max_inline=16)
    words = "fake0 gives no queue pair: Invalid argument"
    with pytest.raises(AssertionError, match=words), Lanes(VerbsTransport) as lanes:
        lanes.pair()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1])
def test_closed_in_the_middle(delay: float, lanes: Lanes) -> None:
    """Nothing is left, and the other end hears of it."""
    pair = lanes.pair()

    def run(end: End) -> str:
        if end.rank == 0:
            time.sleep(delay)
            transport = pair[0].owner[1][0]
            transport.close()
            return "closed"
        return talk(pair, 10_000)(end)

    def one_sided(end: End) -> str:
        x = data(LONG)
        for _ in range(10_000):
            result = end.run(("send", [0], -1, False, ends.pieces(0, LONG), None), source=x, timeout=8)
            if result != "done":
                return result
        return "done"

    ended = each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [run, one_sided])
    assert ended == ["closed", "lost"]


def test_a_transport_may_be_closed_while_a_peer_comes() -> None:
    """What a late writer was given goes too."""
    for seconds in (0.0, 0.002, 0.005, 0.01, 0.02):
        lanes = Lanes(VerbsTransport)
        lanes.sides(2)
        one, other = (made for made in lanes.made if isinstance(made, VerbsTransport))

        def knock(one: VerbsTransport = one) -> None:
            with contextlib.suppress(TransportError, OSError):
                one.lane("late", 0, [0, 1]).open(1, None)

        one.context.timeout = 1.0
        thread = threading.Thread(target=knock)
        thread.start()
        time.sleep(seconds)
        other.close()
        thread.join(20)
        lanes.close()


# --------------------------------------------------------------------------------------- memory that is ours again

def test_the_key_to_a_received_message_is_dead(lanes: Lanes) -> None:
    pair = lanes.pair()
    x, began = data(LONG), get("long_writes")

    def send(end: End) -> list[str]:
        return [end.send(x) for _ in range(5)]

    def recv(end: End) -> None:
        for _ in range(5):
            result, into = end.recv(LONG)
            assert result == "done" and np.array_equal(into, x)
            assert not FAKE.fake_replay(), "the peer could write there again"

    each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [send, recv])
    assert get("long_writes") == began + 5 * 3


def test_a_late_write_is_refused(lanes: Lanes) -> None:
    """The reader gives up between its invitation and the write: its memory is its own again."""
    pair, given_up = lanes.pair(), threading.Event()
    put(hold=1)

    def send(end: End) -> str:
        x = data(LONG)
        threading.Thread(target=lambda: (given_up.wait(20), FAKE.fake_release())).start()
        return end.send(x, timeout=8)

    def recv(end: End) -> tuple[str, bool]:
        result, into = end.recv(LONG, timeout=0.3)
        assert result == "timeout" and not FAKE.fake_replay()
        into[:] = 7
        given_up.set()
        time.sleep(0.2)
        return result, bool((into == 7).all())

    sent, got = each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [send, recv])
    assert sent == "lost" and got == ("timeout", True) and not get("bad_keys")


class Link:
    """A writer and a reader on two devices' first ports, without ranks."""

    def __init__(self, nqp: int = 2, tamper: Callable[[dict[str, Any]], None] = lambda answer: None) -> None:
        self.devices = [rdma.Device("fake0"), rdma.Device("fake1")]
        gids = [device.gid(1, 2) for device in self.devices]
        self.writer, self.reader = rdma.Writer(self.devices[0], nqp), rdma.Reader(self.devices[1])
        self.answer = self.reader.attach(rdma.Path(1, 2, gids[0], 0, 3), self.writer.offer)
        tamper(self.answer)
        self.writer.connect(rdma.Path(1, 2, gids[1], 0, 3), self.answer)

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
        rdma.Path(1, 2, b"short", 0, 3)


# ------------------------------------------------------------------------------------------------------- the devices

def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VerbsTransport.available() is None
    put(devices=0)
    assert VerbsTransport.available() == "there is no RDMA device"
    with pytest.raises(TransportError, match="there is no RDMA device"):
        transport.choose()
    with pytest.raises(ArgumentError, match="no RDMA device fake0; there are none"):
        transport.choose("fake0")
    put(devices=-1)
    assert VerbsTransport.available() == "this kernel has no RDMA (Function not implemented)"


def test_the_port_that_is_asked_for() -> None:
    assert transport.choose().text == "fake0 port 1"
    assert transport.choose("fake1:1").text == "fake1 port 1"
    assert [family for family, *_ in transport.choose("fake1").gids] == ["RoCE v1", "RoCE v1", "RoCE v2, IPv4"]
    assert [(f, i) for f, i, _ in transport.choose("fake1:1:2").gids] == [("RoCE v2, IPv4", 2)]
    for setting, words in (
        ("mlx5_0", "HOCKET_RDMA=mlx5_0: no RDMA device mlx5_0; there are fake0, fake1"),
        ("fake0:2", "HOCKET_RDMA=fake0:2: fake0 has 1 port"),
        ("fake0:257", "HOCKET_RDMA=fake0:257: fake0 has 1 port"),
        ("fake0:1:3", "fake0 port 1 has no address"),
        ("fake0:1:9", "fake0 port 1 has no address"),
    ):
        with pytest.raises((ArgumentError, TransportError), match=words):
            transport.choose(setting)
    put(down=1)
    assert transport.choose().text == "fake1 port 1"
    with pytest.raises(TransportError, match="fake0 port 1 is down"):
        transport.choose("fake0")
    put(down=3)
    with pytest.raises(TransportError, match="fake0 port 1 is down; fake1 port 1 is down"):
        transport.choose()


def test_ports_without_a_kind_of_address_in_common() -> None:
    port = transport.choose("fake0:1:0")
    with pytest.raises(TransportError, match=r"no kind of address in common \(here RoCE v1; there RoCE v2, IPv4\)"):
        port.path(transport.choose("fake1:1:2").address)
    port.device.close()


# ------------------------------------------------------------------------------------------- the registration cache

PINS = 256


@pytest.fixture
def device() -> Iterator[rdma.Device]:
    made = rdma.Device("fake0")
    yield made
    made.close()


def pin(device: rdma.Device, array: Any, owner: Any = None) -> bool:
    return device.pin(array.ctypes.data, array.nbytes, array if owner is None else owner)


def test_registered_for_as_long_as_it_lives(device: rdma.Device) -> None:
    x = np.zeros(1000, np.uint8)
    assert pin(device, x) and pin(device, x) and device.pinned == get("mrs") == 1
    assert device.pin(x.ctypes.data + 10, 100, x) and get("mrs") == 1, "a part of it"
    del x
    assert device.pinned == get("mrs") == 0
    assert not device.pin(0, 8, device) and not device.pin(1 << 46, 8, device) and device.pinned == 0
    assert not device.pin(id(device), 8, 7), "an owner that cannot be watched"


def test_another_array_at_the_same_place(device: rdma.Device) -> None:
    memory = mmap.mmap(-1, 1 << 16)
    first, second = np.frombuffer(memory, np.uint8), np.frombuffer(memory, np.uint8)[100:]
    assert pin(device, first) and pin(device, second) and device.pinned == get("mrs") == 1
    assert get("pinned") == second.nbytes, "it is the second's now"
    del first
    assert device.pinned == 1


def test_more_arrays_than_there_is_room_for(device: rdma.Device) -> None:
    arrays = [np.zeros(64, np.uint8) for _ in range(PINS + 44)]
    for array in arrays:
        assert pin(device, array)
    assert device.pinned == get("mrs") == PINS
    assert pin(device, arrays[-1]) and pin(device, arrays[44]) and get("mrs") == PINS
    put(refuse_mr=1, refuse_errno=12)  # no more memory may be locked: the oldest gives way
    assert pin(device, arrays[0]) and device.pinned == PINS
    put(refuse_mr=-1)
    assert not pin(device, np.zeros(64, np.uint8)) and device.pinned == 0, "all gave way, in vain"


def test_memory_that_cannot_be_registered_costs_others_nothing(device: rdma.Device) -> None:
    arrays = [np.zeros(64, np.uint8) for _ in range(9)]
    assert all(pin(device, array) for array in arrays)
    constant = np.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), np.uint8)
    assert not pin(device, constant) and device.pinned == 9


def test_an_array_in_use_stays(lanes: Lanes) -> None:
    """... while other threads fill the cache; and what it carries arrives."""
    pair = lanes.pair()
    transports, stop = pair[0].owner[1], threading.Event()

    def fill() -> None:
        while not stop.is_set():
            kept = [np.zeros(64, np.uint8) for _ in range(PINS)]
            for one in transports:
                for array in kept:
                    pin(one.device, array)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert both(pair, functools.partial(talk, rounds=100)) == ["done", "done"]
    finally:
        stop.set()
        thread.join()


def test_the_owner_dies_while_it_travels(lanes: Lanes) -> None:
    """The collectives keep their arrays; if somebody did not, the run would end, and nothing else would be harmed."""
    pair = lanes.pair()
    end = Registered(0, [None, pair[0]])
    x = data(LONG)
    device = pair[0].owner[1][0].device
    send = ("send", [1], -1, False, ends.pieces(0, LONG), None)
    assert device.pin(x.ctypes.data, LONG, owner := type("Owner", (), {})())
    assert End.run(end, send, source=x, timeout=0.2) == "timeout"  # and the channel has been told to forget it
    assert weakref.ref(owner)() is owner and device.pinned == 1
    del owner
    assert device.pinned == 0
    for side in pair:
        side.close()


def test_close_twice(device: rdma.Device) -> None:
    reader, writer = rdma.Reader(device), rdma.Writer(device, 2)
    device.close()
    assert get("pds") == 1, "not before what was made with it"
    for each_ in (reader, writer, writer, reader):
        each_.close()
    device.close()
    device.close()
    with pytest.raises(TransportError, match="fake0 is closed"):
        rdma.Writer(device, 2)


def test_what_is_offered_travels_as_json(lanes: Lanes) -> None:
    pair = lanes.pair()
    transport = pair[0].owner[1][0]
    assert json.loads(json.dumps(transport.offer()))["gids"][2] == ["RoCE v2, IPv4", transport.port.gids[2][2].hex()]
    windows = "through windows" if get("windows") else "registered one by one, as the device has no windows"
    assert transport.detail(1) == f"fake0 port 1, RoCE v2, IPv4; long messages are not copied: {windows}"


def test_a_reactor_is_not_needed_to_free() -> None:
    reactor = Reactor()
    reactor.close()
    with Link():
        assert get("qps") == 4
