"""DDP through connections that are cut all the time ends with the bits of a training without cuts."""

from __future__ import annotations

import pytest

from support import jobs, worlds

TRAINS = """
import logging, os, sys, time, zlib
import torch
import torch.distributed as dist
import hocket.torch
from support import cutting      # it patches modules
logging.getLogger("hocket").setLevel(logging.ERROR)
every, most = float(os.environ["EVERY"]), int(os.environ["STEPS"])
torch.set_num_threads(1)
cutting.enter()
os.environ["HOCKET_TRANSPORT"] = "tcp"
store = "file://" + os.path.dirname(os.environ["HOCKET_RENDEZVOUS"][len("unix:"):]) + "/store"
dist.init_process_group("hocket", init_method=store, rank=int(os.environ["HOCKET_RANK"]), world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05)
optimizer = torch.optim.Adam(ddp.parameters())
data = torch.Generator().manual_seed(1 + dist.get_rank())
end = cutting.now_and_then(every, dist.get_rank()) if every else lambda: 0
steps, until = 0, time.monotonic() + 60
while not most or steps < most:
    if not most:
        over = torch.tensor([time.monotonic() > until])
        dist.broadcast(over, 0)
        if over:
            break
    x = torch.randn(32, 64, generator=data)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(ddp(x), x[:, :10].argmax(1)).backward()
    optimizer.step()
    steps += 1
cuts = end()
digest = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
dist.barrier()
print(steps, digest, cuts)
dist.destroy_process_group()
"""


@pytest.mark.more  # a minute with cuts, and as many steps without
@pytest.mark.timeout(300)
def test_ddp_for_a_minute_of_cuts() -> None:
    cut = [out.split() for out in jobs.run(2, TRAINS, 150, PYTHONPATH=worlds.PATH, EVERY="0.05", STEPS="0")]
    steps, digest = {(each[0], each[1]) for each in cut}.pop()
    assert [each[:2] for each in cut] == [[steps, digest]] * 2 and all(int(each[2]) > 500 for each in cut), cut
    whole = [out.split() for out in jobs.run(2, TRAINS, 150, PYTHONPATH=worlds.PATH, EVERY="0", STEPS=steps)]
    assert whole == [[steps, digest, "0"]] * 2, (cut, whole)
