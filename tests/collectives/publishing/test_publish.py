"""Arrays that one job publishes and others fetch: one version, whatever readers and writers do meanwhile."""

from __future__ import annotations

import pathlib
import random
import signal
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Layout
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.publishing import publishing
from support.faulty import all_ready, job, wait_for
from support.layouts import some_layout, some_shape

ROWS, ALL = Layout.cut((1000,), 2), Layout.replicated((1000,), 1)


def test_any_layout_is_read_as_any_other() -> None:
    """Two ranks publish; each of three readers has its own boxes."""
    for seed in range(12):
        dice = random.Random(seed)
        shapes = {name: some_shape(dice) for name in "ab"}
        whole = {name: np.random.default_rng(seed).random(shape) for name, shape in shapes.items()}
        source = {name: some_layout(dice, shape, 2, True) for name, shape in shapes.items()}
        target = {name: some_layout(dice, shape, 3, False) for name, shape in shapes.items()}
        with hocket.local_world(2) as world:

            def offer(comm: Communicator, whole: Any = whole, source: Any = source) -> Any:
                return hocket.publish(comm, {n: source[n].parts(x, comm.rank) for n, x in whole.items()}, source)

            both = world.run(offer)
            for rank in range(3):
                got = hocket.fetch(both[0].address, target, rank=rank, check=seed % 2 == 1)
                for name, x in whole.items():
                    for mine, want in zip(got[name], target[name].parts(x, rank), strict=True):
                        assert np.array_equal(mine, want)
            for each in both:
                each.close()


def test_a_reader_that_stops_disturbs_nobody() -> None:
    with hocket.local_world(2) as world:
        both = world.run(lambda comm: hocket.publish(comm, {"w": [np.full(500, comm.rank)]}, ROWS))
        stuck = hocket.connect(both[0].address)  # never asks for anything
        rude = hocket.connect(both[0].address)
        rude.send(np.frombuffer(b'{"what": "send"}', np.uint8), 0, tag=1)
        began = time.monotonic()
        for version in range(4):
            assert hocket.fetch(both[0].address, {"w": ALL}, rank=0)["w"][0][600] == 1 + version
            update = [np.full(500, version + 1), np.full(500, version + 2)]
            world.run(lambda comm, update=update: both[comm.rank].update({"w": [update[comm.rank]]}))
        assert time.monotonic() - began < 40
        for pair in (stuck, rude):
            pair.close(timeout=0.1)
        for each in both:
            each.close()


def test_what_is_wrong_is_said() -> None:
    with hocket.local_world(2) as world:

        def offer(comm: Communicator) -> Any:
            with pytest.raises(hocket.ArgumentError, match=r"publish: rank 1: tree\['w'\]\[0\] has shape \(499,\)"):
                hocket.publish(comm, {"w": [np.zeros(500 - comm.rank)]}, ROWS)
            made = hocket.publish(comm, {"w": [np.zeros(500)]}, ROWS)
            with pytest.raises(hocket.ArgumentError, match="dtypes of what was published"):
                made.update({"w": [np.zeros(500, "f")]})
            with pytest.raises(hocket.ArgumentError, match="names"):
                made.update({"v": [np.zeros(500)]})
            return made

        both = world.run(offer)
        address = both[0].address
        for layout, text in (
            ({"v": ALL}, "publishes no 'v'; it has 'w'"),
            ({"w": Layout.replicated((9,), 1)}, r"shape \(1000,\) in source"),
        ):
            with pytest.raises(hocket.ArgumentError, match=text):
                hocket.fetch(address, layout, rank=0)
        with pytest.raises(hocket.ArgumentError, match=r"float64\[1000\]"):
            hocket.fetch(address, {"w": ALL}, rank=0, into={"w": [np.zeros(999)]})
        for each in both:
            each.close()
        with pytest.raises(hocket.TimeoutError, match="has not answered in time"):
            hocket.fetch(address, ALL, rank=0, timeout=0.5)


SECRET = "a secret of readers"
WRITER = """
import os, pathlib
comm = hocket.init()
published = hocket.publish(comm, {"w": [np.full(500, 1.0 + comm.rank)]}, hocket.Layout.cut((1000,), 2),
                           secret="a secret of readers")
if comm.rank == 0:
    (pathlib.Path(os.environ["FAULTY"]) / "address").write_text(published.address)
ready("published")
time.sleep(60)
"""


def test_a_writers_death_is_told_within_a_second(tmp_path: pathlib.Path) -> None:
    """Another process reads; then rank 1 of the publisher is killed, which is not the one that readers ask first."""
    with job(2, WRITER, tmp_path) as run:
        all_ready(tmp_path, [0], "published")
        reader = hocket.Reader((tmp_path / "signs" / "address").read_text(), {"w": ALL}, rank=0, secret=SECRET)
        assert reader.fetch()["w"][0].tolist() == [1.0] * 500 + [2.0] * 500
        run.signal(1, signal.SIGKILL)
        time.sleep(1.0)  # the other writer has heard of it
        began = time.monotonic()
        with pytest.raises(hocket.PeerLostError, match="has lost a rank"):
            reader.fetch()
        assert time.monotonic() - began < 4


def fetched(address: str) -> bool:
    try:
        return bool(hocket.fetch(address, {"w": ALL}, rank=0)["w"][0][0] == 1)
    except hocket.Error:
        return False


def test_a_reader_too_many_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "READERS", 1)
    with hocket.local_world(1) as world:
        (published,) = world.run(lambda comm: hocket.publish(comm, {"w": [np.ones(1000)]}, ALL))
        with hocket.Reader(published.address, {"w": ALL}, rank=0) as first:
            first.fetch()
            with pytest.raises(hocket.Error):
                hocket.fetch(published.address, {"w": ALL}, rank=0, timeout=3)
            first.fetch()
        wait_for(lambda: fetched(published.address), what="the place of the one that has left")
        published.close()
