"""The picture in CONTRIBUTING: the floors, who imports whom, and the way of a call.  `python docs/floors.py` draws it.

Lines are the imports, cimports and includes of the code; one that leads from a floor to a higher one is red.  A line is
left out where others lead the same way.  The numbers are the first trace of docs/architecture.md.  Only where the boxes
stand is said here.  Needs nothing but Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "floors.svg"
HUB = "collectives"
FLOORS = [
    ["frameworks", "tools", "lab", "bench", "conformance"], ["training", "compressors", "observe"], [HUB],
    ["algorithms", "transports", "kernels"], ["control"], ["system"],
]  # fmt: skip
ROWS = [
    ["publishing", "start", "elastic", "communicator"], ["gpu", "quick", "layouts", "measuring", "failures"],
    ["members", "job", "waiting", "engine"],
    ["choice", "delegates", "calls"], ["base", "recording", "arrays", "plans"],
]  # fmt: skip
"""The rooms of the hub."""
DOOR = ("codecs", "extending", "hosting", "recording")
"""Public modules of it."""
SUFFIXES = (".py", ".pyx", ".pxd", ".h", ".cuh")
WIDTH, MARGIN, BOX, GAP = 1060, 20, 46, 44
Edges = set[tuple[str, str]]
Spot = tuple[float, float, float, float]
"""x, y, width and height."""


def imports(path: Path) -> Iterator[str]:
    """The imports of a file when it runs (not for types alone), as paths: system/cuda/driver."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in _running(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("hocket.")]
                yield from (name.removeprefix("hocket.").replace(".", "/") for name in names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket"):
                whole = (node.module or "").removeprefix("hocket").removeprefix(".").replace(".", "/")
                yield from (f"{whole}/{alias.name}".lstrip("/") for alias in node.names)
    elif path.suffix in (".pyx", ".pxd"):
        yield from (found.replace(".", "/") for found in re.findall(r"^ *from hocket\.([\w.]+) c?import", text, re.M))
        yield from re.findall(r'^ *cdef extern from "([a-z_]+/[^"]+)"', text, re.M)
    else:
        yield from re.findall(r'^ *#include "([a-z_]+/[^"]+)"', text, re.M)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below, but for what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            continue
        yield child
        yield from _running(child)


def place(path: str) -> str:
    """The box of a file or module: its folder, or its room of the hub.  The public door is the hub's."""
    parts = path.split("/")
    if parts[0] == "compression":  # the package in compressors/
        return "compressors"
    if (ROOT / "frameworks" / parts[0]).is_dir():
        return "frameworks"
    if parts[0] in DOOR or parts[0][:1].isupper():  # `from hocket import Communicator`
        return HUB
    return "/".join(parts[: 2 if parts[0] == HUB and len(parts) > 2 else 1])


@cache
def edges() -> Edges:
    """Box to box, by imports."""
    found = set()
    for top in (name for floor in FLOORS for name in floor):
        for file in sorted(each for each in (ROOT / top).rglob("*") if each.suffix in SUFFIXES):
            here = place(file.relative_to(ROOT).as_posix())
            found |= {(here, place(name)) for name in imports(file)}
    return found


def between_folders(found: Edges) -> Edges:
    """The hub is one box here."""
    known = {name for floor in FLOORS for name in floor}
    whole = {(HUB if a.startswith(HUB) else a, HUB if b.startswith(HUB) else b) for a, b in found}
    return {(a, b) for a, b in whole if a != b and a in known and b in known}


def between_rooms(found: Edges) -> Edges:
    """Each pair once, the upper or left one first."""
    order = [f"{HUB}/{room}" for row in ROWS for room in row]
    pairs = {(a, b) for a, b in found if a != b and a in order and b in order}
    return {(a, b) if order.index(a) < order.index(b) else (b, a) for a, b in pairs}


def reduced(found: Edges, level: dict[str, int]) -> Edges:
    """Without the lines down that a longer way down says too."""
    down = {(a, b) for a, b in found if level[a] < level[b]}

    def leads(a: str, b: str) -> bool:
        return (a, b) in down or any(leads(c, b) for start, c in down if start == a)

    return {(a, b) for a, b in found if not any(start == a and c != b and leads(c, b) for start, c in down)}


def way() -> list[str]:
    """The boxes that a NumPy allreduce passes."""
    trace = (ROOT / "docs" / "architecture.md").read_text().split("## Trace: ")[1]
    passed = [place(path) for path in re.findall(r"^\| \d+ \| .*? \| `([\w/.]+)` \|", trace, re.M)]
    return [box for i, box in enumerate(passed) if box != HUB and passed[i - 1 : i] != [box]]


def spots() -> dict[str, Spot]:
    """Where each box is."""
    found: dict[str, Spot] = {}
    y = float(MARGIN + 10)
    for floor in FLOORS:
        height = BOX if floor != [HUB] else len(ROWS) * (BOX + GAP) + MARGIN
        found |= _row(floor, MARGIN, y, WIDTH - 2 * MARGIN, height)
        if floor == [HUB]:
            for i, row in enumerate(ROWS):
                rooms = [f"{HUB}/{room}" for room in row]
                found |= _row(rooms, 3 * MARGIN, y + 36 + i * (BOX + GAP), WIDTH - 6 * MARGIN, BOX)
        y += height + GAP
    return found


def _row(names: list[str], x: float, y: float, width: float, height: float) -> dict[str, Spot]:
    each = (width - GAP * (len(names) - 1)) / len(names)
    return {name: (x + i * (each + GAP), y, each, height) for i, name in enumerate(names)}


def picture() -> str:
    """The SVG."""
    at, numbers, found = spots(), way(), edges()
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    row = {f"{HUB}/{room}": i for i, rooms in enumerate(ROWS) for room in rooms}
    shapes = [_box(HUB, at[HUB], "#f3ede4")]
    for a, b in sorted(reduced(between_folders(found), floor)):
        shapes.append(_line(at[a], at[b], floor[a] > floor[b]))
    for a, b in sorted(reduced(between_rooms(found), row)):
        shapes.append(_line(at[a], at[b], False))
    shapes += [_box(name, spot, "#ffffff") for name, spot in at.items() if name != HUB]
    for name in dict.fromkeys(numbers):
        for i, number in enumerate(n + 1 for n, box in enumerate(numbers) if box == name):
            shapes.append(_badge(at[name], i, number))
    height = max(y + h for _, y, _, h in at.values()) + MARGIN + 14
    said = "numbers: the way of a NumPy allreduce; lines: imports (red: to a higher floor)"
    shapes.append(f'<text x="{WIDTH / 2:g}" y="{height - 8:g}" text-anchor="middle" font-size="12">{said}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>', *shapes, "</svg>", ""])


def _box(name: str, spot: Spot, fill: str) -> str:
    x, y, width, height = spot
    below = y + (height / 2 + 5 if name != HUB else 22)
    title = name.removeprefix(f"{HUB}/")
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="#555555"/>'
        f'<text x="{x + width / 2:g}" y="{below:g}" text-anchor="middle" font-size="15">{title}</text>'
    )


def _line(a: Spot, b: Spot, up: bool) -> str:
    """From the lower edge of the upper box to the upper edge of the lower one; between neighbours from side to side."""
    a, b = sorted([a, b], key=lambda spot: (spot[1], spot[0]))
    aside = 30 if up else 0
    x1, y1, x2, y2 = a[0] + a[2] / 2 + aside, a[1] + a[3], b[0] + b[2] / 2 + aside, b[1]
    if a[1] == b[1]:
        x1, y1, x2, y2 = a[0] + a[2], a[1] + a[3] / 2, b[0], b[1] + b[3] / 2
    style = 'stroke="#c1272d" stroke-dasharray="5 3"' if up else 'stroke="#999999"'
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" {style}/>'


def _badge(spot: Spot, i: int, number: int) -> str:
    x, y = spot[0] + 4 + 24 * i, spot[1]
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="#c1272d"/><text x="{x:g}" y="{y + 4:g}" text-anchor="middle" '
        f'font-size="12" fill="#ffffff">{number}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
