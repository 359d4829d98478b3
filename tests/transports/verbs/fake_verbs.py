"""The stand-in for libibverbs (fake_verbs.c) from Python: its knobs and counts, and what every test over it checks.

A pytest plugin of the processes that test_verbs.py starts, which find the stand-in where others find the library.
After every test nothing may be left in the devices, no queue may have overflowed, and nothing may have been given back
too early.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hocket.collectives.plans.instr import Instr
from hocket.conformance import InProcess, ends
from hocket.conformance.ends import End, data, each
from hocket.transports.verbs import port
from hocket.transports.verbs.channels import OFFER_MIN
from hocket.transports.verbs.device import Device
from hocket.transports.verbs.transport import VerbsTransport

FAKE = ctypes.CDLL("libibverbs.so.1")
FAKE.fake_get.restype = ctypes.c_long
LIVE = ("contexts", "pds", "mrs", "mws", "channels", "cqs", "qps", "pinned")
KNOBS = ("devices", "windows", "max_inline", "down", "delay", "hold", "fail_at", "fail_status", "refuse_errno") + tuple(
    f"refuse_{what}" for what in ("mr", "qp", "cq", "channel", "mw", "modify", "post", "recv")
)
PINS = 256
"""Arrays that a device keeps registered, at most."""
LONG = 5 << 17
"""Bytes: two pieces and a half, not copied if they are registered."""
port.SYSTEM = pathlib.Path(os.environ["FAKE_SYSTEM"])


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
    deadline = time.monotonic() + 30.0
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
                if array is not None and array.nbytes >= OFFER_MIN:
                    side.owner[0][self.rank].pin(array.ctypes.data, array.nbytes, array)
        return super().run(*instrs, source=source, target=target, **how)


@pytest.fixture
def ranks() -> Iterator[InProcess]:
    with InProcess(VerbsTransport) as made:
        yield made


def talk(side: Any, rounds: int = 12) -> Callable[[End], str]:
    """Long and short messages to and fro, for as long as it goes: how it ended, and why."""

    def run(end: End) -> str:
        mine, into = data(LONG, end.rank), np.zeros(LONG, np.uint8)
        for i in range(rounds):
            n = LONG if i % 3 == 0 else 70_000 if i % 3 == 1 else 100
            send = Instr("send", [1 - end.rank], src=ends.pieces(0, n))
            recv = Instr("recv", [1 - end.rank], dst=ends.pieces(1, n))
            instrs = (send, recv) if end.rank == i % 2 else (recv, send)
            result = end.run(*instrs, source=mine, target=into, timeout=60)
            if result != "done":
                why = end.engine.channel_error(1 - end.rank)
                side[end.rank].close()  # as a rank that fails: the other one hears of it
                return f"{result}: {why}"
            assert np.array_equal(into[:n], data(LONG, 1 - end.rank)[:n])
        return "done"

    return run


def both(pair: tuple[Any, Any], how: Callable[[Any], Callable[[End], Any]] = talk) -> list[Any]:
    """The results of `how` on the two ends of a channel, each a thread."""
    return each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [how(pair)] * 2)


def pin(device: Device, array: Any, owner: Any = None) -> bool:
    return device.pin(array.ctypes.data, array.nbytes, array if owner is None else owner)
