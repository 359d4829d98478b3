"""CUDA C++ to machine code, by NVIDIA's run-time compiler: no GPU, driver or toolkit is needed, only libnvrtc.

It comes with CuPy's and torch's packages for CUDA, and as nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hocket.errors import Error, TransportError

NAMES: tuple[str, ...] = ("libnvrtc.so.13", "libnvrtc.so.12")


def compile(text: str, options: Sequence[str], arch: int, name: str) -> tuple[bytes, str]:
    """The cubin of `text` for sm_`arch` (90: compute capability 9.0), and the compiler's words.  About a second.

    Raises hocket.Error, with the compiler's words, if there is no compiler or it refuses.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if code:
        raise Error(f"NVRTC does not accept {name} (its error {code})")
    try:
        flags = [*options, f"-arch=sm_{arch}"]
        given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        code = nvrtc.nvrtcCompileProgram(program, len(flags), given)
        log = _fetch("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        if code:
            raise Error(f"{name} does not compile for sm_{arch} (NVRTC error {code}): {log}")
        return _fetch("CUBIN", program), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def library() -> ctypes.CDLL:
    """libnvrtc, wherever it is; TransportError if it is nowhere: other ranks may have it, and must hear of this."""
    for path in places(NAMES, "libnvrtc.so.*"):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise TransportError(
        f"{NAMES[0]}, which compiles kernels, is not found: pip install nvidia-cuda-nvrtc, or set CUDA_PATH"
    )


def places(names: Sequence[str], pattern: str) -> Iterator[str]:
    """Where a library of NVIDIA's may be: by its name, in its packages by this pattern, or in a toolkit."""
    yield from names  # the system's, or one that CuPy or torch has loaded
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from (str(path) for path in sorted(Path(folder).glob(f"*/lib/{pattern}"), reverse=True))
    for root in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        yield from (f"{root}/lib64/{name}" for name in names if root)


def _fetch(what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, room)
    return room.raw
