"""Words of members that hostile.py spoils: a worker's frames, those of views and of elastic jobs, seats, snapshots."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.control.elastic.door import FIRST
from hocket.control.elastic.processes import Process
from hocket.control.elastic.reaching import address_of
from hocket.control.protocol import words as of
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.generations import Dead, Gave, Generation, Generations, Says, Waits
from hocket.control.protocol.messages import pack, unpack
from hocket.control.protocol.seats import Seat, makes_sense, name_of, uid_of
from hocket.training import Client, Range, Rows, serve
from hocket.training.server import views
from hocket.training.server.shards import snapshots
from hocket.training.server.shards.store import Change, Tables, What
from hocket.training.server.tables import Places
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.frames import WORDS, Frame, framed, key_count

Made = tuple[str, bytes, Callable[[Path], None], Callable[[bytes, random.Random], bytes]]
ODD = (
    None, True, -1, 0, 1, 3, 7, 1.5, float("nan"), float("inf"), 1 << 31, 1 << 62, 10**30, "", "x", "\x1b[2J", "\ud800",
    "x" * 999, [], [1], [[]], [[1], [2]], [None], {}, {"0": 1}, {"a": []},
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 16, 64, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
TABLES: dict[str, Range | Rows] = {"rows": Rows(4), "w": Range(16)}
SENT = 1 << 20
"""Bytes behind a header that are sent, at most: longer frames are allowed, and take their time."""
KEPT = 64 << 20
"""Bytes that a shard has, at most, after whatever came."""


def altered(data: bytes, dice: random.Random) -> bytes:
    """JSON with a few values that are others."""
    value = json.loads(data)
    for _ in range(dice.randint(1, 4)):
        value = _altered(value, dice)
    return json.dumps(value).encode()


def _altered(value: Any, dice: random.Random) -> Any:
    inside = [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
    if not inside or dice.random() < 0.2:
        return copy.deepcopy(dice.choice(ODD))
    at = dice.choice(inside)
    if dice.random() < 0.1:
        del value[at]
    elif isinstance(value, list) and dice.random() < 0.1:
        value.append(copy.deepcopy(dice.choice(ODD)))
    else:
        value[at] = _altered(value[at], dice)
    return value


def other_words(data: bytes, dice: random.Random) -> bytes:
    """A frame whose header says something else, or is of another length."""
    words = np.frombuffer(data[: 8 * WORDS], np.int64).copy()
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(WORDS)
        how = dice.randrange(4)
        if how == 0 and at == 0:
            shard, table = dice.choice([0, 0, 1, 255]), dice.choice([0, 1, 2, 0xFFFF, 1 << 30])
            words[0] = dice.randrange(18) | shard << 8 | table << 32
        elif how == 1:
            words[at] = dice.choice(NUMBERS)
        elif how == 2:
            words[at] ^= 1 << dice.randrange(63)
        else:
            words[at] += dice.choice([-1, 1, 8])
    rest = data[8 * WORDS :]
    if dice.random() < 0.3:
        rest = dice.randbytes(dice.randrange(200))
    return words.tobytes() + rest


class Heard:
    """The link of a worker that has proven which one it is."""

    made, open, read = False, True, 0

    def __init__(self, uid: int) -> None:
        self.uid, self.comm = uid, self

    def abort(self, why: Exception) -> None: ...
    def post(self, frame: Frame) -> None: ...
    def shown(self, number: int) -> None: ...


@contextlib.contextmanager
def frames(place: Path) -> Iterator[list[Made]]:
    """A real server of one process, whose worker says them."""
    with hocket.local_world(1) as world, contextlib.ExitStack() as stack:
        server = serve(world.comms[0], TABLES, on=[0], works=True, clock="async")
        client = stack.enter_context(Client(server))
        holder, uid = server.holder, client.uid
        shard, threads = holder.replicas[0].shard, threading.active_count()
        generation = shard.generation

        def take(path: Path) -> None:
            data = path.read_bytes()
            words = np.frombuffer(data[: 8 * WORDS], np.int64).tolist()
            link: Any = Heard(uid)
            with contextlib.suppress(ValueError, LookupError, hocket.Error):  # what ends a link
                holder.keeps(link, words)
                if holder.knows(words) and words[0] & 0xFF and 8 * key_count(words) + words[6] < SENT:
                    rest = np.frombuffer(data[8 * WORDS :] or b"x", np.uint8)
                    keys = np.resize(np.frombuffer(data[-8:], np.int64), key_count(words)) if key_count(words) else None
                    payload = np.resize(rest, words[6]) if words[6] else None
                    holder.carry_out(link, Frame(words, keys, payload))
            holder.workers.pop(uid, None)
            held = sum(each.nbytes for item in shard.store.items() for each in shard.store.dump(item).values())
            if {*shard.applied} - {uid} or not {*shard.clocks.at} <= {uid} or shard._early or held > KEPT:
                raise RuntimeError(f"{words} has changed what is another's")
            more = threading.active_count() - threads
            if shard.generation != generation or len(shard.waiting) > say.HEARD or more > 9:
                raise RuntimeError(f"{words} costs more than it may")

        w = [What(1, 0, None), What(0, 0, np.arange(3))]
        said = [
            say.Hello(generation, uid), say.Push(generation, uid, 1, Change(1, 0, None, np.ones(16, np.float32))),
            say.Push(generation, uid, 1, Change(0, 0, np.arange(3), np.ones(12, np.float32))),
            say.Push(generation, uid, 1, say.Clock(1)), *(say.Pull(generation, uid, 1, 0, each) for each in w),
            client._heads._worker, say.Begin(generation), say.At(generation, 1), say.Applied(generation, 1),
            say.Item(generation, (1, 0), {"values": np.ones(16, np.float32)}),
            say.Filled(generation, 1, {1: 1}, {1: 1}),
        ]  # fmt: skip
        whole = []
        for each in said:
            frame = framed(0, each)
            rest = b"".join(part.tobytes() for part in frame[1:] if part is not None)
            whole.append((type(each).__name__, np.array(frame.words, np.int64).tobytes() + rest, take, other_words))
        yield whole
        shard.applied.clear()
        client._leave(said=False)
        stack.pop_all()


@contextlib.contextmanager
def words(place: Path) -> Iterator[list[Made]]:
    """Words of members about views and generations."""
    mine = views.MemberInfo(1, True, "tcp:127.0.0.1:1", {"0": "head"}, 1, "w: a table", ["async", 0], True)
    newcomer = mine._replace(uid=2, has={}, viewed=False)

    def view(path: Path) -> None:
        word = json.loads(path.read_bytes())
        for previous in ([0, None], [None, None]):
            all_ = [list(mine), word]
            wrong = views.refused(all_, previous)
            said = [each for rank, each in enumerate(map(views.read, all_)) if each is not None and rank not in wrong]
            with contextlib.suppress(hocket.Error):
                made = views.decide(3, said, "a test")
                if previous[0] is not None and made.heads != (1,):
                    raise RuntimeError(f"a newcomer has taken a shard: {made}")

    def generation(path: Path) -> None:
        me = Generations("a", Generation(0, [_seat(each) for each in "abc"], "a"))
        me.linked("b")
        with contextlib.suppress(Malformed):
            me.hear("c", _packed(path))
        if me.gone:
            raise RuntimeError(f"somebody is gone: {me.gone}")

    name = name_of(_seat("d"))
    made = of.Made((0, 1), (name,), (None, None), ((2, "dead"),))
    told = [
        *(Says(0, pack(each)) for each in (
            of.Prepare((1, 2)), of.Promise((1, 2), None, (), 1, (-1, -1), None),
            of.Promise((1, 2), None, (), 1, (0, 1), made), of.Accept((1, 2), made), of.Accepted((1, 2)),
            of.Refuse((1, 2)), of.Decided(made), of.Learn(), of.Lacks((1,)),
            of.Excludes((1,)), of.Here())),
        Says(0, pack(of.Here()), 1), Says(5, pack(of.Here()), 3), Dead("b"), Waits(_seat("d")), Gave("d"),
    ]  # fmt: skip
    rows: list[Made] = [("view", json.dumps(each).encode(), view, altered) for each in (mine, newcomer)]
    yield rows + [("generation", json.dumps(pack(each)).encode(), generation, altered) for each in told]


def _packed(path: Path) -> dict[str, Any]:
    """A message, as a link takes it."""
    message = json.loads(path.read_bytes())
    if not isinstance(message, dict):
        raise Malformed("it ends the link")
    return message


def _seat(uid: str) -> Seat:
    return Seat(uid, [["tcp", "127.0.0.1", 1]], f"the host of {uid}", 1, 2, None)


@contextlib.contextmanager
def seats(place: Path) -> Iterator[list[Made]]:
    """Seats of newcomers, and what a member does with one that makes sense."""

    def take(path: Path) -> None:
        with contextlib.suppress(Malformed):
            seat = unpack(_packed(path), FIRST["lobby"]).seat
            me = Generations("a", Generation(0, [_seat("a")], "a"))
            me.waits(seat)
            if bool(me.lobby) != makes_sense(seat):
                raise RuntimeError(f"{seat} waits, or does not")
            if me.lobby:
                for each in seat.addresses:
                    address_of(each)
                with contextlib.suppress(OSError):
                    Process(seat.pid).close()

    key = "5a" * 32
    seat = Seat(uid_of(key), [["tcp", "127.0.0.1", 1], ["unix", "/a/path"]], "a host", 1, 2, {"a": 1}, key)
    yield [("seat", json.dumps({"enter": [each]}).encode(), take, altered) for each in (seat, _seat("d"))]


@contextlib.contextmanager
def kept(place: Path) -> Iterator[list[Made]]:
    """Snapshots: the folder of each has another one, which is whole."""
    layout = Places(TABLES, 1)
    tables = Tables(layout, 0)
    tables.apply(Change(0, 0, np.arange(3), np.ones(12, np.float32)))
    place.chmod(0o700)
    state = {item: tables.dump(item) for item in tables.items()}
    snapshots.Folder(str(place)).write(layout, 0, snapshots.Book(7, {1: 2}, {1: 1}), state)
    (name,) = (each.name for each in place.iterdir())

    def take(path: Path) -> None:
        with contextlib.suppress(hocket.ArgumentError):
            snapshots.Folder(str(path.parent)).newest(layout, 0)

    def head(data: bytes, dice: random.Random) -> bytes:
        first, _, rest = data.partition(b"\n")
        return altered(first, dice) + b"\n" + rest

    data = (place / name).read_bytes()
    from support.hostile import spoilt  # it imports this

    yield [(name, data, take, spoilt), (name, data, take, head)]


KINDS = {"frames": frames, "words": words, "seats": seats, "snapshots": kept}
