"""Make torch know the name "hocket".  Costs nothing else: what a group needs is imported when one is made."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from hocket.errors import ArgumentError

NAME = "hocket"
DEVICES = ["cpu", "cuda"]  # a list: torch up to 2.13 would go through a string letter by letter


def register() -> None:
    """Also what torch calls when it has been imported (the entry point `torch.backends`)."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


def create(options: Any, _: Any) -> Any:
    """Called by torch for each group: makes its process group."""
    refuse_mixture()
    from hocket.torch.group import ProcessGroupHocket

    return ProcessGroupHocket(options)


def refuse_mixture() -> None:
    """A group made in Python is the whole group, for every device: "cpu:gloo,cuda:hocket" would be hocket for all.

    torch does not say what was asked for, so its own frame is looked at; without it nothing is refused.
    """
    frame = sys._getframe()
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return
    names = set(frame.f_locals["backend_config"].get_device_backend_map().values())
    if names != {NAME}:
        raise ArgumentError(
            f"backend={frame.f_locals['backend_config']}: hocket cannot share a group with other backends; pass "
            f'"{NAME}" alone, which takes tensors of every device, or make another group for the other backend'
        )
