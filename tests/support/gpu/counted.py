"""A library of arrays on the stand-in's GPU, in the manner of CuPy: NumPy computes, in the current stream's order.

What waits for the GPU, and what leaves it, goes through the driver, which counts both (`counting`).  NumPy's arrays
among its own are refused, as CuPy refuses them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.errors import TransportError
from hocket.system.cuda import driver

LEGACY = 1
_now = threading.local()
_spare: dict[int, list[tuple[int, int]]] = {}
"""Memory that may be used again, in the order of the stream, as libraries' pools do it: by bytes, address and alias."""
_there: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()
"""By their aliases."""


@functools.cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL("libcuda.so.1")
    found.fake_get.restype = ctypes.c_long
    found.fake_reach.restype = ctypes.c_void_p
    found.fake_reach.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    return found


def current() -> int:
    """The stream of this thread."""
    return getattr(_now, "stream", LEGACY)


@contextlib.contextmanager
def on(stream: int) -> Iterator[None]:
    before = current()
    _now.stream = stream
    try:
        yield
    finally:
        _now.stream = before


@contextlib.contextmanager
def counting(waits: int = 0, to_host: int = 0, about: str = "") -> Iterator[None]:
    """Inside the block the host waits for the GPU so often, at most, and as many bytes leave it."""
    names = ("waits", "to_host")
    before = [library().fake_get(name.encode()) for name in names]
    yield
    found = [library().fake_get(name.encode()) - was for name, was in zip(names, before, strict=True)]
    assert found[0] <= waits and found[1] <= to_host, f"{about}: {found[0]} waits and {found[1]} bytes to the host"


class OutOfMemoryError(Exception):
    """The class that CuPy and torch have, each its own."""


class Memory:
    """Bytes of the GPU; `seen`: as NumPy sees them."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(1, nbytes)
        spare = _spare.setdefault(self.nbytes, [])
        if spare:
            self.address, alias = spare.pop()
        else:
            with driver.device(0) as device:
                try:
                    self.address = device.alloc(self.nbytes)
                except TransportError as why:
                    raise OutOfMemoryError(str(why)) from None
                alias = library().fake_reach(self.address, LEGACY)
        self.alias: int = alias
        _there[alias] = self

    @property
    def seen(self) -> Any:
        """Its bytes, which keep it."""
        raw = (ctypes.c_char * self.nbytes).from_address(self.alias)
        raw.memory = self  # type: ignore[attr-defined]
        return np.frombuffer(raw, np.uint8)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            _spare[self.nbytes].append((self.address, self.alias))


def memory_at(alias: int) -> Memory | None:
    """The memory that has this byte."""
    found = (each for each in list(_there.values()) if each.alias <= alias < each.alias + each.nbytes)
    return next(found, None)


def drain() -> None:
    """Give back what nothing uses."""
    while gc.collect() or any(_spare.values()):  # what goes may let go of more
        for each in [*_spare.values()]:
            while each:
                driver.device(0).free(each.pop()[0])


def settle() -> None:
    """The current stream has carried out what was given to it.  No wait of the host's: what follows is in its order."""
    with driver.device(0):
        library().fake_reach(0, current())


class Device:
    def __init__(self, ordinal: int) -> None:
        self.id = ordinal

    def __repr__(self) -> str:
        return f"GPU {self.id}"

    def __enter__(self) -> None:
        """Make it the current one, of one."""

    def __exit__(self, *_: object) -> None:
        pass


class ndarray:
    """`view`: its elements, which only this module's functions may look at."""

    __array_ufunc__ = None  # NumPy's own functions refuse it

    def __init__(self, view: Any, memory: Memory) -> None:
        self.view_, self.memory = view, memory

    shape = property(lambda self: self.view_.shape)
    dtype = property(lambda self: self.view_.dtype)
    ndim = property(lambda self: self.view_.ndim)
    size = property(lambda self: self.view_.size)
    nbytes = property(lambda self: self.view_.nbytes)
    flags = property(lambda self: self.view_.flags)
    device = property(lambda self: Device(0))
    T = property(lambda self: made(self.view_.T, self))

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return NAMESPACE

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        view = self.view_
        address = view.ctypes.data - self.memory.alias + self.memory.address
        return {"shape": view.shape, "typestr": view.dtype.str, "data": (address, False), "version": 3,
                "strides": None if view.flags.c_contiguous else view.strides, "stream": current()}  # fmt: skip

    def get(self) -> Any:
        """A copy in host memory: this waits."""
        whole = made(np.ascontiguousarray(self.view_), self)
        host = np.empty(self.shape, self.dtype)
        with driver.device(0) as device:
            settle()
            whole = whole if whole.memory is not self.memory else self
            device.copy(host.ctypes.data, whole.__cuda_array_interface__["data"][0], host.nbytes, current())
            device.synchronize(current())
        return host

    def set(self, host: Any) -> None:
        settle()
        self.view_[...] = host

    def __bool__(self) -> bool:
        return bool(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    __index__ = __int__

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed: use .get()")

    def __len__(self) -> int:
        return len(self.view_)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        for each in key if isinstance(key, tuple) else (key,):
            if isinstance(each, ndarray) and each.dtype == bool:
                each.get()  # how many there are
        return run(np.ndarray.__getitem__, self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        run(np.ndarray.__setitem__, self, key, value)


def _method(name: str) -> Any:
    return lambda self, *args, **how: run(getattr(np.ndarray, name), self, *args, **how)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
              "matmul"):  # fmt: skip
    setattr(ndarray, f"__{_name}__", _method(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _method(f"__r{_name}__"))
    setattr(ndarray, f"__i{_name}__", _method(f"__i{_name}__"))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__neg__", "__invert__", "__abs__", "reshape",
              "view", "sum", "copy", "any", "all", "astype", "max", "min"):  # fmt: skip
    setattr(ndarray, _name, _method(_name))
ndarray.__module__ = "gpu_counted"  # where hocket looks for `empty`
sys.modules["gpu_counted"] = sys.modules[__name__]


def made(view: Any, like: ndarray | None = None) -> ndarray:
    """An array of this library: in the memory of `like`, if it is there, else a copy."""
    low = view.__array_interface__["data"][0]
    if like is not None and view.size and like.memory.alias <= low < like.memory.alias + like.memory.nbytes:
        return ndarray(view, like.memory)
    memory = Memory(view.nbytes)
    there = memory.seen[: view.nbytes].view(view.dtype).reshape(view.shape)
    there[...] = view
    return ndarray(there, memory)


def run(function: Any, *args: Any, **how: Any) -> Any:
    """`function` of NumPy's, on arrays of this library."""
    settle()
    own: list[ndarray] = []

    def inner(value: Any) -> Any:
        if isinstance(value, ndarray):
            own.append(value)
            return value.view_
        if isinstance(value, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        return type(value)(map(inner, value)) if type(value) in (list, tuple) else value

    def outer(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(outer, value))
        if not isinstance(value, np.ndarray | np.generic):
            return value
        for each in own:
            if value is each.view_:
                return each
        there = np.asarray(value)
        shared = (each for each in own if np.may_share_memory(there, each.view_))
        return made(there, next(shared, None))

    with np.errstate(all="ignore"):
        return outer(function(*map(inner, args), **{name: inner(value) for name, value in how.items()}))


def empty(shape: Any, dtype: Any = float) -> ndarray:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = Memory(math.prod(shape) * np.dtype(dtype).itemsize)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return ndarray(memory.seen[:nbytes].view(dtype).reshape(shape), memory)


def asarray(host: Any) -> ndarray:
    """To the GPU, which waits for nothing."""
    array = empty(np.shape(host), np.asarray(host).dtype)
    array.set(np.asarray(host))
    return array


class Namespace:
    """NumPy's functions, of such arrays."""

    empty, asarray = staticmethod(empty), staticmethod(asarray)

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if name == "linalg":
            return Namespace(found)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **how: run(found, *args, **how)


NAMESPACE = Namespace(np)
