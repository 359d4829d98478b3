"""Snapshots on disk: checked, read again, dealt to another number of servers, and those of earlier versions."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import shutil
import stat
import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import Adam, Client, Range, Rows, serve
from hocket.training.flat import digest
from hocket.training.server.shards import snapshots
from hocket.training.server.shards.dealing import dealt, misfit
from hocket.training.server.shards.store import Change, Tables
from hocket.training.server.tables import Places, shares
from support.worlds import same


def test_snapshots_are_checked(tmp_path: pathlib.Path) -> None:
    """The newest that is whole is read; two stay; other tables and other versions are refused."""
    folder, layout = snapshots.Folder(str(tmp_path)), Places({"w": Range(9), "e": Rows(1)}, 3)
    for order in (3, 7, 11):
        book = snapshots.Book(order, {2**47: order, 5: 1}, {5: 4})
        rows = {"keys": np.zeros(0, np.int64), "values": np.zeros((0, 1), np.float32)}
        folder.write(layout, 2, book, {(0, 0): rows, (1, 2): {"values": np.full(3, order, np.float32)}})
    names = sorted(os.listdir(tmp_path))
    assert names == ["shard-2-of-3.000000000007", "shard-2-of-3.000000000011"]
    found = folder.newest(layout, 2)
    assert found is not None and found[0] == snapshots.Book(11, {2**47: 11, 5: 1}, {5: 4})
    assert found[1][1, 2]["values"].tolist() == [11.0] * 3 and found[1][0, 0]["keys"].size == 0
    whole = (tmp_path / names[1]).read_bytes()
    for broken in (whole[:-1], whole[:-3] + b"\x7f" + whole[-2:], whole[:40], b""):
        (tmp_path / names[1]).write_bytes(broken)
        again = folder.newest(layout, 2)
        assert again is not None and again[0].order == 7
    (tmp_path / names[1]).write_bytes(whole.replace(b"shard/2", b"shard/9"))
    with pytest.raises(hocket.ArgumentError, match="version 'hocket-shard/9'; this hocket reads 'hocket-shard/2'"):
        folder.newest(layout, 2)
    (tmp_path / names[1]).write_bytes(whole)
    with pytest.raises(hocket.ArgumentError, match="other tables"):
        folder.newest(Places({"w": Range(9), "e": Rows(2)}, 3), 2)
    assert folder.newest(layout, 1) is None
    with pytest.raises(hocket.ArgumentError, match="of 3 servers, but that of shard 0 is missing, and 2 servers"):
        folder.newest(Places(layout.by_name, 2), 0)


DEALT: dict[str, Range | Rows] = {"w": Range(11, optimizer="adam", slice=16), "e": Rows(2, optimizer="momentum")}


def full(value: float) -> Tables:
    """All of the tables on one shard: an element tells where it is, and which set it is of."""
    held = Tables(Places(DEALT, 1), 0)
    for item in held.items():
        keys = None if item[0] else np.arange(40)
        for _ in range(2):
            values = held.held[item].values.size if keys is None else 80
            held.apply(Change(*item, keys, (value + np.arange(values)).astype(np.float32)))
    return held


def of_shards(held: Tables, shards: int) -> list[Tables]:
    """The same, dealt."""
    old, new = Places(DEALT, 1), Places(DEALT, shards)
    made = [Tables(new, shard) for shard in range(shards)]
    for shard, tables in enumerate(made):
        for item, arrays in dealt(old, [{item: held.dump(item) for item in held.items()}], new, shard).items():
            tables.load(item, arrays)
    return made


def written(folder: snapshots.Folder, value: float, shards: int, order: int, only: range | None = None) -> None:
    for shard in only if only is not None else range(shards):
        tables = of_shards(full(value), shards)[shard]
        state = {item: tables.dump(item) for item in tables.items()}
        folder.write(Places(DEALT, shards), shard, snapshots.Book(order, {}, {}), state)


def read(folder: snapshots.Folder, shards: int) -> list[dict[Any, Any]]:
    """Values with which all shards begin, by key or place: which elements they have, once each."""
    rows: dict[int, Any] = {}
    slices: dict[int, Any] = {}
    layout = Places(DEALT, shards)
    for shard in range(shards):
        found = folder.newest(layout, shard)
        assert found is not None
        assert misfit(layout, shard, found[1]) == ""
        for (number, part), arrays in found[1].items():
            if number == 0:
                for i, key in enumerate(arrays["keys"].tolist()):
                    assert key not in rows
                    rows[key] = {name: each[i].tolist() for name, each in arrays.items()}
            else:
                for i in range(layout.parts[1][part].end - layout.parts[1][part].first):
                    place = {name: each[i if each.size > 1 else 0].item() for name, each in arrays.items()}
                    slices[layout.parts[1][part].first + i] = place
    return [rows, slices]


def test_snapshots_are_dealt_to_another_number_of_servers(tmp_path: pathlib.Path) -> None:
    """Every row and element once, with what its optimizer keeps; and always of the newest set."""
    folder = snapshots.Folder(str(tmp_path))
    written(folder, 1.0, 2, 5)
    right = read(folder, 2)
    assert len(right[0]) == 40 and len(right[1]) == 11 and right[1][3]["steps"] == 2
    for shards in (1, 2, 3, 4, 7):
        assert read(folder, shards) == right, shards
    written(folder, 2.0, 3, 9)
    newer = read(folder, 3)
    for shards in (1, 2, 3, 4):
        assert read(folder, shards) == newer != right, f"{shards}: those of 2 are old"
    written(folder, 3.0, 2, 12, range(1))  # shard 1 has not written since: it began with what 3 had
    mixed = read(folder, 2)
    again = {key for key in mixed[0] if mixed[0][key] != newer[0][key]}
    assert again == set(np.flatnonzero(shares(np.arange(40)) % 2 == 0))
    for shards in (1, 3, 5):
        assert read(folder, shards) == mixed, shards


OLD = pathlib.Path(__file__).parent / "snapshot-1"
FIRST: dict[str, Range | Rows] = {"w": Range(5, optimizer=Adam(0.5)), "e": Rows(1, rows=9)}


def from_version_1(comm: Communicator, folder: str) -> None:
    with serve(comm, FIRST, on=range(comm.size), works=True, snapshot=folder) as server, Client(server) as client:
        if comm.rank == 0:
            w = np.float32([-0.37206838, -0.99999994, -0.9660897, -0.9355319, -0.9152987])
            same(client.pull("w"), w, "as it was saved")
            same(client.pull("e", rows=range(9)), Rows(1).began(np.arange(9)) + np.float32(100), "rows")


def test_snapshots_of_version_1(tmp_path: pathlib.Path) -> None:
    """Two servers of the first hocket have written these; the same pushes give the same values on any number now."""
    for size in (1, 2, 3):
        folder = tmp_path / str(size)
        shutil.copytree(OLD, folder)
        with hocket.local_world(size) as world:
            world.run(from_version_1, str(folder))
    os.remove(tmp_path / "1" / "shard-1.000000000007")
    for left in (tmp_path / "1").glob("*-of-*"):
        left.unlink()
    with pytest.raises(hocket.ArgumentError, match=r"hocket-shard/1\) is not of a job of 1 servers"):
        snapshots.Folder(str(tmp_path / "1")).newest(Places(FIRST, 1), 0)


def goes_on(comm: Communicator, folder: str, began: float) -> None:
    """A second job begins where the first has ended."""
    tables = {"w": Range(8), "e": Rows(2, optimizer="put")}
    if comm.rank == 0:
        server = serve(comm, tables, on=[0], clock="async", snapshot=folder)
        assert server.wait(60)
        return
    with Client(comm, tables) as client:
        same(client.pull("w"), np.full(8, began, np.float32), "at the beginning")
        client.push("w", np.ones(8))
        if began:
            same(client.pull("e", rows=[4]), np.full((1, 2), 7, np.float32), "a row")
        client.push("e", np.full((1, 2), 7.0), rows=[4])


def test_a_job_goes_on_from_a_snapshot(tmp_path: pathlib.Path) -> None:
    for began in (0.0, 1.0):
        with hocket.local_world(2) as world:
            world.run(goes_on, str(tmp_path), began)


LAYOUT = Places({"e": Rows(2, optimizer="adam", rows=9), "w": Range(4)}, 1)


def one(folder: snapshots.Folder, order: int) -> pathlib.Path:
    tables = Tables(LAYOUT, 0)
    tables.apply(Change(0, 0, np.array([7]), np.ones(2, np.float32)))
    state = {item: tables.dump(item) for item in tables.items()}
    folder.write(LAYOUT, 0, snapshots.Book(order, {5: order}, {5: 0}), state)
    return pathlib.Path(folder.path) / f"shard-0-of-1.{order:012}"


def test_a_folder_is_its_users_alone(tmp_path: pathlib.Path) -> None:
    """Files of others there are neither followed nor read, and nobody else reads what is written."""
    folder, precious = snapshots.Folder(str(tmp_path / "a" / "b")), tmp_path / "precious"
    precious.write_text("precious")
    half = tmp_path / "a" / "b" / "shard-0-of-1.000000000003~"
    half.symlink_to(precious)
    path = one(folder, 3)
    assert precious.read_text() == "precious" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.with_name("shard-0-of-1.000000000009").symlink_to(path)
    found = folder.newest(LAYOUT, 0)
    assert found is not None and found[0].order == 3, "a link is no snapshot"
    path.parent.chmod(0o777)
    with pytest.raises(hocket.ArgumentError, match="not everybody may write; it is of user .* with mode 0777"):
        snapshots.Folder(folder.path)
    if os.geteuid() == 0:
        path.parent.chmod(0o700)
        os.chown(path.parent, 65534, 65534)
        with pytest.raises(hocket.ArgumentError, match="it is of user 65534"):
            snapshots.Folder(folder.path)
    with pytest.raises(hocket.ArgumentError, match="must be a folder"):
        snapshots.Folder(str(precious))


def test_what_a_user_keeps_there_is_neither_read_nor_in_the_way(tmp_path: pathlib.Path) -> None:
    folder = snapshots.Folder(str(tmp_path))
    first = one(folder, 3)
    kept = ["shard-0.good", "shard-0.old", "shard-0-of-1.99", "shard-0-of-1.000000000003.bak"]
    kept += ["shard-0-of-1.00000000000\N{ARABIC-INDIC DIGIT THREE}"]
    for name in kept:
        shutil.copy(first, tmp_path / name)
    for order in (90, 91):  # newer by their names, and not whole: what is written next stays
        (tmp_path / f"shard-0-of-1.{order:012}").write_bytes(b"{}")
    for order in (4, 5, 6):
        one(folder, order)
    found = folder.newest(LAYOUT, 0)
    assert found is not None and found[0].order == 6
    names = set(os.listdir(tmp_path))
    assert names >= {*kept, "shard-0-of-1.000000000005", "shard-0-of-1.000000000006"}
    assert first.name not in names


def test_what_is_in_a_file_is_compared_with_the_tables(tmp_path: pathlib.Path) -> None:
    """Else the one before is taken: other dtypes, shapes and names, objects, and what is no snapshot at all."""
    folder = snapshots.Folder(str(tmp_path))
    good, path = one(folder, 3), one(folder, 4)
    head, _, data = path.read_bytes().partition(b"\n")
    said = json.loads(head)
    whole = np.frombuffer(data, np.uint8)
    rows = whole[: said["items"][0][2]]

    def item(dtype: Any, shape: Any, name: str = "values") -> np.ndarray[Any, Any]:
        text = json.dumps([[name, dtype, shape]]).encode()
        return np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(400), np.uint8)

    cases: list[tuple[dict[str, Any], Any]] = [
        ({"order": "x"}, whole), ({"applied": [[1, 2, 3]]}, whole), ({"applied": [["a", 2]]}, whole),
        ({"clocks": 7}, whole), ({"items": [[0, 0, 10**12]]}, whole), ({"items": 5}, whole),
    ]  # fmt: skip
    wrong = [("|O", [4]), ("V9", [4]), ("<f8", [4]), ("<U4", [4]), ([["a", "O"]], [4]), ("f" * 5000, [4]),
             *(("<f4", shape) for shape in ([1], [2, 2], [-1], [1 << 40], [1 << 70], [0], ["x"], [], 7))]  # fmt: skip
    for dtype, shape in wrong:
        part = item(dtype, shape)
        cases.append(({"items": [[0, 0, rows.size], [1, 0, part.size]]}, np.concatenate([rows, part])))
    part = item("<f4", [4], "other")
    cases.append(({"items": [[0, 0, rows.size], [1, 0, part.size]]}, np.concatenate([rows, part])))
    for more, body in cases:
        changed = {**said, "crc": digest(body), **more}
        path.write_bytes(json.dumps(changed).encode() + b"\n" + body.tobytes())
        try:
            found = folder.newest(LAYOUT, 0)
        except hocket.ArgumentError as error:
            assert path.name in str(error)
        else:
            assert found is not None and found[0].order == 3, more
    for text in (b"[1]\n", b"[" * 100_000 + b"\n", b"7\n"):
        path.write_bytes(text)
        found = folder.newest(LAYOUT, 0)
        assert found is not None and found[0].order == 3 and good.exists()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in (b"", head + b"\n"):  # a line without an end, and items of zeros, which take nothing on the disk
        path.write_bytes(text)
        os.truncate(path, 8 << 30)
        found = folder.newest(LAYOUT, 0)
        assert found is not None and found[0].order == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    path.unlink()
    for name in (f"shard-0-of-{10**12}.000000000009", f"shard-{10**12}.000000000009"):  # numbers that a name says
        (tmp_path / name).touch()
        with pytest.raises(hocket.ArgumentError, match=r"that of shard [01] is missing"):
            folder.newest(LAYOUT, 0)
        (tmp_path / name).unlink()


def hiccups(comm: Communicator, folder: str) -> int:
    """The folder is away while two snapshots are due."""
    server = serve(comm, {"w": Range(4)}, on=[0], works=True, snapshot=folder, every=0.05)
    with server, Client(server) as client:
        client.push("w", np.ones(4))
        os.rename(folder, folder + "-away")
        time.sleep(0.2)
        assert any(thread.name == "hocket-snapshot" for thread in threading.enumerate())
        os.rename(folder + "-away", folder)
        client.push("w", np.ones(4))
        last, until = 0, time.monotonic() + 10
        while last < server.holder.replicas[0].shard.order and time.monotonic() < until:
            last = max((int(name[-12:]) for name in os.listdir(folder) if name[-1] != "~"), default=0)
        return last


def test_a_snapshot_that_fails_is_tried_again(tmp_path: pathlib.Path) -> None:
    assert hocket.local_world(1).run(hiccups, str(tmp_path / "s"))[0] >= 3
