"""SparseLoCo beside an allreduce of every gradient: a small transformer that learns to write English, letter by letter.

    hocket run -n 4 -- python -m hocket.lab.outer.characters [--steps 600] [--rates 0.004,0.008] [--lr 1.5]
        [--every 15] [--density 0.5]

The text is that of Python's own help (`pydoc_data.topics`), the model has 2 layers of 64, the inner optimizer is AdamW.
Both ways see the same batches, other ones on each rank, and are trained with each of the inner learning rates: a rank's
own gradients are noisier than the average of all, so the rate that is best for one way is not best for the other.
bytes: what a rank puts on the wire.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import hocket
from hocket.lab.program import arguments
from hocket.torch.training import parameters
from hocket.training import Outer, SparseLoCo

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 16
TESTED = 64
"""Rows of LENGTH letters that tell the loss."""


def text() -> np.ndarray[Any, Any]:
    """Letters as numbers below 128, of the same topics in one order."""
    whole = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return np.frombuffer(whole.encode("ascii", "replace"), np.uint8).astype(np.int64)


class LetterModel(nn.Module):
    """Letters in, scores of the next letter out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.leave = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1))

    def forward(self, letters: Any) -> Any:
        x = self.letters(letters) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.leave(x)


def loss_of(model: nn.Module, rows: Any) -> Any:
    return nn.functional.cross_entropy(model(rows[:, :-1]).reshape(-1, 128), rows[:, 1:].reshape(-1))


def rows_of(letters: Any, dice: Any, count: int) -> Any:
    begins = dice.integers(0, len(letters) - LENGTH - 1, count)
    return torch.from_numpy(np.stack([letters[at : at + LENGTH + 1] for at in begins]))


def trained(comm: Any, steps: int, make: Any, rate: float = 2e-3) -> tuple[float, int, float]:
    """(loss, bytes that a rank sends, seconds).  `make`: the outer loop, or None: every gradient is averaged."""
    torch.manual_seed(0)
    model, letters = LetterModel(), text()
    known, kept = letters[: -len(letters) // 10], letters[-len(letters) // 10 :]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    outer: Outer | None = make(comm, parameters(model)) if make else None
    dice, sent, began, p = np.random.default_rng([5, comm.rank]), 0, time.perf_counter(), comm.size
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (0.1 if step >= 0.8 * steps else 1.0)
        optimizer.zero_grad()
        loss_of(model, rows_of(known, dice, BATCH)).backward()
        if outer is None:
            flat = torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None])
            comm.allreduce(flat, "avg", flat)
            sent += 2 * (p - 1) * 4 * flat.numel() // p
            begin = 0
            for each in model.parameters():
                each.grad = flat[begin : begin + each.numel()].view_as(each)
                begin += each.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if outer is not None and (report := outer.step()):
            sent += (p - 1) * report.bytes  # all codes go to all ranks
    if outer is not None:
        sent += sum((p - 1) * report.bytes for report in outer.finish())
    with torch.no_grad():
        loss = float(loss_of(model, rows_of(kept, np.random.default_rng(6), TESTED)))
    return loss, sent, time.perf_counter() - began


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(
        "hocket.lab.outer.characters", __doc__, argv, steps=600, every=15, density=0.5, lr=1.5, rates="0.004,0.008",
    )  # fmt: skip
    torch.set_num_threads(1)
    with hocket.init() as comm:
        ways = {"every gradient": None, f"SparseLoCo {options.density:.0%}, every {options.every}": _sparse(options)}
        rates = [float(rate) for rate in options.rates.split(",")]
        found = {f"{name}, rate {rate:g}": trained(comm, options.steps, make, rate)
                 for name, make in ways.items() for rate in rates}  # fmt: skip
        report(comm, options.steps, found)
    return 0


def _sparse(options: argparse.Namespace) -> Any:
    send, lr = f"twobits:{options.density}", options.lr
    return lambda comm, theta: SparseLoCo(comm, theta, every=options.every, lr=lr, send=send)


def report(comm: Any, steps: int, found: dict[str, tuple[float, int, float]]) -> None:
    if comm.rank:
        return
    loss, sent, _ = min(row for name, row in found.items() if name.startswith("every gradient"))
    count = sum(each.numel() for each in LetterModel().parameters())
    print(f"# {count:,} parameters, {comm.size} ranks, {steps} steps")
    print("| way | loss | beside every gradient at its best | bytes a step | fewer | s |\n|---|---|---|---|---|---|")
    for name, row in found.items():
        print(
            f"| {name} | {row[0]:.4f} | {row[0] / loss - 1:+.1%} | {row[1] / steps:,.0f} | {sent / row[1]:.0f} "
            f"| {row[2]:.0f} |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
