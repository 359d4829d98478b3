"""The tables of docs/less.md, in small."""

from __future__ import annotations

import pytest
import torch

import hocket
from hocket.lab.outer import accuracy, characters, digits, large_batch, slow_links
from hocket.system.namespaces import hosts


@pytest.mark.filterwarnings("ignore:outer momentum")
def test_training_that_averages_now_and_then() -> None:
    """One model for two epochs: every 16 learns what every 1 does, ranks that never average do not."""
    known = digits.data(1, "sorted")
    names = ("every 1", "every 16", "control: never")

    def all_rows(comm: hocket.Communicator) -> dict[str, accuracy.AccuracyRun]:
        return {name: accuracy.trained(comm, accuracy.ROWS[name], known, 2, "sorted") for name in names}

    found = hocket.local_world(2).run(all_rows)[0]
    whole = found["every 1"]
    assert whole.loss < 0.4 and whole.traffic == 1 and whole.rounds == 2 * 44
    assert found["every 16"].loss < 4 * whole.loss and found["every 16"].traffic == pytest.approx(5 / (2 * 44))
    assert found["control: never"].loss > 5 * whole.loss


@pytest.mark.more
def test_large_batches() -> None:
    """The high rate at once fails, and with a warm-up it does not."""

    def both(comm: hocket.Communicator) -> list[tuple[float, float, int]]:
        every = [*large_batch.recipes(2048, 0.25).values()]
        return [large_batch.trained(comm, every[row], 0, 3, 8192) for row in (2, 3)]

    (_, failed, _), (right, loss, rounds) = hocket.local_world(2).run(both)[0]
    assert not failed < 100 * loss and loss < 2 and right > 40 and rounds == 12


def test_a_transformer_learns_letters() -> None:
    """SparseLoCo learns, and so does every gradient; on one rank, where nothing is sent."""
    torch.set_num_threads(1)

    def both(comm: hocket.Communicator) -> list[float]:
        make = lambda comm, theta: characters.SparseLoCo(comm, theta, every=2, send="twobits:0.5")  # noqa: E731
        return [characters.trained(comm, 10, each)[0] for each in (None, make)]

    plain, sparse = hocket.local_world(1).run(both)[0]
    assert plain < 4.92 and sparse < 4.92, (plain, sparse)


def test_each_way_is_held_against_every_gradient_at_its_best_rate(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "every gradient, rate 1": (2.0, 600, 1.0), "every gradient, rate 2": (1.5, 600, 1.0),
        "SparseLoCo, rate 1": (1.53, 6, 1.0),
    }  # fmt: skip
    hocket.local_world(2).run(lambda comm: characters.report(comm, 10, found))
    out = capsys.readouterr().out
    assert "| every gradient, rate 1 | 2.0000 | +33.3% |" in out
    assert "| SparseLoCo, rate 1 | 1.5300 | +2.0% | 1 | 100 |" in out


@pytest.mark.skipif(bool(hosts.refusal()), reason=hosts.refusal() or "")
def test_bytes_and_time_over_a_slow_cable() -> None:
    """Bytes / every, exactly; and streaming hides what DiLoCo waits for."""
    with hosts.hosts("50mbit") as names:
        rows = slow_links.asked(names, 100_000, 0.0, 0.02)
    every = {row["every"]: row for row in rows if row["what"] == "every"}
    for k, row in every.items():
        assert row["bytes"] * k == pytest.approx(every[1]["bytes"], rel=0.03), k
    assert every[16]["wall"] < every[1]["wall"] / 4
    diloco, streaming = (next(row for row in rows if row["what"] == what) for what in ("DiLoCo", "streaming"))
    assert streaming["exposed"] < diloco["exposed"] / 2
