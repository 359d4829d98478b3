"""perftest's tables, and a run without RDMA devices; with them: make test-verbs."""

from __future__ import annotations

import json
import pathlib

import pytest

from hocket.errors import Error
from hocket.lab import verbs
from hocket.lab.rivals import perftest

LATENCY = """
 local address: LID 0000 QPN 0x0029 PSN 0x873e82
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       500          10.32          260.98       10.92    	       13.15       	13.69  		80.55   		260.98 
---------------------------------------------------------------------------------------
"""  # noqa: E501, W291
BANDWIDTH = """
Conflicting CPU frequency values detected: 800.000000 != 3501.000000. CPU Frequency is not max.
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 1048576    50               62.88              54.92  		   0.000055
"""


def test_a_latency_table() -> None:
    table = perftest.parse(LATENCY)
    assert perftest.column(table, "t_typical") == (10.92, "usec") and perftest.column(table, "#bytes") == (8.0, "")
    assert perftest.column(table, "99.9% percentile") == (260.98, "usec")


@pytest.mark.parametrize("unit", ["MB/sec", "Gb/sec"])
def test_a_bandwidth_table(unit: str) -> None:
    assert perftest.column(perftest.parse(BANDWIDTH.format(unit=unit)), "bw average") == (54.92, unit)
    assert unit in perftest.UNITS


def test_what_is_no_table() -> None:
    with pytest.raises(Error, match="Couldn't connect"):
        perftest.parse("Couldn't connect to 127.0.0.1:18515\n")
    with pytest.raises(Error, match="no column t_typical, but #bytes"):
        perftest.column(perftest.parse(BANDWIDTH.format(unit="MB/sec")), "t_typical")


def test_without_devices(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verbs, "SYSTEM", str(tmp_path / "none"))
    assert verbs.main(["--rounds", "1", "--json", str(tmp_path / "found")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("# verbs: not measured: no RDMA device") and "run.sh" in out[0]
    assert [line.split("|")[1].strip() for line in out[3:]] == [line[0] for line in verbs.LINES]
    rows = {(row["what"], row["place"]) for row in json.loads((tmp_path / "found").read_text())["rows"]}
    assert rows == {("small", "tcp"), ("broadcast", "tcp"), ("send", "tcp")}
