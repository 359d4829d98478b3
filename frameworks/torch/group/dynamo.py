"""Keep torch.compile out of our methods.

While compiled code runs, torch looks at every Python function that starts, also one that torch's C++ calls (DDP's
reducer) or that a break in the graph leaves to Python.  But a graph cannot hold a process group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

_kept_out: set[CodeType] = set()


def keep_out() -> None:
    """Keep it out of all loaded modules of hocket.torch, and of what these call.  Does not import torch._dynamo."""
    frames: Any = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return  # this torch has another interface
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for name, module in list(sys.modules.items()):
        if name.startswith("hocket.torch"):
            for code in set(_codes(vars(module), name)) - _kept_out:
                frames.set_code_exec_strategy(code, skip)
                _kept_out.add(code)


def _codes(names: Any, module: str) -> Iterator[CodeType]:
    """The code of the functions, methods and properties that a module defines."""
    for each in list(names.values()):
        if isinstance(each, type) and each.__module__ == module:
            yield from _codes(vars(each), module)
        function = each.fget if isinstance(each, property) else each
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
