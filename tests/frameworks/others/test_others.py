"""Frameworks on top of torch.distributed, as their users call them, with hocket below: real processes, CPU only.

Each function below `ranks` is what two ranks run; it compares numbers with one process that does the whole work.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import pytest

from support.learning import (
    RANKS,
    SIZE,
    adam,
    data,
    learned,
    loader,
    loss_of,
    main,
    network,
    on_hocket,
    ranks,
    same,
    sgd,
    start,
)  # fmt: skip

# --- Lightning


@ranks
def lightning_trainer() -> None:
    """Two epochs of a Trainer, its logged loss, a checkpoint, and a third epoch from it."""
    import lightning
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    class Learner(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, number: int) -> Any:
            loss = loss_of(self.model, batch)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return sgd(self)

    def trainer(epochs: int) -> Any:
        return lightning.Trainer(
            accelerator="cpu", devices=SIZE, strategy=DDPStrategy(process_group_backend="hocket"), max_epochs=epochs,
            use_distributed_sampler=False, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip

    rank = int(os.environ["RANK"])
    shares = torch.utils.data.DistributedSampler(data(), SIZE, rank, shuffle=False)  # the Trainer's own would shuffle
    learner, first = Learner(), trainer(2)
    first.fit(learner, loader(4, sampler=shares))
    on_hocket()
    wanted, losses = learned()
    same(learner, wanted)
    torch.testing.assert_close(first.callback_metrics["loss"].item(), sum(losses[-4:]) / 4)
    saved = os.path.join(sys.argv[2], "saved.ckpt")
    first.save_checkpoint(saved)
    again = Learner()
    trainer(3).fit(again, loader(4, sampler=shares), ckpt_path=saved)
    same(again, learned(epochs=3)[0])


@ranks
def lightning_fabric() -> None:
    """A loop of one's own, with accumulated gradients, and Fabric's collectives."""
    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator="cpu", devices=SIZE, strategy=DDPStrategy(process_group_backend="hocket"))
    fabric.launch()
    on_hocket()
    bare = network()
    model, optimizer = fabric.setup(bare, sgd(bare))
    batches = fabric.setup_dataloaders(loader(4))
    for _ in range(2):
        for number, batch in enumerate(batches):
            with fabric.no_backward_sync(model, enabled=number % 2 == 0):
                fabric.backward(loss_of(model, batch) / 2)
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    same(bare, learned(rows=16)[0])
    mine = torch.tensor([fabric.global_rank + 1.0])
    assert fabric.all_gather(mine).flatten().tolist() == [1, 2]
    assert fabric.all_reduce(mine.clone(), reduce_op="sum").item() == 3
    assert fabric.broadcast({"rank": fabric.global_rank}, src=1) == {"rank": 1}
    fabric.barrier()


@ranks
def lightning_compressed() -> None:
    """The recipe of docs/frameworks.md: gradients as 8-bit integers, from a callback."""
    import lightning
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    import hocket.torch

    class Learner(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, number: int) -> Any:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> Any:
            return sgd(self)

        def on_train_start(self) -> None:
            self.compressor = hocket.torch.compress(self.trainer.strategy.model, "int8")

    learner = Learner()
    lightning.Trainer(
        accelerator="cpu", devices=SIZE, strategy=DDPStrategy(process_group_backend="hocket"), max_epochs=2,
        use_distributed_sampler=False, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    ).fit(learner, loader(4, sampler=torch.utils.data.DistributedSampler(
        data(), SIZE, int(os.environ["RANK"]), shuffle=False)))  # fmt: skip
    on_hocket()
    nearly(learner, learner.compressor)


# --- accelerate


@ranks
def accelerate_compressed() -> None:
    """The recipe of docs/frameworks.md: gradients as 8-bit integers."""
    import torch.distributed as dist

    dist.init_process_group("hocket")
    from accelerate import Accelerator

    import hocket.torch

    accelerator = Accelerator(cpu=True)
    bare = network()
    model, optimizer, batches = accelerator.prepare(bare, sgd(bare), loader(4))
    compressor = hocket.torch.compress(model, "int8")
    for _ in range(2):
        for batch in batches:
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
    on_hocket()
    nearly(bare, compressor)
    accelerator.end_training()


def nearly(model: Any, compressor: Any) -> None:
    """It learned with compressed gradients: the same on all ranks, near what one process learns, but not that."""
    import torch
    import torch.distributed as dist

    mine = torch.cat([each.detach().flatten() for each in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(each, mine) for each in everyones), "ranks have different models"
    wanted = torch.cat([each.detach().flatten() for each in learned()[0].parameters()])
    assert 0 < (mine - wanted).abs().max() < 0.05, (mine - wanted).abs().max()
    assert compressor.state_dict(), "nothing was compressed"


@ranks
def accelerate_loop() -> None:
    """The process group is there before the Accelerator, which takes it; accumulation, gather, reduce, objects."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("hocket")
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list, gather_object

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    on_hocket()
    assert accelerator.num_processes == SIZE
    bare = network()
    model, optimizer, batches = accelerator.prepare(bare, sgd(bare), loader(4))
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
    wanted = learned(rows=16)[0]
    same(bare, wanted)
    uneven = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(13), batch_size=3))
    assert torch.cat([accelerator.gather_for_metrics(batch) for batch in uneven]).tolist() == list(range(13))
    r = accelerator.process_index
    assert accelerator.reduce(torch.tensor([r + 1.0]), "mean").item() == 1.5
    padded = accelerator.pad_across_processes(torch.ones(r + 1), pad_index=-1)
    assert padded.tolist() == ([1, -1] if r == 0 else [1, 1])
    assert gather_object([f"rank {r}"]) == ["rank 0", "rank 1"]
    assert broadcast_object_list([r + 5], from_process=1) == [6]
    accelerator.save_state(os.path.join(sys.argv[2], "state"))
    accelerator.wait_for_everyone()
    with torch.no_grad():
        for each in bare.parameters():
            each.zero_()
    accelerator.load_state(os.path.join(sys.argv[2], "state"))
    same(bare, wanted)
    accelerator.end_training()


# --- DeepSpeed


def deepspeed_begins() -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.init_distributed(dist_backend="hocket", verbose=False)
    on_hocket()
    return deepspeed


@ranks
def deepspeed_comm() -> None:
    """Its own names of the collectives."""
    import torch

    comm = deepspeed_begins().comm
    r = comm.get_rank()
    total = torch.tensor([r + 1.0])
    comm.all_reduce(total)
    assert total.item() == 3
    work = comm.all_reduce(total, op=comm.ReduceOp.MAX, async_op=True)
    work.wait()
    assert total.item() == 3
    everyones = torch.empty(4)
    comm.all_gather_into_tensor(everyones, torch.full((2,), float(r)))
    assert everyones.tolist() == [0, 0, 1, 1]
    part = torch.empty(2)
    comm.reduce_scatter_tensor(part, torch.arange(4.0) * (r + 1))
    assert part.tolist() == [[0, 3], [6, 9]][r]
    comm.broadcast(part, src=1)
    assert part.tolist() == [6, 9]
    turned = torch.empty(2)
    comm.all_to_all_single(turned, torch.tensor([10.0 * r, 10.0 * r + 1]))
    assert turned.tolist() == [r, 10 + r]
    parts = [torch.empty(1) for _ in range(SIZE)]
    comm.all_gather(parts, torch.tensor([r + 7.0]))
    assert [each.item() for each in parts] == [7, 8]
    group = comm.new_group([0, 1])
    comm.all_reduce(total, group=group)
    assert total.item() == 6
    if r == 0:
        comm.send(total, 1)
    else:
        total.zero_()
        comm.recv(total, 0)
    assert total.item() == 6
    comm.barrier()


def deepspeed_learns(stage: int, kind: Any) -> None:
    import torch

    deepspeed = deepspeed_begins()
    bare = network()
    config = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 200, "allgather_bucket_size": 200},
        "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 0.0,
    }  # fmt: skip
    engine, _, _, _ = deepspeed.initialize(model=bare, optimizer=kind(bare), config=config)
    for _ in range(2):
        for x, y in loader(8):
            share = slice(4 * engine.global_rank, 4 * engine.global_rank + 4)
            engine.backward(loss_of(engine, (x[share], y[share])))
            engine.step()
    same(bare, learned(kind)[0])
    if stage:
        states = [value.numel() for state in engine.optimizer.optimizer.state.values()
                  for value in state.values() if torch.is_tensor(value) and value.dim()]  # fmt: skip
        whole = 2 * sum(each.numel() for each in bare.parameters())
        assert 0 < sum(states) < 0.6 * whole, "the optimizer's state is divided"


@ranks
def deepspeed_zero_0() -> None:
    deepspeed_learns(0, adam)


@ranks
def deepspeed_zero_1() -> None:
    """The optimizer's state divided."""
    deepspeed_learns(1, adam)


@ranks
def deepspeed_zero_2() -> None:
    """The gradients too."""
    deepspeed_learns(2, adam)


# --- the tests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where DeepSpeed keeps the extension that it compiles when it is first used."""
    return str(tmp_path_factory.mktemp("home"))


@pytest.mark.timeout(300)
# Another file of this folder fills the same table, if pytest has read it before.
@pytest.mark.parametrize("name", [name for name, function in RANKS.items() if function.__module__ == __name__])
def test_framework(name: str, tmp_path: pathlib.Path, home: str) -> None:
    start(__file__, name, tmp_path, home)


if __name__ == "__main__":
    main()
