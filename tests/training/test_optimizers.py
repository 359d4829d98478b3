"""hocket's optimizers step as torch's, and a vector that is cut steps as the whole one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hocket.errors import ArgumentError
from hocket.training import SGD, Adagrad, Adam
from hocket.training.optimizers import CHUNK
from support.worlds import same

N, STEPS = CHUNK + 77, 5
Pair = tuple[Callable[[], Any], Callable[[Any], Any]]
PAIRS: dict[str, Pair] = {
    "Adam": (lambda: Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "AdamW": (lambda: Adam(lr=0.01, betas=(0.8, 0.9), decay=0.1),
              lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)),
    "SGD": (lambda: SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (lambda: SGD(0.1, 0.9, decay=0.1), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1)),
    "Nesterov": (lambda: SGD(0.1, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    "Adagrad": (lambda: Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
}  # fmt: skip


def gradients(kind: Any) -> list[np.ndarray[Any, Any]]:
    return [np.random.default_rng(step).normal(size=N).astype(kind) for step in range(STEPS)]


def stepped(optimizer: Any, kind: Any, where: slice) -> np.ndarray[Any, Any]:
    x = np.linspace(-1, 1, N, dtype=kind)[where].copy()
    slots = {name: np.zeros_like(x) for name in optimizer.slots}
    for step, g in enumerate(gradients(kind), 1):
        optimizer.apply(x, g[where].copy(), slots, step)
    return x


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_as_torchs(name: str, kind: Any) -> None:
    ours, theirs = PAIRS[name]
    p = torch.nn.Parameter(torch.from_numpy(np.linspace(-1, 1, N, dtype=kind)))
    optimizer = theirs([p])
    for g in gradients(kind):
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
    tolerance = 2e-6 if kind is np.float32 else 1e-13
    np.testing.assert_allclose(stepped(ours(), kind, slice(None)), p.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PAIRS)
def test_a_piece_has_the_bits_of_the_whole(name: str) -> None:
    optimizer = PAIRS[name][0]()
    whole = stepped(optimizer, np.float32, slice(None))
    for where in (slice(0, 5), slice(3, CHUNK + 2), slice(N - 1, N), slice(7, 7)):
        same(stepped(optimizer, np.float32, where), whole[where], f"{name} {where}")


def test_settings_that_make_no_sense() -> None:
    for text, call in (
        ("lr=0 must be a number above 0", lambda: Adam(lr=0)),
        ("betas=1 must be a number of at least 0 and below 1", lambda: Adam(betas=(0.9, 1))),
        ("momentum=-1 must be", lambda: SGD(0.1, -1)),
        ("decay=inf must be a number of at least 0", lambda: SGD(0.1, decay=float("inf"))),
        ("eps='small' must be", lambda: Adagrad(0.1, eps="small")),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match=text):
            call()
