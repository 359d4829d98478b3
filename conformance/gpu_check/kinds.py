"""Arrays in GPU memory of every kind that hocket takes, behind one interface."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from hocket.system.cuda import driver

Array = np.ndarray[Any, Any]


class ArrayLibrary(Protocol):
    """`put` and `get` copy; `stream` is a context in which another stream than the default one is current."""

    name: str

    def put(self, host: Array) -> Any: ...
    def get(self, array: Any) -> Array: ...
    def synchronize(self) -> None: ...


class PlainArray:
    """Memory of a GPU that lives as long as this, known by __cuda_array_interface__ alone."""

    def __init__(self, gpu: driver.Device, host: Array) -> None:
        self.gpu, self.shape, self.dtype = gpu, host.shape, host.dtype
        self.device = _Device(gpu.ordinal)
        self.nbytes = host.nbytes
        self.address = self.gpu.alloc(max(1, self.nbytes))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        known = self.dtype.kind in "biufc" and self.dtype.isbuiltin == 1
        typestr = self.dtype.str if known else f"<V{self.dtype.itemsize}"
        return {"shape": self.shape, "typestr": typestr, "data": (self.address, False), "version": 3, "stream": None}

    def __del__(self) -> None:
        self.gpu.synchronize(0)
        self.gpu.free(self.address)


class _Device:
    def __init__(self, ordinal: int) -> None:
        self.id = ordinal


class Plain:
    name = "plain"

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal

    def put(self, host: Array) -> Any:
        array = PlainArray(driver.device(self.ordinal), host)
        array.gpu.copy(array.address, host.ctypes.data, host.nbytes, 0)
        array.gpu.synchronize(0)
        return array

    def get(self, array: Any) -> Array:
        host = np.empty(array.shape, array.dtype)
        array.gpu.copy(host.ctypes.data, array.address, host.nbytes, 0)
        array.gpu.synchronize(0)
        return host

    def synchronize(self) -> None:
        driver.device(self.ordinal).synchronize(0)


class Cupy:
    name = "cupy"

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")

    def put(self, host: Array) -> Any:
        if host.dtype.name == "bfloat16":
            return self.cupy.asarray(host.view(np.uint16)).view(host.dtype)
        return self.cupy.asarray(host)

    def get(self, array: Any) -> Array:
        if array.dtype.name == "bfloat16":
            bits: Array = array.view(np.uint16).get()
            return bits.view(array.dtype)
        host: Array = array.get()
        return host

    def synchronize(self) -> None:
        self.cupy.cuda.get_current_stream().synchronize()

    def stream(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self.cupy.cuda.Stream(non_blocking=True)
        return found

    def full(self, count: int, value: float) -> Any:
        return self.cupy.full(count, value, np.float32)


class Torch:
    name = "torch"

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.cuda.set_device(0)

    def put(self, host: Array) -> Any:
        if host.dtype.name == "bfloat16":
            return self.torch.from_numpy(host.view(np.int16)).cuda().view(self.torch.bfloat16)
        return self.torch.from_numpy(host.copy()).cuda()

    def get(self, array: Any) -> Array:
        if array.dtype == self.torch.bfloat16:
            import ml_dtypes

            bits: Array = array.view(self.torch.int16).cpu().numpy()
            return bits.view(ml_dtypes.bfloat16)
        host: Array = array.cpu().numpy()
        return host

    def synchronize(self) -> None:
        self.torch.cuda.current_stream().synchronize()

    def stream(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self.torch.cuda.stream(self.torch.cuda.Stream())
        return found

    def full(self, count: int, value: float) -> Any:
        return self.torch.full((count,), value, device="cuda")


def version(*names: str) -> str:
    """The version of the first of these packages that is installed; "": none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def missing(name: str) -> str:
    """Why there are no arrays of this kind; "": there are.  Decided without importing what cannot serve."""
    if name == "cupy":
        if not version(*CUPY):
            return "CuPy is not installed"
        cupy: Any = importlib.import_module("cupy")
        return "" if cupy.is_available() else "CuPy finds no GPU"
    if name == "torch":
        if not version("torch"):
            return "torch is not installed"
        if "+cpu" in version("torch"):
            return f"torch {version('torch')} is for CPUs"
        torch: Any = importlib.import_module("torch")
        return "" if torch.cuda.is_available() else "torch finds no GPU"
    return "" if name == "plain" else "no such kind"


def kinds(names: Sequence[str]) -> Iterator[ArrayLibrary]:
    makers: dict[str, Any] = {"plain": Plain, "cupy": Cupy, "torch": Torch}
    for name in names:
        if not missing(name):
            yield makers[name]()
