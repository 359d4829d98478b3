"""torch.distributed in a job that outlives its ranks: one is killed under DDP, another comes, groups are made anew."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from support import torch_ranks
from support.torch_ranks import facts
from support.worlds import PATH

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "pytorch" / "survive.py"
BEGIN = """
import signal
comm = hocket.init(elastic=True)
hocket.torch.use(comm)
"""


def test_the_group_is_made_anew_of_those_who_live(tmp_path: pathlib.Path) -> None:
    """After a loss under DDP: its backward pass raises a RuntimeError, and other groups are made anew, too."""
    source = BEGIN + """
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Linear(4, 4)
parallel, pair = DistributedDataParallel(model), dist.new_group([0, 2])
try:
    for step in range(1000):
        if step == 1 and rank == 1:  # the others have begun the first one
            os.kill(os.getpid(), signal.SIGKILL)
        parallel(torch.ones(2, 4)).sum().backward()
except RuntimeError as error:
    assert hocket.torch.is_loss(error) and "rank 1 is gone" in str(error), error
else:
    raise AssertionError("the loss was not noticed")
parallel = None  # its hooks go with it
comm = hocket.torch.renew({"was": rank})
assert not hocket.torch.is_loss(RuntimeError("of the program"))
x = torch.full((3,), float(rank))
dist.all_reduce(x)
group = dist.new_group([0, 1])
y = torch.ones(2)
dist.all_reduce(y, group=group)
DistributedDataParallel(model)(torch.ones(2, 4)).sum().backward()
assert not hocket.torch.check(model)
say(rank=dist.get_rank(), size=dist.get_world_size(), sum=x.tolist(), pair=y.tolist(), infos=comm.infos,
    lost=comm.previous_lost, own=dist.group.WORLD.comm is comm)
dist.destroy_process_group()
"""
    with torch_ranks.job(3, source, tmp_path) as job:
        ends = job.wait(90)
    for now, before in enumerate((0, 2)):
        assert ends[before].code == 0, "\n".join(end.err for end in ends)
        assert facts(ends[before]) == {
            "rank": now, "size": 2, "sum": [2.0] * 3, "pair": [2.0] * 2, "infos": [{"was": 0}, {"was": 2}],
            "lost": {"1": "dead"}, "own": True,
        }  # fmt: skip


def test_a_group_of_another_backend_cannot_be_renewed(tmp_path: pathlib.Path) -> None:
    source = """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    hocket.torch.renew()
except RuntimeError as error:
    tell(error)
hocket.torch.use(hocket.init(elastic=True))
say(backend=dist.get_backend(), generation=hocket.torch.renew().generation)
dist.destroy_process_group()
"""
    (end,) = torch_ranks.run(1, source, tmp_path)
    assert end.code == 0, end.err
    said = facts(end)
    assert "hocket.torch.use(comm)" in said["text"] and (said["backend"], said["generation"]) == ("hocket", 1)


@pytest.mark.more
def test_the_example_goes_on_when_a_rank_is_killed() -> None:
    """The others from the step at which it died; a newcomer comes in its place; all end with the same bits."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")} | {"PYTHONPATH": PATH}
    options = ["-n", "3", "--no-fork", "--elastic", "--least", "2", "--most", "3"]
    command = [sys.executable, "-m", "hocket", "run", *options, str(EXAMPLE), "--steps", "100", "--ranks", "3"]
    lines, killed = [], ""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        for line in run.stdout:
            lines.append(line)
            if not killed and (found := re.search(r"rank 1 of 3, pid (\d+): from step 0", line)):
                killed = found[1]
                os.kill(int(killed), signal.SIGKILL)
        err = run.stderr.read()
        code = run.wait(60)
    out = "".join(lines)
    assert code == 0, out + err
    # The newcomer comes while the two meet, or later.
    assert killed and re.search(r"\[2\] rank 1 of [23], pid \d+: from step \d+", out), out
    assert len(re.findall(r"rank 2 of 3, pid \d+: from step", out)) == 2, out
    ends = re.findall(r"of 3: ([\d.]+)% after (\d+) steps, weights (\w+)", out)
    assert len(ends) == 3 and len(set(ends)) == 1 and float(ends[0][0]) > 85, out
