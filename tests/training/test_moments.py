"""Calls that all members of a crew make are made inside of its moments: elsewhere who is late or new makes them not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "training"
COLLECTIVE = {
    "allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "gather", "scatter", "alltoall", "scan",
    "exscan", "barrier", "share", "dup", "subgroup", "create_group", "lane", "lanes", "prepare", "sendrecv", "send",
    "recv", "come", "renew", "allreduce_all", "average", "_apart", "check_equal", "allgather_object",
    "broadcast_object",
}  # fmt: skip
"""Names of calls that wait for other ranks."""
MOMENTS = {
    "crew/crew.py": {
        "_come", "_meet",  # the agreements
        "_group", "_fit", "_move", "_differ",  # among who has come to a boundary, or has just met anew
        "_named",  # of all: each has been told that their states differ
    },
    "crew/loading.py": {"send", "_take"},  # two processes, a communicator of their own
    "outer/outer.py": {
        "_come", "_rows", "_average", "_apart",  # among who is present
        "_agree",  # of a plain communicator, whose members stay
    },
    "outer/noloco.py": {"sorted_by_rank"},  # as `_rows`
    "outer/sending.py": {"average"},  # as `_average`
    "outer/roll.py": {"agree", "_name_the_parameter"},  # of `_agree`
}  # fmt: skip
"""The functions that may make them, by file."""


def calls(text: str) -> list[tuple[str, str]]:
    """Each collective call with the function in which it stands."""
    found = []
    for function in [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COLLECTIVE:
                found.append((function.name, ast.unparse(node.func)))
    return found


@pytest.mark.parametrize("path", sorted(ROOT.glob("crew/*.py")) + sorted(ROOT.glob("outer/*.py")), ids=str)
def test_no_collective_outside_of_a_moment(path: Path) -> None:
    allowed = MOMENTS.get(f"{path.parent.name}/{path.name}", set())
    outside = [each for each in calls(path.read_text()) if each[0] not in allowed]
    assert not outside, f"collective calls outside of the crew's moments: {outside}"


def test_the_moments_are_those_that_make_calls() -> None:
    """And one that stands elsewhere is found."""
    for file, allowed in MOMENTS.items():
        assert {name for name, _ in calls((ROOT / file).read_text())} == allowed, file
    assert calls("def finish(self):\n    self.crew.comm.allreduce(x)") == [("finish", "self.crew.comm.allreduce")]
