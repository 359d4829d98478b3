"""Every call of torch.distributed on hocket, beside Gloo: calls/, on 1 to 3 ranks."""

from __future__ import annotations

import pathlib

import pytest

from support import jobs
from support.cases import more
from support.worlds import path_to

CALLS = pathlib.Path(__file__).with_name("calls")
CHECKS = sum(path.read_text().count("\n@check\n") for path in CALLS.glob("*.py"))


@pytest.mark.parametrize(
    ("size", "transport"), [(2, "tcp"), *more((1, "shm"), (1, "tcp"), (2, "shm"), (3, "shm"), (3, "tcp"))]
)
def test_on_ranks(size: int, transport: str, tmp_path: pathlib.Path) -> None:
    source = f"import sys, torch._dynamo; sys.argv = ['calls', {str(tmp_path / 'store')!r}]; import calls.__main__"
    with jobs.Job(size, source, env={"PYTHONPATH": path_to(__file__), "HOCKET_TRANSPORT": transport}) as job:
        for end in job.wait(100):
            assert end.code == 0, end.out[-4000:] + end.err[-4000:]
            assert end.out.count("passed ") == CHECKS >= 15
