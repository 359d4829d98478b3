"""torchrun starts all ranks again when one was killed; its store then still says where the old ones were.

TORCH_RESTARTS=12 runs it so often (`make test-torch-suite`); Gloo loses 8 of 12 restarts that way.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from support.worlds import PATH

TIMES = int(os.environ.get("TORCH_RESTARTS", "1"))
DEATHS = 2 if TIMES > 1 else 1
TRAINING = """
import os, signal, sys
import torch, torch.distributed as dist
import hocket.torch
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
group = dist.new_group([0, 1])
for step in range(20):
    x = torch.ones(1000)
    dist.all_reduce(x)
    dist.all_reduce(x, group=group)
    assert x[0] == 4
    if attempt < int(sys.argv[2]) and step == 10 and rank == attempt % 2:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
print(f"finished in attempt {attempt}")
"""


@pytest.mark.more
@pytest.mark.parametrize("turn", range(TIMES))
def test_a_killed_rank_costs_one_restart(turn: int, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line += ["--max-restarts", "2", "--monitor-interval", "0.1", str(script)]
    line += [os.environ.get("BACKEND", "hocket"), str(DEATHS)]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and done.stdout.count(f"finished in attempt {DEATHS}") == 2, done.stdout + done.stderr
