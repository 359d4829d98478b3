"""`Compressor`: averages vectors with fewer bits, and remembers what it owes each of them."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.arguments import choices
from hocket.codecs import Codec
from hocket.compression.bucket import Bucket
from hocket.compression.choice.names import resolved
from hocket.compression.entries import KeyEntry, Rate, Stats, loaded, of_all, parked, text
from hocket.compression.memory import Array, all_taken, copied, empty, squared, taken, zeros
from hocket.compression.method import Averaged, Method, check_place, single
from hocket.compression.residuals import Residuals, near, owing, spoilt, sums
from hocket.compression.step import Step, StepResult, of_two, on_gpu
from hocket.errors import ArgumentError
from hocket.extending import InOrder, at_once, in_order, on_host, place


class Compressor:
    """Allreduce with error feedback: what a call does not send is added to the next call's vector of the same key.

    `method`: a name, such as "int8", "topk:0.01" or "powersgd:4" (names.py has them all); a codec of quantizers.py;
    or a `Method`.  `feedback=False`: what is not sent is forgotten.  `decay`: what is owed is multiplied by it in each
    call.  `keep="host"`: what is owed by vectors on a GPU, and what their method keeps, lies in host memory between
    calls, each of which copies it there and back, and waits.

    All ranks make the same calls with the same keys in the same order, as with any collective.

    Source of error feedback: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other
    Gradient Compression Schemes", ICML 2019.

    >>> import hocket, numpy as np
    >>> from hocket.compression import Compressor
    >>> def two_steps(comm):
    ...     c = Compressor(comm, "topk:0.5")
    ...     return [c.allreduce(np.array([3, 1], np.float32), key="w").tolist() for _ in range(2)]
    >>> hocket.local_world(2).run(two_steps)[0]
    [[3.0, 0.0], [3.0, 0.0]]
    """

    def __init__(
        self, comm: Any, method: str | Codec | Method, feedback: bool = True, decay: float = 1.0, keep: str = "gpu"
    ) -> None:
        self.comm = getattr(comm, "plain", comm)  # an axis of a Mesh has a codec, whose errors would not be owed
        self.feedback, self.decay = feedback, decay
        self.method = resolved(method)
        self._entries: dict[str, KeyEntry] = {}
        self._residuals = Residuals(keep)
        self._memory = [np.empty(0, np.float32)] * 2
        self._last_step: Step | None = None
        self._calls = InOrder("a Compressor")
        self.report: str | None = None
        """The measurement where "auto" chose the method ("powersgd:4: 267 ms -> 35 ms (also tried: ...)")."""

    @at_once
    def allreduce(self, x: Any, key: str, op: str = "avg", lr: float | None = None) -> Any:
        """Average (or op "sum": add) all ranks' x in place, as far as the method sends it.  Returns x.

        `x`: a float32 NumPy array, torch tensor or CuPy array, contiguous; of one shape in all calls with one `key`.
        `lr`: the learning rate that x will be multiplied by; if it changes, what is owed is rescaled, so that it counts
        as much as when it was left (at a rate of 0, and after one, it stays as it is).  None: the rate is that of the
        call before.  A NaN or an infinity anywhere makes the whole result NaN on all ranks, and nothing is kept of the
        call: a training step that is skipped for it changes nothing, if all its calls are in one `step`.  Cost: that of
        the method, and some passes over x in NumPy.  Memory: what is owed, and as much again.
        """
        self.allreduce_all([x], [key], op, lr)
        return x

    @at_once
    @in_order()
    def allreduce_all(
        self, xs: Bucket | Sequence[Any], keys: Sequence[str] = (), op: str = "avg",
        lr: Rate | Sequence[Rate] | Array = None,
    ) -> None:  # fmt: skip
        """`allreduce` of several, each with its key, in as few calls as the method can: those of a bucket of gradients.

        `xs`: a `Bucket`, which has the keys and is not copied, or arrays.  All ranks give the same ones together.
        `lr`: one for all, or that of each.  A NaN makes that vector NaN, and what the method joins with it; in a `step`
        all.
        """
        _check(op)
        bucket = xs if isinstance(xs, Bucket) else None
        if bucket is not None:
            xs, keys = bucket.parts, bucket.keys
        if len(keys) != len(xs) or len({text(key) for key in keys}) < len(keys):
            raise ArgumentError(f"{len(xs)} vectors need {len(xs)} different keys; got {reprlib.repr(keys)}")
        several: list[Any] = [lr] * len(xs) if np.ndim(lr) == 0 else list(lr)  # type: ignore[arg-type]
        rates = [None if one is None else float(one) for one in several]
        if len(rates) != len(xs):
            raise ArgumentError(f"{len(xs)} vectors need one lr, or {len(xs)}; got {len(rates)}")
        if not xs:
            return
        began, arrays = time.perf_counter(), all_taken(xs)
        entries = [self._entry(key, array, array.shape) for key, array in zip(keys, arrays, strict=True)]
        factors = [self._factor(*each) for each in zip(entries, rates, strict=True)]
        if bucket is None:
            bucket = Bucket(arrays[0].reshape(-1), arrays) if len(arrays) == 1 else self._scratch(1, entries, arrays[0])
        bucket = Bucket(bucket.flat, bucket.parts, keys)
        if not on_host(arrays[0]):
            averages = self._on_gpu(bucket, arrays, entries, factors, rates, op)
            share = (time.perf_counter() - began) / len(averages)
            for entry, array, one in zip(entries, arrays, averages, strict=True):
                self._count(entry, array.nbytes, one, share)
            return
        average = self._feed if self.method.feeds else self._send
        lefts, squares, averages = average(bucket, arrays, entries, factors)
        share = (time.perf_counter() - began) / len(averages)
        for array, result in zip(arrays, bucket.parts, strict=True):
            if result is not array:
                array[...] = result
        for entry, left, square, array, one, rate in zip(entries, lefts, squares, arrays, averages, rates, strict=True):
            self._settle(entry, left, square, array, one, rate, share)
            if op == "sum":
                array *= np.float32(self.comm.size)

    def _on_gpu(
        self, bucket: Bucket, arrays: Sequence[Array], entries: Sequence[KeyEntry], factors: Sequence[float],
        rates: Sequence[Rate], op: str,
    ) -> list[Averaged]:  # fmt: skip
        """The same of vectors on a GPU: nothing is decided on the host, and nothing waits."""
        method, flat = self.method, bucket.flat
        check_place(method, flat)
        for part, array in zip(bucket.parts, arrays, strict=True):
            if part is not array:
                part[...] = array
        owed, left = self._residuals.of(bucket.keys, entries, flat)
        square = sums(bucket, owed if self.feedback else None, factors, left)
        if method.feeds:
            same = self.feedback and all(factor == 1 for factor in factors)
            if not same:
                flat[...] = left.flat
            averages = method.feed(self.comm, bucket, owed.flat if same else None, left.flat)
        else:
            spoilt(left.flat)
            for entry in entries:
                entry.kept = near(entry.kept, flat)
            kepts = [method.rescaled(entry.kept, by) for entry, by in zip(entries, factors, strict=True)]
            averages = method.average_all(self.comm, left, bucket, kepts, self._seeds(bucket.keys, entries))
        if op == "sum":
            flat *= single(self.comm.size)
        for part, array in zip(bucket.parts, arrays, strict=True):
            if part is not array:
                array[...] = part
        here = [flat] if bucket.parts[0] is arrays[0] else arrays
        self._settle_on_gpu(entries, here, averages, (owed, left), square, rates)
        return averages

    def _settle_on_gpu(self, entries: Sequence[KeyEntry], *made: Any) -> None:
        """The same of all in a call; `made`: what step.py's `on_gpu` takes."""
        outcome = on_gpu(self.feedback, self._residuals.parks, entries, *made)
        self._residuals.end()
        if self._step:
            self._step.add(outcome, *entries)
        else:
            outcome.settle(outcome.finite)

    def _owed(self, entries: Sequence[KeyEntry]) -> list[Array | None]:
        return [entry.residual if self.feedback else None for entry in entries]

    def _seeds(self, keys: Sequence[str], entries: Sequence[KeyEntry]) -> list[int]:
        return [zlib.crc32(f"{key}|{entry.steps}".encode()) for key, entry in zip(keys, entries, strict=True)]

    def _send(
        self, results: Bucket, arrays: Sequence[Array], entries: Sequence[KeyEntry], factors: Sequence[float]
    ) -> tuple[list[Array], list[float], list[Averaged]]:
        """Average by a method that is given what is to be sent.  What is left, the squares of that, and the costs."""
        vectors = self._left(results.keys, entries, arrays[0])
        squares = [owing(*each) for each in zip(arrays, self._owed(entries), factors, vectors.parts, strict=True)]
        kepts = [self.method.rescaled(entry.kept, by) for entry, by in zip(entries, factors, strict=True)]
        seeds = self._seeds(results.keys, entries)
        return vectors.parts, squares, self.method.average_all(self.comm, vectors, results, kepts, seeds)

    def _feed(
        self, bucket: Bucket, arrays: Sequence[Array], entries: Sequence[KeyEntry], factors: Sequence[float]
    ) -> tuple[list[Array], list[float], list[Averaged]]:
        """The same by one whose call adds what is owed, and leaves what will be."""
        squares = [owing(*each) for each in zip(arrays, self._owed(entries), factors, strict=True)]
        for part, array in zip(bucket.parts, arrays, strict=True):
            if part is not array:
                part[...] = array
        owed, left = self._residuals.of(bucket.keys, entries, bucket.flat)
        before = owed.flat if self.feedback else None
        if self.feedback and any(factor != 1 for factor in factors):
            for part, factor, scaled in zip(owed.parts, factors, left.parts, strict=True):
                np.multiply(part, factor, out=scaled)
            before = left.flat
        return left.parts, squares, self.method.feed(self.comm, bucket, before, left.flat)

    @at_once
    @in_order()
    def reduce_scatter(self, x: Any, key: str, out: Any, op: str = "avg", lr: float | None = None) -> Any:
        """Average row r of all ranks' x, which has a row for each rank, into `out` of rank r.  Returns out.

        As `allreduce`, and with the same state; x keeps its values.  For codecs of blocks: each row is encoded once.
        """
        _check(op)
        began, array, result = time.perf_counter(), taken(x), taken(out)
        wanted = (self.comm.size, *result.shape)
        if array.shape != wanted:
            raise ArgumentError(f"out has shape {result.shape}, so x must have {wanted}; got {array.shape}")
        entry = self._entry(key, array, array.shape, sharded=True)
        if not on_host(array):
            check_place(self.method, array)
            one = Bucket(array.reshape(-1), [array], [key])
            owed, left = self._residuals.of([key], [entry], array)
            square = sums(one, owed if self.feedback else None, [self._factor(entry, lr)], left)
            spoilt(left.flat)
            averaged = self.method.scatter(self.comm, left.parts[0], result)
            if op == "sum":
                result *= single(self.comm.size)
            self._settle_on_gpu([entry], [result], [averaged], (owed, left), square, [lr])
            self._count(entry, array.nbytes, averaged, time.perf_counter() - began)
            return out
        vector = self._left([key], [entry], array).parts[0]
        square = owing(array, self._owed([entry])[0], self._factor(entry, lr), vector)
        averaged = self.method.scatter(self.comm, vector, result)
        self._settle(entry, vector, square, result, averaged, lr, time.perf_counter() - began)
        if op == "sum":
            result *= np.float32(self.comm.size)
        return out

    @at_once
    @in_order()
    def allgather(self, x: Any, key: str, out: Any) -> Any:
        """Gather all ranks' x, the rows of `out`, by what changed since the last call with this key.  Returns out.

        For what changes little from call to call, as parameters do; the first call sends everything.  All ranks get the
        same bits, and what a call does not send, the next one does.  Each rank keeps what all have: as much as `out`.
        For codecs of blocks.

        Source: Jia et al., "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data Parallelism for LLM
        Training", NeurIPS 2024.
        """
        began, array, result = time.perf_counter(), taken(x), taken(out)
        wanted = (self.comm.size, *array.shape)
        if result.shape != wanted:
            raise ArgumentError(f"x has shape {array.shape}, so out must have {wanted}; got {result.shape}")
        check_place(self.method, array)
        if not on_host(array) or np.may_share_memory(array, result):  # x may be its row of out, as elsewhere
            array = copied(array)
        entry = self._entry(key, array, array.shape, (0,), sharded=True)
        averaged = self.method.gather(self.comm, array, result, near(entry.kept, array))
        if not on_host(array):
            left, was = array - result[self.comm.rank], near(entry.kept, array)
            entry.kept = of_two(result, averaged.kept, was)
            entry.kept = parked(entry.kept) if self._residuals.parks else entry.kept
            entry.square, entry.left_square = squared(array), squared(left)
            self._count(entry, array.nbytes, averaged, time.perf_counter() - began)
            return out
        entry.steps += 1
        entry.kept = averaged.kept if math.isfinite(squared(result)) else {}  # the same on all ranks
        seconds = entry.stats.seconds + time.perf_counter() - began
        error = float(np.linalg.norm(array - result[self.comm.rank]) / (np.linalg.norm(array) or 1.0))
        entry.stats = Stats(entry.stats.calls + 1, array.nbytes, averaged.nbytes, seconds, error)
        return out

    def _settle(
        self, entry: KeyEntry, left: Array, square: float, result: Array, averaged: Averaged, lr: Rate, seconds: float
    ) -> None:
        """Keep what a call leaves, or give it to the step; nothing, and a result of NaN, if that is not finite."""
        whole = math.isfinite(squared(result)) if averaged.finite is None else averaged.finite
        owed, left_square = (left, 0.0) if self.feedback else (None, squared(left))
        outcome = StepResult(entry, result, whole, averaged.kept, lr, square, owed, left_square)
        if not whole:
            result[...] = np.nan
        if self._step:
            self._step.add(outcome, entry)
        else:
            outcome.settle(whole)
        self._count(entry, left.nbytes, averaged, seconds)

    def _count(self, entry: KeyEntry, nbytes: int, averaged: Averaged, seconds: float) -> None:
        entry.steps, was = entry.steps + 1, entry.stats
        entry.stats = Stats(was.calls + 1, nbytes, averaged.nbytes, was.seconds + seconds, was.error)

    def _factor(self, entry: KeyEntry, lr: Rate) -> float:
        """By which what is owed is multiplied in a call at this rate."""
        return single(self.decay * (entry.lr / lr if lr and entry.lr else 1.0))

    @property
    def _step(self) -> Step | None:
        """The one that is open."""
        return self._last_step if self._last_step and not self._last_step.over else None

    def _left(self, keys: Sequence[str], entries: Sequence[KeyEntry], like: Array) -> Bucket:
        """Memory for what is to be sent, of which a method leaves what is not: the entries', if they keep that."""
        return self._residuals.of(keys, entries, like)[1] if self.feedback else self._scratch(0, entries, like)

    def _scratch(self, which: int, entries: Sequence[KeyEntry], like: Array) -> Bucket:
        """Memory for a vector of each entry, one after the other, where `like` lies."""
        count, memory = sum(math.prod(entry.shape) for entry in entries), self._memory[which]
        if len(memory) < count or place(memory) != place(like):
            self._memory[which] = empty(like, count)
        return Bucket.of(self._memory[which], [entry.shape for entry in entries])

    def step(self) -> Step:
        """Begin a step of training, whose calls count together: `with c.step(): ...`, or until `end()` of what returns.

        If one of the calls' results is not finite all of them become NaN at the end, on all ranks, and what is owed to
        every key is as before: a step that is skipped for a NaN in one gradient loses nothing of the others.  A step
        has one call with a key; `allgather` is no part of it.

        >>> import hocket, numpy as np
        >>> from hocket.compression import Compressor
        >>> def skipped(comm):
        ...     c, a, b = Compressor(comm, "topk:0.5"), np.array([3, 1], np.float32), np.array([np.nan, 1], np.float32)
        ...     with c.step():
        ...         c.allreduce(a, "a"), c.allreduce(b, "b")
        ...     return a.tolist(), c.allreduce(np.zeros(2, np.float32), "a").tolist()
        >>> hocket.local_world(2).run(skipped)[0]
        ([nan, nan], [0.0, 0.0])
        """
        if self._step:
            raise ArgumentError("a step of this Compressor is open: end it before the next begins")
        self._last_step = Step(self._calls)
        return self._last_step

    def stats(self, key: str, error: bool = True) -> Stats:
        """The statistics of the calls with this key; `error=False`: but that, for which it waits for a GPU."""
        if key not in self._entries:
            raise ArgumentError(f"no call has used the key {key!r}; {choices(key, self._entries)}")
        entry = self._entries[key]
        if entry.square is None or not error:
            return entry.stats
        self._calls.follow(entry.residual)
        left, square = entry.left_square, float(entry.square)
        if left is None or (self.feedback and on_host(entry.residual)):
            left = squared(entry.residual)
        return dataclasses.replace(entry.stats, error=math.sqrt(float(left) / (square or 1.0)))

    def forget(self, key: str) -> None:
        """Drop what is kept for this key, and what is owed with it: its next vector may have another shape.

        All ranks do it between the same calls.
        """
        self._entries.pop(text(key), None)
        self._residuals.forget(key)

    def state_dict(self) -> dict[str, Any]:
        """The state that this rank must keep to go on as if nothing had happened: arrays and numbers, for any
        checkpoint."""
        for entry in self._entries.values():
            self._calls.follow(entry.residual)
        entries = {key: entry.saved() for key, entry in self._entries.items()}
        return {"method": self.method.name, "size": self.comm.size, "entries": entries}

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`: this rank's; or those of all ranks, in their order.

        A job of another size wants those of all.  What the ranks owe to the average stays the same; what is owed to
        `reduce_scatter`, whose rows then are others, is dropped, and `allgather` begins anew.
        """
        states, size = of_all(state, self.method.name, self.comm.size)
        entries = states[0]["entries"]
        if len(states) == 1 and size == self.comm.size:
            self._entries = {key: loaded([one]) for key, one in entries.items()}
            return
        stay = [key for key in entries if size == self.comm.size or not entries[key]["sharded"]]
        self._entries = {key: self._redealt([one["entries"][key] for one in states]) for key in stay}

    def _redealt(self, saved: Sequence[dict[str, Any]]) -> KeyEntry:
        """This rank takes over from ranks rank, rank + size, ...  An average divides by another number now."""
        rank, size = self.comm.rank, self.comm.size
        if size == len(saved):
            return loaded([saved[rank]])
        entry = loaded(saved[rank::size] or saved[:1], size / len(saved) if rank < len(saved) else 0.0)
        entry.kept = self.method.redealt([one["kept"] for one in saved], entry.residual.size, rank, size)
        return entry

    def _entry(
        self, key: str, like: Array, shape: tuple[int, ...], owed: tuple[int, ...] | None = None, sharded: bool = False
    ) -> KeyEntry:
        entry = self._entries.get(text(key))
        if entry is None:
            residual = zeros(like, shape if owed is None else owed)
            entry = self._entries[key] = KeyEntry(shape, residual, sharded=sharded)
        elif not on_host(entry.residual) and place(entry.residual) != place(like):
            was = place(entry.residual)
            raise ArgumentError(f"key {key!r} was used for an array {was}, got one {place(like)}: use another key here")
        if entry.sharded != sharded or entry.shape != shape:
            was = "another kind of call" if entry.sharded != sharded else f"shape {entry.shape}, got {shape}"
            raise ArgumentError(f"key {key!r} was used for {was}: use another key here")
        if self._step and entry in self._step:
            raise ArgumentError(f"key {key!r} was used twice in this step: use each key once")
        return entry


def _check(op: str) -> None:
    if op not in ("avg", "sum"):
        raise ArgumentError(f"a compressed sum takes op 'avg' or 'sum', not {op!r}")
