"""hocket's local SGD beside torchft's and Flower's, on hosts that are network namespaces."""

from __future__ import annotations

import pytest

from hocket.lab.outer.peers.__main__ import FLOWER, main
from hocket.lab.outer.peers.sites import WAYS
from hocket.system.namespaces.hosts import refusal


@pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
@pytest.mark.timeout(600)
def test_all_ways_learn_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "2", "--rate", "1gbit"])
    lines = [line.split("|") for line in capfd.readouterr().out.splitlines() if line.count("|") == 5][2:]
    rows = {line[1].strip(): (float(line[2]), float(line[4])) for line in lines}
    assert [*rows] == [*WAYS, FLOWER]
    same = {rows[name][1] for name in ("hocket, LocalSGD", "torchft, LocalSGD on hocket")}
    assert len(same) == 1, f"the average of the same weights, round after round: {rows}"
    assert all(bytes > 1.4 for name, (bytes, _) in rows.items() if "int8" not in name)
    assert rows["hocket, DiLoCo in int8"][0] < 0.6
