"""Rows in memory and in a file are the same rows, whatever was used when, and whatever fails."""

from __future__ import annotations

import errno
import os
import subprocess
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket.errors import ArgumentError
from hocket.training import SGD, Adam, Range, Rows
from hocket.training.server.shards import cold, lines
from hocket.training.server.shards.dealing import Lazy
from hocket.training.server.shards.index import Index
from hocket.training.server.shards.snapshots import Book, Folder
from hocket.training.server.shards.store import Change, Slice, Tables, What
from hocket.training.server.tables import Places
from support.worlds import same

WIDTH, KEYS = 3, 4000


def layout(room: int | None, shards: int = 1) -> Places:
    return Places({"e": Rows(WIDTH, optimizer=Adam(0.1), seed=4, room=room), "w": Range(5)}, shards)


ROOM = 1024 * layout(None).tables[0].line  # type: ignore[union-attr]


def change(dice: np.random.Generator, count: int) -> Change:
    """A push of rows, of which some come twice."""
    keys = dice.integers(0, KEYS, count)
    return Change(0, 0, keys, dice.normal(size=count * WIDTH).astype(np.float32))


def everything(tables: Tables) -> list[Any]:
    arrays = [tables.dump(item) for item in tables.items() if item[0] == 0]
    return [np.concatenate([each[name] for each in arrays]) for name in arrays[0]]


def test_rows_in_a_file_are_the_same_rows(tmp_path: Any) -> None:
    small, large = Tables(layout(ROOM), 0, str(tmp_path)), Tables(layout(None), 0)
    dice = np.random.default_rng(1)
    for step in range(60):
        push = change(dice, int(dice.integers(0, 500)))
        keys = dice.integers(0, 2 * KEYS, int(dice.integers(0, 600 if step % 7 else 3000)))
        for tables in (small, large):
            assert tables.check(push) == tables.check(What(0, 0, keys)) == ""
            tables.apply(push)
        same(small.read(What(0, 0, keys)), large.read(What(0, 0, keys)), f"step {step}")
    for mine, wanted in zip(everything(small), everything(large), strict=True):
        same(mine, wanted, "at the end")
    file = small.held[0, 0]._cold
    assert file.rows_written > 2000 and file.rows_read > 2000 and small.held[0, 0]._spent <= 1024
    assert not os.listdir(tmp_path), "the file has no name"


def test_a_snapshot_is_of_its_moment_while_pushes_go_on(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows in the file, and dealt to other shards, whose rooms are other ones."""
    monkeypatch.setattr(lines, "CHUNK", 300)
    tables, dice = Tables(layout(ROOM), 0, str(tmp_path)), np.random.default_rng(2)

    def push() -> None:
        one = change(dice, 400)
        assert not tables.check(one)
        tables.apply(one)

    for _ in range(20):
        push()
    then = everything(tables)
    calls = tables.save()

    def pushing(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (push(), call(), push())[1]

    folder = Folder(str(tmp_path / "snapshots"))
    folder.write(layout(ROOM), 0, Book(7, {}, {}), Lazy({item: pushing(call) for item, call in calls.items()}))
    tables.end_save()
    slices = [held for held in tables.held.values() if isinstance(held, Slice)]
    assert slices and not any(held.saved(0) for held in slices), "what was kept for the snapshot is let go"
    assert len(calls) > 8 and not np.array_equal(then[1], everything(tables)[1][: len(then[1])])
    found = folder.newest(layout(ROOM), 0)
    assert found is not None and found[0].order == 7
    again = Tables(layout(ROOM), 0, str(tmp_path))
    for item, arrays in found[1].items():
        again.load(item, arrays)
    for mine, wanted in zip(everything(again), then, strict=True):
        same(mine, wanted, "read")
    rows: dict[int, Any] = {}
    for shard in range(3):
        dealt = folder.newest(layout(2 * ROOM, 3), shard)
        assert dealt is not None
        part = Tables(layout(2 * ROOM, 3), shard, str(tmp_path))
        for item, arrays in dealt[1].items():
            part.load(item, arrays)
        keys, *others = everything(part)
        rows |= {key: [each[i] for each in others] for i, key in enumerate(keys.tolist())}
    assert sorted(rows) == sorted(then[0].tolist())
    for i, key in enumerate(then[0].tolist()):
        for mine, wanted in zip(rows[key], then[1:], strict=True):
            same(mine, wanted[i], f"row {key}")


def test_a_full_file_system_and_a_file_that_was_cut_change_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system is a real one, of 128 kB, where root runs this."""
    small = os.geteuid() == 0 and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)], check=False
    ).returncode
    try:
        fills_and_is_cut(tmp_path, monkeypatch, small)
    finally:
        if small:
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fills_and_is_cut(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    tables, dice = Tables(layout(ROOM), 0, str(tmp_path)), np.random.default_rng(3)
    for first in range(0, 3000, 500):
        one = Change(0, 0, np.arange(first, first + 500), dice.normal(size=1500).astype(np.float32))
        assert not tables.check(one)
        tables.apply(one)
    before = everything(tables)
    new = Change(0, 0, np.arange(5000, 5500), np.ones(1500, np.float32))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if small:
            (tmp_path / "others").write_bytes(bytes(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_bsize))
        else:
            patched.setattr(cold.os, "pwrite", full)
        why = tables.check(new)
        if small:
            (tmp_path / "others").unlink()
        assert "table 'e', rows of key" in why and "No space left" in why and str(tmp_path) in why, why
    for mine, wanted in zip(everything(tables), before, strict=True):
        same(mine, wanted, "nothing has changed")
    assert not tables.check(new), "there is room again"
    os.ftruncate(tables.held[0, 0]._cold._file.fileno(), 100)
    for count in (400, 900):
        why = tables.check(What(0, 0, np.arange(count)))
        assert "it was cut" in why and "serve again" in why, why
    many = Change(0, 0, np.arange(600), np.zeros(1800, np.float32))
    assert "600 rows of table 'e' are more than half of what its room= holds, 1024: push fewer" in tables.check(many)
    with pytest.raises(ArgumentError, match="room=1000 must hold 1024 rows"):
        Rows(4, room=1000)


def test_memory_is_bounded_by_the_room(tmp_path: Any) -> None:
    made = Places({"e": Rows(64, optimizer=SGD(1.0), room=1 << 20)}, 1)
    tables = Tables(made, 0, str(tmp_path))
    tracemalloc.start()
    try:
        for first in range(0, 60_000, 1000):
            one = Change(0, 0, np.arange(first, first + 1000), np.ones(64_000, np.float32))
            assert not tables.check(one)
            tables.apply(one)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (1 << 20) + 60_000 * 60 + (3 << 20), f"{peak} bytes for 15 MB of rows"


def test_an_index_finds_what_a_dictionary_does() -> None:
    index, known, dice = Index(), dict[int, int](), np.random.default_rng(5)
    for _ in range(40):
        keys = np.unique(dice.integers(0, 2**62, 300) // 2 ** dice.integers(0, 50))
        new = np.array([key for key in keys.tolist() if key not in known], np.int64)
        index.add(new)
        known |= {key: len(known) + i for i, key in enumerate(new.tolist())}
        asked = np.concatenate([keys, dice.integers(0, 2**62, 50)])
        assert index.find(asked).tolist() == [known.get(key, -1) for key in asked.tolist()]
    assert index.keys.tolist() == [*known] and len(index) == len(known)
