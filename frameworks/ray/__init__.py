"""hocket inside Ray: groups of ray.util.collective, Ray Train, and a function on n actors.

    register.py  the backend's name, in each process
    group.py     `init_collective_group(..., backend="hocket")`
    errors.py    hocket's errors, which are RuntimeErrors too, as those of Ray's own groups are
    tensors.py   NumPy, torch and CuPy arrays in one call
    train.py     Ray Train: `HocketConfig` for functions that call hocket themselves
    launch.py    `run(function, n)`: n actors, one rank each
    direct.py    `register_transport()`: tensors that stay with an actor, and go by hocket to those that use them
    store.py     the ranks meet through Ray's key-value store
"""

import importlib
from typing import TYPE_CHECKING, Any

from hocket.arguments import installed

with installed("ray"):
    from hocket.ray.launch import run
    from hocket.ray.register import register

if TYPE_CHECKING:
    from hocket.ray.direct import HocketTransport, register_transport
    from hocket.ray.group import HocketGroup
    from hocket.ray.train import HocketConfig

__all__ = ["HocketConfig", "HocketGroup", "HocketTransport", "register", "register_transport", "run"]
_LATER = {
    "HocketConfig": "train", "HocketGroup": "group", "HocketTransport": "direct", "register_transport": "direct",
}  # fmt: skip
"""Names that are loaded when they are asked for, as Ray loads torch, or the packages of Ray Train, with them."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"hocket.ray.{_LATER[name]}"), name)
    raise AttributeError(f"module 'hocket.ray' has no attribute {name!r}")
