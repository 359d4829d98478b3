"""A rank's recorder as a dump of torch's Flight Recorder, which `torchfrtrace` compares with those of the other ranks.

The format is that of torch 2.15 (version 2.10): a pickle of dicts, lists, strings and numbers.  It needs no torch.

| field | from |
|---|---|
| process_group, pg_config | communicators, by their names; of a message its two ranks: else all would be missed |
| collective_seq_id | numbers of calls of a communicator |
| profiling_name | `gloo:all_reduce`; of messages that have not ended `gloo:send 0->1`, the lower rank being 0 |
| sizes, dtypes | its array; outputs by the collective's law |
| state | completed, or started: in the call |
| frames | the line that made such a call first |
"""

from __future__ import annotations

import re
from typing import Any

from hocket.recording import Kind, Recorded, Ring, What

VERSION = "2.10"
LIBRARY = "gloo"
"""torchfrtrace up to 2.14 refuses names that it does not know, and 2.15 warns of each.  `comm_lib_version` is ours."""
NAMES = {
    "allreduce": "all_reduce", "allgather": "_all_gather_base", "allgatherv": "all_gather_v", "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v_single", "barrier": "barrier", "broadcast": "broadcast", "gather": "gather",
    "reduce": "reduce", "reduce_scatter": "_reduce_scatter_base", "reduce_scatterv": "reduce_scatter_v",
    "scatter": "scatter",
}  # fmt: skip
"""hocket's collectives by torch's names; torch knows no others."""
DTYPES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
    "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip
GROWS = {"allgather": 1, "reduce_scatter": -1}
"""The result is as many times as long as there are ranks, or that much shorter."""
SITE = re.compile(r"(.+):(\d+)(?: in (\S+))?$")
ENDS = (Kind.DONE, Kind.FAIL)


def dump(part: Recorded) -> dict[str, Any]:
    """The value that `pickle` writes into the file of this rank."""
    rings = [ring for ring in part.rings if ring.kind in ("collectives", "messages")]
    ahead = part.facts.realtime_ns - part.facts.monotonic_ns
    made = [each for ring in rings for each in _entries(part, ring, ahead)]
    made.sort(key=lambda each: each[1]["time_created_ns"])
    config: dict[str, Any] = {}
    for number, (ranks, entry) in enumerate(made):
        entry["record_id"] = entry["op_id"] = number
        name, about = entry["process_group"]
        config[name] = {"name": name, "desc": about, "ranks": str(ranks)}
    entries = [entry for _, entry in made]
    return {"version": VERSION, "entries": entries, "pg_config": config, "pg_status": {}, "comm_lib_version": "hocket"}


def _entries(part: Recorded, ring: Ring, ahead: int) -> list[tuple[list[int], dict[str, Any]]]:
    """The calls of one engine in their order, each with the ranks that make it; of messages those that go on."""
    made: list[tuple[list[int], dict[str, Any]]] = []
    under_way: dict[int, list[dict[str, Any]]] = {}
    for record in ring.records:
        kind, number, ns = record["kind"], int(record["seq"]), int(record["ns"]) + ahead
        over = {"state": "completed", "retired": True, "time_discovered_completed_ns": ns}
        if kind in ENDS:
            for entry in under_way.get(number, [])[:1]:
                under_way[number].pop(0)
                entry |= over
        elif kind in (Kind.CALL, Kind.CALLED):
            what = part.what(int(record["what"]))
            named = _message(what, ring) if ring.kind == "messages" else _collective(what, ring, number)
            if named is not None:
                entry = _entry(what, ns) | named[1]
                made.append((named[0], entry))
                if kind == Kind.CALL:
                    under_way.setdefault(number, []).append(entry)
                else:
                    entry |= over
    return [each for each in made if ring.kind != "messages" or not each[1]["retired"]]


Named = tuple[list[int], dict[str, Any]]
"""The ranks of a call, and what of its entry they decide."""


def _collective(what: What, ring: Ring, number: int) -> Named | None:
    """None: torch has no name for such a call."""
    name, size, count = what.text.partition("(")[0], len(ring.members), what.count
    if name not in NAMES:
        return None
    grown = {1: count * size, -1: count // max(size, 1)}.get(GROWS.get(name, 0), count)
    sizes = {"input_sizes": [[count]], "output_sizes": [[grown]]} if what.dtype else {}
    about = "default_pg" if ring.comm == "world" else "undefined"
    return list(ring.members), {
        "process_group": (ring.comm, about), "profiling_name": f"{LIBRARY}:{NAMES[name]}",
        "collective_seq_id": number + 1, **sizes,
    }  # fmt: skip


def _message(what: What, ring: Ring) -> Named | None:
    """None: its peer is not told, or may be any."""
    peer = what.source if what.dest is None else what.dest
    if peer is None or not ring.members:
        return None
    own = ring.members[ring.index]
    ranks, count = sorted({own, peer}), what.count
    verb, arrow = ("recv", "<-") if what.dest is None else ("send", "->")
    name = f"{verb} {ranks.index(own)}{arrow}{ranks.index(peer)}"
    return ranks, {
        "process_group": (f"{ring.comm}, ranks {ranks[0]} and {ranks[-1]}", "messages"), "is_p2p": True,
        "profiling_name": f"{LIBRARY}:{name}", "input_sizes": [[count]], "output_sizes": [[count]],
    }  # fmt: skip


def _entry(what: What, ns: int) -> dict[str, Any]:
    site, dtype = SITE.match(what.site), [DTYPES.get(what.dtype, what.dtype)] if what.dtype else []
    frame = {"filename": site[1], "line": int(site[2]), "name": site[3] or "?"} if site else None
    return {
        "pg_id": 0, "collective_seq_id": 1, "p2p_seq_id": 1, "is_p2p": False, "input_sizes": [], "output_sizes": [],
        "input_dtypes": dtype, "output_dtypes": dtype, "state": "started", "retired": False, "timeout_ms": 0,
        "time_created_ns": ns, "time_discovered_started_ns": ns, "time_discovered_completed_ns": None,
        "duration_ms": None, "thread_id": "", "thread_name": "", "frames": [frame] if frame else [],
    }  # fmt: skip
