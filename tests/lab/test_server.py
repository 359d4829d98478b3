"""The tables of docs/server.md, in small."""

from __future__ import annotations

import pytest

from hocket.lab.server import cold, crossover, duplex, exchange, fashion, mixed, placement, rate, stragglers
from hocket.system.namespaces.hosts import hosts, refusal
from hocket.system.namespaces.switch import switch

WHY_NOT = refusal("1gbit")


def test_pushes_a_second() -> None:
    rows = rate.asked(pushes=20, workers=2, nbytes=4096)
    assert [row["what"] for row in rows] == ["hocket.training.serve", "recv from any rank", "a loop over ZMQ"]
    assert all(row["per second"] > 0 and row["p99 us"] >= row["median us"] > 0 for row in rows)


def test_a_row_adds_up_the_workers() -> None:
    together = rate.row([[10.0, 10.5, 11.0], [10.0, 10.25, 10.5]])
    assert together["per second"] == 4 and together["median us"] == 375e3
    assert rate.row([[10.0, 10.5, 11.0], [11.0, 11.5, 12.0]])["per second"] == 2, "turns make nobody faster"


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_embeddings_beside_dense_layers_between_hosts() -> None:
    sizes = mixed.Sizes(rows=2000, touched=16, dense=2048, steps=3, compute=0.01)
    with switch(mixed.HOSTS, "1gbit") as made:
        rows = mixed.asked(made.hosts, sizes)
    assert [row["what"] for row in rows] == [mixed.ALL_DENSE, mixed.SERIAL, mixed.AT_ONCE, mixed.HIDDEN]
    assert all(row["apart"] < 1e-6 for row in rows), "the weights are those of one rank"
    assert all(row["bytes"] < rows[0]["bytes"] / 3 for row in rows[1:])
    assert " of 0." in mixed.report(rows, sizes)[-1]


@pytest.mark.more
def test_stragglers() -> None:
    rows = stragglers.asked(steps=6, unit=0.02, workers=3, clocks="bsp,async")
    assert [(row["machines"], row["clock"]) for row in rows] == [
        (machines, clock) for machines in stragglers.MACHINES for clock in ("bsp", "async")
    ]
    assert all(row["measured"] > 0.99 * row["predicted"] and row["value"] < 1 for row in rows)


def test_what_late_workers_cost_is_predicted() -> None:
    late = stragglers.durations("sometimes late", workers=4, steps=20_000)
    found = [stragglers.predicted(late, bound) for bound in (0, 1, 3, 8, float("inf"))]
    for predicted, said in zip(found, (2.05, 1.70, 1.47, 1.37, 1.31), strict=True):
        assert abs(predicted - said) < 0.03, found
    slow = stragglers.durations("one slow", workers=4, steps=1000)
    assert stragglers.predicted(slow, 8) > 1.98 and stragglers.predicted(slow, float("inf")) == 1.25


def test_a_model_is_pushed_and_pulled_beside_others() -> None:
    names = exchange.installed(between_hosts=False)
    rows = list(exchange.asked(nbytes=1 << 16, rounds=2, names=names))
    assert [row["what"] for row in rows] == [*names, exchange.MPI_ROW]
    assert {"ZMQ", "gRPC, encoded", "hocket, a server, shm"} <= set(names)
    assert all(row["seconds"] > 0 for row in rows) and len(exchange.table(rows, 1 << 16)) == 2 + len(rows)
    assert len(exchange.verdicts(rows, between_hosts=False)) == len(exchange.WANTED)


@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_clocks_on_pictures() -> None:
    """One process has what bsp has, to the last digit; Downpour only runs."""
    ways = ("sequential", "bsp", "downpour:adagrad")
    found = {way: fashion.asked(fashion.PLACE, "1gbit", way, 2, 0, 6, late=True) for way in ways}
    assert found["bsp"]["right"] == found["sequential"]["right"] > 0.1 and found["bsp"]["stale"] == 0
    assert all(row["step"] > fashion.UNIT and row["right"] > 0.05 for row in found.values())


def test_rows_in_memory_and_in_a_file() -> None:
    rows = cold.asked(rows=4000, width=4, room=1024 * 16, batch=100, seconds=0.05)
    assert [row["what"] for row in rows] == [
        "pushed, new", "pulled, in memory", "pulled, in the file", "pulled, of all", "pushed, of all",
    ]  # fmt: skip
    assert all(row["rows"] > 0 for row in rows)


def test_what_is_wanted_of_an_exchange() -> None:
    rows = [{"what": "hocket, a server, tcp", "seconds": 2.0}, {"what": "gRPC, encoded", "seconds": 5.0}]
    assert exchange.verdicts(rows, between_hosts=False) == ["hocket, a server, tcp: 2.50 x gRPC, encoded (2.7 wanted)"]
    assert exchange.verdicts(rows, between_hosts=True)[0].endswith("1.1: gRPC, encoded 2.50")


def test_a_tensor_as_protobuf() -> None:
    """By hand: 1, DT_FLOAT; 2, a shape {2, a dimension {1, 300}}; 4, 1,200 bytes of content."""
    head = bytes.fromhex("0801 1205 1203 08ac02 22b009")
    assert exchange._encoded(bytes(4 * 300)) == head + bytes(4 * 300)
    for count in (1, 31, 32, 300, 100_000):
        data = bytes(range(256)) * (4 * count // 256 + 1)
        assert exchange._decoded(exchange._encoded(data[: 4 * count])) == data[: 4 * count]


@pytest.mark.more
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_places_of_servers() -> None:
    with hosts("1gbit") as names:
        rows = placement.asked(names, nbytes=4096, compute=0.02, steps=3)
    assert [row["what"] for row in rows] == [*placement.PLACES]
    for row in rows:
        place = placement.PLACES[row["what"]]
        assert 0 < row["sum"] <= len(place.workers), "no worker is faster than one alone"
        assert (row["near"] > 0) == (place.workers[0] < placement.EACH)
        assert (row["far"] > 0) == (place.workers[-1] > placement.EACH)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize(
    "columns",
    [
        [each for each in crossover.COLUMNS if each != crossover.GLOO],
        pytest.param([crossover.GLOO, crossover.AUTO], marks=pytest.mark.more),  # two processes that import torch
    ],
    ids=["ours", "gloo"],
)
def test_a_ring_and_servers(columns: list[str]) -> None:
    """Every cell takes what its bytes and its delays take at least, on a link that loses no time to the machine."""
    found = crossover.asked(2, 0.005, [1000, 100_000], columns)
    assert {name for _, name in found.cells} == set(columns)
    for (nbytes, name), seconds in found.cells.items():
        assert seconds > 0.005 + nbytes / crossover.RATE, (nbytes, name)
    assert found.latency > 0.005
    if "ring" in columns:
        assert len([*found.rows()]) == 4 and len([*found.verdicts()]) == 2


def test_where_a_ring_is_faster_is_found_between_two_sizes() -> None:
    times = {"ring": lambda n: 4 + n / 100, "recursive doubling": lambda n: 2 + n / 50}
    found = crossover.crossover(lambda name, n: times[name](n), [10, 100, 1000])
    assert found is not None and 150 < found < 250
    assert crossover.crossover(lambda name, n: times[name](n), [10, 100]) is None


@pytest.mark.parametrize(("size", "wanted"), [(4, 8.0), (8, 8.8)])
def test_the_crossover_of_the_model(size: int, wanted: float) -> None:
    """Hockney's: 2 (p - 1) (a + n / p b) = log2 p (a + n b), so far as a ring's chunks are not cut."""
    sizes = [1000 * 1.05**i for i in range(100)]
    found = crossover.crossover(lambda name, n: crossover.predicted(name, size, int(n), 1e-3), sizes)
    assert found == pytest.approx(wanted * 1e-3 * crossover.RATE, rel=0.2)
    server, ring = (crossover.predicted(name, size, 4_000_000, 0.0) for name in (crossover.SERVER, "ring"))
    assert server / ring == pytest.approx(size, rel=0.01)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_pushed_and_pulled_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert duplex.main(["--quick", "--rates", "100mbit"]) == 0
    machine, _, head, _, row = capsys.readouterr().out.splitlines()
    model, _, rate, *numbers = [cell.strip() for cell in row.strip("|").split("|")]
    fifo, its, p3, *_ = map(float, numbers)
    assert "cores, load" in machine and (model, rate) == ("VGG-19", "100mbit") and head.count("|") == 11 and its == 2.05
    assert fifo / its > 0.95 and p3 > 0.95, "nothing is faster than the cable"


def test_layers_are_tables_in_slices() -> None:
    p3, fifo = (duplex.tables(duplex.PROFILES["VGG-19"], 10_000, way) for way in ("P3", "FIFO"))
    assert [table.size for table in p3.values()] == [table.size for table in fifo.values()]
    assert {len(table.parts(1)) for table in fifo.values()} == {1}
    assert 195 < sum(len(table.parts(1)) for table in p3.values()) < 220
