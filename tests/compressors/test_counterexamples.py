"""Small problems on which a method must fail, and another must not: exact, without statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import DGC, Compressor, Method

Array = np.ndarray[Any, Any]
RATE = 0.03


def descend(comm: Communicator, c: Compressor, gradient: Callable[[Array], Array], x: Array, steps: int) -> list[Array]:
    """x after each step of gradient descent."""
    passed = []
    for _ in range(steps):
        x = x - RATE * c.allreduce(gradient(x).astype(np.float32), "x").astype(float)
        passed.append(x)
    return passed


def three_workers(comm: Communicator, method: str, feedback: bool, steps: int) -> list[Array]:
    """f_i = (a_i . x)^2 + |x|^2 / 4, whose largest partial derivatives all point the wrong way.

    Source: Beznosikov et al., "On Biased Compression for Distributed Learning", 2020, example 1.
    """
    a = np.full(3, 2.0)
    a[comm.rank] = -3

    def gradient(x: Array) -> Array:
        return 2 * (a @ x) * a + x / 2

    return descend(comm, Compressor(comm, method, feedback), gradient, np.ones(3), steps)


TOP_1 = f"topk:{1 / 3}"


def test_the_largest_element_alone_diverges() -> None:
    """By exactly 1 + 11 rate / 6 in each step."""
    xs = hocket.local_world(3).run(three_workers, TOP_1, False, 100)[0]
    lengths = np.linalg.norm([np.ones(3), *xs], axis=1)
    np.testing.assert_allclose(lengths[1:] / lengths[:-1], 1 + 11 * RATE / 6, rtol=1e-6)


@pytest.mark.parametrize("method", [TOP_1, f"ef21:{TOP_1}", f"ok{TOP_1}", f"doublesqueeze:{TOP_1}"])
def test_with_feedback_it_converges(method: str) -> None:
    x = hocket.local_world(3).run(three_workers, method, True, 500)[0][-1]
    assert x @ x < 1e-12  # what is kept is float32


def corner(comm: Communicator, method: str, feedback: bool) -> float:
    """|x1 + x2| / 2 + |x1 - x2|: the signs of its gradient never leave the line x1 + x2 = 2.

    Source: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019,
    counterexample 2.
    """

    def gradient(x: Array) -> Array:
        return np.sign(x.sum()) / 2 * np.ones(2) + np.sign(x[0] - x[1]) * np.array([1.0, -1.0])

    x = descend(comm, Compressor(comm, method, feedback), gradient, np.array([1.5, 0.5]), 1000)[-1]
    return float(abs(x.sum()) / 2 + abs(x[0] - x[1]))


def test_signs_need_feedback() -> None:
    world = hocket.local_world(1)
    assert world.run(corner, "sign", False)[0] >= 0.999
    assert world.run(corner, "sign", True)[0] < 0.1


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_dense_dgc_is_momentum(masking: bool, nesterov: bool) -> None:
    """Where all is sent, it is SGD with momentum; and without, if what was sent loses its own."""

    def check(comm: Communicator) -> None:
        c = Compressor(comm, DGC(1.0, 0.9, nesterov=nesterov, masking=masking), feedback=False)
        u = np.zeros(50)
        for step in range(20):
            given = [np.random.default_rng([r, step]).standard_normal(50).astype(np.float32) for r in range(comm.size)]
            mean = np.mean(given, 0, dtype=float)
            kept = 0 * u if masking else u
            u = 0.9 * (kept + mean) if nesterov else 0.9 * kept + mean
            came = c.allreduce(given[comm.rank].copy(), "x")
            np.testing.assert_allclose(came, u + mean if nesterov else u, atol=1e-5)

    hocket.local_world(2).run(check)


def test_dgc_warms_up_clips_and_keeps_what_it_has_not_sent() -> None:
    def check(comm: Communicator) -> None:
        c = Compressor(comm, DGC(0.02, 0.5, clip=1.0, warmup=(0.5, 0.25), every=2, masking=False))
        u, came, sent = np.zeros(100), np.zeros(100), []
        waited = np.zeros(100)
        for step in range(6):
            x = np.random.default_rng([step]).standard_normal(100).astype(np.float32)
            u = 0.5 * u + x / np.linalg.norm(x) / np.sqrt(comm.size)
            waited += u
            got = c.allreduce(x, "x")
            came += got
            sent.append(np.count_nonzero(got))
        assert sent == [50, 50, 25, 25, 2, 2]
        np.testing.assert_allclose(came + c.state_dict()["entries"]["x"]["kept"]["v"], waited, atol=1e-5)

    hocket.local_world(2).run(check)


def test_bad_parameters_are_told() -> None:
    for make, text in (
        (lambda: DGC(0.0), "a density must be above 0"),
        (lambda: DGC(momentum=1.0), r"momentum=1.0 must be in \[0, 1\)"),
        (lambda: Compressor(None, "ef21:nothing"), "'nothing' is not a method"),
    ):
        made: Callable[[], Method | Compressor] = make
        with pytest.raises(hocket.ArgumentError, match=text):
            made()
