"""The text of a module of kernels, for NVRTC, CuPy's RawModule or nvcc."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from hocket.kernels.gpu.catalogue import Module

HERE = Path(__file__).parent
OPTIONS = ("-std=c++17", "-fmad=false", "-device-int128")


@functools.cache
def module_source(module: Module) -> tuple[str, tuple[str, ...]]:
    """One text without any #include left to resolve under NVRTC, and the options to compile it with.

    Inlined, so that a cache that knows only the text (as CuPy's) compiles anew when a header changes.
    """
    seen: set[str] = set()
    defines = "".join(f"#define {name} {value}\n" for name, value in module.defines)
    return defines + _inlined(module.file, seen), OPTIONS


def _inlined(name: str, seen: set[str]) -> str:
    """The file, with those of ours that it includes in their place, each once; lines keep their numbers."""
    out = [f'#line 1 "{name}"']
    seen.add(name)
    path = HERE.parents[1] / name if "/" in name else HERE / name  # kernels/elements.h, or a neighbour
    for number, line in enumerate(path.read_text().splitlines(), 1):
        included = re.fullmatch(r'#include "([\w/]+\.c?u?h)"', line)
        if included is None:
            out.append(line)
        elif included[1] not in seen:
            out += [_inlined(included[1], seen), f'#line {number + 1} "{name}"']
        else:
            out.append("")
    return "\n".join(out) + "\n"
