"""Answers for torch's Python code, which asks a group made in Python for its backend and for what only others have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend

from hocket.torch.errors import ArgumentError, in_torchs_words
from hocket.torch.group import backend, reconfigure
from hocket.torch.group.bootstrap import limit_of
from hocket.torch.memory import Allocating
from hocket.torch.register import NAME

if TYPE_CHECKING:
    from hocket.torch.group.process_group import ProcessGroupHocket

_Options: Any = Backend.Options


class Without:
    """torch's own group would ask a compiled backend."""

    supports_window = supports_abort_hooks = supports_completion_hooks = False
    use_pg_for_symm_mem_rendezvous = False


def _refuse(name: str) -> Callable[..., Any]:
    def refused(self: Any, *args: Any, **named: Any) -> Any:
        raise ArgumentError(f"Backend {NAME} does not support {name}")

    return refused


for _name in (
    "register_abort_hook", "unregister_abort_hook", "_register_on_completion_hook", "_wait_for_pending_works",
    "new_window", "merge_remote_group",
):  # fmt: skip
    setattr(Without, _name, _refuse(_name))


class Shim(Allocating, Without):
    """The backend that `group._get_backend(device)` gives: it does what the group does."""

    supports_splitting = True
    supports_coalescing = supports_time_estimate = _supports_time_estimate = False

    def __init__(self, group: ProcessGroupHocket) -> None:
        self.group = group

    @property
    def options(self) -> Any:
        made = _Options(NAME, limit_of(self.group.comm))
        made.group_name = self.group.group_name
        return made

    def name(self) -> str:
        return NAME

    @property
    def supports_shrinking(self) -> bool:
        """`dist.shrink_group` makes the smaller group of a backend, which has to be a Python one."""
        return backend.available()

    def shrink(self, ranks: list[int], flags: int = 0, opts: Any = None) -> Any:
        """The backend of the smaller group.  The group's calls end, whatever the flags say."""
        with in_torchs_words():
            return backend.BackendHocket.of(reconfigure.shrunk(self.group, ranks))

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Nothing: the group's ranks are connected."""

    perform_nocolor_split = eager_connect_single_device  # who is no member takes no part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)
