"""Which cores this rank and its neighbours have: where ranks share cores, they wait in another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.collectives.engine.queue import Cores
from hocket.system.cores import in_core_order


def cores_of(met: Sequence[dict[str, Any]], rank: int) -> Cores:
    """`met`: what each rank says of itself, see `crowded`, and its "pid"."""
    full, (here, cores) = bool(crowded(met)), _counts(met)[met[rank]["kernel"]]
    scarce = bool(crowded([*met, *met]))  # as if each rank came twice
    return Cores(full, scarce, -1 if full else _home(met, rank), cores / here)


def crowded(met: Sequence[dict[str, Any]]) -> set[str]:
    """The kernels whose ranks outnumber their cores."""
    return {kernel for kernel, (ranks, cores) in _counts(met).items() if ranks > cores}


def _counts(met: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """By kernel: its ranks, and the cores that they may use.  (Launchers may have given each rank cores of its own.)

    `met`, by rank: "kernel"; "cores", the numbers of those it may run on; "usable", how many of them its quotas allow;
    "processes", by "pid", that it has met on its host, in other worlds.
    """
    counts = {}
    for kernel in {each["kernel"] for each in met}:
        here = [each for each in met if each["kernel"] == kernel]
        cores = len(set().union(*(each["cores"] for each in here)))
        quotas = [each["usable"] for each in here if each["usable"] < len(each["cores"])]
        beside = {pid for each in here for pid in each.get("processes", ())} - {each.get("pid") for each in here}
        counts[kernel] = len(here) + len(beside), min([cores, *quotas])
    return counts


def _home(met: Sequence[dict[str, Any]], rank: int) -> int:
    """The core of this rank, if each rank of its kernel can have one and nobody has dealt them out already."""
    here = [r for r, each in enumerate(met) if each["kernel"] == met[rank]["kernel"]]
    cores = met[rank]["cores"]
    if len({met[r]["pid"] for r in here}) < len(here) or any(met[r]["cores"] != cores for r in here):
        return -1
    return in_core_order(cores)[here.index(rank)]
