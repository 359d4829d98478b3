"""A schedule for the eye: a text table, or a picture of lanes, arrows and what each rank holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.algorithms.drawing.excerpt import spans
from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm, get
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids
from hocket.algorithms.proof.verify import verify
from hocket.arguments import whole
from hocket.errors import ArgumentError

if TYPE_CHECKING:  # pictures are not needed before one is asked for: 5 ms of every rank's start
    from hocket.algorithms.drawing import picture

MOST_RANKS = 128
"""A picture's schedule is proven first.  Beyond so many ranks that takes longer than a user would wait."""


@dataclass(frozen=True, repr=False)
class Drawing:
    """The schedule of all ranks.  `print` it, show it in a notebook, or `save` it.

    The text is whole.  A picture of more than some ranks, steps or chunks is a part, which says so.
    """

    algorithm: Algorithm
    size: int
    root: int
    programs: tuple[tuple[Step, ...], ...]

    @property
    def title(self) -> str:
        chunks, steps = self.algorithm.chunks(self.size), len(self.programs[0])
        rooted = f", root {self.root}" if CONTRACTS[self.algorithm.collective].rooted else ""
        counts = f"{_count(self.size, 'rank')}{rooted}, {_count(chunks, 'chunk')}, {_count(steps, 'step')}"
        return f"{self.algorithm.collective} {self.algorithm.name}: {counts}"

    @property
    def summary(self) -> str:
        """The first line of the algorithm's docstring."""
        return self.algorithm.doc.partition("\n")[0]

    def __str__(self) -> str:
        legend = "to 1: 0    send chunk 0 to rank 1      from 3: +2   receive chunk 2 from rank 3 and reduce it"
        return "\n".join([self.title, self.summary, "", *_table(self.programs), "", legend])

    def __repr__(self) -> str:
        return f"<Drawing of {self.title}>"

    def svg(self) -> str:
        """The picture as one SVG element."""
        from hocket.algorithms.drawing import render

        return render.svg(self._picture())

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture: .svg directly, .png with matplotlib."""
        kind = Path(path).suffix.lower()
        if kind == ".svg":
            Path(path).write_text(self.svg(), encoding="utf-8")
        elif kind == ".png":
            from hocket.algorithms.drawing import render

            render.png(self._picture(), path)
        else:
            raise ArgumentError(f"cannot save a drawing as {os.fspath(path)!r}; choose a name ending in .svg or .png")

    def _picture(self) -> picture.Picture:
        """Prove the schedule first: a broken one raises its fault, and has a table, but no picture."""
        if self.size > MOST_RANKS:
            raise ArgumentError(f"cannot draw {self.size} ranks: a picture has at most {MOST_RANKS}; print the text")
        from hocket.algorithms.drawing import picture

        verify(self.algorithm, self.size, self.root)
        return picture.paint(self.title, self.summary, self.algorithm, self.programs, self.root)


def show(name: str | Algorithm, collective: str = "allreduce", size: int = 4, root: int = 0) -> Drawing:
    """Draw a registered algorithm by name, or any Algorithm.

    "hierarchical" is drawn of two hosts with half of the ranks each.  Of others:
    `show(hocket.algorithms.hierarchical("allreduce", [(0, 1, 2), (3, 4)]), size=5)`.
    """
    algorithm = name if isinstance(name, Algorithm) else get(collective, name)
    size, root = whole(size, "size"), whole(root, "root")
    if size < 1 or not 0 <= root < size:
        raise ArgumentError(f"cannot draw size={size}, root={root}; expected 0 <= root < size")
    if reason := algorithm.requires(size):
        raise ArgumentError(f"{algorithm.collective} {algorithm.name} does not run with {size} ranks: {reason}")
    return Drawing(algorithm, size, root, tuple(tuple(algorithm.steps(r, size, root)) for r in range(size)))


def _table(programs: tuple[tuple[Step, ...], ...]) -> list[str]:
    """Steps as rows, ranks as columns; a cell has one line for each kind of op."""
    rows = [["step", *(f"rank {rank}" for rank in range(len(programs)))]]
    for t, steps in enumerate(zip(*programs, strict=True)):
        cells = [[str(t)], *(_cell(step) for step in steps)]
        height = max(map(len, cells))
        rows += [[cell[i] if i < len(cell) else "" for cell in cells] for i in range(height)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _cell(step: Step) -> list[str]:
    """Ops that move the same chunks the same way are one line: "to 1,2,3: 0"."""
    lines: dict[tuple[str, str], list[int]] = {}
    copies = []
    for op in step:
        if isinstance(op, Copy):
            copies.append(f"copy {op.source} to {op.target}")
        else:
            way = "to" if isinstance(op, Send) else "from"
            plus = "+" if isinstance(op, Recv) and op.reduce else ""
            lines.setdefault((way, plus + spans(ids(op.chunks))), []).append(op.peer)
    texts = [f"{way} {','.join(map(str, peers))}: {chunks}" for (way, chunks), peers in lines.items()]
    return sorted(texts, key=lambda text: text.startswith("from")) + copies


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
