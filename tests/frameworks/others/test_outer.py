"""Outer loops in Lightning's and Hugging Face's Trainers: each rank trains alone, and averages every few steps."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import pytest

from support import jobs
from support.learning import RANKS, data, loss_of, main, network, ranks, sgd, start
from support.worlds import PATH

EVERY, EPOCHS = 2, 2


def averaged(size: int) -> Any:
    """The average that all ranks must come to, in one process: network after network."""
    import torch

    models = [network() for _ in range(size)]
    optimizers = [sgd(model) for model in models]
    steps = 0
    for _ in range(EPOCHS):
        for batches in zip(*(shard(r, size) for r in range(size)), strict=True):
            for model, optimizer, batch in zip(models, optimizers, batches, strict=True):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
            steps += 1
            if steps % EVERY == 0:
                with torch.no_grad():
                    for several in zip(*(model.parameters() for model in models), strict=True):
                        mean = torch.stack(list(several)).mean(0)
                        [each.copy_(mean) for each in several]
    return models[0]


def shard(rank: int, size: int) -> Any:
    import torch

    rows = torch.utils.data.Subset(data(), range(rank, 32, size))
    return torch.utils.data.DataLoader(rows, batch_size=4)


def module_of_lightning() -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, at: int) -> Any:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return sgd(self.net)

    return Module()


@ranks
def lightning() -> None:
    import torch
    from lightning.pytorch import Trainer

    import hocket
    from hocket.torch.training.lightning import OuterCallback
    from hocket.training import LocalSGD

    place = pathlib.Path(sys.argv[2])
    with hocket.init() as comm:
        options: Any = {
            "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
            "enable_model_summary": False, "enable_checkpointing": False,
        }  # fmt: skip

        def trained(epochs: int, ckpt: Any = None) -> tuple[Any, Any, Any]:
            callback, module = OuterCallback(lambda p: LocalSGD(comm, p, every=EVERY)), module_of_lightning()
            trainer = Trainer(max_epochs=epochs, callbacks=[callback], **options)
            trainer.fit(module, shard(comm.rank, comm.size), ckpt_path=ckpt)
            return trainer, module, callback

        trainer, module, callback = trained(EPOCHS)
        wanted = averaged(comm.size)
        for got, want in zip(module.net.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(got.detach(), want.detach())
        assert [each.step for each in callback.reports] == list(range(2, 8 // comm.size * EPOCHS + 1, 2))
        half, _, _ = trained(1)
        half.save_checkpoint(place / f"half-{comm.rank}.ckpt")
        _, again, other = trained(EPOCHS, place / f"half-{comm.rank}.ckpt")
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), module.parameters(), strict=True))
        assert other.outer.rounds == callback.outer.rounds


@ranks
def hugging_face() -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    import hocket
    from hocket.torch.training.trainer import OuterCallback
    from hocket.training import LocalSGD

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": loss_of(self.net, (x, labels))}

    import os

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]  # each rank's Trainer is alone
    with hocket.init() as comm:
        rows = [{"x": x, "labels": y} for i, (x, y) in enumerate(data()) if i % comm.size == comm.rank]
        model, callback = Model(), OuterCallback(lambda p: LocalSGD(comm, p, every=EVERY))
        arguments = TrainingArguments(
            os.path.join(sys.argv[2], f"hf-{comm.rank}"), use_cpu=True, num_train_epochs=EPOCHS, report_to=[],
            per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True, max_grad_norm=0.0,
            lr_scheduler_type="constant",
        )  # fmt: skip

        class Ordered(Trainer):  # type: ignore[misc]
            def _get_train_sampler(self, *args: Any) -> Any:
                return torch.utils.data.SequentialSampler(rows)  # type: ignore[arg-type]

        Ordered(
            model=model, args=arguments, train_dataset=rows, callbacks=[callback], optimizers=(sgd(model.net), None)
        ).train()
        wanted = averaged(comm.size)
        for got, want in zip(model.net.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(got.detach(), want.detach())
        assert len(callback.reports) == 8 // comm.size * EPOCHS // 2


OTHERS = [name for name, function in RANKS.items() if function.__module__ == __name__]  # not those of files before


@ranks
def killed() -> None:
    """Lightning's Trainer on each of four ranks, of which two are killed: a `Crew` goes on without them."""
    import os
    import signal

    from lightning.pytorch import Callback, Trainer

    import hocket
    from hocket.torch.training.lightning import OuterCallback
    from hocket.training import Crew, LocalSGD

    class Killer(Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, at: int) -> None:
            if {1: 5, 3: 11}.get(born) == trainer.global_step:
                os.kill(os.getpid(), signal.SIGKILL)

    comm = hocket.init(elastic=True)
    born, crew = comm.rank, Crew(comm)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]  # each rank's Trainer is alone
    callback, module = OuterCallback(lambda p: LocalSGD(crew, p, every=EVERY)), module_of_lightning()
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, max_epochs=10, callbacks=[Killer(), callback],
    )  # fmt: skip
    trainer.fit(module, shard(born, 4))
    same = crew.comm.check_equal({name: each.detach() for name, each in module.named_parameters()})
    assert not same, "the same bits on all"
    loss = loss_of(module.net, data()[:]).item()
    print(f"rank {born}: {crew.comm.size} left after {trainer.global_step} steps, loss {loss:.4f}")
    crew.close()


def test_lightning_goes_on_without_two_ranks_that_are_killed(tmp_path: pathlib.Path) -> None:
    env = {"PYTHONPATH": PATH, "HOME": str(tmp_path)}
    with jobs.Job(4, argv=[sys.executable, __file__, "killed", str(tmp_path)], env=env) as job:
        ends = job.wait(240)
    assert [end.code for end in ends] == [0, -9, 0, -9], [end.err[-3000:] for end in ends]
    said = [re.search(r": (\d) left after (\d+) steps, loss ([\d.]+)", ends[rank].out) for rank in (0, 2)]
    assert said[0] and said[1] and said[0].groups() == said[1].groups(), ends
    assert said[0][1] == "2" and said[0][2] == "20", ends[0].out


@pytest.mark.parametrize("name", OTHERS)
def test_outer(name: str, tmp_path: pathlib.Path) -> None:
    start(__file__, name, tmp_path, str(tmp_path))


if __name__ == "__main__":
    main()
