"""The tables of bench/results/compare.md: what `make compare` puts there, a section for each kind of CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.arguments import human
from hocket.bench.harness.others import words
from hocket.bench.harness.result import Result
from hocket.bench.harness.table import micro
from hocket.bench.harness.targets import Target
from hocket.errors import ArgumentError

NEXT, END = "<!-- make compare: the next kind of CPU -->", "<!-- end -->"
HEADER = (
    "| what | hocket us | p90, p99 us | MPI us | p90, p99 us | ours / MPI | near | far | target | x faster than Gloo | "
    "target | ours / machine | target | falls short |\n|" + "---|" * 14
)


def title(t: Target) -> str:
    """allreduce 64 KiB, 4 ranks, tcp."""
    words = [f"{t.collective} {human(t.nbytes)}" if t.nbytes else t.collective, f"{t.ranks} ranks"]
    words += [t.transport] * (t.transport != "shm") + [t.dtype] * (t.dtype != "float32")
    words += ["a busy neighbour"] * t.busy + ["touched"] * t.touch
    return ", ".join(words + [{"shared": "hocket.empty", "torch": "torch"}.get(t.buffers, "")]).rstrip(", ")


def line(result: Result, near: float = 0.0) -> str:
    """One row of the Markdown table.  `near`: what `nearest` says of the run."""
    t, mpi, gloo = result.target, result.worst_mpi, result.seconds.get("gloo")
    cells = [
        title(t),
        micro(result.ours),
        _tail(result.own_tail(mpi[0] if mpi else "")) if result.tails else "",
        f"{micro(mpi[1])} ({mpi[0]})" if mpi else "",
        _tail(result.tails[mpi[0]]) if mpi and mpi[0] in result.tails else "",
        f"{mpi[2]:.2f}" if mpi else "",
        *(f"{ratio:.2f} ({n})" if n else "" for ratio, n in result.by_distance(near)),
        f"{t.mpi:g}" if t.mpi else "",
        f"{gloo / result.ours:,.1f}" if gloo else "",
        f"{t.gloo:g}" if t.gloo else "",
        f"{result.ours / result.limit:.2f}" if result.limit else "",
        f"{t.limit:.3g}" if t.limit else "",
        "; ".join(result.verdicts),
    ]
    return "| " + " | ".join(cells) + " |"


def _tail(both: tuple[float | None, float]) -> str:
    """8.01, or, where the first was measured, 1.40, 8.01."""
    return ", ".join(micro(each) for each in both if each is not None)


def place(about: dict[str, Any]) -> str:
    """Where and when a run was measured."""
    here = about["machine"]
    cores = f"{here['usable_cores']} usable cores, load {here['load'][0]:.2f} at the start"
    return f"{here['processor']}, {cores}, {about['date']}"


def table(about: dict[str, Any], found: Sequence[Result]) -> str:
    """A run's section, without its marks."""
    near = nearest(found)
    lines = [place(about), "", HEADER, *(line(each, near) for each in found)]
    return "\n".join(lines) + words(about.get("others", {}))


def nearest(found: Sequence[Result]) -> float:
    """Seconds of a cache line to the other core and back where cores are near; 0.0 where none was taken.

    One block in twenty is quicker: the quickest of a thousand is a half of that, as one rank started late.
    """
    seconds = sorted(s for each in found for s in each.lines)
    return seconds[len(seconds) // 20] if seconds else 0.0


def mark(processor: str) -> str:
    """The line before the table of a kind of CPU."""
    return f"<!-- make compare: {processor} -->"


def into_section(path: str, about: dict[str, Any], found: Sequence[Result]) -> None:
    """Put a run's table into the section of its kind of CPU, which is made, before NEXT, if the page has none."""
    processor = about["machine"]["processor"]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if mark(processor) not in text:
        if NEXT not in text:
            raise ArgumentError(f"{path} has neither {mark(processor)} nor {NEXT}, where the table would go")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(NEXT, f"## {processor}\n\n{mark(processor)}\n{END}\n\n{NEXT}"))
    into(path, table(about, found), mark(processor))


def into(path: str, text: str, begin: str) -> None:
    """Replace what stands in a file between `begin` and the next END."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    head, found, rest = page.partition(begin)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise ArgumentError(f"{path} has no {begin} and {END}, between which the table would go")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{head}{begin}\n{text}\n{end}{tail}")
