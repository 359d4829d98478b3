"""One trace of all ranks while the job runs: `with comm.trace(path):` begins and ends it here.

Pings bind the hosts' clocks at both ends.  Rank 0 collects what the ranks recorded over messages, and writes the file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket.errors import ArgumentError
from hocket.observe.clocks import Ping
from hocket.observe.collecting import collect
from hocket.observe.files.names import check
from hocket.observe.files.writing import write
from hocket.observe.merging import merge
from hocket.observe.pinging import askers, clock_of_host, ping
from hocket.recording import RECORD, Facts, Recorded, Ring, What, understood, written


@contextlib.contextmanager
def trace(
    comm: hocket.Communicator, path: str, begin: Callable[[str], str], end: Callable[[], None]
) -> Iterator[None]:
    """All ranks of `comm` call it.  `begin(folder)`: this rank records everything from now on, until `end()`.

    It returns the folder where that lies, which is another one if this process is traced already.

    If the block fails, nothing is collected, as other ranks may hang: what was recorded stays in the folder that the
    error's note names.
    """
    check(path)
    apart = comm.dup()
    who = askers(comm.share(clock_of_host(), "trace()"))
    first = ping(apart, who)
    own = tempfile.mkdtemp(prefix="hocket-trace-")
    folder = _begun(apart, begin, end, own)
    try:
        yield
    except BaseException as error:
        end()
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"this rank's part of the trace is in {folder}: `hocket trace merge {folder}`")
        raise
    end()
    pings = first + ping(apart, who)
    recorded = _gathered(apart, _of_rank(folder, comm, apart.name))
    pings_by_rank = comm.share([list(each) for each in pings], "trace()")
    by_rank = {comm.members[r]: [Ping(*each) for each in some] for r, some in enumerate(pings_by_rank) if some}
    why = comm.share(_written(path, recorded, by_rank) if comm.rank == 0 else "", "trace()")[0]
    apart.close()
    if why:
        raise ArgumentError(f"trace: {why}; this rank's part is in {folder}: `hocket trace merge {folder}`")
    shutil.rmtree(own)


def _begun(comm: hocket.Communicator, begin: Callable[[str], str], end: Callable[[], None], own: str) -> str:
    """Where this rank records; all ranks raise if one of them cannot."""
    folder, why = own, ""
    try:
        folder = begin(own)
    except OSError as error:
        why = f"{own} has no room for it ({error.strerror})"
    refused = [f"rank {rank}: {each}" for rank, each in enumerate(comm.share(why, "trace()")) if each]
    if refused:
        if not why:
            end()
        comm.close()
        shutil.rmtree(own)
        raise ArgumentError(f"trace: recording cannot begin on {'; '.join(refused)}")
    return folder


def _of_rank(folder: str, comm: hocket.Communicator, without: str) -> Recorded | None:
    """The recording of this rank there, but for calls of one communicator; None: the disk was full before it began."""
    try:
        parts = collect(folder, comm.recorder().job).recorded  # a file has this process's other generations, too
        recorded = next((each for each in parts if each.facts.rank == comm.members[comm.rank]), None)
    except ArgumentError:
        return None
    return recorded and replace(recorded, rings=[ring for ring in recorded.rings if ring.comm != without])


def _gathered(comm: hocket.Communicator, mine: Recorded | None) -> list[Recorded]:
    """All ranks' parts on rank 0; on others none."""
    data = np.empty(0, np.uint8) if mine is None else packed(mine)
    sizes = comm.share(len(data), "trace()")
    if comm.rank:
        comm.send(data, 0)
        return []
    parts = [mine] if mine is not None else []
    for rank in range(1, comm.size):
        data = np.empty(sizes[rank], np.uint8)
        comm.recv(data, rank)
        parts += [unpacked(data)] if len(data) else []
    return parts


def _written(path: str, recorded: Sequence[Recorded], pings: Mapping[int, Sequence[Ping]]) -> str:
    """Why the file cannot be written; "": it is there."""
    try:
        write(path, merge(recorded, pings))
    except ArgumentError as why:
        return str(why)
    return ""


def packed(part: Recorded) -> NDArray[np.uint8]:
    """The recording as bytes: a line of JSON, and all records."""
    rings = [{**vars(ring), "records": len(ring.records)} for ring in part.rings]
    table = {str(number): {**vars(what), "told": written(what.told)} for number, what in part.table.items()}
    head = json.dumps({"facts": asdict(part.facts), "table": table, "rings": rings}).encode() + b"\n"
    return np.concatenate([np.frombuffer(head, np.uint8), *(r.records.view(np.uint8).reshape(-1) for r in part.rings)])


def unpacked(data: NDArray[np.uint8]) -> Recorded:
    """The recording that `packed` was given."""
    raw = data.tobytes()
    head, _, _ = raw.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    at, rings = len(head) + 1, []
    for ring in header["rings"]:
        count = ring["records"]
        records = np.frombuffer(raw, RECORD, count, at)
        at += count * RECORD.itemsize
        rings.append(Ring(**{**ring, "members": tuple(ring["members"]), "records": records}))
    whats = {int(number): {**what, "told": understood(what["told"])} for number, what in header["table"].items()}
    table = {number: What(**what) for number, what in whats.items()}
    return Recorded(Facts(**header["facts"]), table, rings)
