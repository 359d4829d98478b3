"""The table: nccl-tests' columns, then the algorithm and transport that were chosen, then each peer.

algbw = bytes / time; busbw = algbw times the collective's factor: what the slowest link must have carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hocket.collectives.measuring.cases import Case


@dataclass
class Row:
    """One measured case.  Seconds are of one call; `wrong` is None if nobody looked."""

    case: Case
    seconds: float
    wrong: int | None = None
    algorithm: str = ""
    transport: str = ""
    blocks: dict[str, list[float]] = field(default_factory=dict)
    """Library -> every timed block, in the order measured."""
    peers: dict[str, float] = field(default_factory=dict)

    @property
    def algbw(self) -> float:
        """GB/s."""
        return bandwidth(self.case, self.seconds)

    @property
    def busbw(self) -> float:
        """GB/s."""
        return self.algbw * self.case.kind.factor(self.case.size)

    def record(self) -> dict[str, Any]:
        """The row as JSON."""
        case = asdict(self.case)
        case["ranks"] = case.pop("size")
        return {
            **case, "bytes": self.case.nbytes, "time_us": self.seconds * 1e6, "algbw_gbs": self.algbw,
            "busbw_gbs": self.busbw, "wrong": self.wrong, "algorithm": self.algorithm, "transport": self.transport,
            "peers_us": {name: seconds * 1e6 for name, seconds in self.peers.items()},
            "blocks_us": {name: [1e6 * s for s in seconds] for name, seconds in self.blocks.items()},
        }  # fmt: skip


def bandwidth(case: Case, seconds: float) -> float:
    """GB/s of the algorithm."""
    return case.nbytes / seconds / 1e9 if seconds > 0 else 0.0


def header(peers: Sequence[str]) -> str:
    """Two lines: names and units."""
    names = f"#{'size':>11}{'count':>12}{'type':>10}{'redop':>7}{'root':>6}{'time':>11}"
    units = f"#{'(B)':>11}{'(elements)':>12}{'':>23}{'(us)':>11}"
    names += f"{'algbw':>8}{'busbw':>8}{'#wrong':>8}  {'algorithm':<20} {'transport':<9}"
    units += f"{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}  {'':<20} {'':<9}"
    for peer in peers:
        names += f"{peer:>11}{'ours/peer':>11}"
        units += f"{'(us)':>11}{'(time)':>11}"
    return f"{names}\n{units}"


def line(row: Row, peers: Sequence[str]) -> str:
    """One row; "-" where there is nothing to say."""
    case = row.case
    op = case.op if case.kind.reduces else "none"
    root = case.root if case.kind.rooted else -1
    wrong = "N/A" if row.wrong is None else str(row.wrong)
    text = f"{case.nbytes:>12}{case.count:>12}{case.dtype:>10}{op:>7}{root:>6}{micro(row.seconds):>11}"
    text += f"{row.algbw:>8.2f}{row.busbw:>8.2f}{wrong:>8}  {row.algorithm:<20} {row.transport:<9}"
    for peer in peers:
        seconds = row.peers.get(peer)
        cells = ("-", "-") if not seconds else (micro(seconds), f"{row.seconds / seconds:.3g}")
        text += "".join(f"{cell:>11}" for cell in cells)
    return text


def micro(seconds: float) -> str:
    """Microseconds with as many digits as mean something."""
    us = seconds * 1e6
    return f"{us:.2f}" if us < 1000 else f"{us:.0f}"
