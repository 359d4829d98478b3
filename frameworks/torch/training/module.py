"""A module whose parameters servers hold: workers push gradients, and pull what an optimizer there makes of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from hocket.arguments import kind
from hocket.errors import ArgumentError
from hocket.torch.training.forward import Forward
from hocket.torch.training.hooks import Hook, remove
from hocket.training import Client, Layers, Range
from hocket.training.large.told import asked
from hocket.training.server.optimizers import Array
from hocket.training.server.optimizers import optimizer as resolved
from hocket.training.server.tables import SLICE

Tensor = torch.Tensor
KIND = "served/1"
TWICE = (
    "{}: its gradient was computed twice before step(): Served(..., overlap=False) sends gradients in step(), when "
    "several backward passes have added them up"
)
EARLY = (
    "{}: the backward pass has used it before the servers' values were waited for, as the module that it was needed in "
    "is not called by forward(): leave barrier=False out"
)


class Served:
    """Lets servers train a module: its parameters, and BatchNorm's averages, are tables of a parameter server.

        tables = Served.tables(model, optimizer=SGD(0.1, momentum=0.9))         # the same on all ranks
        if comm.rank == 0:
            serve(comm, tables, on=[0], clock="bsp").wait()
        else:
            with Client(comm, tables) as client:
                served = Served(model, client)                                  # the servers' values
                for x, y in batches:
                    loss(model(x), y).backward()
                    served.step()                                               # pushes, ends the clock, pulls
                    served.zero_grad()

    `mean=True` needs clock="bsp": all workers' steps are one, by the mean of their gradients, as one process would make
    it on the whole batch.  With "ssp:s" and "async" say mean=False: each push is a step of its own.

    `optimizer`: what the tables have to have; None: whatever they have.  `prefix`: of the tables' names.  `overlap`: a
    gradient travels as soon as the backward pass has made it, the first layer's first; a step that has begun so cannot
    be left out.  False: in `step`, when it was clipped or added up.  `barrier=False`: `step` returns at once, and each
    module waits for its own parameters before its `forward`; then call `finish()` before anything else reads them.

    Of a model that is cut (`ColumnParallel`, `RowParallel`) each rank is a client, and all of them are one worker: a
    part is a table, with its rank in front of the name, and all of them call `tables` together.

    All parameters are served, also frozen ones, which are not pushed; a tied one is one table.  Of the buffers those of
    floats are, by what each worker has changed; others are each worker's own.  Tables are float32, or float64 where the
    parameter is.  Parameters on a GPU are refused.

    Cost: 4 bytes a parameter to the servers and back in each step, and two copies in the host.  Raises ArgumentError,
    PeerLostError in `step` (docs/server.md).
    """

    def __init__(
        self, module: torch.nn.Module, client: Client, optimizer: Any = None, *, prefix: str = "", overlap: bool = True,
        barrier: bool = True,
    ) -> None:  # fmt: skip
        self.module, self.client = module, client
        self._held = dict(_served(module))
        cuts = {name: _cut(tensor) for name, tensor in self._held.items()}
        self._keys = {name: _key(prefix, name, -1 if cut is None else cut.rank) for name, cut in cuts.items()}
        self._scales = {name: cut.size for name, cut in cuts.items() if cut is not None}
        """Workers that have other parts of these parameters: their zeros are in the mean."""
        pairs = self._held.items()
        self._params: dict[str, Tensor] = {name: each for name, each in pairs if isinstance(each, torch.nn.Parameter)}
        self._names = {p: name for name, p in self._params.items()}
        rooms = {}
        for name, tensor in self._held.items():
            table = self._table(name, tensor)
            wanted = None if optimizer is None or name not in self._params else repr(resolved(optimizer))
            if wanted is not None and wanted != repr(table.optimizer):
                raise ArgumentError(f"the table of {name!r} has {table.optimizer!r}, and optimizer= says {wanted}")
            rooms[self._keys[name]] = np.empty(table.shape, table.dtype)
        self._layers = Layers(client, rooms)
        self._mean = any(client.table(key).mean for key in rooms)  # type: ignore[union-attr]
        self._given: dict[Tensor, Tensor] = {}
        """Gradients of this step, or of the one before, which are on their way."""
        self._pending: set[str] = set()
        """Names whose values were asked for, and are not here yet."""
        owner = {name.rpartition(".")[0]: name for name in self._params}
        self._beside: dict[str, list[str]] = {}
        """Buffers of the modules of which these are the last parameters."""
        for name in self._held:
            if name not in self._params and (own := owner.get(name.rpartition(".")[0])):
                self._beside.setdefault(own, []).append(name)
        self._base: dict[str, Tensor] = {}
        """Buffers as they were when they were last pushed or pulled."""
        self._forward = None if barrier else Forward(module, self._names, self)
        self._handles = [] if self._forward is None else self._forward.handles
        if overlap:
            trained = [p for p in self._params.values() if p.requires_grad]
            self._handles += [p.register_post_accumulate_grad_hook(Hook(self, "made")) for p in trained]  # type: ignore[no-untyped-call]
        weakref.finalize(self, remove, self._handles).atexit = False
        for name in self._held:
            self._write(name, client.pull(self._keys[name], out=rooms[self._keys[name]]))

    @staticmethod
    def tables(
        module: torch.nn.Module, optimizer: Any = "sgd", *, mean: bool = True, slice: int = SLICE, prefix: str = ""
    ) -> dict[str, Range]:
        """The tables of a module: for `serve` and `Client`.  They begin with its values where `serve` is called.

        Raises ArgumentError: a parameter is on a GPU, sparse, or of no floats.
        """
        made = {}
        for name, tensor in _served(module):
            dtype = "float64" if tensor.dtype == torch.float64 else "float32"
            initial = tensor.detach().to(getattr(torch, dtype)).numpy().copy()
            steps, cut = optimizer if isinstance(tensor, torch.nn.Parameter) else "sum", _cut(tensor)
            parts = [initial] if cut is None else cut.allgather(initial[None])
            for rank, part in enumerate(parts, -1 if cut is None else 0):
                made[_key(prefix, name, rank)] = Range(tuple(tensor.shape), dtype, steps, part, slice, mean)
        return made

    def step(self) -> None:
        """Push the gradients, end this worker's clock, and pull what came of all workers' gradients."""
        self._same()
        if self._pending:
            self.finish()
        for name, p in self._params.items():
            if p not in self._given and p.grad is not None and p.requires_grad:
                self._push(p, p.grad)
            elif p not in self._given:
                self._layers.fetch(self._keys[name])
        for name in self._base:
            change = self._held[name] - self._base[name]
            self._base[name] = self._held[name].clone()
            if bool(change.any()):
                self._layers.ready(self._keys[name], change)
            else:
                self._layers.fetch(self._keys[name])
        self._layers.end()
        self._pending = set(self._held)
        if self._forward is None or not self._forward.settled or self._forward.overtaken is not None:
            self.finish()
            if self._forward is not None:
                self._forward.settle()
        else:
            for p in self._params.values():
                p.grad = None  # the client has it

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The module's."""
        self.module.zero_grad(set_to_none)

    def finish(self) -> None:
        """Wait for all values that `step` has asked for."""
        for name in [name for name in self._held if name in self._pending]:
            self._take(name)

    def apply(self, params: list[Tensor]) -> None:
        """Wait for these parameters' values, and those of the buffers beside them."""
        for p in params:
            for name in (self._names[p], *self._beside.get(self._names[p], ())):
                if name in self._pending:
                    self._take(name)

    def state_dict(self) -> dict[str, Any]:
        """All that servers have of the module, as tensors, and the buffers that are this worker's own.

        Another worker may push meanwhile, but with clock="bsp".
        """
        self.finish()
        tables = {name: self.client.state(self._keys[name]) for name in self._held}
        return {
            "kind": KIND, "optimizers": {name: self._kind(name) for name in self._held},
            "tables": {name: {k: torch.from_numpy(v) for k, v in each.items()} for name, each in tables.items()},
            "own": {name: each.clone() for name, each in self._own()},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put such a state in the place of what servers have, and pull it.

        It takes a clock: with "bsp" all workers call it; else one of them, before the others begin.  Raises
        ArgumentError, and changes nothing, if it is of other parameters, or of an optimizer of another kind.
        """
        self.finish()
        if not isinstance(state, Mapping) or state.get("kind") != KIND:
            raise ArgumentError(f"load_state_dict takes what Served.state_dict() gave ({KIND!r}); got {kind(state)}")
        lacks, knows = sorted(set(self._held) - set(state["tables"])), sorted(set(state["tables"]) - set(self._held))
        if lacks or knows:
            what = f"the state lacks {lacks[0]!r}" if lacks else f"this module has no {knows[0]!r}"
            raise ArgumentError(f"{what}: it was saved of another module")
        for name, said in state["optimizers"].items():
            if said != self._kind(name):
                raise ArgumentError(
                    f"parameter {name!r} was saved with {said}, and its table has {self._kind(name)}: "
                    "give Served.tables the optimizer that the state is of"
                )
            wanted = tuple(self._held[name].shape)
            if tuple(state["tables"][name]["values"].shape) != wanted:
                raise ArgumentError(f"parameter {name!r} was saved with another shape than {wanted}")
        for name, arrays in state["tables"].items():
            self.client.load(self._keys[name], {each: array.numpy() for each, array in arrays.items()})
        own = dict(self._own())
        for name, tensor in state["own"].items():
            if name in own:
                own[name].copy_(tensor)
        for name in self._held:
            self._layers.fetch(self._keys[name])
        self._layers.end()
        self._pending = set(self._held)
        self.finish()

    def made(self, p: Tensor) -> None:
        """backward() has added to its gradient."""
        name = self._names[p]
        if name in self._pending:
            raise ArgumentError(EARLY.format(name))
        if p in self._given:
            raise ArgumentError(TWICE.format(name))
        assert p.grad is not None
        self._push(p, p.grad)

    def close(self) -> None:
        """Take the hooks off."""
        remove(self._handles)

    def _push(self, p: Tensor, gradient: Tensor) -> None:
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        scale = self._scales.get(self._names[p], 1)
        self._given[p] = dense if scale == 1 or not self._mean else dense * scale
        self._layers.ready(self._keys[self._names[p]], self._given[p])

    def _take(self, name: str) -> None:
        """Wait for what was asked for."""
        room = self._layers.wait(self._keys[name])
        self._pending.discard(name)
        self._given.pop(self._held[name], None)
        self._write(name, room)

    @torch.no_grad()
    def _write(self, name: str, room: Array) -> None:
        """The servers' value; of a buffer with what has changed since it was pushed."""
        tensor, value = self._held[name], torch.from_numpy(room)
        if name not in self._params:
            value = value.to(tensor.dtype)
            since = tensor - self._base.get(name, tensor)
            self._base[name], value = value.clone(), value + since
        tensor.copy_(value)

    def _table(self, name: str, tensor: Tensor) -> Range:
        try:
            table = self.client.table(self._keys[name])
        except ArgumentError as why:
            raise ArgumentError(
                f"parameter {name!r} is not a table of the servers: give serve and Client Served.tables(module) of "
                f"the same module ({why})"
            ) from None
        if not isinstance(table, Range) or table.shape != tuple(tensor.shape):
            shape = tuple(tensor.shape)
            raise ArgumentError(f"parameter {name!r} has shape {shape}, and its table is {table.said()}")
        return table

    def _kind(self, name: str) -> str:
        """The kind of its table's optimizer, without its rates."""
        optimizer = self.client.table(self._keys[name]).optimizer
        return type(getattr(optimizer, "inner", optimizer)).__name__

    def _same(self) -> None:
        """Raise ArgumentError if parameters are others than at the beginning."""
        now = dict(_served(self.module))
        for name in [*self._held, *now]:
            if now.get(name) is not self._held.get(name):
                what = "another tensor than" if name in now else "not there, as it was"
                what = what if name in self._held else "new: it was not there"
                raise ArgumentError(f"{name!r} is {what} when Served was made: make it anew, or change it in place")

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers that are this worker's own."""
        there = self.module.state_dict(keep_vars=True)
        return ((name, each) for name, each in there.items() if isinstance(each, Tensor) and name not in self._held
                and not isinstance(each, torch.nn.Parameter))  # fmt: skip


def _served(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's parameters, each once, and its buffers of floats that are saved, module by module."""
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"Served takes a torch.nn.Module, got {kind(module)}")
    seen = set()
    for prefix, each in module.named_modules():
        for name, p in each.named_parameters(prefix, recurse=False):
            if p not in seen:
                seen.add(p)
                yield name, _fit(name, p)
        for name, buffer in each.named_buffers(prefix, recurse=False):
            short = name.rpartition(".")[2]
            if buffer.is_floating_point() and short not in each._non_persistent_buffers_set:
                yield name, _fit(name, buffer)


def _fit(name: str, tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"parameter {name!r} is on {tensor.device}: servers and Served hold host memory; train on the CPU, or "
            "average gradients by DistributedOptimizer"
        )
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise ArgumentError(f"parameter {name!r} must be a dense tensor of floats; got {tensor.dtype}, {tensor.layout}")
    return tensor


def _cut(tensor: Tensor) -> Any:
    """The communicator among whose ranks it is cut, as its layer has told; None: all have it alike."""
    return next((told.comm for told in asked(tensor) if not told.alike), None)


def _key(prefix: str, name: str, rank: int) -> str:
    return f"{prefix}{name}" if rank < 0 else f"{prefix}{rank}/{name}"
