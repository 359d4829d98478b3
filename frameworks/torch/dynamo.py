"""Keep torch.compile out of our methods.

While compiled code runs, every Python function that starts is looked at, also one that torch's C++ calls (DDP's
reducer) or that a break in the graph leaves to Python; and a process group is no thing that a graph can hold.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

_kept_out: set[CodeType] = set()


def keep_out() -> None:
    """Of all that is loaded of hocket.torch, and of what it calls.  Costs no import of torch._dynamo."""
    frames: Any = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return  # a torch that asks otherwise
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for name, module in list(sys.modules.items()):
        if name.startswith("hocket.torch"):
            for code in set(_codes(vars(module), name)) - _kept_out:
                frames.set_code_exec_strategy(code, skip)
                _kept_out.add(code)


def _codes(names: Any, module: str) -> Iterator[CodeType]:
    """Of the functions, methods and properties that a module defines."""
    for each in list(names.values()):
        if isinstance(each, type) and each.__module__ == module:
            yield from _codes(vars(each), module)
        function = each.fget if isinstance(each, property) else each
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
