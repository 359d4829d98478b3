"""The carriers of the calls of torch's groups."""

from __future__ import annotations

from typing import Any

import torch


def comm_of(group: Any) -> Any:
    """hocket's communicator of a group; None: it has none."""
    return getattr(carrier_of(group), "comm", None)


def carrier_of(group: Any) -> Any:
    """The object of hocket's, a process group or a backend, that has the communicator; None: there is none."""
    return next((each for each in (group, _backend(group)) if getattr(each, "comm", None) is not None), None)


def carrier(group: Any) -> str:
    """The carrier of its calls on the CPU, for errors: "one of 'gloo'"."""
    return f"one of {_backend(group).name()!r}" if hasattr(_backend(group), "name") else f"a {type(group).__name__}"


def _backend(group: Any) -> Any:
    """The backend of torch's own group on the CPU; None if it has none."""
    try:
        return group._get_backend(torch.device("cpu"))
    except (AttributeError, RuntimeError):
        return None
