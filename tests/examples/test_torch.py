"""The examples for torch; every one checks its own numbers as well.

The elastic one runs under torchrun, as the first lines of all say.  The others run as torchrun's ranks would: its start
takes longer than they do.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import examples, jobs, ports
from support.examples import EXAMPLES
from support.jobs import SOURCES


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """A path that makes `import torch` know hocket, as pip does it, where only its sources are at hand."""
    about = tmp_path / "site" / "hocket-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hocket\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nhocket = hocket.torch.register:register\n")
    return os.pathsep.join([str(about.parent), SOURCES])


@pytest.mark.parametrize("first", ["torch", "hocket.torch"])
def test_either_may_be_imported_first(first: str, path: str) -> None:
    """torch, when it is imported, loads our entry point: also in the middle of our own import of torch."""
    code = f"import {first}, torch.distributed; assert 'hocket' in torch.distributed.Backend.backend_list"
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def torchrun(path: str, ranks: int, example: str, *words: str, restarts: int = 0) -> tuple[str, str]:
    """The output of an example and its complaints; it must end with 0.  --standalone takes a free port."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        "--max-restarts", str(restarts), str(EXAMPLES / "pytorch" / f"{example}.py"), *words,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    env.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.terminate()  # ends its ranks
            out, err = process.communicate()
            raise AssertionError(f"{example} does not end:\n{out}\n{err}") from None
    assert process.returncode == 0, err
    return out, err


def quiet(ranks: int, example: str) -> str:
    """The output of its ranks, started with the variables that torchrun sets; they must complain about nothing."""
    source = """
        import os, torch._dynamo, hocket.torch
        os.environ |= {"RANK": os.environ["HOCKET_RANK"], "LOCAL_RANK": os.environ["HOCKET_RANK"]}
    """
    source = textwrap.dedent(source) + examples.program(f"pytorch/{example}")
    env = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free()[0])}
    with jobs.Job(ranks, source, env=env) as job:
        ends = job.wait(100)
    assert [(end.code, end.err) for end in ends] == [(0, "")] * ranks
    return "".join(end.out for end in ends)


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers of the pattern's one match."""
    found = re.findall(pattern, text)
    assert len(found) == 1, text
    return [float(each) for each in (found[0] if isinstance(found[0], tuple) else found)]


def falls(losses: list[str], to: float) -> None:
    first, *_, last = map(float, losses)
    assert last < to < first


def test_ddp() -> None:
    out = quiet(2, "ddp")
    falls(re.findall(r"epoch +\d+: loss ([\d.]+)\n", out), 0.2)
    together, alone = numbers(r"test accuracy: ([\d.]+) % by 2 ranks, ([\d.]+) % by one process", out)
    assert together > 95 and abs(together - alone) <= 0.5
    assert "weights: the same bits on all 2 ranks" in out


@pytest.mark.more
def test_fsdp2() -> None:
    out = quiet(2, "fsdp2")
    held, count = numbers(r"rank 0 holds ([\d,]+) of ([\d,]+) parameters".replace(",", ""), out.replace(",", ""))
    assert 0.4 * count < held < 0.6 * count
    falls([*re.findall(r"loss: ([\d.]+) to ([\d.]+) in", out)[0]], 1.0)
    assert numbers(r"parameters: as after a run of one process \(largest difference (\S+)\)", out)[0] < 1e-9


@pytest.mark.more
@pytest.mark.parametrize("ranks", [2, 3])
def test_moe(ranks: int) -> None:
    out = quiet(ranks, "moe")
    table = re.findall(r"\[(\d[\d, ]*)\]", out)
    rows = [[int(each) for each in row.split(",")] for row in table]
    assert [len(row) for row in rows] == [ranks] * ranks and {sum(row) for row in rows} == {64}
    assert len({count for row in rows for count in row}) > 2, "the exchange was not uneven"
    falls([*re.findall(r"loss: ([\d.]+) to ([\d.]+) in", out)[0]], 0.5)
    assert numbers(r"gate and experts: as in a run of one process \(largest difference (\S+)\)", out)[0] < 1e-9


@pytest.mark.more
@pytest.mark.parametrize("ranks", [2, 3])
def test_pipeline(ranks: int) -> None:
    out = quiet(ranks, "pipeline")
    falls(re.findall(r"step +\d+: loss ([\d.]+)\n", out), 1.0)
    assert numbers(rf"{ranks} stages: as in a run of one process \(largest difference (\S+)\)", out)[0] < 1e-4


@pytest.mark.more
def test_elastic(path: str, tmp_path: pathlib.Path) -> None:
    """A killed rank changes nothing in the result; and the rank that lives on ends by an error, not by a signal."""
    cut = tmp_path / "cut.pt"
    with ThreadPoolExecutor() as both:
        undisturbed = both.submit(torchrun, path, 2, "elastic", str(tmp_path / "whole.pt"))
        broken, err = torchrun(path, 2, "elastic", str(cut), "--die-at", "70", restarts=2)
    whole, complaints = undisturbed.result()
    assert whole.startswith("start: step 0\n") and not complaints
    assert "rank 1 ends itself in step 70\n" in broken
    assert f"start: step 60, from {cut} (restart 1)\n" in broken
    assert "Segmentation fault" not in err, err
    results = [text.splitlines()[-2:] for text in (whole, broken)]
    assert results[0] == results[1] and "weights: SHA-256" in results[0][1]
    assert numbers(r"accuracy: ([\d.]+) % after 120 steps", whole)[0] > 95
    assert {each.name for each in tmp_path.iterdir()} == {"site", "whole.pt", "cut.pt"}
