"""Arbitrary packets into a channel between GPUs: refused by name, and no copy or word goes where it may not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import headers
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]


def fuzzed(program: Path, include: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    source = ROOT / "tests" / "fuzz" / "cuda_ipc_fuzz.c"
    compiled(program, [source], *FLAGS, "-fsanitize=address,undefined", f"-I{include}")
    return subprocess.run([program, str(seconds)], capture_output=True, text=True, timeout=60)


@pytest.mark.sanitize
def test_a_peer_that_says_anything(tmp_path: Path) -> None:
    done = fuzzed(tmp_path / "fuzz", ROOT, 2)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stderr


BROKEN = [
    ("offset <= r->size[number] && ", ""),
    ("k->bytes <= HK_C_SLOT_BYTES;", "1;"),
    ("k->slot >= HK_C_ALL", "0"),
    ("number < HK_R_MOST && ", ""),
    (" || (k->kind == HK_C_MEMORY && r->heard >> k->memory & 1)", ""),
    ("p->came - p->first >= HK_C_ALL || ", ""),
    (" || k->bytes - p->taken > p->left", ""),
]
HEADERS = [f"transports/cuda_ipc/{name}.h" for name in ("protocol", "reader", "registered")]


def test_what_breaks_it_still_stands() -> None:
    assert [old for old, _ in BROKEN if not headers.stands(old, *HEADERS)] == []


@pytest.mark.gpu
@pytest.mark.parametrize(("old", "new"), BROKEN, ids=range(len(BROKEN)))
def test_the_fuzzer_notices(old: str, new: str, tmp_path: Path) -> None:
    headers.broken(tmp_path, old, new, *HEADERS)
    assert fuzzed(tmp_path / "fuzz", tmp_path, 4).returncode != 0
