"""transformers' Trainer, and accelerate's own test scripts, on hocket: real processes, CPU only."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

import pytest

from support.learning import RANKS, SIZE, main, on_hocket, ranks, start

SCRIPTS = ("test_script", "test_ops", "test_sync")
"""Scripts of accelerate.test_utils.scripts.  test_distributed_data_loop is for GPUs, where alone ranks join uneven
inputs: on CPUs it hangs on Gloo, too."""


# --- transformers


def language_model() -> Any:
    """A tiny GPT-2 with weights that all processes draw alike."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    ))  # fmt: skip


def texts() -> list[dict[str, Any]]:
    """Counting up from some token, with steps of some length."""
    import torch

    rows = [(torch.arange(12) * (1 + i % 3) + i) % 32 for i in range(64)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(backend: str, compressed: str = "") -> list[float]:
    """A Trainer's losses of 16 steps; `compressed`: how gradients travel."""
    import torch
    import torch.distributed as dist
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import hocket.torch

    class Compress(TrainerCallback):  # type: ignore[misc]
        """The recipe of docs/frameworks.md."""

        def on_train_begin(self, *args: Any, **options: Any) -> None:
            self.compressor = hocket.torch.compress(trainer.model_wrapped, compressed)

    if not dist.is_initialized():
        dist.init_process_group(backend)
    model, callback = language_model(), Compress()
    options = TrainingArguments(
        os.path.join(sys.argv[2], backend), use_cpu=True, max_steps=16, per_device_train_batch_size=4, logging_steps=1,
        learning_rate=0.03, report_to=[], disable_tqdm=True, save_strategy="no", seed=3,
    )  # fmt: skip
    trainer = Trainer(model, options, train_dataset=texts(), callbacks=[callback] if compressed else [])
    trainer.train()
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    assert dist.get_backend(trainer.model_wrapped.process_group) == backend
    assert not compressed or callback.compressor.state_dict()
    mine = torch.cat([each.detach().flatten() for each in model.parameters()])
    everyones = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(each, mine) for each in everyones), "ranks have different models"
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 16 and losses[-1] < 0.7 * losses[0], losses
    print("losses", json.dumps(losses), flush=True)
    return losses


@ranks
def trainer_on_hocket() -> None:
    trained("hocket")
    on_hocket()


@ranks
def trainer_on_gloo() -> None:
    trained("gloo")


@ranks
def trainer_compressed() -> None:
    trained("hocket", "int8")


# --- accelerate


def script(name: str) -> None:
    import importlib

    import torch.distributed as dist

    os.environ["ACCELERATE_USE_CPU"] = "true"
    dist.init_process_group("hocket")
    from accelerate import PartialState

    on_hocket()
    assert PartialState(cpu=True).num_processes == SIZE
    importlib.import_module(f"accelerate.test_utils.scripts.{name}").main()


for each in SCRIPTS:
    RANKS[f"accelerate_{each}"] = lambda each=each: script(each)


# --- the tests


def test_trainer(tmp_path: pathlib.Path) -> None:
    """The loss falls, all ranks have the same model (asserted there), and every loss is what Gloo gives."""
    losses = {}
    for name in ("trainer_on_hocket", "trainer_on_gloo", "trainer_compressed"):
        outs = start(__file__, name, tmp_path, str(tmp_path))
        losses[name] = json.loads(outs[0].split("losses ")[1].splitlines()[0])
    assert losses["trainer_on_hocket"] == pytest.approx(losses["trainer_on_gloo"], rel=1e-4)
    assert losses["trainer_compressed"] == pytest.approx(losses["trainer_on_gloo"], rel=0.1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_accelerates_own(name: str, tmp_path: pathlib.Path) -> None:
    start(__file__, f"accelerate_{name}", tmp_path, str(tmp_path))


if __name__ == "__main__":
    main()
