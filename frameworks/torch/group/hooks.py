"""Calls as the hooks of torch 2.14 see them: `register_pre_hook`, `register_post_hook`, TORCH_DIST_NAN_CHECK=1.

torch calls hooks in C++, on the way to a compiled backend, which calls of a group made in Python do not go.  Such a
group is of another class while it has hooks, so that a group without them pays nothing.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from hocket.torch.calls.issuing import waits
from hocket.torch.calls.names import with_aliases
from hocket.torch.calls.streams import flat
from hocket.torch.calls.tensors import plain
from hocket.torch.calls.works import Work
from hocket.torch.errors import ArgumentError

NAMES: Any = getattr(torch._C._distributed_c10d, "HookOpName", None)
"""torch's names of the calls; None before torch 2.14, which has no hooks."""
CALLS: dict[str, tuple[str, int | None, int | None]] = {
    "allreduce": ("ALLREDUCE", 0, None),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", 0, None),
    "reduce": ("REDUCE", 0, None),
    "reduce_scatter": ("REDUCE_SCATTER", 1, 0),
    "reduce_scatter_single": ("REDUCE_SCATTER_BASE", 1, 0),
    "reduce_scatter_single_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1, 0),
    "broadcast": ("BROADCAST", 0, None),
    "allgather": ("ALLGATHER", 1, 0),
    "all_gather_single": ("ALLGATHER_BASE", 1, 0),
    "all_gather_single_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1, 0),
    "allgather_coalesced": ("ALLGATHER_COALESCED", 1, 0),
    "gather": ("GATHER", 1, 0),
    "gather_single": ("GATHER", 1, 0),
    "scatter": ("SCATTER", 1, 0),
    "alltoall": ("ALLTOALL", 1, 0),
    "all_to_all_single": ("ALLTOALL_BASE", 1, 0),
    "barrier": ("BARRIER", None, None),
    "send": ("SEND", 0, None),
    "recv": ("RECV", None, 0),
    "recv_anysource": ("RECV", None, 0),
}
"""A method -> torch's name for it in 2.15, and which arguments are its inputs and its outputs."""
FAMILIES = ("ALLREDUCE", "REDUCE_SCATTER", "ALLGATHER", "ALLTOALL")
"""The one name that torch 2.14 gives to all that begin so."""
ROOTED = {"reduce", "broadcast", "gather", "gather_single", "scatter", "send", "recv"}
NAN_CHECK = -1
"""The id of the hook of TORCH_DIST_NAN_CHECK=1: before all that users number from 0."""


class PreHookArgs(NamedTuple):
    """torch's class of this name, for Python: C++ would let go of what Python alone holds."""

    name: Any
    async_op: bool
    input_tensors: list[torch.Tensor]
    output_tensors: list[torch.Tensor]
    root: int
    op_id: int


class PostHookArgs(NamedTuple):
    """The same.  `work`: of a synchronous call one that has ended."""

    name: Any
    async_op: bool
    work: Any
    op_id: int


Hook = Callable[[Any], object]


class Hooks:
    """A group's hooks by their ids, in whose order they are called."""

    _before: dict[int, Hook] = {}
    _behind: dict[int, Hook] = {}
    _numbers: Iterator[int]

    def register_pre_hook(self, hook_id: int, hook: Hook) -> None:
        """Call `hook` before each call, with PreHookArgs.  What it raises, the call raises."""
        self._have({**self._before, hook_id: hook}, self._behind)

    def register_post_hook(self, hook_id: int, hook: Hook) -> None:
        """Call `hook` after each call has been issued, with PostHookArgs."""
        self._have(self._before, {**self._behind, hook_id: hook})

    def unregister_pre_hook(self, hook_id: int) -> None:
        self._have({i: hook for i, hook in self._before.items() if i != hook_id}, self._behind)

    def unregister_post_hook(self, hook_id: int) -> None:
        self._have(self._before, {i: hook for i, hook in self._behind.items() if i != hook_id})

    def _have(self, before: dict[int, Hook], behind: dict[int, Hook]) -> None:
        if NAMES is None:
            raise ArgumentError("hooks of process groups came with torch 2.14")
        self._before, self._behind = dict(sorted(before.items())), dict(sorted(behind.items()))
        vars(self).setdefault("_numbers", itertools.count())
        kind: Any = getattr(type(self), "unwatched", type(self))
        self.__class__ = watched(kind) if before or behind else kind

    def _check_for_nans(self, rank: int) -> None:
        """Do what torch does for its own groups if TORCH_DIST_NAN_CHECK=1."""
        if NAMES is not None and os.environ.get("TORCH_DIST_NAN_CHECK", "0") == "1":
            self.register_pre_hook(NAN_CHECK, functools.partial(nan_check, rank))


class Watched:
    """The calls of a group that has hooks."""


@functools.cache
def watched(kind: Any) -> Any:
    """The class of groups of this class while they have hooks."""
    members = {"unwatched": kind, "__module__": kind.__module__}
    return with_aliases(type(kind)(kind.__name__, (Watched, kind), members))


def _watch(method: str, name: str, given: int | None, taken: int | None) -> Callable[..., Any]:
    family = next((each for each in FAMILIES if name.startswith(each)), name)
    known = getattr(NAMES, name, getattr(NAMES, family, None))

    def call(self: Any, *args: Any, **named: Any) -> Any:
        issue = getattr(super(Watched, self), method)
        if getattr(self._batch, "works", None) is not None:  # a part of a call that has been shown
            return issue(*args, **named)
        rest = [*args, *named.values()]
        opts = next((each for each in rest if hasattr(each, "asyncOp")), None)
        roots = [getattr(each, "rootRank", each) for each in rest if isinstance(each, int) or hasattr(each, "rootRank")]
        root = roots[0] if roots and method in ROOTED else -1
        inputs, outputs = (list(flat(rest[at] if at is not None else [])) for at in (given, taken))
        number, later = next(self._numbers), not waits(opts)
        for hook in self._before.values():
            hook(PreHookArgs(known, later, inputs, outputs, root, number))
        work = issue(*args, **named)
        for hook in self._behind.values():
            hook(PostHookArgs(known, later, Work([], [*inputs, *outputs]) if work is None else work, number))
        return work

    return call


for _method, _row in CALLS.items():
    setattr(Watched, _method, _watch(_method, *_row))


def nan_check(rank: int, args: PreHookArgs) -> None:
    """Raise an error, in torch's words, if what this rank gives to a call has a NaN."""
    if args.name == NAMES.BROADCAST and args.root != rank:
        return  # its tensor is to be written to
    call = args.name.name.lower()
    if any(has_nan(each._values() if each.is_sparse else plain(each, call)) for each in args.input_tensors):
        raise ArgumentError(f"NaN found in input tensor. (TORCH_DIST_NAN_CHECK=1: {call} on rank {rank} of a group)")


def has_nan(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or "float4" in str(tensor.dtype):
        return False
    return bool((tensor.float() if tensor.element_size() == 1 else tensor).isnan().any())
