"""The CUDA kernels, emulated, under sanitizers: no access is unordered or out of bounds, and mutants are caught.

ThreadSanitizer sees the emulator's fibers as threads whom only barriers, flags and streams order.  That is the order of
C++, which is close to that of the GPU's memory but not a proof of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.gpu.emulation import EMULATOR, ROOT, RUNTIME, compile_objects, link

pytestmark = pytest.mark.gpu

MAIN = EMULATOR / "meetings.cpp"
MEMORY = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# What is broken, in which file, and who must notice: the collectives that meet there.
MUTANTS = {
    "the flag is stored relaxed": (
        "flags.cuh",
        "hk_store_release(hk_flag(peers, peer, phase, peers.rank), peers.epoch);",
        "__atomic_store_n(hk_flag(peers, peer, phase, peers.rank), peers.epoch, __ATOMIC_RELAXED);",
        "12sg",
    ),
    "the flag is loaded relaxed": (
        "flags.cuh",
        "hk_load_acquire(flag) - peers.epoch",
        "__atomic_load_n(flag, __ATOMIC_RELAXED) - peers.epoch",
        "12sg",
    ),
    "the block does not meet before it signals": ("flags.cuh", "    __syncthreads(); /*", "    /*", "12sg"),
    "the block does not meet after it waited": (
        "flags.cuh",
        "return !__syncthreads_or(lost);",
        "return !lost;",
        "12sg",
    ),
    "no meeting in the middle of two shots": (
        "shots.cuh",
        "    if (!hk_meet(peers, 1))\n        return;\n",
        "",
        "2",
    ),
    "no meeting at the start of two shots": ("shots.cuh", "    if (!hk_meet(peers, 0))\n        return;\n", "", "2"),
    "no meeting otherwise": ("shots.cuh", "    if (hk_meet(peers, 0))", "    if (true)", "1s"),
    "no meeting of allgather": ("gather.cuh", "    if (!hk_meet(peers, 0))\n        return;\n", "", "g"),
    "slices are copied as a whole": (
        "shots.cuh",
        "(count - at < slice ? count - at : slice) * size);\n    if",
        "(at ? 0 : count) * size);\n    if",
        "2",
    ),
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The scheduler, which itself is never instrumented for threads."""
    files = [EMULATOR / name for name in RUNTIME]
    return compile_objects(tmp_path_factory.mktemp("runtime"), files, ("-O1", "-DEMULATOR_TSAN"))


def build(folder: Path, mutate: Callable[[Path], None], flags: tuple[str, ...], runtime: list[Path]) -> Path:
    """The program over a copy of the kernels."""
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    mutate(folder / "kernels")
    return link(folder / "meetings", [*compile_objects(folder, [MAIN], flags, include=folder), *runtime], flags)


def replace(kernels: Path, name: str, old: str, new: str) -> None:
    file = kernels / "gpu" / name
    text = file.read_text()
    assert old in text, f"{name} no longer has {old!r}"
    file.write_text(text.replace(old, new))


def run(program: Path, world: int, seed: int, how: str, windows: int = 2) -> subprocess.CompletedProcess[str]:
    # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment["TSAN_OPTIONS"] = "halt_on_error=1 exitcode=66"
    command = [program, str(world), str(seed), how, str(windows)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


THREADS = ("-O1", "-g", "-fsanitize=thread")


def test_every_access_is_ordered(tmp_path: Path, runtime: list[Path]) -> None:
    program = build(tmp_path, lambda kernels: None, THREADS, runtime)
    for world, how in [(2, "1"), (2, "2"), (2, "s"), (2, "g"), (3, "1"), (3, "2"), (3, "s"), (4, "2")]:
        done = run(program, world, world, how)
        assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stdout + done.stderr[:3000]
    for how in "1sg":  # into the window that a peer may still be reading; in two shots all have met once more
        done = run(program, 3, 1, how, windows=1)
        assert done.returncode == 66 and "data race" in done.stderr, f"{how}: {done.stdout}"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_missing_order_is_seen(mutant: str, tmp_path: Path, runtime: list[Path]) -> None:
    name, old, new, seen = MUTANTS[mutant]
    program = build(tmp_path, lambda kernels: replace(kernels, name, old, new), THREADS, runtime)
    for how in seen:
        done = run(program, 3, 1, how)
        assert done.returncode == 66, f"{how}: {done.stdout}"
        race = done.stderr.split("Location is")[0]
        assert "data race" in race and re.search(r"#\d hk_\w+", race), race[:3000]


def test_nothing_is_out_of_bounds(tmp_path: Path) -> None:
    runtime = compile_objects(tmp_path, [EMULATOR / name for name in RUNTIME], MEMORY)
    program = build(tmp_path / "real", lambda kernels: None, MEMORY, runtime)
    for how in "12sg":
        done = run(program, 3, 1, how)
        assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr[:3000]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("fold.cuh", "vectors && mine + each <= end", "vectors && mine < end", "heap-buffer-overflow"),
        ("fold.cuh", "in.at[r] + first + i);\n    if", "in.at[r] + first + i + 1);\n    if", "misaligned address"),
    ],
    ids=["overrun", "misaligned"],
)
def test_a_wrong_access_is_seen(name: str, old: str, new: str, message: str, tmp_path: Path) -> None:
    runtime = compile_objects(tmp_path, [EMULATOR / name for name in RUNTIME], MEMORY)
    (tmp_path / "wrong").mkdir()
    program = build(tmp_path / "wrong", lambda kernels: replace(kernels, name, old, new), MEMORY, runtime)
    done = run(program, 3, 1, "1")
    assert done.returncode != 0 and message in done.stderr, done.stdout + done.stderr[:3000]
