"""Readers that fetch together: one version, what several of a host want crosses once, and errors are everybody's."""

from __future__ import annotations

import itertools
import pathlib
import random
import signal
import threading
import time
import types
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Layout
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.layouts import moving
from hocket.collectives.members.members import Members
from hocket.collectives.publishing import fetching, publishing, serving, words
from support.faulty import facts, job
from support.jobs import Job
from support.layouts import some_hosts, some_layout, some_shape

ROWS, ALL = Layout.cut((1000,), 2), Layout.replicated((1000,), 2)


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each message that a publisher sends, before they are packed."""
    found: list[int] = []
    real = serving.Flow

    def counted(pair: Any, peer: int, messages: Any, *more: Any) -> Any:
        found.extend(each.nbytes for each in messages)
        return real(pair, peer, messages, *more)

    monkeypatch.setattr(serving, "Flow", counted)
    return found


def least(target: Layout, hosts: list[list[int]]) -> int:
    """Elements that must come to hosts: what any of their ranks want, once for each host."""
    total = 0
    for host in hosts:
        wanted = np.zeros(target.shape, bool)
        for rank in host:
            for part in target.parts(wanted, rank):
                part[...] = True
        total += int(wanted.sum())
    return total


def read(comm: Communicator, address: str, target: dict[str, Layout], hosts: Any, whole: dict[str, Any]) -> int:
    """Fetch twice, on such hosts, and compare every element."""
    comm.world.hosts = hosts
    with hocket.Reader(address, target, comm=comm, check=len(whole["a"].shape) > 1) as reader:
        for _ in range(2):
            got = reader.fetch()
    for name, x in whole.items():
        for mine, want in zip(got[name], target[name].parts(x, comm.rank), strict=True):
            assert np.array_equal(mine, want)
    return int(reader.version or 0)


def test_what_several_of_a_host_want_crosses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random layouts, of two publishers and three readers on one host, two or three."""
    bytes_asked = asked_for(monkeypatch)
    monkeypatch.setattr(fetching, "here", lambda: "on no host of the publisher's")
    with hocket.local_world(2) as world, hocket.local_world(3) as readers:
        for seed in range(20):
            dice = random.Random(seed)
            shapes = {name: some_shape(dice) for name in "ab"}
            whole = {name: np.random.default_rng(seed).random(shape) for name, shape in shapes.items()}
            source = {name: some_layout(dice, shape, 2, True) for name, shape in shapes.items()}
            target = {name: some_layout(dice, shape, 3, False) for name, shape in shapes.items()}
            hosts = some_hosts(dice, 3)

            def offer(comm: Communicator, whole: Any = whole, source: Any = source) -> Any:
                return hocket.publish(comm, {n: source[n].parts(x, comm.rank) for n, x in whole.items()}, source)

            both = world.run(offer)
            bytes_asked.clear()
            how = both[0].address, target, hosts, whole
            assert readers.run(lambda comm, how=how: read(comm, *how)) == [0, 0, 0]
            assert sum(bytes_asked) == 2 * 8 * sum(least(each, hosts) for each in target.values()), seed
            for each in both:
                each.close()


def test_what_never_changes_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the messages of a plan; a version, whose memory is another, is read from its own."""
    told: list[dict[str, Any]] = []
    real = fetching.tell
    monkeypatch.setattr(fetching, "tell", lambda pair, value, **how: told.append(value) or real(pair, value, **how))
    layouts = {name: Layout.replicated((9,), 1) for name in "vw"}

    def filled(version: float) -> dict[str, list[Any]]:
        return {name: [np.full(9, version)] for name in layouts}

    with hocket.local_world(1) as world:
        [published] = world.run(lambda comm: hocket.publish(comm, filled(0), layouts))
        with hocket.Reader(published.address, layouts, rank=0) as reader:
            for version in range(6):
                got = reader.fetch()
                assert all(np.all(got[name][0] == version) for name in layouts) and reader.version == version
                world.run(lambda comm, version=version: published.update(filled(version + 1)))
        published.close()
    assert [each["known"] is None for each in told if each["what"] == "table"] == [True] + [False] * 5
    assert [each["messages"] is None for each in told if each["what"] == "send"] == [False] + [True] * 5


def test_who_has_it_on_this_host_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks of a publisher hold all; one of two readers has its host in common with rank 1."""
    on = threading.local()
    for module in (publishing, fetching):
        monkeypatch.setattr(module, "here", lambda: on.host)

    def offer(comm: Communicator) -> Any:
        on.host = f"host {comm.rank}"
        return hocket.publish(comm, [np.arange(9)], Layout.replicated((9,), 2))

    def read(comm: Communicator) -> list[int]:
        on.host = f"host {1 + comm.rank}"
        comm.world.hosts = [[0], [1]]
        with hocket.Reader(both[0].address, Layout.replicated((9,), 2), comm=comm) as reader:
            assert reader.fetch()[0].tolist() == [*range(9)]
            assert reader._plan is not None
            return reader._plan.sources

    with hocket.local_world(2) as world, hocket.local_world(2) as readers:
        both = world.run(offer)
        on_one, elsewhere = readers.run(read)
        assert on_one == [1] and len(elsewhere) == 1
        for each in both:
            each.close()


@pytest.mark.parametrize("together", [True, False])
def test_a_fetch_has_one_version_while_many_are_published(together: bool) -> None:
    with hocket.local_world(2) as world, hocket.local_world(2) as readers:
        both = world.run(lambda comm: hocket.publish(comm, [np.zeros(500)], ROWS))
        over = threading.Event()

        def writes(comm: Communicator) -> None:
            while True:
                both[comm.rank].update([np.full(500, both[comm.rank].version + 1.0)])
                if comm.allreduce(np.array([float(over.is_set())]))[0]:
                    return

        def reads(comm: Communicator) -> list[int]:
            seen, who = [], {"comm": comm} if together else {"rank": comm.rank}
            with hocket.Reader(both[0].address, ALL, **who) as reader:
                for _ in range(40):
                    [got] = reader.fetch()
                    assert np.all(got == reader.version), "parts of two versions"
                    seen.append(reader.version)
            return seen

        writer = threading.Thread(target=world.run, args=(writes,))
        writer.start()
        try:
            one, other = readers.run(reads)
        finally:
            over.set()
            writer.join(60)
        assert (one == other or not together) and len({*one}) > 3
        for each in both:
            each.close()


def test_the_publisher_converts_and_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 is read as float16, rounded once; a codec saves bytes between hosts, and is refused where it is none."""
    x = np.random.default_rng(2).standard_normal((500, 200)).astype(np.float32)
    layout, wanted = Layout.cut(x.shape, 2), Layout.replicated(x.shape, 1)
    packs, wires = moving.pack_array, list[int]()
    monkeypatch.setattr(moving, "pack_array", lambda data, form: wires.append(data.nbytes) or packs(data, form))
    bytes_asked = asked_for(monkeypatch)
    with hocket.local_world(2) as world:
        both = world.run(lambda comm: hocket.publish(comm, layout.parts(x, comm.rank), layout))
        address = both[0].address
        [half] = hocket.fetch(address, wanted, rank=0, dtype="float16")
        assert half.dtype == np.float16 and np.array_equal(half, x.astype(np.float16))
        assert sum(bytes_asked) == half.nbytes
        [same] = hocket.fetch(address, wanted, rank=0, codec="lossless")
        assert np.array_equal(same, x) and not wires, "both are on one host"
        apart = property(lambda self: [[rank] for rank in range(len(self.world_ranks))])
        monkeypatch.setattr(Members, "hosts", apart)
        with hocket.Reader(address, wanted, rank=0, codec="lossless", check=True) as reader:
            for _ in range(2):
                assert np.array_equal(reader.fetch()[0], x)
        assert sum(wires) == 2 * x.nbytes
        for how, text in (({"dtype": "int8"}, "cannot become int8"), ({"codec": "int8"}, "take 'lossless' alone"),
                          ({"dtype": {"y": "float16"}}, "'y'")):  # fmt: skip
            with pytest.raises(hocket.ArgumentError, match=text):
                hocket.fetch(address, wanted, rank=0, **how)
        rude = hocket.connect(address)  # the publisher does not rely on what a reader has checked
        for kinds, text in (([[0, "int8"]], "cannot become int8"), ([[0, "float8_e9"]], "float8_e9")):
            words.tell(rude, {"what": "hold", "version": 0, "kinds": kinds})
            held, why = words.hear(rude, 10)
            assert not held and text in why
        rude.close(timeout=0.1)
        for each in both:
            each.close()


@pytest.mark.parametrize("of", ["of the publisher", "of comm="])
def test_other_bits_are_an_error_on_all(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On their way from the publisher, or between readers; array, box and rank are named."""
    layout, wanted = Layout.replicated((8,), 1), Layout.replicated((8,), 2)
    real, numbers = moving.digest, itertools.count()
    monkeypatch.setattr(fetching, "here", lambda: "on another host than the publisher")
    least = 2 if of == "of comm=" else 0
    """Digests that are right: of the one message from the publisher, at both ends."""
    monkeypatch.setattr(moving, "digest", lambda data: real(data) + (n if (n := next(numbers)) >= least else 0))
    with hocket.local_world(1) as world, hocket.local_world(2) as readers:
        [published] = world.run(lambda comm: hocket.publish(comm, {"w": [np.arange(8)]}, {"w": layout}))

        def read(comm: Communicator) -> str:
            with pytest.raises(hocket.MismatchError) as raised:
                hocket.fetch(published.address, {"w": wanted}, comm=comm, check=True)
            return str(raised.value)

        for text in readers.run(read):
            assert f"other bits arrived than were sent: array 'w', [0:8], from rank 0 {of}" in text, text
        published.close()


def test_what_is_wrong_on_one_is_told_on_all_and_they_go_on() -> None:
    with hocket.local_world(2) as world, hocket.local_world(2) as readers:
        both = world.run(lambda comm: hocket.publish(comm, {"w": [np.full(500, comm.rank)]}, ROWS))
        address = both[0].address

        def read(comm: Communicator) -> None:
            how: list[tuple[Any, str]] = [
                (({"v": ALL}, {}), "publishes no 'v'"),
                (({"w": ALL if comm.rank else ROWS}, {}), "were given other arguments"),
                (({"w": ALL}, {"into": {"w": [np.zeros(999 + comm.rank, int)]}}), r"int64\[1000\]"),
                (({"w": Layout.replicated((1000,), 3)}, {}), "has boxes on 3 ranks; 2 read"),
            ]
            for (layout, more), text in how:
                with pytest.raises(hocket.ArgumentError, match=text):
                    hocket.fetch(address, layout, comm=comm, **more)
            with pytest.raises(hocket.ArgumentError, match="not both"):
                hocket.Reader(address, ALL, comm=comm, rank=0)
            assert hocket.fetch(address, {"w": ALL}, comm=comm)["w"][0][600] == 1

        readers.run(read)
        for each in both:
            each.close()


def test_what_a_reader_leaves_unheard_is_no_exit_code_of_the_publisher() -> None:
    """Its messages of another tag, say: the end of the pair logs them, and the process of the trainer ends with 0."""
    pair: Any = types.SimpleNamespace(world=types.SimpleNamespace(unraised=False))
    pair.close = lambda timeout, log_as: setattr(pair.world, "unraised", True)
    words.leave(pair, "a reader")
    assert pair.world.unraised is False


WRITER = """
import os, pathlib
comm = hocket.init()
x = np.full(1_000_000, 1.0 + comm.rank)
published = hocket.publish(comm, {"w": [x]}, hocket.Layout.cut((2_000_000,), 2), secret="a secret of readers")
if comm.rank == 0:
    (pathlib.Path(os.environ["FAULTY"]) / "address").write_text(published.address)
ready("published")
time.sleep(60)
"""
READER = """
import json, os, sys, time
import numpy as np, hocket
comm = hocket.init()
layout = {{"w": hocket.Layout.replicated((2_000_000,), 2)}}
told = ""
try:
    with hocket.Reader({address!r}, layout, comm=comm, secret="a secret of readers") as reader:
        for turn in range(100_000):
            got = reader.fetch()["w"][0]
            assert got[0] == 1 and got[-1] == 2
            if turn == 3 and comm.rank == 0:
                open({sign!r}, "w").close()
except hocket.PeerLostError as error:
    told, at = str(error), time.time()
print(json.dumps(dict(told=told, at=at)))
"""


def test_kills_in_the_middle(tmp_path: pathlib.Path) -> None:
    """A reader is killed: the other one is told, the publisher serves others.  A writer is: both readers are told."""
    with job(2, WRITER, tmp_path) as writers:
        place = tmp_path / "signs" / "address"
        _await(place)
        address = place.read_text()
        for turn, victim in enumerate(("reader", "writer")):
            sign = tmp_path / f"reads-{turn}"
            with Job(2, READER.format(address=address, sign=str(sign))) as reading:
                _await(sign)
                time.sleep(0.05 + 0.013 * turn)  # anywhere in a fetch
                (reading if victim == "reader" else writers).signal(1, signal.SIGKILL)
                killed = time.time()
                ends = reading.wait()
            for rank in (0,) if victim == "reader" else (0, 1):
                told = facts(ends[rank])
                assert told["told"] and told["at"] - killed < 4.5, (victim, told, ends[rank].err)
            if victim == "reader":
                layout = {"w": Layout.replicated((2_000_000,), 1)}
                got = hocket.fetch(address, layout, rank=0, secret="a secret of readers")["w"][0]
                assert got[0] == 1 and got[-1] == 2


@pytest.mark.more
def test_kills_at_random_moments(tmp_path: pathlib.Path) -> None:
    """Publishers that update as fast as they can, and groups of readers, of which any process is killed."""
    updating = WRITER.replace("time.sleep(60)", "while True: published.update({'w': [x]}); x += 2; time.sleep(0.001)")
    one_version = "assert got[-1] - got[0] == 1 and len({{*got[::9999]}}) == 2"
    reader = READER.replace("assert got[0] == 1 and got[-1] == 2", one_version)
    for turn in range(12):
        dice, where = random.Random(turn), tmp_path / str(turn)
        where.mkdir()
        with job(2, updating, where) as writers:
            place, sign = where / "signs" / "address", where / "reads"
            _await(place)
            with Job(2, reader.format(address=place.read_text(), sign=str(sign))) as reading:
                _await(sign)
                time.sleep(dice.random() * 0.2)
                of, victim = dice.choice(["writers", "reading"]), dice.randrange(2)
                (writers if of == "writers" else reading).signal(victim, signal.SIGKILL)
                killed = time.time()
                ends = reading.wait()
        for rank in {0, 1} - ({victim} if of == "reading" else set()):
            told = facts(ends[rank])
            assert told["told"] and told["at"] - killed < 4.5, (turn, of, victim, told)


def _await(path: pathlib.Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    time.sleep(0.05)
