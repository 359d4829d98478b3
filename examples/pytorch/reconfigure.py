"""DDP loses a rank and goes on in the same processes, by torch's own API (2.14 and later):

    python examples/pytorch/reconfigure.py        # starts three ranks, and kills one
"""

import os
import signal
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hocket.torch


def main(rank: int, folder: str, size: int = 3, steps: int = 20) -> None:
    store, members, step = dist.FileStore(f"{folder}/store", size), list(range(size)), torch.tensor(0)
    dist.init_process_group("hocket", store=store, rank=rank, world_size=size, enable_reconfigure=True)
    model, parallel = torch.nn.Linear(8, 1), None
    while step < steps:
        try:
            if parallel is None:  # at first, and after a loss: those who live meet, and take rank 0's weights
                store.set(f"{members}/{rank}", dist._get_reconfigure_handle())
                handles = [store.get(f"{members}/{each}").decode() for each in members]
                dist._reconfigure(size - len(members), handles).wait()
                dist.broadcast(step, 0)
                parallel = DistributedDataParallel(model)
                print(f"rank {dist.get_rank()} of {dist.get_world_size()} goes on at step {step}", flush=True)
            if rank == 1 and step == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            model.zero_grad()
            parallel(torch.randn(4, 8)).square().mean().backward()
        except RuntimeError as error:
            if not hocket.torch.is_loss(error):
                raise
            lost, parallel = dist.group.WORLD.comm.lost, None
            members = [each for now, each in enumerate(members) if now not in lost]
        else:
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.1 * each.grad
            step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = [torch.multiprocessing.Process(target=main, args=(rank, folder)) for rank in range(3)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    raise SystemExit(0 if [each.exitcode for each in ranks] == [0, -signal.SIGKILL, 0] else 1)
