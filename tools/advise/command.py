"""`hocket advise --parameters 7e9 --layers 32 --batch 512 --topology ...`: which mesh for this model.

The command only: reads its words and prints the table.  costs.py says what is counted.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from hocket.algorithms import Topology, topology
from hocket.algorithms.prediction.topology import PREFIX
from hocket.errors import ArgumentError, Error
from hocket.tools.advise.costs import ASSUMED, Costs, MeshPlan, Model

COLUMNS = (
    ("data", "", 6), ("pipe", "", 6), ("tensor", "", 8), ("micro", "", 7), ("shards", "(stage)", 9),
    ("memory", "(GB)", 9), ("sent", "(MB)", 10), ("compute", "(ms)", 10), ("bubble", "(ms)", 9),
    ("tensor's", "(ms)", 10), ("data's", "(ms)", 9), ("step", "(ms)", 10),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hocket advise", description="Rank the meshes on which a transformer can be trained.", allow_abbrev=False
    )
    add = made.add_argument
    add("--parameters", required=True, metavar="N", help="of the model: 7e9, 7G, 85M (powers of 1000)")
    add("--layers", required=True, type=int, metavar="L")
    add("--batch", required=True, type=int, metavar="B", help="sequences of a step, of all ranks")
    add("--topology", required=True, metavar="SPEC", help="as for `hocket simulate`: hosts:4x8,inside=...,link=...")
    add("--size", type=int, metavar="P", help="ranks (as many as the topology has)")
    add("--sequence", type=int, default=2048, metavar="S", help="tokens of a sequence (2048)")
    add("--hidden", type=int, metavar="H", help="width of a layer (a multiple of 64 near the root of N / (12 L))")
    add("--speed", default="100T", metavar="OPS", help="operations of a rank in a second (100T)")
    add("--memory", default="80G", metavar="BYTES", help="of a rank (80G, powers of 1000)")
    add("--itemsize", type=int, choices=(2, 4), default=2, help="bytes of a weight, a gradient, an activation (2)")
    add("--show", type=int, default=10, metavar="K", help="how many meshes (10)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket advise`.  0; 1: no mesh has room for the model; 2: bad arguments."""
    made = parser()
    options = made.parse_args(argv)
    try:
        there = topology(options.topology)
        model, size = _model(options), _size(options.size, there)
        speed, room = _number(options.speed, "--speed"), _number(options.memory, "--memory")
        plans = Costs(model, there, size, speed).plans()
        if not plans:
            what = f"{model.layers} layers of width {model.hidden} and a batch of {model.batch}"
            raise ArgumentError(f"no mesh of {size} ranks divides {what}: change --size, --layers, --hidden or --batch")
    except Error as why:
        made.error(str(why))
    print(
        f"# {options.parameters} parameters, {model.layers} layers of width {model.hidden}, {model.batch} sequences of "
        f"{model.sequence} tokens, {size} ranks, {options.topology}"
    )
    held = f"{model.itemsize} + {model.itemsize} + {model.state} bytes a parameter"
    computed = f"{options.speed} operations a second; {held}"
    print(f"# assumed: {'; '.join(filter(None, [computed, ASSUMED, there.assumed]))}")
    return report(plans, room, options.show)


def report(plans: Sequence[MeshPlan], room: float, show: int) -> int:
    """The table; what has room comes first."""
    fit = [plan for plan in plans if plan.memory <= room]
    for heads in zip(*(column[:2] for column in COLUMNS), strict=True):
        print("#" + "".join(f"{head:>{width}}" for head, (_, _, width) in zip(heads, COLUMNS, strict=True))[1:])
    for plan in fit[:show]:
        print(line(plan))
    if len(fit) < len(plans):
        least = min(plans, key=lambda plan: plan.memory)
        print(f"# {len(plans) - len(fit)} of {len(plans)} meshes need more than {room / 1e9:g} GB; least:")
        print(line(least))
    return 0 if fit else 1


def line(plan: MeshPlan) -> str:
    times = (1e3 * each for each in (plan.compute, plan.bubble, plan.inside, plan.exchange, plan.step))
    cells = [*map(str, plan[:5]), f"{plan.memory / 1e9:.2f}", f"{plan.sent / 1e6:.1f}", *(f"{t:.1f}" for t in times)]
    return "".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(cells, COLUMNS, strict=True))


def _model(options: argparse.Namespace) -> Model:
    count = _number(options.parameters, "--parameters")
    for name in ("layers", "batch", "sequence", "show", *(["hidden"] if options.hidden is not None else [])):
        if getattr(options, name) < 1:
            raise ArgumentError(f"--{name} must be at least 1")
    hidden = options.hidden or max(64, round((count / 12 / options.layers) ** 0.5 / 64) * 64)
    state = 12 if options.itemsize == 2 else 8
    return Model(count, options.layers, hidden, options.sequence, options.batch, options.itemsize, state)


def _size(given: int | None, there: Topology) -> int:
    size = there.ranks * there.hosts * max(1, there.racks) if given is None else given
    if size < 1:
        raise ArgumentError("--size is needed: how many ranks, at least 1")
    return size


def _number(text: str, name: str) -> float:
    """7e9, 7G, 85M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([kMGT]?)", text)
    if not found or not float(found[1]):
        raise ArgumentError(f"{name} {text!r}: expected a number such as 7e9, 7G or 85M")
    return float(found[1]) * PREFIX[found[2]]
