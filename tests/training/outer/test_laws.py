"""The methods of the outer loop are what their papers say: bit for bit, on real ranks, beside the papers' formulas."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket.compression import TwoBits
from hocket.training import (
    Average,
    DiLoCo,
    LocalSGD,
    NoLoCo,
    Outer,
    PostLocalSGD,
    Report,
    SparseLoCo,
    StreamingDiLoCo,
    digest,
)
from support.cases import more
from support.quadratic import LR, F, flat, gradient, inner, put, start
from support.worlds import same, spread

Array = np.ndarray[Any, Any]
STEPS = 12


def trained(comm: Any, make: Callable[..., Outer], **settings: Any) -> tuple[dict[str, Array], list[Report]]:
    """STEPS inner steps, and `finish`."""
    theta = start()
    outer = make(comm, theta, **settings)
    reports = []
    for step in range(STEPS):
        inner(comm.rank, step, theta)
        reports += [outer.step()]
    return theta, [each for each in (*reports, *outer.finish()) if each is not None]


def alike(comm: Any, theta: dict[str, Array], what: str) -> None:
    """All ranks hold the same bits."""
    mine = flat(theta)
    for r, each in enumerate(comm.allgather(mine[None])):
        same(each, mine, f"{what}: rank {r}")


# --- the papers' formulas, on the communicator itself


def stich(comm: Any, every: int) -> Array:
    theta = start()
    for step in range(STEPS):
        inner(comm.rank, step, theta)
        if (step + 1) % every == 0:
            for x in theta.values():
                x[...] = comm.allreduce(x.astype(float), "avg")
    return flat(theta)


def douillard(comm: Any, every: int, lr: float, momentum: float) -> Array:
    theta = start()
    phi = flat(theta)
    m = np.zeros_like(phi)
    for step in range(STEPS):
        inner(comm.rank, step, theta)
        if (step + 1) % every == 0:
            d = comm.allreduce(phi - flat(theta), "avg")
            m = F(momentum) * m + d
            phi = phi - F(lr) * (d + F(momentum) * m)
            put(theta, phi)
    return phi


# --- laws


def local_sgd_averages(comm: Any) -> None:
    for every in (1, 3, 4):
        theta, reports = trained(comm, LocalSGD, every=every)
        np.testing.assert_allclose(flat(theta), stich(comm, every), atol=2e-6)
        alike(comm, theta, f"local SGD, {every}")
        assert [each.step for each in reports] == list(range(every, STEPS + 1, every))
        assert all(each.members == tuple(range(comm.size)) for each in reports)


def every_one_is_synchronous(comm: Any) -> None:
    """Also with momentum that each rank keeps."""
    for momentum in (0.0, 0.9):
        theta, together = start(), start()
        outer = LocalSGD(comm, theta, every=1)
        speeds = [{name: np.zeros_like(x) for name, x in theta.items()} for _ in "12"]
        for step in range(STEPS):
            alone, shared = gradient(comm.rank, step, theta), gradient(comm.rank, step, together)
            for name in theta:
                speeds[0][name][...] = F(momentum) * speeds[0][name] + alone[name]
                theta[name] -= F(LR) * speeds[0][name]
                mean = comm.allreduce(shared[name], "avg")
                speeds[1][name][...] = F(momentum) * speeds[1][name] + mean
                together[name] -= F(LR) * speeds[1][name]
            outer.step()
        np.testing.assert_allclose(flat(theta), flat(together), atol=1e-5)


def diloco_is_its_formula(comm: Any) -> None:
    for every, lr, momentum in ((4, 0.7, 0.9), (3, 1.0, 0.5), (12, 0.7, 0.0)):
        theta, _ = trained(comm, DiLoCo, every=every, lr=lr, momentum=momentum)
        same(flat(theta), douillard(comm, every, lr, momentum), f"DiLoCo {every} {lr} {momentum}")


def local_sgd_is_diloco(comm: Any) -> None:
    """lr 1, momentum 0."""
    theta, _ = trained(comm, DiLoCo, every=4, lr=1.0, momentum=0.0)
    other, _ = trained(comm, LocalSGD, every=4)
    same(flat(theta), flat(other), "DiLoCo 1/0")


def diloco_is_streaming(comm: Any) -> None:
    """One fragment, no delay, no mix."""
    theta, _ = trained(comm, StreamingDiLoCo, every=4, fragments=1, delay=0, mix=0.0)
    other, _ = trained(comm, DiLoCo, every=4)
    same(flat(theta), flat(other), "streaming, 1 fragment")


def streaming_is_its_formula(comm: Any) -> None:
    """Two fragments: each has its round every 4 steps, 2 after the other's; it counts a step later."""
    theta, reports = trained(comm, StreamingDiLoCo, every=4, fragments=[["w"], ["b", "v", "c"]], delay=1, mix=0.25)
    mine, parts = start(), (("w",), ("b", "v", "c"))
    phi = [flat({name: mine[name] for name in names}) for names in parts]
    m = [np.zeros_like(each) for each in phi]
    under_way: list[tuple[int, int, Array]] = []

    def land(f: int, d: Array) -> None:
        m[f] *= F(0.9)
        m[f] += d
        phi[f] -= F(0.7) * (d + F(0.9) * m[f])
        some = {name: mine[name] for name in parts[f]}
        put(some, F(0.25) * flat(some) + F(0.75) * phi[f])

    def launched(f: int) -> Array:
        return comm.allreduce(phi[f] - flat({name: mine[name] for name in parts[f]}), "avg")

    for step in range(1, STEPS + 1):
        inner(comm.rank, step - 1, mine)
        for when, f, d in under_way:
            if when == step:
                land(f, d)
        if step % 2 == 0:
            f = (step // 2 - 1) % 2
            under_way.append((step + 1, f, launched(f)))
    land(*under_way[-1][1:])  # what `finish` does: it ends the round, and begins one of what was trained since
    if STEPS % 4 == 0:
        land(0, launched(0))
    same(flat(theta), np.concatenate(phi), "streaming")
    alike(comm, theta, "streaming")
    theta, outer = start(), None
    outer = StreamingDiLoCo(comm, theta, every=4, fragments=2, delay=1, mix=0.25)
    for step in range(3):
        inner(comm.rank, step, theta)
        before = flat(theta)
        outer.step()
    same(flat(theta)[:800], (F(0.25) * before + F(0.75) * outer.phi)[:800], "mix")
    assert [each.fragment for each in reports] == [0, 1, 0, 1, 0, 1, 0]
    assert [each.step for each in reports] == [3, 5, 7, 9, 11, 12, 12]


def post_local_changes_over(comm: Any) -> None:
    theta, reports = trained(comm, PostLocalSGD, start=3, every=4)
    assert [each.step for each in reports] == [1, 2, 3, 7, 11, 12]
    alike(comm, theta, "post-local")


def sparse_is_its_formula(comm: Any) -> None:
    """Error feedback that decays, and no momentum; and with everything sent as floats it is local SGD."""
    method = TwoBits(0.2, 16)
    theta, _ = trained(comm, SparseLoCo, every=4, lr=0.8, decay=0.9, send=method)
    mine, e = start(), np.zeros(sum(x.size for x in start().values()), np.float32)
    phi = flat(mine)
    for step in range(STEPS):
        inner(comm.rank, step, mine)
        if (step + 1) % 4 == 0:
            e = F(0.9) * e + (phi - flat(mine))
            cuts = np.cumsum([x.size for x in mine.values()])[:-1]
            sent = np.concatenate([method.decoded(method.encoded(part), part.size) for part in np.split(e, cuts)])
            e = e - sent
            every = comm.allgather(sent[None])
            phi = phi - F(0.8) * (sum(every[1:], every[0].copy()) * F(1 / comm.size))
            put(mine, phi)
    np.testing.assert_allclose(flat(theta), phi, atol=1e-6)
    alike(comm, theta, "SparseLoCo")
    other, _ = trained(comm, LocalSGD, every=4)
    whole, _ = trained(comm, SparseLoCo, every=4, send=None)
    same(flat(whole), flat(other), "SparseLoCo that sends everything")


def pairs_keep_their_mean(comm: Any) -> None:
    """The mean of a pair's phi moves by its mean D and m alone; who is alone takes its own step."""
    theta = start()
    outer = NoLoCo(comm, theta, every=2, lr=0.7, momentum=0.5)
    assert len({outer.partner(comm, number) for number in range(64)}) == comm.size - (comm.size % 2 == 0)
    for step in range(STEPS):
        inner(comm.rank, step, theta)
        if step % 2 == 0:
            outer.step()
            continue
        other = outer.partner(comm, outer.rounds + 1)
        partners = comm.share(other)
        assert [partners[r] for r in partners] == list(range(comm.size))
        assert sum(r == at for at, r in enumerate(partners)) == comm.size % 2
        before = comm.allgather(np.stack([outer.phi, flat(theta), outer.slots["momentum"]])[None])
        report = outer.step()
        assert report is not None and report.members == tuple(sorted({comm.rank, other}))
        after = comm.allgather(outer.phi[None])
        pair = [comm.rank, other]
        d, m = (before[pair, 0] - before[pair, 1]).mean(0), before[pair, 2].mean(0)
        np.testing.assert_allclose(
            after[pair].mean(0), before[pair, 0].mean(0) - F(0.7) * (F(0.5) * m + d), atol=1e-6
        )
        if other != comm.rank:
            apart = [np.linalg.norm(each[pair[0]] - each[pair[1]]) for each in (before[:, 0], after)]
            gap = 0.7 * 0.5 * np.linalg.norm(before[pair[0], 2] - before[pair[1], 2])
            np.testing.assert_allclose(apart[1], 0.3 * apart[0], atol=gap + 1e-5)
        same(flat(theta), outer.phi, "theta")


def weights_count_samples(comm: Any) -> None:
    """Ranks that train on 1, 2, 3, ... samples a step."""
    theta = start()
    outer = DiLoCo(comm, theta, every=4, lr=1.0, momentum=0.0, weight="count")
    for step in range(4):
        inner(comm.rank, step, theta)
        before = flat(theta)
        report = outer.step(comm.rank + 1)
    assert report is not None
    shares = np.arange(1, comm.size + 1) / (comm.size * (comm.size + 1) / 2)
    np.testing.assert_allclose(report.weights, shares)
    every = comm.allgather(before[None].astype(float))
    np.testing.assert_allclose(flat(theta), shares @ every, atol=1e-6)


def machines_of_other_speed(comm: Any) -> None:
    """Rank r makes r + 1 steps of one sample for a round, weighted by samples; then a round for every 8 samples."""
    theta = start()
    outer = LocalSGD(comm, theta, every=comm.rank + 1, weight="count")
    for step in range(3 * (comm.rank + 1)):
        inner(comm.rank, step, theta)
        report = outer.step()
    assert report is not None and outer.rounds == 3
    np.testing.assert_allclose(report.weights, np.arange(1, comm.size + 1) / (comm.size * (comm.size + 1) / 2))
    alike(comm, theta, "speeds")
    outer = LocalSGD(comm, theta, every=8, by="count")
    for _ in range(-(-16 // (comm.rank + 3))):
        inner(comm.rank, 0, theta)
        outer.step(comm.rank + 3)
    assert outer.rounds == 2
    alike(comm, theta, "samples")


def codecs_and_methods_send_less(comm: Any) -> None:
    n = sum(x.size for x in start().values())
    plain, _ = trained(comm, DiLoCo, every=4)
    for send, nbytes in ((None, 4 * n), ("fp16", 2 * n), ("bf16", 2 * n), ("int8", 0), ("topk:0.5", 0)):
        theta, reports = trained(comm, DiLoCo, every=4, send=send)
        alike(comm, theta, str(send))
        assert all(each.bytes == nbytes for each in reports) if nbytes else reports[0].bytes < 4 * n, send
        gap = np.linalg.norm(flat(theta) - flat(plain)) / np.linalg.norm(flat(plain))
        assert gap < (0.3 if send == "topk:0.5" else 0.03), (send, gap)
        assert gap > 0 or send is None
        streamed, _ = trained(comm, StreamingDiLoCo, every=6, fragments=2, delay=2, send=send)
        alike(comm, streamed, f"streaming {send}")


def doubles_and_halves(comm: Any) -> None:
    theta = start(np.float64)
    outer = LocalSGD(comm, theta, every=1)
    theta["w"] += 1e-12 * comm.rank
    outer.step()
    np.testing.assert_allclose(theta["w"] - start(np.float64)["w"], 1e-12 * (comm.size - 1) / 2, rtol=1e-2, atol=1e-16)
    half = start(np.float16)
    outer = LocalSGD(comm, half, every=1)
    assert outer.phi.dtype == np.float32
    half["b"] += np.float16(comm.rank)
    outer.step()
    moved = start(np.float16)["b"] + np.float16((comm.size - 1) / 2)
    np.testing.assert_allclose(half["b"], moved, rtol=2e-3, atol=2e-3)


def ranks_begin_as_rank_0(comm: Any) -> None:
    theta = {"w": np.full(3, comm.rank + 5.0, np.float32)}
    outer = Outer(comm, theta, rule=Average(), every=2)
    assert theta["w"].tolist() == [5.0] * 3 and digest(outer.phi) == digest(theta["w"])


def a_late_rank_delays_nobody(comm: Any) -> None:
    """While the last rank computes, the others go on for `delay` steps; they wait when the round has to count."""
    theta, last = start(), comm.size - 1
    outer = StreamingDiLoCo(comm, theta, every=4, fragments=1, delay=3)
    beside = comm.dup()
    for step in range(7):
        if comm.rank == last and step == 3:  # it computes until all others have come to where they have to wait
            for other in range(last):
                beside.recv(np.empty(1), other)
            time.sleep(0.1)
        inner(comm.rank, step, theta)
        if step == 6 and comm.rank < last:
            beside.send(np.ones(1), last)
        report = outer.step()
    assert report is not None and report.step == 7
    if 1 < comm.size != comm.rank + 1:
        assert report.exposed > 0.05


PROGRAMS = (
    local_sgd_averages, every_one_is_synchronous, diloco_is_its_formula, local_sgd_is_diloco, diloco_is_streaming,
    streaming_is_its_formula, post_local_changes_over, sparse_is_its_formula, pairs_keep_their_mean,
    weights_count_samples, machines_of_other_speed, codecs_and_methods_send_less, doubles_and_halves,
    ranks_begin_as_rank_0, a_late_rank_delays_nobody,
)  # fmt: skip


WORLDS = [(1, "threads"), (2, "tcp"), (3, "shm"),
          *more((4, "threads"), (5, "shm"))]  # fmt: skip


@pytest.mark.filterwarnings("ignore:outer momentum")
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_laws(size: int, transport: str) -> None:
    spread(PROGRAMS, size, transport)


def test_two_bits_are_signs_and_two_magnitudes() -> None:
    x = np.array([0, 5, -1, 0.5, 1, -7, 0, 0, 2], np.float32)
    method = TwoBits(0.5, 8)
    assert method.decoded(method.encoded(x), 9).tolist() == [0, 6, -1, 0, 1, -6, 0, 0, 2]
    assert method.encoded(np.zeros(4096, np.float32)).shape == (512, 8 + 1 + 1)


@pytest.mark.parametrize(("density", "wire"), [(0.01, 8 + 2 * 11 + 3), (0.0625, 8 + 2 * 64 + 16), (0.3, 8 + 128 + 77)])
def test_two_bits_say_which_elements_in_the_shorter_way(density: float, wire: int) -> None:
    """Indices, or above 1/16 a bit for each element; either way the largest are sent, within what a mean loses."""
    x = np.random.default_rng(3).normal(size=2000).astype(np.float32)
    method = TwoBits(density, 1024)
    made = method.decoded(method.encoded(x), 2000)
    assert method.encoded(x).shape == (2, wire)
    for part, sent in ((x[:1024], made[:1024]), (x[1024:], made[1024:])):
        chosen = np.argsort(-np.abs(part))[: np.count_nonzero(sent)]
        assert sorted(chosen) == np.flatnonzero(sent).tolist() and (np.sign(sent) == np.sign(part))[chosen].all()
