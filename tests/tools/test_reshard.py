"""`hocket reshard`: files as the format's description has them, written here by hand and read again by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.tools.reshard.command import main

BEYOND = b'{"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'
"""A header of an array that is not in the file."""
NAMES = {"F32": np.float32, "I64": np.int64, "BF16": np.uint16}


def write(path: Path, arrays: dict[str, tuple[str, np.ndarray, list[int] | None]]) -> None:
    """A file: of each array its dtype, its elements, and where it lies in the whole one."""
    offsets = {name: {"saved_offsets": at} for name, (_, _, at) in arrays.items() if at is not None}
    header: dict[str, Any] = {"__metadata__": {"DCP_SHARDING_INFO": json.dumps(offsets)}} if offsets else {}
    data = b""
    for name, (dtype, array, _) in arrays.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def wholes(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a folder, put together; each element is there once."""
    parts: dict[str, list[tuple[list[int], np.ndarray]]] = {}
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        head = struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8 : 8 + head]), raw[8 + head :]
        at = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
        for name, each in header.items():
            begin, end = each["data_offsets"]
            array = np.frombuffer(data[begin:end], NAMES[each["dtype"]]).reshape(each["shape"])
            parts.setdefault(name, []).append((at[name]["saved_offsets"], array))
    made = {}
    for name, some in parts.items():
        shape = [max(o[i] + a.shape[i] for o, a in some) for i in range(some[0][1].ndim)]
        made[name] = np.zeros(shape, some[0][1].dtype)
        assert sum(a.size for _, a in some) == made[name].size
        for o, a in some:
            made[name][tuple(slice(low, low + n) for low, n in zip(o, a.shape, strict=True))] = a
    return made


@pytest.mark.parametrize(("to", "axis"), [(1, 0), (2, 1), (3, 0), (5, 1)])
def test_a_checkpoint_of_four_ranks_becomes_one_of_others(to: int, axis: int, tmp_path: Path) -> None:
    """Arrays that are cut by rows, by columns or not, replicas, a scalar, and one with fewer rows than ranks."""
    w, v = np.random.default_rng(0).random((10, 6)).astype("f"), np.arange(12).reshape(2, 6)
    b, n = np.arange(3, dtype=np.uint16), np.array(7)
    (tmp_path / "in").mkdir()
    for rank, (low, high) in enumerate([(0, 3), (3, 6), (6, 8), (8, 10)]):
        own: dict[str, tuple[str, np.ndarray, list[int] | None]] = {"w": ("F32", w[low:high], [low, 0])}
        own["b"] = ("BF16", b, [0])
        if rank < 2:
            own["v"] = ("I64", v[:, 3 * rank : 3 * rank + 3], [0, 3 * rank])
        if rank == 3:
            own["n"] = ("I64", n, [])
        write(tmp_path / "in" / f"shard-{rank}.safetensors", own)
    assert main([str(tmp_path / "in"), str(tmp_path / "out"), "--to", str(to), "--axis", str(axis)]) == 0
    assert len([*(tmp_path / "out").iterdir()]) == to
    made = wholes(tmp_path / "out")
    assert sorted(made) == ["b", "n", "v", "w"]
    for name, want in {"w": w, "v": v, "b": b, "n": n}.items():
        assert np.array_equal(made[name], want), name


def test_files_with_whole_arrays(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.safetensors", {"w": ("F32", np.ones((4, 2), "f"), None)})
    write(tmp_path / "in" / "b.safetensors", {"v": ("F32", np.zeros((0, 2), "f"), None)})
    assert main([str(tmp_path / "in"), str(tmp_path / "out"), "--to", "3"]) == 0
    assert np.array_equal(wholes(tmp_path / "out")["w"], np.ones((4, 2)))


def test_what_is_wrong_is_said_and_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    words = [str(source), str(target), "--to", "2"]
    x = np.ones((2, 2), "f")
    wrong: dict[str, Any] = {
        "array 'w': nobody holds": {"w": ("F32", x, [2, 0])},
        "not a safetensors file": b"\xff" * 64,
        "its header makes no sense": struct.pack("<Q", 4) + b"[[[[",
        "array 'w' does not lie within the file": struct.pack("<Q", len(BEYOND)) + BEYOND,
    }
    for text, content in wrong.items():
        if isinstance(content, bytes):
            (source / "a.safetensors").write_bytes(content)
        else:
            write(source / "a.safetensors", {**content, "v": ("F32", x, None)})
            write(source / "b.safetensors", {"w": ("F32", x, [0, 2])})
        assert main(words) == 1, text
        assert text in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
        for path in source.iterdir():
            path.unlink()
    with pytest.raises(SystemExit):
        main(words)  # no files
    with pytest.raises(SystemExit):
        main([str(source), str(source), "--to", "2"])
