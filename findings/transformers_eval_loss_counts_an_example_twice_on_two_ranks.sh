#!/usr/bin/env bash
# Guess: Trainer.evaluate() of 5 examples on two ranks gives the eval_loss of one process: the last batches are filled up
# with examples that were already seen, and what comes of those is dropped again, as it is for labels and predictions.
# Seen (transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, Gloo, two ranks, batches of 2): the labels and predictions
# are those of the 5 examples, but eval_loss is 4.4 for 6.0.  A batch's mean loss stands for each of its examples: the last
# example, whose loss is 16, shares its batch with the first one again, whose loss is 0, and counts as 8.  predict()
# has the same test_loss.  A last batch that is full, or short on one process, is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 \
    accelerate==1.15.0
cat > program.py <<'PY'
import logging

import torch
import torch.distributed as dist
from transformers import PrinterCallback, Trainer, TrainingArguments

logging.disable(logging.CRITICAL)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, labels=None):
        return {"loss": (self.weight * x).mean(), "logits": self.weight * x[:, None]}


def told(predicted):
    return {"labels": predicted.label_ids.tolist(), "mean": float(predicted.predictions.mean())}


for count in 4, 5:
    data = [{"x": torch.tensor(float(i * i)), "labels": torch.tensor(i)} for i in range(count)]
    arguments = TrainingArguments("out", per_device_eval_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(Model(), arguments, eval_dataset=data, compute_metrics=told)
    trainer.remove_callback(PrinterCallback)
    found, test = trainer.evaluate(), trainer.predict(data).metrics["test_loss"]
    if arguments.process_index == 0:
        print(f"{count} examples, world {arguments.world_size}: eval_loss {found['eval_loss']:.2f}, test_loss {test:.2f}, "
              f"mean of the predictions {found['eval_mean']:.2f}, labels {found['eval_labels']}")
    right = sum(i * i for i in range(count)) / count
    wanted = 4.4 if (count, arguments.world_size) == (5, 2) else right
    assert found["eval_labels"] == [*range(count)] and abs(found["eval_mean"] - right) < 1e-5, "changed: the metrics"
    assert abs(found["eval_loss"] - wanted) < 1e-5 and abs(test - wanted) < 1e-5, "changed: the loss"
if dist.is_initialized():
    dist.destroy_process_group()
PY
export OMP_NUM_THREADS=1
env/bin/python program.py
env/bin/torchrun --standalone --nproc-per-node 2 program.py
