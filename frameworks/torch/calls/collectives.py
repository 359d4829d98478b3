"""The collectives and messages of a process group, under torch's names, with torch's options.

Results go into the caller's tensors: directly where they are contiguous (lists: one behind the other in one storage),
else by a copy at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from hocket.compression.sparse.coo import allreduce_coo
from hocket.torch.calls import quick
from hocket.torch.calls.issuing import Issuing, waits
from hocket.torch.calls.ops import op_of
from hocket.torch.calls.tensors import Tensor, apart, gathered, moved, readable, scattered, unit, writable
from hocket.torch.calls.works import Work
from hocket.torch.errors import ArgumentError, in_torchs_words

Tensors = Sequence[Tensor]


def first(tensors: Any) -> Tensor:
    """The tensor of a call on one: torch passes [tensor], some callers the tensor."""
    found: Tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
    return found


class Calls(Issuing):
    """`comm` carries them out."""

    # --- reductions

    allreduce = quick.allreduce

    def _allreduce(self, tensors: Any, opts: Any, op: Any) -> Work | None:
        """The general way of `allreduce`."""
        tensor = first(tensors)
        asked = getattr(opts, "reduceOp", None)
        if asked is None:  # the short forms: allreduce(tensor), allreduce(tensor, op)
            asked = op if op is not None else opts if opts is not None else torch.distributed.ReduceOp.SUM
        if tensor.layout is not torch.strided:
            return self._sum_sparse(tensor, opts, op_of(asked, tensor))
        out, after = writable(tensor, "all_reduce")
        return self._run(
            "all_reduce", opts, [tensor], self.comm.allreduce, out, op_of(asked, tensor), after=[after]
        )

    def _sum_sparse(self, tensor: Tensor, opts: Any, op: Any) -> Work | None:
        with in_torchs_words():
            total = allreduce_coo(self.comm, tensor, op)
        with torch.no_grad():
            tensor.copy_(total)
        return None if waits(opts) and not self.always_work else Work([], [tensor])

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work | None:
        return self._each(opts, lambda tensor: self._allreduce(tensor, opts, None), tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Work | None:
        """In place at the root; the others' tensors stay as they are."""
        tensor, root = first(tensors), getattr(opts, "rootRank", 0)
        op = op_of(getattr(opts, "reduceOp", torch.distributed.ReduceOp.SUM), tensor)
        if self.comm.rank == root:
            out, after = writable(tensor, "reduce")
            return self._run("reduce", opts, [tensor], self.comm.reduce, out, root, op, out, after=[after])
        return self._run("reduce", opts, [tensor], self.comm.reduce, readable(tensor, "reduce"), root, op)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work | None:
        """A list of one tensor for each rank, which may differ in size."""
        output, given = first(outputs), inputs[0]
        self._one_each("reduce_scatter", given)
        counts = [each.numel() for each in given]
        out, after = writable(output, "reduce_scatter", keep=False)
        x = self._apart(gathered(given, "reduce_scatter"), out, counts)
        op = op_of(getattr(opts, "reduceOp", torch.distributed.ReduceOp.SUM), output)
        call = self.comm.reduce_scatterv
        return self._run("reduce_scatter", opts, [output], call, x, counts, op, out.reshape(-1), after=[after])

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work | None:
        """The input is size times as long as the output."""
        out, after = writable(output, "reduce_scatter_tensor", keep=False)
        x = self._apart(readable(given, "reduce_scatter_tensor").reshape(-1), out)
        op = op_of(getattr(opts, "reduceOp", torch.distributed.ReduceOp.SUM), output)
        call = self.comm.reduce_scatter
        return self._run("reduce_scatter_tensor", opts, output, call, x, op, out.reshape(-1), after=[after])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        return self._each(opts, lambda out, x: self.reduce_scatter_single(out, x, opts), outputs, inputs)

    # --- movement

    def broadcast(self, tensors: Any, opts: Any = None, root: Any = None, timeout: Any = None) -> Work | None:
        tensor = first(tensors)
        source = opts if isinstance(opts, int) else getattr(opts, "rootRank", root or 0)
        out, after = writable(tensor, "broadcast", keep=self.comm.rank == source)
        return self._run("broadcast", opts, [tensor], self.comm.broadcast, moved(out), source, after=[after])

    def allgather(self, outputs: Sequence[Tensors], inputs: Any, opts: Any = None, timeout: Any = None) -> Work | None:
        """A list of one tensor for each rank; their sizes may differ from rank to rank."""
        outs = outputs if isinstance(outputs[0], torch.Tensor) else outputs[0]
        self._one_each("all_gather", outs)
        whole, after = scattered(outs, "all_gather")
        out = moved(whole)
        counts = [each.numel() * unit(whole) for each in outs]
        x = self._apart(moved(readable(first(inputs), "all_gather")), out, counts)
        if len(set(counts)) == 1:
            return self._run("all_gather", opts, outputs, self.comm.allgather, x, out, after=[after])
        return self._run("all_gather", opts, outputs, self.comm.allgatherv, x, counts, out, after=[after])

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work | None:
        """The output is size times as long as the input."""
        out, after = writable(output, "all_gather_into_tensor", keep=False)
        target = moved(out)
        x = self._apart(moved(readable(given, "all_gather_into_tensor")), target)
        call = self.comm.allgather
        return self._run("all_gather_into_tensor", opts, output, call, x, target, after=[after])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        return self._each(opts, lambda out, x: self.all_gather_single(out, x, opts), outputs, inputs)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work | None:
        """outputs[rank][i] is that rank's inputs[i]."""
        by_input = [[row[i] for row in outputs] for i in range(len(inputs))]
        return self._each(opts, lambda outs, x: self.allgather([outs], [x], opts), by_input, inputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Any, opts: Any = None) -> Work | None:
        """outputs: at the root a list of one tensor for each rank, elsewhere nothing."""
        x, root = moved(readable(first(inputs), "gather")), getattr(opts, "rootRank", 0)
        if self.comm.rank != root:
            return self._run("gather", opts, [], self.comm.gather, x, root)
        self._one_each("gather", outputs[0], first(inputs))
        whole, after = scattered(outputs[0], "gather")
        out = moved(whole)
        return self._run("gather", opts, outputs, self.comm.gather, apart(x, out), root, out, after=[after])

    def gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work | None:
        """One tensor at the root, size times as long as the input."""
        x, root = moved(readable(given, "gather_into_tensor")), getattr(opts, "rootRank", 0)
        if self.comm.rank != root:
            return self._run("gather_into_tensor", opts, output, self.comm.gather, x, root)
        out, after = writable(output, "gather_into_tensor", keep=False)
        x, call = apart(x, out), self.comm.gather
        return self._run("gather_into_tensor", opts, output, call, x, root, moved(out), after=[after])

    def scatter(self, outputs: Any, inputs: Sequence[Tensors], opts: Any = None) -> Work | None:
        """inputs: at the root a list of one tensor for each rank, elsewhere nothing."""
        output, root = first(outputs), getattr(opts, "rootRank", 0)
        out, after = writable(output, "scatter", keep=False)
        x = None
        if self.comm.rank == root:
            self._one_each("scatter", inputs[0], output)
            x = apart(moved(gathered(inputs[0], "scatter")), out)
        return self._run("scatter", opts, [output], self.comm.scatter, x, root, moved(out), after=[after])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        """Lists of one tensor for each rank, of any sizes: inputs[d] goes to d, outputs[s] comes from s."""
        self._one_each("all_to_all", outputs)
        self._one_each("all_to_all", inputs)
        whole, after = scattered(outputs, "all_to_all")
        x, out = apart(moved(gathered(inputs, "all_to_all")), whole), moved(whole)
        sends, recvs = ([each.numel() * unit(whole) for each in group] for group in (inputs, outputs))
        return self._run("all_to_all", opts, outputs, self.comm.alltoallv, x, sends, recvs, out, after=[after])

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work | None:
        """Splits are rows of axis 0; none: equal parts, which is the same as to give them."""
        out, after = writable(output, "all_to_all_single", keep=False)
        x, target = apart(moved(readable(given, "all_to_all_single")), out), moved(out)
        sends, recvs = self._rows(given, x, input_splits), self._rows(output, target, output_splits)
        return self._run("all_to_all", opts, output, self.comm.alltoallv, x, sends, recvs, target, after=[after])

    def _apart(self, x: Tensor, out: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """`x` for a call in which the shorter of the two may be this rank's block of the longer one."""
        short, long = (x, out) if x.numel() < out.numel() else (out, x)
        start = sum(counts[: self.comm.rank]) if counts is not None else short.numel() * self.comm.rank
        block = long.reshape(-1)[start:]
        return x if block.data_ptr() == short.data_ptr() else apart(x, out)

    def _one_each(self, call: str, tensors: Tensors, like: Tensor | None = None) -> None:
        """A list of a tensor for each rank; of as many elements as `like`, where all are the same."""
        if len(tensors) != self.comm.size:
            raise ArgumentError(
                f"{call}: got a list of {len(tensors)} tensors; expected one for each of {self.comm.size} ranks"
            )
        for rank, each in zip(self.comm.members, tensors, strict=True):
            if like is not None and each.numel() != like.numel():
                raise ArgumentError(
                    f"{call}: the tensor of rank {rank} has {each.numel()} elements; expected {like.numel()}"
                )

    def _rows(self, tensor: Tensor, flat: Tensor, splits: Sequence[int]) -> list[int]:
        """Splits in elements of `flat`."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits:
            if rows % self.comm.size:
                raise ArgumentError(
                    f"all_to_all_single: {rows} rows are not a multiple of {self.comm.size} ranks; pass split sizes"
                )
            splits = [rows // self.comm.size] * self.comm.size
        if sum(splits) != rows:
            raise ArgumentError(
                f"all_to_all_single: splits {list(splits)} add up to {sum(splits)} rows; the tensor has {rows}"
            )
        row = flat.numel() // rows if rows else 0
        return [n * row for n in splits]

    def barrier(self, opts: Any = None, *_: Any, **__: Any) -> Work | None:
        return self._run("barrier", opts, None, self.comm.barrier)

    def monitoredBarrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """See monitor.py."""
        with in_torchs_words():
            self.comm.barrier(timeout=timeout.total_seconds() if timeout else None)

    # --- messages: never block the caller, as a list of them is issued one by one

    def send(self, tensors: Any, dest: int, tag: int = 0) -> Work:
        x = moved(readable(first(tensors), "send"))
        return self._message("send", self.comm.send, x, dest, tag, tensors)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        return self._receive(tensors, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Work:
        out, after = writable(first(tensors), "recv", keep=False)
        return self._message("recv", self.comm.recv, moved(out), source, tag, tensors, after)
