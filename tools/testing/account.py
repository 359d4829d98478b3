"""The account of ranks that do not end: what `hocket top` shows of them, and the line of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hocket.tools import top
from hocket.tools.doctor.units import ranks


def account(pids: Sequence[int], late: Sequence[int], why: str, sites: Mapping[int, str]) -> str:
    """`pids`: of all ranks, 0 where one has ended; `late`: those that have not come to an end; `sites`: their lines."""
    there = top.look([pid for pid in pids if pid])
    held = sorted({r for several in there.held_up_by.values() for r in several})
    lines = [f"{ranks(late)} of {len(pids)} had not ended {why}" + (f"; they wait for {ranks(held)}" if held else "")]
    lines += [top.as_text(there)] if there.jobs else []
    lines += [f"rank {r} is at {sites[r]}" if r in sites else f"rank {r} does not say where it is" for r in late]
    return "\n".join(lines)
