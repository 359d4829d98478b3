"""system/cuda/driver.h is NVIDIA's interface; the stand-in for the driver does what over_fake_cuda*.py say of it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.compiled import compiled
from support.gpu import stand_in as stand_in_cuda
from support.gpu.stand_in import ROOT

HERE = Path(__file__).parent


def emulator(folder: Path) -> Path:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    return compiled(folder / "small_emulator.so", [HERE / "small_emulator.c"], *flags)


def stress(folder: Path, sanitizer: list[str]) -> Path:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", "-lpthread", "-ldl"]
    return compiled(folder / "cuda_stress", [HERE / "cuda_stress.c"], *flags, *sanitizer)


def beside(folder: Path, sanitizer: list[str]) -> Path:
    """Its kernels and cuda_stress, in the stand-in's folder."""
    emulator(folder)
    stress(folder, sanitizer)
    return folder


def built(folder: Path, sanitizer: list[str]) -> Path:
    stand_in_cuda.build(folder, *sanitizer)
    return beside(folder, sanitizer)


@pytest.fixture(scope="module")
def plain(stand_in: Path) -> Path:
    return beside(stand_in, [])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the thread sanitizer."""
    # What a library that is opened late keeps for each thread is else in the heap, and the C library frees it when it
    # gives stacks back, maybe in another thread that ends: the sanitizer cannot see what orders that, and says a race.
    return built(tmp_path_factory.mktemp("watched"), ["-fsanitize=thread", "-ftls-model=initial-exec"])


def test_the_stand_in(plain: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "30"]
    with stand_in_cuda.machine(plain / "libcuda.so.1", plain / "small_emulator.so", devices=2) as env:
        command += ["--durations", "5", "-p", "fake_cuda_driver", *map(str, sorted(HERE.glob("over_fake_cuda*.py")))]
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [env.get("PYTHONPATH")])])
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=100)
        place = env["FAKE_CUDA_DIR"]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert not os.path.exists(place)


# --- by way of system/cuda/driver.h, and under sanitizers

def run(folder: Path, *job: object) -> tuple[int, str]:
    with stand_in_cuda.machine(folder / "libcuda.so.1", folder / "small_emulator.so", delay=300) as machine:
        # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
        env = {key: value for key, value in machine.items() if key != "LD_PRELOAD"}
        env |= {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
        command = [str(folder / "cuda_stress"), *map(str, job)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.gpu
def test_many_threads(watched: Path) -> None:
    status, said = run(watched, 20)
    assert (status, said) == (0, "ok\n"), said


@pytest.mark.gpu
def test_memory_is_safe(tmp_path: Path) -> None:
    folder = built(tmp_path, ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
    assert run(folder, 20) == (0, "ok\n")


@pytest.mark.gpu
def test_a_wait_that_is_missing_is_a_race(watched: Path) -> None:
    """Also where the delays happen to hide it: so it is in tests of what hocket itself queues."""
    code, said = run(watched, 5, "libcuda.so.1", "unordered")
    assert code == 66 and "data race" in said


@pytest.mark.gpu
def test_a_driver_that_is_older(plain: Path, tmp_path: Path) -> None:
    old = stand_in_cuda.build(tmp_path, "-DOLD_DRIVER")
    assert run(plain, 1, old) == (0, "no waiting for words\n")


def test_no_driver(plain: Path) -> None:
    code, said = run(plain, 1, "libnone.so.1")
    assert code == 1 and "libnone.so.1: cannot open" in said
    assert run(plain, 1, "libpthread.so.0") == (1, "libpthread.so.0 has no cuInit\n")


def test_nobody_takes_it_for_a_device(plain: Path) -> None:
    """Without the folder that a test makes, there is none."""
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    env = {key: value for key, value in os.environ.items() if key != "FAKE_CUDA_DIR"}
    env["LD_LIBRARY_PATH"] = str(plain)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "100\n"


# --- NVIDIA's header

def include() -> Path | None:
    """Where cuda.h is: that of the wheel, or of a toolkit."""
    for wheel in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "cuda.h":
                return Path(str(file.locate())).parent
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    return toolkit if (toolkit / "cuda.h").exists() else None


def said(program: Path, *flags: str) -> list[str]:
    compiled(program, [HERE / "cuda_abi.c"], "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", *flags)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_interface_is_nvidias(tmp_path: Path) -> None:
    assert include() is not None, "there is no cuda.h: pip install nvidia-cuda-runtime"
    ours = said(tmp_path / "ours")
    assert ours == said(tmp_path / "theirs", "-DSYSTEM", f"-I{include()}") and len(ours) > 70
