"""The findings of a part of the check: rows, which it prints as they come, so that none is lost when it fails later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MARK = "row "


class Finding(NamedTuple):
    """One finding.  `ok` is None for a figure that nothing is asked of."""

    name: str
    value: float | int | str
    unit: str = ""
    target: str = ""
    ok: bool | None = None
    ratio: float | None = None
    """To what the name or the note says."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "FAIL", None: "figure"}[self.ok]

    @property
    def told(self) -> dict[str, Any]:
        """All that is said, by name."""
        return {name: value for name, value in self._asdict().items() if value not in ("", None) or name == "value"}


class Options(NamedTuple):
    """The options that every part is told."""

    quick: bool = False
    largest: int = 1 << 30
    """Bytes of the largest buffer."""
    arrays: tuple[str, ...] = ("plain", "cupy", "torch")


def say(row: Finding) -> None:
    """Tell it to the process that started the part.  One write: the ranks of a part share its output."""
    print(MARK + json.dumps(row._asdict()) + "\n", end="", flush=True)


def heard(line: str) -> Finding | None:
    """The finding that `say` has written, or None."""
    return Finding(**json.loads(line[len(MARK) :])) if line.startswith(MARK) else None


def at_most(name: str, value: float, unit: str, most: float, **more: Any) -> Finding:
    return Finding(name, value, unit, f"<= {most:g}", value <= most, **more)


def at_least(name: str, value: float, unit: str, least: float, **more: Any) -> Finding:
    return Finding(name, value, unit, f">= {least:g}", value >= least, **more)


def size_text(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def table(parts: Mapping[str, Sequence[Finding]]) -> str:
    """All rows, under their part's name."""
    lines = [f"{'what':<58} {'value':>22} {'target':>10} {'ratio':>7}  verdict"]
    for name, rows in parts.items():
        lines += ["", f"--- {name}"]
        for row in rows:
            value = f"{row.value:.4g}" if isinstance(row.value, float) else str(row.value)
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
            text = f"{row.name:<58} {f'{value} {row.unit}'.strip():>22} {row.target:>10} {ratio:>7}  {row.verdict}"
            lines += [text.rstrip(), *([f"    {row.note}"] if row.note else [])]
    return "\n".join(lines)
