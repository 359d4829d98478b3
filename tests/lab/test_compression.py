"""The proofs of docs/compression.md that take a moment."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from hocket.lab.compression import cost, parity, rounding, sparse, statistics
from hocket.lab.outer import digits
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


def test_training_with_fewer_bits() -> None:
    """Two models for three epochs: int8 learns what float32 does, a tenth of a percent without feedback hardly."""
    known = digits.data(2, "sorted")
    assert known.images.shape == (2, 1438, 64) and (np.diff(known.digits, axis=1) >= 0).all()

    def losses(comm: hocket.Communicator) -> dict[str, parity.Outcome]:
        rows = {name: parity.ROWS[name] for name in ("float32", "int8")}
        rows["topk"] = parity.Recipe(lambda: parity.TopK(0.001), feedback=False)
        return {name: parity.trained(comm, row, known, 3, "sorted") for name, row in rows.items()}

    found = hocket.local_world(2).run(losses)[0]
    assert found["int8"].loss == pytest.approx(found["float32"].loss, rel=0.2) and found["float32"].loss < 1.2
    assert found["topk"].loss > 1.5 * found["float32"].loss
    assert found["float32"].bits == 32 and found["int8"].bits == pytest.approx(8.27, abs=0.02)


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


@pytest.mark.more
def test_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each method, and the link pays below some speed."""
    assert cost.main(["--rounds", "1"]) == 0
    machine, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert "cores, load" in machine and "pays below" in head and len(rows) == len(cost.METHODS)
    for row in rows:
        *_, fewer, speed = (cell.strip() for cell in row.strip("| ").split("|"))
        assert float(fewer) > 3 and float(speed) > 0.1, row
