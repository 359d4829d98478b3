"""States of hocket's objects as torch keeps them: with tensors for arrays, so that only weights need be loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def with_tensors(state: Any) -> Any:
    """`state`, dicts and lists of any depth, with a tensor for each NumPy array: `torch.load` reads nothing else.

    For the `state_dict()` of hocket's objects: `torch.save(with_tensors(outer.state_dict()), path)`.
    """
    return _with(np.ndarray, torch.from_numpy, state)


def with_arrays(state: Any) -> Any:
    """Back again: `outer.load_state_dict(with_arrays(torch.load(path)))`."""
    return _with(torch.Tensor, torch.Tensor.numpy, state)


def _with(kind: type, turn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `turn(x)` for each x of this kind in it."""
    if isinstance(value, dict):
        return {key: _with(kind, turn, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with(kind, turn, each) for each in value)
    return turn(value) if isinstance(value, kind) else value
