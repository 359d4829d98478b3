"""`hocket advise`: meshes by memory, bytes and predicted step, and what is refused."""

from __future__ import annotations

import pytest

from hocket.algorithms import topology
from hocket.tools.advise import command
from hocket.tools.advise.costs import Costs, MeshPlan, Model, along

HOSTS = "hosts:2x4,inside=1us/10GB,link=20us/1GB,overhead=0us"
MODEL = Model(parameters=8e6, layers=8, hidden=64, sequence=16, batch=32, itemsize=4, state=8)
WORDS = "--parameters 8M --layers 8 --hidden 64 --sequence 16 --batch 32 --itemsize 4 --speed 1G --topology"


def costs(text: str = HOSTS, size: int = 8) -> Costs:
    return Costs(MODEL, topology(text), size, 1e9)


def test_every_mesh_that_divides_and_the_fastest_first() -> None:
    found = costs().plans()
    meshes = {(plan.data, plan.pipe, plan.tensor) for plan in found}
    assert meshes == {(8 // p // t, p, t) for p in (1, 2, 4, 8) for t in (1, 2, 4, 8) if p * t <= 8}
    assert [plan.step for plan in found] == sorted(plan.step for plan in found)
    assert {plan.stage for plan in found if plan.pipe == 1 and plan.data > 1} == {1, 3}


def test_what_a_mesh_costs_is_the_law() -> None:
    seconds = 6 * 8e6 * 32 * 16 / 8 / 1e9  # of computation, whatever the mesh
    alone = costs().plan(8, 1, 1, 1)
    assert alone.compute == pytest.approx(seconds) and alone.bubble == alone.inside == 0
    assert alone.sent == pytest.approx(2 * 7 / 8 * 32e6)
    assert alone.memory == pytest.approx(2 * 32e6 + 64e6 / 8 + 8 * 4 * 16 * 64 * 2 * 34)
    deep = costs().plan(1, 8, 1, 8)
    assert deep.compute == pytest.approx(seconds) and deep.exchange == deep.inside == 0
    assert deep.bubble == pytest.approx(seconds / 8 * 7, rel=0.01)
    wide = costs().plan(1, 1, 8, 1)
    assert wide.sent == pytest.approx(4 * 8 * 2 * 7 / 8 * 32 * 16 * 64 * 4)
    whole, cut = costs().plan(8, 1, 1, 1), costs().plan(8, 1, 1, 1, stage=3)
    assert cut.memory < whole.memory and cut.sent == pytest.approx(1.5 * whole.sent)


def test_groups_that_call_at_once_share_the_link() -> None:
    there = topology(HOSTS)
    apart = along(there, 4)
    assert (apart.ranks, apart.link.bandwidth) == (1, there.link.bandwidth / 4)
    slow, fast = (costs(f"hosts:2x4,inside=1us/10GB,link=20us/{rate}").plan(2, 1, 4, 1) for rate in ("100MB", "1GB"))
    assert slow.exchange > 5 * fast.exchange and slow.inside == pytest.approx(fast.inside)
    racks = topology("racks:2x2x4,inside=1us/10GB,link=20us/1GB,uplink=50us/2GB")
    assert Costs(MODEL, racks, 16, 1e9).plan(2, 1, 8, 1).exchange > 0


def test_the_table_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS.split(), HOSTS, "--show", "3"]) == 0
    about, assumed, *rest = capsys.readouterr().out.splitlines()
    assert "8M parameters, 8 layers of width 64" in about and "1F1B" in assumed and "reduce=" in assumed
    rows = [line.split() for line in rest if not line.startswith("#")]
    assert len(rows) == 3 and [float(row[-1]) for row in rows] == sorted(float(row[-1]) for row in rows)
    best = costs().plans()[0]
    assert [int(cell) for cell in rows[0][:5]] == [*best[:5]]


def test_no_mesh_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS.split(), HOSTS, "--memory", "1M"]) == 1
    out = capsys.readouterr().out
    assert "of 13 meshes need more than 0.001 GB; least:" in out
    least = min(costs().plans(), key=lambda plan: plan.memory)
    assert out.splitlines()[-1] == command.line(MeshPlan(*least))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--parameters many", "--parameters 'many': expected a number"),
        ("--layers 0", "--layers must be at least 1"),
        ("--batch 0", "--batch must be at least 1"),
        ("--size 100", "at most 8, the ranks of this topology"),
        ("--layers 7 --batch 7 --hidden 63", "no mesh of 8 ranks divides 7 layers of width 63 and a batch of 7"),
        ("--topology flat:latency=1us,bandwidth=1GB", "--size is needed"),
    ],
)
def test_what_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([*WORDS.split(), HOSTS, *words.split()])
    assert text in capsys.readouterr().err
