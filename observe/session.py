"""One trace of all ranks while the job runs: `with comm.trace(path):` begins and ends it here.

Pings bind the hosts' clocks at both ends.  Rank 0 collects what the ranks recorded over messages, and writes the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket.observe.clocks import Ping
from hocket.observe.collecting import collect
from hocket.observe.files.names import check
from hocket.observe.files.writing import write
from hocket.observe.merging import merge
from hocket.observe.pinging import askers, clock_of_host, ping
from hocket.recording import RECORD, Facts, Recorded, Ring, What


@contextlib.contextmanager
def trace(
    comm: hocket.Communicator, path: str, begin: Callable[[str], None], end: Callable[[], None]
) -> Iterator[None]:
    """All ranks of `comm` call it.  `begin(folder)`: this rank records everything there from now on, until `end()`.

    If the block fails, nothing is collected, as other ranks may hang: what was recorded stays in the folder that the
    error's note names.
    """
    check(path)
    apart = comm.dup()
    who = askers(comm.share(clock_of_host(), "trace()"))
    first = ping(apart, who)
    folder = tempfile.mkdtemp(prefix="hocket-trace-")
    begin(folder)
    try:
        yield
    except BaseException as error:
        end()
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"this rank's part of the trace is in {folder}: `hocket trace merge {folder}`")
        raise
    end()
    pings = first + ping(apart, who)
    mine = next(each for each in collect(folder).recorded if each.facts.rank == comm.members[comm.rank])
    recorded = _gathered(apart, mine)
    told = comm.share([list(each) for each in pings], "trace()")
    if comm.rank == 0:
        by_rank = {comm.members[r]: [Ping(*each) for each in some] for r, some in enumerate(told) if some}
        write(path, merge(recorded, by_rank))
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    apart.close()


def _gathered(comm: hocket.Communicator, mine: Recorded) -> list[Recorded]:
    """All ranks' parts on rank 0; on others none."""
    data = packed(mine)
    sizes = comm.share(len(data), "trace()")
    if comm.rank:
        comm.send(data, 0)
        return []
    found = [mine]
    for rank in range(1, comm.size):
        data = np.empty(sizes[rank], np.uint8)
        comm.recv(data, rank)
        found.append(unpacked(data))
    return found


def packed(part: Recorded) -> NDArray[np.uint8]:
    """As bytes: a line of JSON, and all records."""
    rings = [{**vars(ring), "records": len(ring.records)} for ring in part.rings]
    table = {str(number): asdict(what) for number, what in part.table.items()}
    head = json.dumps({"facts": asdict(part.facts), "table": table, "rings": rings}).encode() + b"\n"
    return np.concatenate([np.frombuffer(head, np.uint8), *(r.records.view(np.uint8).reshape(-1) for r in part.rings)])


def unpacked(data: NDArray[np.uint8]) -> Recorded:
    """What `packed` made."""
    raw = data.tobytes()
    head, _, _ = raw.partition(b"\n")
    told: dict[str, Any] = json.loads(head)
    at, rings = len(head) + 1, []
    for ring in told["rings"]:
        count = ring["records"]
        records = np.frombuffer(raw, RECORD, count, at)
        at += count * RECORD.itemsize
        rings.append(Ring(**{**ring, "members": tuple(ring["members"]), "records": records}))
    table = {int(number): What(**what) for number, what in told["table"].items()}
    return Recorded(Facts(**told["facts"]), table, rings)
