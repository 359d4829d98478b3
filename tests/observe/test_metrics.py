"""Exported numbers: read when it is asked for, bounded, and the same as `comm.stats()` says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import hocket
from hocket.observe.metrics import families, prometheus, server
from hocket.observe.metrics.families import FAMILIES, MetricsReader, _WaitTimes
from hocket.observe.metrics.prometheus import serve
from hocket.observe.metrics.telemetry import observe
from hocket.recording import RECORD, Kind, Ring
from support.jobs import Job, run

pytestmark = pytest.mark.usefixtures("empty_recorder")


def ask(where: str, path: str = "/metrics", host: str = "localhost") -> tuple[int, str]:
    """The status and the body of an answer."""
    unix = where.startswith("/")
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as client:
        client.settimeout(60)
        client.connect(where if unix else ("127.0.0.1", int(where.rpartition(":")[2])))
        client.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def samples(body: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(body):
        for each in family.samples:
            found.setdefault(each.name, {})[tuple(sorted(each.labels.items()))] = each.value
    return found


def test_what_is_served_is_what_stats_say(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sock")

    def rank(comm: hocket.Communicator) -> None:
        for _ in range(50):
            comm.allreduce(np.ones(4))
        comm.lane("urgent", 1).broadcast(np.ones(1))
        if comm.rank == 0:
            with serve(comm, path=path) as where:
                assert where == path and os.stat(path).st_mode & 0o777 == 0o600
                status, body = ask(path)
                assert (status, ask(path, "/")[0]) == (200, 404)
                found, rows = samples(body), comm.stats()
            assert not os.path.exists(path), "nothing listens after the block"
            for name, labels in ((f"{n}_total" if f.counts else n, f.labels) for n, f in FAMILIES.items()):
                for each in found.get(name, {}):
                    assert {key for key, _ in each} == set(labels), name
            assert sum(found["hocket_calls_total"].values()) == sum(row.calls for row in rows)
            mine = {"rank": "0", "comm": "world", "lane": "", "collective": "allreduce"}
            calls = [v for k, v in found["hocket_calls_total"].items() if mine.items() <= dict(k).items()]
            moved = [v for k, v in found["hocket_bytes_total"].items() if mine.items() <= dict(k).items()]
            assert (calls, moved) == ([50], [50 * 32])
            assert {dict(k)["lane"] for k in found["hocket_calls_total"]} == {"", "urgent"}
            assert list(found["hocket_size"].values()) == [2] and list(found["hocket_lost_ranks"].values()) == [0]
            assert list(found["hocket_stalled_seconds"].values()) == [0]

    with hocket.local_world(2) as world:
        world.run(rank)


HANGS = """
import time
import hocket, numpy as np
from hocket.observe.metrics.prometheus import serve
comm = hocket.init()
comm.allreduce(np.ones(2))
with serve(comm, path={place!r} + f"/{{comm.rank}}.sock"):
    if comm.rank == 1:
        time.sleep(60)
    comm.allreduce(np.ones(3))
"""


def test_a_rank_that_waits_answers_and_says_for_whom(tmp_path: Path) -> None:
    with Job(2, HANGS.format(place=str(tmp_path))) as job:
        until = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        where = ("comm", "world"), ("rank", "0")
        found: dict[str, Any] = {}
        while found.get("hocket_stalled_seconds", {}).get(where, 0.0) <= 0.2 and time.monotonic() < until:
            with contextlib.suppress(ConnectionRefusedError):  # it has a name a moment before it listens
                found = samples(ask(str(tmp_path / "0.sock"))[1])
        for rank in range(2):
            job.signal(rank, signal.SIGKILL)
        job.wait(60)
    assert 0.2 < found["hocket_stalled_seconds"][where] < 60
    assert found["hocket_waits_for"] == {(where[0], ("peer", "1"), where[1]): 1}


def test_on_a_port_it_is_for_this_host_alone() -> None:
    with hocket.local_world(1) as world, serve(world.comms[0], port=0) as where:
        assert where.startswith("127.0.0.1:")
        assert ask(where)[0] == 200 and ask(where, host=where)[0] == 200
        assert ask(where, host="evil.example")[0] == 403
        with pytest.raises(hocket.ArgumentError, match="nothing can listen"):
            serve(world.comms[0], port=int(where.rpartition(":")[2])).__enter__()


def test_strangers_cost_one_thread_and_a_few_descriptors(capfd: pytest.CaptureFixture[str]) -> None:
    """Users of the host may connect: they say nothing, or a byte, or reset the connection; an honest one is served."""
    with hocket.local_world(1) as world, serve(world.comms[0], port=0) as where:
        place = ("127.0.0.1", int(where.rpartition(":")[2]))
        before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        held = []
        for i in range(60):
            held.append(socket.create_connection(place, 60))
            held[-1].sendall(b"G" * (i % 2))
        for _ in range(30):
            with socket.create_connection(place, 60) as rude:
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                rude.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert ask(where)[0] == 200
        theirs = len(os.listdir("/proc/self/fd")) - before - len(held)
        assert theirs <= server.MOST + 1 and threading.active_count() == threads
        with socket.create_connection(place, 60) as long:
            long.sendall(b"GET /metrics HTTP/1.0\r\nX: " + b"y" * 100_000)
            with contextlib.suppress(ConnectionResetError):
                assert long.recv(100) == b""
        for each in held:
            each.close()
        assert ask(where)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_request_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not keep a connection."""
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    with hocket.local_world(1) as world, serve(world.comms[0], port=0) as where:
        with socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2])), 5) as slow:
            slow.settimeout(0.05)
            began, ended = time.monotonic(), False
            while not ended and time.monotonic() - began < 30:
                try:
                    slow.send(b"G")
                    ended = slow.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionError:
                    ended = True
        assert ended and time.monotonic() - began > 0.2


def test_after_a_renewal_the_numbers_are_those_of_the_new_communicator() -> None:
    run(2, PROGRAM_RENEWED)


PROGRAM_RENEWED = """
import urllib.request, numpy as np, hocket
from hocket.observe.metrics import prometheus
from hocket.observe.metrics.prometheus import serve
prometheus.FRESH = 0.0
comm = hocket.init(elastic=True)
def counted(where):
    text = urllib.request.urlopen(f"http://{where}/metrics", timeout=60).read().decode()
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith("hocket_calls_total{")]
with serve(comm, port=0) as where:
    for calls in (7, 2, 4):
        for i in range(calls): comm.allreduce(np.ones(3))
        assert counted(where) == [calls], counted(where)
        comm = comm.renew()
    assert counted(where) == []
comm.close()
"""


@pytest.mark.parametrize("given", [{}, {"path": "/tmp/x", "port": 1}, {"port": 70000}, {"path": "/no/such/folder"}])
def test_places_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with hocket.local_world(1) as world, pytest.raises(hocket.ArgumentError, match="serve: "):
        serve(world.comms[0], **given).__enter__()  # type: ignore[arg-type]


def test_a_socket_that_a_killed_run_has_left_is_replaced(tmp_path: Path) -> None:
    """One that somebody listens on is not, nor is a file."""
    path = str(tmp_path / "rank0.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with hocket.local_world(1) as world:
        comm = world.comms[0]
        with serve(comm, path=path):
            assert ask(path)[0] == 200
            with pytest.raises(hocket.ArgumentError, match="another process listens there"):
                serve(comm, path=path).__enter__()
            assert ask(path)[0] == 200
        (tmp_path / "rank0.sock").write_text("a file of the user's")
        with pytest.raises(hocket.ArgumentError, match="there is a file, and no socket"):
            serve(comm, path=path).__enter__()
        assert (tmp_path / "rank0.sock").read_text()


def test_of_two_that_begin_at_once_the_second_does_not_take_the_first_for_dead(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sock")
    with prometheus._unix(path), pytest.raises(OSError, match="another process listens there"):
        prometheus._unix(path)


def test_kinds_of_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MOST_KINDS", 2)
    with hocket.local_world(1) as world:
        comm = world.comms[0]
        reader = MetricsReader([comm])
        for name in ("allreduce", "broadcast", "allgather", "reduce"):
            getattr(comm, name)(np.ones(1))
            found = reader.read()["hocket_calls"]
            assert sum(found.values()) == sum(row.calls for row in comm.stats()) and len(found) <= 3
        assert ("0", comm.name, *["other"] * 4) in found


def ring(waits: list[tuple[int, float]], lost: int = 0) -> Ring:
    rows = []
    for seq, (peer, seconds) in enumerate(waits):
        rows.append((0, seq, 0, 0, Kind.WAIT_RECV, peer, 0, 0))
        rows.append((0, seq, 0, int(seconds * 1e9), Kind.MOVED, 0xFFFF, 0, 0))
    return Ring("world", "collectives", 0, tuple(range(100)), np.array(rows, RECORD), lost)


def test_waits_are_summed_up_by_peer_once_each_and_never_fall() -> None:
    waits = _WaitTimes()
    waits.take([ring([(1, 2.0), (2, 1.0)])])
    waits.take([ring([(1, 2.0), (2, 1.0)])])  # nothing is new
    assert waits.named == pytest.approx({"other": 0.0, "1": 2.0, "2": 1.0})
    waits.take([ring([(2, 1.0), (2, 4.0), (3, 0.1)], lost=2)])  # two new ones; 3's is too short for a name
    assert waits.named == pytest.approx({"other": 0.1, "1": 2.0, "2": 5.0})
    before = dict(waits.named)
    waits.take([ring([(peer, 1.0) for peer in range(50)], lost=1000)])
    assert all(waits.named[name] >= value for name, value in before.items())
    for peer in range(50):
        waits.take([ring([(peer, 9.0)], lost=2000 + 2 * peer)])
    assert len(waits.named) == families.MOST_PEERS + 1 and sum(waits.named.values()) == pytest.approx(7.1 + 50 + 450)


def test_opentelemetry_reads_the_same() -> None:
    source = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[source])
    with hocket.local_world(1) as world:
        comm = world.comms[0]
        observe(comm, meter=provider.get_meter("test"))
        for _ in range(3):
            comm.allreduce(np.ones(4))
        told = json.loads(source.get_metrics_data().to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        by_name = {metric["name"]: metric for metric in told}
        (point,) = by_name["hocket.bytes"]["data"]["data_points"]
        assert point["value"] == 96
        assert by_name["hocket.bytes"]["unit"] == "By" and by_name["hocket.bytes"]["data"]["is_monotonic"]
        assert point["attributes"]["collective"] == "allreduce" and set(point["attributes"]) == set(families.CALLS)
        assert {f"hocket.{name[7:]}" for name in FAMILIES} >= set(by_name)
    provider.shutdown()


def test_the_dashboard_asks_for_what_is_exported() -> None:
    board = json.loads(files("hocket.observe.metrics").joinpath("dashboard.json").read_text())
    exported = {f"{name}_total" if family.counts else name: family.labels for name, family in FAMILIES.items()}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"hocket_\w+", query)} == set(exported), "each is shown"
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            names = re.findall(r"hocket_\w+", query)
            labels = set.intersection(*(set(exported[name]) for name in names))
            kept = re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))
            assert {*re.findall(r"(\w+)=~", query), *kept} <= labels, query
            assert query.count("rate(") == len([n for n in names if n.endswith("_total")]), "counters as rates"
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(kept or labels), target
    for each in board["templating"]["list"]:
        if each["type"] == "query":
            name, label = re.findall(r"label_values\((\w+), (\w+)\)", each["query"])[0]
            assert label == each["name"] and label in exported[name]
