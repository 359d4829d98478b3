"""The check of a GPU, over the stand-in for the driver: it finds what is wrong, and loses nothing to what hangs.

The kernels that meet are run by the emulator itself: the stand-in runs one launch at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.conformance.gpu_check import __main__ as gpu_check
from hocket.conformance.gpu_check import flags, kernels
from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options, table
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import by_name
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.gpu.catalogue import Kernel
from support.gpu import stand_in as stand_in_cuda
from support.gpu.emulation import OK, Emulator, modules_of
from support.gpu.stand_in import ROOT

pytestmark = pytest.mark.gpu

QUICK = [kernel for _, kernel, _ in kernels.checks() if kernels.QUICK.fullmatch(kernel.name)]


class HostDevice:
    """This process's memory as a GPU's."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.streams = 0

    def alloc(self, nbytes: int) -> int:
        room = np.zeros(nbytes + 256, np.uint8)
        self.kept.append(room)
        address = int(room.ctypes.data)
        return address + -address % 256

    def free(self, address: int) -> None:
        pass

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(to, source, nbytes)

    def synchronize(self, stream: int) -> None:
        pass

    def stream(self) -> int:
        self.streams += 1
        return self.streams - 1

    end_stream = synchronize


class Submitted:
    """The launch that Gpu.prepared gives, for the emulator."""

    def __init__(self, emulator: Emulator, kernel: Kernel, grid: int, values: Any) -> None:
        self.emulator, self.name, self.grid = emulator, kernel.name.encode(), grid
        self.parameters, self.kept = launch.arguments(kernel, *values)

    def __call__(self, stream: int = 0) -> None:
        submit = self.emulator._library.emu_submit
        assert submit(self.name, self.grid, launch.BLOCK, self.parameters, stream) == OK


class EmulatedGpu(Gpu):
    def __init__(self, emulator: Emulator) -> None:
        self.emulator, self.multiprocessors, self.seed = emulator, 8, 0
        self.device: Any = HostDevice()

    def launch(self, kernel: Kernel, grid: int, *values: Any, stream: int = 0) -> None:
        assert self.emulator.launch(kernel, grid, launch.BLOCK, *values) == OK

    def prepared(self, kernel: Kernel, grid: int, *values: Any) -> Any:
        return Submitted(self.emulator, kernel, grid, values)

    def drained(self, stream: int, seconds: float) -> str:
        self.seed += 1
        code = self.emulator.run(self.seed)
        return f"the emulator says {code}" if code else ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver and the compiler, and the kernels of --quick."""
    made = tmp_path_factory.mktemp("gpu_check")
    stand_in_cuda.nccl(made, stand_in_cuda.build(made))
    stand_in_cuda.compiler(made)
    return made


@pytest.fixture(scope="module")
def emulator(folder: Path) -> Emulator:
    return Emulator(folder, modules_of([*QUICK, *catalogue.shots("float32", "sum")]))


@pytest.fixture
def gpu(emulator: Emulator) -> EmulatedGpu:
    return EmulatedGpu(emulator)


def run(env: dict[str, str], *words: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hocket.conformance.gpu_check", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)


def found(path: Path) -> dict[str, dict[str, Finding]]:
    """Part -> name -> row."""
    parts = json.loads(path.read_text())["parts"]
    return {part: {row["name"]: Finding(**row) for row in rows} for part, rows in parts.items()}


# ------------------------------------------------------------------------------------------------ the command


def test_without_a_gpu_it_says_so(folder: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    env.pop("FAKE_CUDA_DIR", None)
    done = run(env)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("no GPU to check: ") and done.stderr.count("\n") == 1


def test_the_parts_that_need_no_peer(folder: Path, emulator: Emulator, tmp_path: Path) -> None:
    parts = "environment,kernels,bits_of_two,backend,nccl,memory"
    with stand_in_cuda.machine(folder / "libcuda.so.1", folder / "emulated.so") as env:
        done = run(env, "--quick", "--parts", parts, "--arrays", "plain,cupy", "--json", str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = found(tmp_path / "found")
    names = "environment", "kernels", "collectives, 2 ranks", "torch.distributed", "NCCL", "memory of torch and CuPy"
    assert tuple(rows) == names
    assert all(part["the part"].ok for part in rows.values())
    assert rows["environment"]["GPU"].value == "Stand-in 0"
    (reduce,) = (row for name, row in rows["kernels"].items() if name.startswith("reduce: 12 kernels"))
    assert reduce.value == "0 wrong"
    assert rows["collectives, 2 ranks"]["arrays go from GPU to GPU"].ok
    assert rows["collectives, 2 ranks"]["streams wait for"].value == "words"
    assert rows["collectives, 2 ranks"]["allreduce, plain, registered memory, every algorithm"].ok
    assert rows["collectives, 2 ranks"]["allreduce, plain, bfloat16, every algorithm"].ok
    assert rows["NCCL"]["allreduce by NCCL, 2 ranks, 1 GPU"].ok and len(rows["NCCL"]) == 8
    assert "reduce: 12 kernels" in done.stdout and done.stdout.rstrip().endswith("figure")


def test_a_rank_is_killed(folder: Path, emulator: Emulator, tmp_path: Path) -> None:
    """The others hear of it, and their streams end."""
    with stand_in_cuda.machine(folder / "libcuda.so.1", folder / "emulated.so") as env:
        run(env, "--quick", "--parts", "killed", "--largest", str(1 << 20), "--json", str(tmp_path / "found"))
    rows = found(tmp_path / "found")["a rank is killed"]
    for world in (2, 4):
        for rank in range(world - 1):
            row = rows[f"rank {rank} of {world} hears of it after"]
            assert row.ok and row.note.startswith("PeerLostError")
            assert rows[f"rank {rank} of {world}: the stream of the calls"].ok
    assert rows["the part"].ok


BAD = """
import os, subprocess, time
from hocket.conformance.gpu_check.findings import Finding

def hangs(options):
    yield Finding("left behind", subprocess.Popen(["sleep", "60"]).pid)
    time.sleep(60)

def crashes(options):
    yield Finding("before", 1, ok=True)
    os.abort()

def raises(options):
    raise ValueError("what was wrong")
    yield

def fine(options):
    print("this is no row")
    yield Finding("fine", 1.5, "us", "<= 2", True, 0.75)
"""


def test_a_part_that_hangs_or_crashes_loses_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad_parts.py").write_text(BAD)
    names = [f"bad_parts:{name}" for name in ("hangs", "crashes", "raises", "fine")]
    with stand_in_cuda.machine(folder / "libcuda.so.1") as env:
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src"), env.get("PYTHONPATH", "")])
        done = run(env, "--parts", ",".join(names), "--limit", "10", "--json", str(tmp_path / "found"))
    assert done.returncode == 2
    rows = [found(tmp_path / "found")[name] for name in names]
    ends = [(part["the part"].value, part["the part"].ok) for part in rows]
    assert ends[0] == ("not at its end after 10 s", False) and ends[1] == ("ended with -6", False)
    assert ends[2] == ("ended with 1", False) and "what was wrong" in rows[2]["the part"].note
    assert ends[3] == ("complete", True) and rows[3]["fine"].ratio == 0.75
    assert rows[1]["before"].ok, "what was said before a crash counts"
    with contextlib.suppress(FileNotFoundError):  # or it is dead, and nobody has asked for its status yet
        state = Path(f"/proc/{rows[0]['left behind'].value}/stat").read_text().rpartition(")")[2].split()[0]
        assert state in "ZX"


def test_parts_are_chosen_by_name() -> None:
    assert [part.name for part in gpu_check.chosen("kernels,NCCL")] == ["kernels", "NCCL"]
    assert len(gpu_check.chosen(None)) == len(gpu_check.PARTS)
    with pytest.raises(ArgumentError, match="--parts nothing: no such part; known: environment"):
        gpu_check.chosen("nothing")


def test_the_table() -> None:
    findings = [Finding("speed", 3.14159, "GB/s", ">= 2", True, 1.57), Finding("that", "no", ok=False, note="why")]
    text = table({"a": findings})
    lines = text.splitlines()
    assert lines[2] == "--- a" and lines[-1] == "    why"
    assert lines[3].split() == ["speed", "3.142", "GB/s", ">=", "2", "1.57", "pass"]
    assert lines[4].split() == ["that", "no", "FAIL"]


# ------------------------------------------------------------------------------------------------ what it finds


def test_every_kernel_has_a_check() -> None:
    checked = {kernel.name for _, kernel, _ in kernels.checks()}
    left = {kernel.name for kernel in catalogue.catalogue()} - checked
    assert all(name.startswith(kernels.MEETINGS) for name in left)


def wrongs(gpu: EmulatedGpu, op: str = "sum") -> Iterator[str]:
    row, rng = by_name("float32"), np.random.default_rng(0)
    return (wrong for wrong in kernels.check_reduce(row, op, kernels.Arena(gpu), rng) if wrong)


def test_a_wrong_result_is_found(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(wrongs(gpu)) == []
    other = catalogue.reduce("float32", "max")
    monkeypatch.setattr(catalogue, "reduce", lambda dtype, op: other)
    assert len(list(wrongs(gpu))) > 8


def test_a_write_beside_the_result_is_found(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = EmulatedGpu.launch

    def too_many(self: EmulatedGpu, kernel: Kernel, grid: int, *values: Any, stream: int = 0) -> None:
        inputs, out, count, k = values
        launch(self, kernel, grid, inputs, out, count + 1, k)

    monkeypatch.setattr(EmulatedGpu, "launch", too_many)
    assert any("4 bytes beside the result were written" in wrong for wrong in wrongs(gpu))


@pytest.mark.parametrize("world", flags.WORLDS)
def test_kernels_that_meet(gpu: EmulatedGpu, world: int) -> None:
    ranks = flags.Ranks(gpu, world, 4096)
    assert flags.results(ranks, ["float32"], (1, 257, 1000)) == []
    assert flags._microseconds(ranks, ranks.launches(catalogue.BARRIER, 1, lambda r: ())) > 0


def test_a_kernel_that_gives_up_is_told(gpu: EmulatedGpu) -> None:
    ranks = flags.Ranks(gpu, 2, 4096)
    launches = ranks.launches(catalogue.BARRIER, 1, lambda r: ())
    ranks.go(launches)
    assert ranks.drained() == ""
    status = np.array([launch.ABORTED << 16 | 1], np.uint32)
    gpu.device.copy(ranks.words[0], status.ctypes.data, 4, 0)
    assert ranks.drained() == "rank 0: aborted while waiting for a sign from rank 1 in phase 0"


def test_options_are_passed_on() -> None:
    told = json.loads(json.dumps(Options(True, 5, ("plain",))._asdict()))
    assert Options(**told)._replace(arrays=tuple(told["arrays"])) == Options(True, 5, ("plain",))
