"""The proofs of docs/compression.md that take a moment."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from hocket.lab.compression import cost, parity, rounding, sparse, statistics
from hocket.system.namespaces import hosts

ONCE = {"int8": 0.0070, "int4": 0.1178}
"""The error of one encoding of normal numbers, in blocks of 256 and 128."""


def test_two_encodings_whatever_the_ranks() -> None:
    """The error is that of the field's tables: sqrt(2) times one encoding; a ring's error grows with the ranks."""
    found = rounding.table(list(ONCE), (2, 4, 8))
    for codec, once in ONCE.items():
        for size in (2, 4, 8):
            assert found[codec, size][0] == pytest.approx(once * 2**0.5, rel=0.05), (codec, size)
        ring = [found[codec, size][1] for size in (2, 4, 8)]
        assert ring[2] > 1.25 * ring[1] > 1.3 * ring[0], ring


@pytest.mark.parametrize("name", statistics.LAWS)
def test_what_is_rounded_at_random(name: str) -> None:
    """Unbiased, and as far from the mean as the definitions say."""
    law = statistics.LAWS[name]
    row = statistics.measured(law, 3000)
    assert row.bias < 5 and row.variance == pytest.approx(row.exact, rel=0.05)
    assert row.exact < law.bound and row.filled <= law.most and row.elias <= law.elias


def test_the_microscaling_formats() -> None:
    """Numbers that a block can hold stay; others go to the nearest, and none above the largest."""
    held = np.array([6, -4, 3, 2, 1.5, 1, 0.5, 0] * 4, np.float32)
    for kind, _ in rounding.MX.values():
        for scale in (1, 2.0**-40, 2.0**30):
            x = np.concatenate([held * np.float32(scale), held[:5]])
            assert np.array_equal(rounding.microscaled(x, kind), x), kind
    found = rounding.microscaled(np.array([7.5, 5.1, 0.2], np.float32), rounding.MX["MXFP4 (E2M1)"][0])
    assert found.tolist() == [6, 6, 0], "7.5 has the scale of 6"
    xs = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(4)]
    for way in (rounding.direct, rounding.ring):
        np.testing.assert_allclose(way(xs, lambda part: part), np.sum(xs, 0), rtol=1e-4, atol=1e-5)


def test_training_with_fewer_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 steps on two ranks: whole averages end in one place, late ones elsewhere; a thousandth of them learns less."""
    monkeypatch.setenv("HOCKET_TRANSPORT", "tcp")
    names = ["float32", "first", "int8", "od-sgd", "stale 4", "topk"]
    rows = {**parity.ROWS, "topk": parity.Recipe("topk:0.001", feedback=False), "first": parity.Recipe(first=True)}

    def outcomes(comm: hocket.Communicator) -> list[parity.ParityRun]:
        return [parity.trained(comm, rows[name], 0, 1, 640, "sorted") for name in names]

    float32, first, int8, od, stale, topk = hocket.local_world(2).run(outcomes)[0]
    assert int8.loss == pytest.approx(float32.loss, rel=0.05) and float32.loss < 2
    assert first.loss == pytest.approx(float32.loss, rel=1e-4), "the average of momenta is the momentum of averages"
    assert len({float32.loss, od.loss, stale.loss}) == 3 and topk.loss > 1.2 * float32.loss


@pytest.mark.skipif(bool(hosts.refusal()), reason=hosts.refusal() or "")
def test_bytes_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback counts what the docstrings say, headers and all."""
    monkeypatch.setenv("HOCKET_TRANSPORT", "tcp")
    with hosts.hosts() as names:
        found = {row["way"]: row["bytes"] / sparse.K for row in sparse.asked(names[:1], 4, "bytes")}
    headers = 1.1  # and acknowledgements, of which a busy machine sends more
    assert 3 * 6 < found["allgather"] < 3 * 6 * headers
    assert 3 * 4 < found["allgather, fp16"] < 3 * 4 * headers
    assert 1.5 * 4 * sparse.N / sparse.K < found["allreduce"] < 1.5 * 4 * sparse.N / sparse.K * headers
    assert found["split"] < 0.95 * found["allgather"]
    assert found["oktopk"] < 6 * 4 * 3 / 4, "the source's bound, 6k(p-1)/p words"


@pytest.mark.more
def test_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each method, and the link pays below some speed."""
    assert cost.main(["--rounds", "1"]) == 0
    machine, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert "cores, load" in machine and "pays below" in head and len(rows) == len(cost.METHODS)
    for row in rows:
        *_, fewer, speed = (cell.strip() for cell in row.strip("| ").split("|"))
        assert float(fewer) > 3 and float(speed) > 0.1, row
