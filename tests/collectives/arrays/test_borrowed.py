"""GPU memory as CuPy's and torch's arrays: what is asked of them, by stand-ins that note it; no GPU is here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hocket.collectives.arrays import borrowed


class Noting:
    """A library that notes what it is asked for: each call's name and arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def function(self, name: str, gives: Any = None) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            self.calls.append((name, *args, *how.items()))
            return gives(*args, **how) if gives else (name, *args)

        return call

    def context(self, name: str) -> Any:
        @contextlib.contextmanager
        def entered(*args: Any, **how: Any) -> Iterator[None]:
            self.calls.append((f"in {name}", *args, *how.items()))
            yield
            self.calls.append((f"out of {name}",))

        return entered


def test_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting()

    class Array:
        dtype = np.dtype(np.float32)

        def __init__(self, *args: Any) -> None:
            self.args = args

    cuda = SimpleNamespace(
        UnownedMemory=noting.function("memory"), MemoryPointer=noting.function("pointer"),
        Device=noting.context("device"), ExternalStream=noting.context("stream"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array, cuda=cuda))
    lent = borrowed.lend(Array(), 4096, 40, 1, 77)
    assert type(lent) is Array and lent.args[:2] == ((10,), np.float32)
    assert lent.args[2] == ("pointer", ("memory", 4096, 40, None, 1), 0), "the GPU is the call's: a peer's is not asked"
    noting.calls.clear()
    with borrowed.current(Array(), 1, 77):
        noting.calls.append(("here",))
    # A stream is entered on its own device only.
    assert noting.calls == [("in device", 1), ("in stream", 77, 1), ("here",), ("out of stream",), ("out of device",)]


def test_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor is made of the host's bytes here, by torch itself."""
    import torch

    noting, memory = Noting(), torch.arange(12, dtype=torch.bfloat16)
    made = memory.view(torch.uint8)
    cuda = SimpleNamespace(ExternalStream=noting.function("stream"), stream=noting.context("in stream"))
    stand_in = SimpleNamespace(as_tensor=noting.function("tensor", lambda given, device: made), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    lent = borrowed.lend(memory, 4096, 24, 1, 77)
    assert lent.dtype is torch.bfloat16 and torch.equal(lent, memory) and lent.data_ptr() == memory.data_ptr()
    name, given, device = noting.calls.pop()
    assert (name, device) == ("tensor", ("device", "cuda:1"))
    interface = given.__cuda_array_interface__
    assert interface["data"] == (4096, False) and interface["shape"] == (24,) and interface["typestr"] == "|u1"
    with borrowed.current(memory, 1, 77):
        noting.calls.append(("here",))
    assert noting.calls[0] == ("stream", 77, ("device", 1)) and noting.calls[1][1] == ("stream", 77)
    assert noting.calls[2] == ("here",)


def test_any_other() -> None:
    lent = borrowed.lend(SimpleNamespace(dtype=np.dtype(np.complex64)), 4096, 24, 1, 77)
    assert (lent.shape, lent.dtype, lent.device.id) == ((3,), np.complex64, 1)
    assert lent.__cuda_array_interface__ == {
        "shape": (3,), "typestr": "<c8", "data": (4096, True), "version": 3, "strides": None, "stream": 77,
    }  # fmt: skip
    with borrowed.current(lent, 1, 77):
        pass
