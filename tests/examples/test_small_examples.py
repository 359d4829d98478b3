"""The small examples: each ends well on one rank and on three, and finds the same there."""

import re
import runpy

import pytest

import hocket
from support.examples import EXAMPLES, run


@pytest.mark.parametrize("name", ["kmeans", "halo", "logistic"])
def test_it_is_short_and_finds_the_same_on_three_ranks(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
    alone, together = run(name, 1), run(name, 3)
    assert "3 ranks" in together
    # As printed; of differences that rounding makes only the order counts.
    difference = r"largest difference [\d.e+-]+"
    same = re.sub(difference, "", together.replace("3 ranks", "1 ranks"))
    assert same == re.sub(difference, "", alone)


def test_calls_that_do_several_things() -> None:
    assert len((EXAMPLES / "comforts.py").read_text().splitlines()) < 65
    spoilt = "{\"x['scale']\": [(0, 1), (2,)]}"
    assert run("comforts", 3) == f"3 ranks: 0 arrays differ; after a mistake {spoilt}; 10 results came\n"


def test_what_they_find() -> None:
    centres = re.findall(r"\((-?[\d.]+), (-?[\d.]+)\)", run("kmeans", 2))
    wanted = [(0, 6), (0, 0), (3, 12), (6, 0), (6, 6)]
    assert all(abs(float(a) - b) < 0.15 for found, true in zip(centres, wanted, strict=True)
               for a, b in zip(found, true, strict=True))  # fmt: skip
    assert "2 ranks: the same bits as on one" in run("halo", 2)
    found = run("logistic", 2)
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", found)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.35
    assert re.search(r"weights by 2 ranks: as by one \(largest difference \d+e-1[0-9]\)", found)


def test_gradients_that_travel_meanwhile_train_as_one_rank_does() -> None:
    assert len((EXAMPLES / "overlapped.py").read_text().splitlines()) < 60
    found = [re.findall(r"loss ([\d.]+), after 60 steps ([\d.]+)", run("overlapped", ranks)) for ranks in (1, 3)]
    assert found[0] == found[1] and float(found[0][0][1]) < 0.25 * float(found[0][0][0])


@pytest.mark.more
def test_generators_meet_newer_and_newer_weights() -> None:
    """While four ranks train; the example looks itself that the last ones are good."""
    found = re.findall(r"(\d+) versions; mean error [\d.]+, at the end 0\.[0-2]", run("refit", 6))
    assert len(found) == 2 and all(1 < int(versions) <= 201 for versions in found)


def test_a_pipeline_says_its_shares() -> None:
    assert len((EXAMPLES / "pipeline.py").read_text().splitlines()) < 100
    shares = {name: int(part) for name, part in re.findall(r"(\w+ing) (\d+)%", run("pipeline", 2))}
    assert {*shares} == {"reading", "copying", "computing", "averaging"} and 0 < shares["computing"] <= 100
    assert sum(shares.values()) >= 90, "each share is its slowest rank's"


@pytest.mark.more
def test_signs_of_a_momentum_are_enough() -> None:
    """1-bit Adam is as good as Adam, within two hundredths of the images, and sends a third."""
    assert len((EXAMPLES / "one_bit_adam.py").read_text().splitlines()) < 65
    right, kilobytes = zip(*re.findall(r": ([\d.]+)% .*, (\d+) kB", run("one_bit_adam", 2)), strict=True)
    assert float(right[0]) > 85 and abs(float(right[1]) - float(right[0])) < 2
    assert int(kilobytes[1]) < 0.35 * int(kilobytes[0])


@pytest.mark.more
def test_four_ways_to_train_one_network_are_one() -> None:
    """Data parallel, model and data parallel, servers of both: alike, but for rounding."""
    out = run("mariana", 4)
    names = [line.split(":")[0] for line in out.splitlines()]
    assert names == ["data parallel", "model and data parallel", "parameter servers", "servers of cut models"]
    found = [[float(each) for each in row] for row in re.findall(r"loss ([\d.]+) to ([\d.]+), ([\d.]+)%", out)]
    for first, last, right in found:
        assert (first, last, right) == pytest.approx(found[0], rel=0.01)
        assert last < first / 20 and right > 85
    inside, between = zip(*re.findall(r"(\d+) kB inside, (\d+) kB between", out), strict=True)
    assert [int(each) > 0 for each in inside] == [False, True, False, True]
    assert 2 * int(between[1]) < int(between[0])
    assert max(int(between[2]), int(between[3])) < 20, "gradients go to servers"


def test_same_bits() -> None:
    """The same weights on 1, 2, 3 and 4 ranks: on these, as threads; as processes on 3."""
    same_bits = runpy.run_path(str(EXAMPLES / "same_bits.py"))
    found = set()
    for size in (1, 2, 4):
        with hocket.local_world(size) as world:
            found |= set(world.run(same_bits["train"]))
    found |= set(re.findall(r": (\w{64})", run("same_bits", 3)))
    assert len(found) == 1
