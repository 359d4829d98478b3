"""Traces of somebody else's: torch's profiler, a file for each rank, and Horovod's timeline, as far as they know.

They know calls, and have no messages.  Where it is known when each rank came to a call, the last one is taken for the
sender of a message of no bytes to the others, who waited for it: so the report says who was late.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import ArgumentError
from hocket.observe.timeline import COUNT, Timeline, Track, slices
from hocket.recording import NOBODY

UNKNOWN = "it is not a trace of hocket's, torch's profiler's or Horovod's"
LONGEST = 4096
"""Characters of a name that are kept."""
WORK = re.compile(r"(gloo|hocket|nccl|mpi|ucc|xccl|hccl):\w+")
"""A call as torch's backends name it, from where it was queued until it was done."""
BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Float": 4, "Int": 4, "Double": 8, "Long": 8,
}  # fmt: skip
"""An element's, by torch's names of dtypes."""


class ForeignCall(NamedTuple):
    """A call of one rank.  ns."""

    rank: int
    comm: str
    seq: int
    """All ranks of `comm` have the same for one call."""
    name: str
    begin: int
    end: int
    nbytes: int


def adopted(documents: Sequence[Any]) -> Timeline:
    """The calls in these files, one of Horovod's, or those of torch's ranks.  ArgumentError: they are something else.

    Cost: 10 us an event.
    """
    hosts: dict[int, str] = {}
    if len(documents) == 1 and isinstance(documents[0], list):
        seen, source = list(_of_horovod(documents[0])), "Horovod's timeline"
    else:
        seen, source = list(_of_torch(documents, hosts)), "torch's profiler"
    if not seen:
        raise ArgumentError(f"{source} saw no collective call")
    if max(call.rank for call in seen) >= NOBODY:
        raise ArgumentError(f"it has a rank {max(call.rank for call in seen)}")
    return _timeline(seen, source, hosts)


# ------------------------------------------------------------------------------------------------------------- torch's


def _of_torch(documents: Sequence[Any], hosts: dict[int, str]) -> Iterator[ForeignCall]:
    """Calls on a GPU are its kernels, others what the backend says of them, or else what torch's dispatcher does.

    Neither Gloo nor NCCL's kernels under an old torch say of which group a call is: unless it is known that there is
    but one, calls of different ranks are not one.
    """
    bases = [_base(each) for each in documents]
    for document, base in zip(documents, bases, strict=True):
        rank = int(document["distributedInfo"]["rank"])
        if rank in hosts:
            raise ArgumentError(f"two traces are of rank {rank}: give one of each rank")
        hosts[rank] = str(document.get("host_name", ""))[:LONGEST]
        alone = f"rank {rank}" if len(document["distributedInfo"].get("pg_config", ())) != 1 else "world"
        rows = [row for row in document["traceEvents"] if row.get("ph") == "X"]
        told = [row for row in rows if "Collective name" in row.get("args", {})]
        kernels = [row for row in told if row.get("cat") == "kernel"] or [
            {**row, "name": row["name"].partition("(")[0]}
            for row in rows
            if row.get("cat") == "kernel" and row["name"].startswith("nccl")
        ]
        works = [row for row in rows if WORK.fullmatch(row["name"])]
        made = kernels or works or [row for row in rows if row["name"].startswith("c10d::")]
        sizes = [_nbytes(row["args"]) for row in sorted(told, key=_ts)] if not kernels else []
        numbers: dict[str, int] = defaultdict(int)
        for i, row in enumerate(sorted(made, key=_ts)):
            about = row.get("args", {})
            comm = str(about.get("Process Group Name", alone))[:LONGEST]
            nbytes = _nbytes(about) if kernels else sizes[i] if len(sizes) == len(made) else 0
            begin = base - min(bases) + _ns(row["ts"])
            name = str(about.get("Collective name", row["name"]))[:LONGEST]
            yield ForeignCall(rank, comm, numbers[comm], name, begin, begin + max(0, _ns(row["dur"])), nbytes)
            numbers[comm] += 1


def _base(document: Any) -> int:
    """The ns that its times count from; ArgumentError: it is not torch's."""
    if not isinstance(document, dict) or not isinstance(document.get("distributedInfo"), dict):
        raise ArgumentError(f"{UNKNOWN}; torch's tells its rank if it began behind init_process_group")
    return int(document.get("baseTimeNanoseconds", 0))


def _nbytes(about: Mapping[str, Any]) -> int:
    return int(about.get("In msg nelems", 0)) * BYTES.get(str(about.get("dtype")), 0)


def _ts(row: Mapping[str, Any]) -> float:
    return float(row["ts"])


def _ns(us: Any) -> int:
    return round(float(us) * 1000)


# ----------------------------------------------------------------------------------------------------------- Horovod's


def _of_horovod(rows: list[Any]) -> Iterator[ForeignCall]:
    """A tensor is a process there: NEGOTIATE_..., in which a tick is a rank that is ready, then the call, with phases.

    Without ticks (of tensors that all ranks knew already) the call is rank 0's alone, and waits for nobody.
    """
    tensors: dict[int, str] = {}
    states: dict[int, _Tensor] = defaultdict(_Tensor)
    for seq, row in enumerate(rows):
        kind, tensor = row.get("ph"), int(row.get("pid", 0))
        if kind == "M" and row["name"] == "process_name":
            tensors[tensor] = str(row["args"].get("name", ""))[:LONGEST]
        state = states[tensor]
        if kind == "B":
            state.open.append(str(row["name"])[:LONGEST])
            if len(state.open) == 1:
                negotiates = state.open[0].startswith("NEGOTIATE_")
                state.begun(_ns(row["ts"]), negotiates)
        elif kind == "X" and str(row["name"]).isdigit():
            state.ready.setdefault(int(row["name"]), _ns(row["ts"]))
        elif kind == "E" and state.open:
            name = state.open.pop()
            if not state.open and not name.startswith("NEGOTIATE_"):
                about = row.get("args", {})
                for rank, begin in (state.ready or {0: state.began}).items():
                    whole = f"{name} {tensors.get(tensor, tensor)}"
                    yield ForeignCall(rank, "horovod", seq, whole, begin, max(begin, _ns(row["ts"])), _shaped(about))


class _Tensor:
    """The state of a tensor's call."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ready: dict[int, int] = {}
        """Since when each rank has it."""
        self.began, self.negotiated = 0, False

    def begun(self, at: int, negotiates: bool) -> None:
        """A phase that lies in no other; the call itself belongs to the negotiation before it."""
        if negotiates or not self.negotiated:
            self.ready, self.began = {}, at
        self.negotiated = negotiates


def _shaped(about: Mapping[str, Any]) -> int:
    """Bytes, where the call's end tells dtype and shape."""
    try:
        item = 2 if about["dtype"] == "bfloat16" else np.dtype(about["dtype"]).itemsize
    except (KeyError, TypeError):
        return 0
    return item * math.prod(int(each) for each in re.findall(r"\d{1,18}", str(about.get("shape", ""))[:99]))


# -------------------------------------------------------------------------------------------------------- the timeline


def _timeline(seen: Sequence[ForeignCall], source: str, hosts: Mapping[int, str]) -> Timeline:
    tracks: dict[Track, int] = {}
    names: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []

    def add(call: ForeignCall, group: str, name: str, begin: int, end: int, peer: int = NOBODY, flow: int = 0) -> None:
        words = group if peer == NOBODY else f"{group} {peer}"
        track = tracks.setdefault(Track(call.rank, f"{words} ({call.comm})", False, group, call.comm), len(tracks))
        nbytes = call.nbytes if group == "calls" else 0
        rows.append((begin, end, flow, nbytes, 0, track, names.setdefault(name, len(names)), call.seq, peer, NOBODY))

    together: dict[tuple[str, int], list[ForeignCall]] = defaultdict(list)
    for call in seen:
        together[call.comm, call.seq].append(call)
        add(call, "calls", call.name, call.begin, call.end)
    flow = 0
    for some in together.values():
        last = max(some, key=lambda call: call.begin)
        for call in some if len({call.name for call in some}) == 1 else ():  # else it is not one call
            until = min(last.begin, call.end)
            if until > call.begin:
                flow += 1
                add(call, "waits", f"for rank {last.rank}", call.begin, until, last.rank)
                add(call, "receives", call.name, call.begin, until, last.rank, flow)
                add(last, "sends", call.name, until, until, call.rank, flow)
    spans = slices(len(rows))
    for name, values in zip(spans.dtype.names or (), zip(*rows, strict=True), strict=True):
        spans[name] = values
    zero = spans["begin"].min()
    spans["begin"] -= zero
    spans["end"] -= zero
    ranks = sorted({call.rank for call in seen})
    places = [hosts.get(rank, "") for rank in ranks]
    facts = [{"host": each, "clock": each, "clock_error_us": 0 if each == places[0] else None} for each in places]
    about = {"source": source, "ranks": {str(rank): fact for rank, fact in zip(ranks, facts, strict=True)}}
    processes = {rank: f"rank {rank}" for rank in ranks}
    return Timeline(processes, [*tracks], [*names], spans, np.zeros(0, COUNT), about)
