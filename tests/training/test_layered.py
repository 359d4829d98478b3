"""LARS and LAMB step as a known implementation does, and refuse vectors of which nobody knows where layers begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import ArgumentError
from hocket.training import Adam, Lamb, Lars, Sharded

SHAPES = {"w": (2, 3), "b": (3,), "v": (2, 2, 1)}
TIMM: dict[str, tuple[Any, list[list[float]]]] = {
    "Lars": (Lars(0.5, decay=0.01, trust=0.02), [
        [-0.550795981623, -0.104796657981, 0.347191065894, 0.7510564164, 1.096932108082, 1.428266280376],
        [-1.952918145108, 2.252174597404, 0.669201538223],
        [-0.544886950226, 0.22770635656, 0.743488964133, 1.547482565614]]),
    "Lars, vectors": (Lars(0.5, decay=0.01, trust=0.02, vectors=True), [
        [-0.550795981623, -0.104796657981, 0.347191065894, 0.7510564164, 1.096932108082, 1.428266280376],
        [-0.561059653047, 0.553712130516, 1.488282262792],
        [-0.544886950226, 0.22770635656, 0.743488964133, 1.547482565614]]),
    "Lamb": (Lamb(0.02, decay=0.1), [
        [-0.553750557324, -0.108361856333, 0.343748623724, 0.755278090579, 1.090958709307, 1.417102576846],
        [-0.557485149585, 0.525506863901, 1.516318054876],
        [-0.540869426865, 0.229207988262, 0.726735394713, 1.531149698684]]),
    "Lamb, vectors": (Lamb(0.02, (0.8, 0.95), decay=0.1, vectors=True), [
        [-0.544361462069, -0.101111937543, 0.340689438754, 0.746290293718, 1.084670052375, 1.421479156003],
        [-0.554057356878, 0.545604727318, 1.470569614747],
        [-0.532811292878, 0.220871057975, 0.737146076547, 1.529074314651]]),
    "Lamb, clipped": (Lamb(0.02, decay=0.1), [
        [-0.556868867873, -0.108619955378, 0.345421394047, 0.75908392264, 1.090947083636, 1.416339407927],
        [-0.559079104864, 0.525595529449, 1.516411978342],
        [-0.544123356583, 0.234345630781, 0.719101230884, 1.535358131491]]),
}  # fmt: skip
"""The ends of these five steps by timm 1.0.31 (timm.optim.Lars with eps=0; timm.optim.Lamb with max_grad_norm=None, or
1), float64, where biases without `vectors` are a group of their own with weight_decay=0.  `lr` does not change, so that
its place beside the momentum makes no difference."""


@pytest.mark.parametrize("name", TIMM)
def test_as_timms(name: str) -> None:
    optimizer, wanted = TIMM[name]

    def program(comm: hocket.Communicator) -> None:
        theta = {name: np.linspace(-0.5, 1.5, int(np.prod(shape))).reshape(shape) for name, shape in SHAPES.items()}
        sharded = Sharded(optimizer, comm, theta, clip=1.0 if name == "Lamb, clipped" else None)
        for step in range(1, 6):
            sharded.step({
                each: np.sin(np.arange(x.size) * (k + 1) + step).reshape(x.shape) + 0.1 * x
                for k, (each, x) in enumerate(theta.items())
            })  # fmt: skip
        for each, end in zip(theta.values(), wanted, strict=True):
            np.testing.assert_allclose(each.ravel(), end, rtol=0, atol=2e-12)

    hocket.local_world(2).run(program)


def test_zeros_move_at_the_plain_rate() -> None:
    """The ratio is 1 for a layer of zeros, or without a gradient, as everywhere."""

    def program(comm: hocket.Communicator) -> None:
        for optimizer, moved in ((Lars(0.5), 0.5), (Lamb(0.5, decay=0), 0.5)):
            theta = {"zeros": np.zeros((2, 2), np.float32), "still": np.ones((2, 2), np.float32)}
            sharded = Sharded(optimizer, comm, theta)
            sharded.step({"zeros": np.ones((2, 2), np.float32), "still": np.zeros((2, 2), np.float32)})
            np.testing.assert_allclose(theta["zeros"], -moved, rtol=1e-5)
            np.testing.assert_allclose(theta["still"], 1, rtol=1e-3)

    hocket.local_world(1).run(program)


@pytest.mark.parametrize("optimizer", [Lars(0.1), Lamb()])
def test_nobody_knows_where_a_parameter_begins(optimizer: Any) -> None:
    x = np.ones(3, np.float32)
    name = type(optimizer).__name__
    with pytest.raises(ArgumentError, match=f"{name} needs to know where each .* give it to Sharded .* take Adam, SGD"):
        optimizer.apply(x, x, {each: x.copy() for each in optimizer.slots}, 1)


def test_settings_that_make_no_sense() -> None:
    for text, call in (
        ("trust=0 must be a number above 0", lambda: Lars(1.0, trust=0)),
        ("momentum=1 must be", lambda: Lars(1.0, momentum=1)),
        ("betas=1 must be", lambda: Lamb(betas=(1, 0.9))),
        ("decay=-1 must be", lambda: Lamb(decay=-1)),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()


def test_a_setting_shows_in_the_words_that_ranks_compare() -> None:
    assert repr(Lamb()) != repr(Lamb(vectors=True)) and repr(Lars(1.0)) != repr(Lars(1.0, trust=0.1)) != repr(Adam())
