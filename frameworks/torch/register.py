"""Make torch know the name "hocket".  Costs nothing else: what a group needs is imported when one is made."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from hocket.errors import ArgumentError

NAME = "hocket"
DEVICES = ["cpu", "cuda"]  # a list: torch up to 2.13 would go through a string letter by letter


def register() -> None:
    """Register the backend.  torch calls this too, when it is imported (the entry point `torch.backends`)."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


def create(options: Any, _: Any) -> Any:
    """Called by torch for each group: makes its process group."""
    from hocket.torch.group import backend, dynamo, process_group

    dynamo.keep_out()
    # ShardedTensor.gather and others take "cuda" where it is named.  Not when torch is imported: to ask for GPUs then
    # could keep processes that are forked later from them.
    dist.Backend.backend_capability[NAME] = present()
    others = [name for name in asked_for() if name != NAME]
    recorded_by_itself(not others)
    if not others:
        return process_group.ProcessGroupHocket(options)
    if getattr(options, "enable_reconfigure", False):
        raise ArgumentError(
            f"enable_reconfigure: torch reconfigures no group of several backends, and {', '.join(others)} is there, "
            f'too; pass "{NAME}" alone'
        )
    if backend.available():
        return backend.BackendHocket(options)
    raise ArgumentError(
        f"hocket cannot share a group with {', '.join(others)} before torch 2.14; pass "
        f'"{NAME}" alone, which takes tensors of every device, or make another group for the other backend'
    )


def recorded_by_itself(alone: bool) -> None:
    """Keep torch 2.15's flight recorder from groups of hocket alone: it needs a compiled backend."""
    backends: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    (backends.add if alone else backends.discard)(NAME)


def present() -> list[str]:
    """The kinds of device that there are here."""
    return [name for name in DEVICES if name == "cpu" or torch.cuda.is_available()]


def asked_for() -> list[str]:
    """The backends of the group that is being made, by device.

    A group made in Python is the whole group: with "cpu:gloo,cuda:hocket" it would be hocket for all.  torch does not
    say what was asked for, so its own frame is looked at.
    """
    frame = sys._getframe()
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return [] if frame is None else list(frame.f_locals["backend_config"].get_device_backend_map().values())
