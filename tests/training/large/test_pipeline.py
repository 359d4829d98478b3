"""Stages that pass micro-batches on: gradients of one rank, as much kept and as long idle as their schedule says."""

from __future__ import annotations

import time
import weakref
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.errors import ArgumentError, MismatchError
from hocket.torch.training import pipeline as of_torch
from hocket.training import Mesh, Pipeline
from hocket.training.large.pipeline.cut import cut, timed
from hocket.training.large.pipeline.orders import BACKWARD, ORDERS
from hocket.training.large.stage import Chain
from support.cases import more
from support.worlds import same, spread

Array = np.ndarray[Any, Any]
WIDTH, ROWS = 6, 24


class Tanh:
    """tanh(x w), whose gradient of w is added up."""

    def __init__(self, number: int) -> None:
        self.w = np.random.default_rng(number).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        self.gradient = np.zeros_like(self.w)
        self.parameters = {"w": self.w}

    def forward(self, x: Array) -> tuple[Array, Any]:
        y = np.tanh(x @ self.w)
        return y, (x, y)

    def backward(self, dy: Array, kept: Any) -> Array:
        x, y = kept
        dz = dy * (1 - y * y)
        self.gradient += x.T @ dz
        return dz @ self.w.T  # type: ignore[no-any-return]


def data() -> tuple[Array, Array]:
    dice = np.random.default_rng(99)
    return dice.normal(size=(ROWS, WIDTH)).astype(np.float32), dice.normal(size=(ROWS, WIDTH)).astype(np.float32)


def loss_of(wanted: Array, micro: int) -> Any:
    parts = np.split(wanted, micro)

    def loss(y: Array, m: int) -> tuple[float, Array]:
        return float(((y - parts[m]) ** 2).sum() / 2), y - parts[m]

    return loss


def alone(stages: int, micro: int) -> tuple[list[Array], float]:
    """One rank: each micro-batch through all stages and back."""
    made, (x, wanted), total = [Tanh(k) for k in range(stages)], data(), 0.0
    whole = Chain(made)
    for m, part in enumerate(np.split(x, micro)):
        y, kept = whole.forward(part)
        one, dy = loss_of(wanted, micro)(y, m)
        total += one
        whole.backward(dy, kept)
    return [stage.gradient for stage in made], total


def gradients_are_those_of_one_rank(comm: Any) -> None:
    x, wanted = data()
    for micro in (1, 4, 12):
        gradients, total = alone(comm.size, micro)
        for schedule in ("gpipe", "1f1b"):
            stage = Tanh(comm.rank)
            like = np.empty((ROWS // micro, WIDTH), np.float32)
            pipe = Pipeline(stage, comm, like, micro=micro, schedule=schedule)
            for _ in range(2):
                stage.gradient[...] = 0
                found = pipe.step(x if pipe.first else None, loss_of(wanted, micro) if pipe.last else None)
                same(stage.gradient, gradients[comm.rank], f"{schedule}, {micro} micro-batches")
            assert found == (pytest.approx(total) if pipe.last else None)
            assert pipe.most == min(micro, comm.size - comm.rank if schedule == "1f1b" else micro)


def several_stages_on_a_rank(comm: Any) -> None:
    """Number rank, rank + size, ...; as on one rank."""
    x, wanted = data()
    for chunks in (2, 3):
        gradients, total = alone(chunks * comm.size, 12)
        stages = [Tanh(chunk * comm.size + comm.rank) for chunk in range(chunks)]
        pipe = Pipeline(stages, comm, np.empty((ROWS // 12, WIDTH), np.float32), micro=12, schedule="interleaved")
        found = pipe.step(x if pipe.first else None, loss_of(wanted, 12) if pipe.last else None)
        for chunk, stage in enumerate(stages):
            same(stage.gradient, gradients[chunk * comm.size + comm.rank], f"stage {chunk} of {chunks} on this rank")
        assert found == (pytest.approx(total) if pipe.last else None)
        assert pipe.most <= 2 * (comm.size - comm.rank - 1) + (chunks - 1) * comm.size + 1


class Reordered:
    """A communicator that issues what is asynchronous as late as it may, and backwards: sends behind receives."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.held: list[Held] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def send(self, *args: Any, async_op: bool) -> Held:
        return self._hold(self.comm.send, args)

    def recv(self, *args: Any, async_op: bool) -> Held:
        return self._hold(self.comm.recv, args)

    def _hold(self, call: Any, args: Any) -> Held:
        self.held.append(Held(self, call, args))
        return self.held[-1]


class Held:
    """A call that is made when the rank waits for one."""

    def __init__(self, comm: Reordered, call: Any, args: Any) -> None:
        self.comm, self.call, self.args = comm, call, args
        self.work: Any = None

    def done(self) -> bool:
        return self.work is not None and self.work.done()

    def wait(self) -> None:
        while self.comm.held:
            last = self.comm.held.pop()
            last.work = last.call(*last.args, async_op=True)
        self.work.wait()


def no_order_of_sends_is_wrong(comm: Any) -> None:
    x, wanted = data()
    gradients, _ = alone(2 * comm.size, 12)
    both: Any = Reordered(comm) if comm.rank % 2 else comm
    stages = [Tanh(comm.rank), Tanh(comm.size + comm.rank)]
    for one in (both, Reordered(comm)):
        for stage in stages:
            stage.gradient[...] = 0
        pipe = Pipeline(stages, one, np.empty((ROWS // 12, WIDTH), np.float32), micro=12, schedule="interleaved")
        pipe.step(x if pipe.first else None, loss_of(wanted, 12) if pipe.last else None)
        for chunk, stage in enumerate(stages):
            same(stage.gradient, gradients[chunk * comm.size + comm.rank], "in another order")


class Noisy(Tanh):
    """tanh(x w) with some of its elements left out, by dice that go on."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.dice = np.random.default_rng([7, number])

    def forward(self, x: Array) -> tuple[Array, Any]:
        y, kept = super().forward(x)
        mask = (self.dice.random(y.shape) > 0.5).astype(np.float32)
        return y * mask, (kept, mask)

    def backward(self, dy: Array, kept: Any) -> Array:
        return super().backward(dy * kept[1], kept[0])


class Repeatable(Noisy):
    """The dice can be put back."""

    def random_state(self) -> Any:
        return self.dice.bit_generator.state

    def set_random_state(self, state: Any) -> None:
        self.dice.bit_generator.state = state


class Counted(Tanh):
    """Counts what of its forward passes is still held."""

    held = passes = most = 0

    def forward(self, x: Array) -> tuple[Array, Any]:
        y, kept = super().forward(x)
        self.held, self.passes = self.held + 1, self.passes + 1
        self.most = max(self.most, self.held)
        ticket = Linear()
        weakref.finalize(ticket, self._let_go)
        return y, (kept, ticket)

    def _let_go(self) -> None:
        self.held -= 1

    def backward(self, dy: Array, kept: Any) -> Array:
        return super().backward(dy, kept[0])


def a_pass_is_made_again(comm: Any) -> None:
    """Gradients are equal, one pass's activations are held instead of all, and there is one forward pass more."""
    x, wanted = data()
    for kind, schedule in product((Counted, Repeatable), ("gpipe", "1f1b")):
        found = []
        for recompute in (False, True):
            stage = kind(comm.rank)
            like = np.empty((ROWS // 12, WIDTH), np.float32)
            pipe = Pipeline(stage, comm, like, micro=12, schedule=schedule, recompute=recompute)
            losses = [pipe.step(x if pipe.first else None, loss_of(wanted, 12) if pipe.last else None) for _ in "12"]
            found.append((losses, stage.gradient))
            if isinstance(stage, Counted):
                most = 12 if schedule == "gpipe" else comm.size - comm.rank
                assert (stage.most, stage.passes) == ((1, 48) if recompute else (most, 24)), (stage.most, stage.passes)
        assert found[0][0] == found[1][0]
        same(found[1][1], found[0][1], f"{kind.__name__}, {schedule}")
    pipe = Pipeline(Chain([Noisy(comm.rank)]), comm, np.empty((2, WIDTH), np.float32), micro=12, recompute=True)
    with pytest.raises((ArgumentError, hocket.PeerLostError)) as error:
        pipe.step(x if pipe.first else None, loss_of(wanted, 12) if pipe.last else None)
    if pipe.last:  # the first one to go back; the others wait for it
        assert "gave another result the second time. If it draws random numbers, give it random_st" in str(error.value)
        comm.abort(error.value)


def a_pipeline_stays_full(comm: Any) -> None:
    """Three steps of 4 micro-batches are one step of 12, with weights that are as old; also replicated."""
    x, wanted = data()
    rate = np.float32(0.05)
    mesh = Mesh(comm, {"data": 2, "pipe": comm.size // 2}) if comm.size == 4 else None
    pipes: Any = comm if mesh is None else mesh["pipe"]
    ends, losses = [], []
    for steps, drain in ((1, True), (1, False), (3, False)):
        stage = Tanh(pipes.rank)

        def update(stage: Tanh = stage) -> None:
            if mesh is not None:
                mesh["data"].allreduce(stage.gradient)
            stage.w -= rate * stage.gradient
            stage.gradient[...] = 0

        micro = 12 // steps
        like = np.empty((ROWS // 12, WIDTH), np.float32)
        pipe = Pipeline(stage, pipes, like, micro=micro, schedule="pipedream", update=update, drain=drain)
        total = 0.0
        for part, goal in zip(np.split(x, steps), np.split(wanted, steps), strict=True):
            total += pipe.step(part if pipe.first else None, loss_of(goal, micro) if pipe.last else None) or 0.0
        assert len(pipe._kept) == (0 if drain else pipes.size - pipes.rank - 1)
        if not drain:
            pipe.finish()
        ends.append(stage.w.copy())
        losses.append(total)
        assert pipe.versions is not None and pipe.versions.most == pipes.size - pipes.rank
    same(ends[1], ends[0], "one step")
    same(ends[2], ends[0], "three steps")
    assert losses[2] == pytest.approx(losses[0])
    pipe.step(x[:8] if pipe.first else None, loss_of(wanted[:8], 4) if pipe.last else None)  # it begins anew
    pipe.finish()


def weights_are_those_of_the_forward_pass(comm: Any) -> None:
    """PipeDream: micro-batch m sees on rank k the weights after update m - (K-k-1), in both its passes."""
    x, wanted = data()
    size, micro, rate = comm.size, 12, np.float32(0.05)
    made = [[Tanh(k)] for k in range(size)]  # of each rank its versions
    loss = loss_of(wanted, micro)
    for m, y in enumerate(np.split(x, micro)):
        whole = Chain([versions[max(0, m - (size - k - 1))] for k, versions in enumerate(made)])
        y, kept = whole.forward(y)
        whole.backward(loss(y, m)[1], kept)
        for versions, used in zip(made, whole.layers, strict=True):
            newer = Tanh(0)
            newer.w[...] = versions[-1].w - rate * used.gradient
            used.gradient[...] = 0
            versions.append(newer)
    stage = Tanh(comm.rank)

    def update() -> None:
        stage.w -= rate * stage.gradient
        stage.gradient[...] = 0

    like = np.empty((ROWS // micro, WIDTH), np.float32)
    pipe = Pipeline(stage, comm, like, micro=micro, schedule="pipedream", update=update)
    pipe.step(x if pipe.first else None, loss if pipe.last else None)
    same(stage.w, made[comm.rank][-1].w, "weights after all micro-batches")
    assert pipe.versions is not None and pipe.versions.most == size - comm.rank


def wrong(comm: Any) -> None:
    like, last = np.empty((2, 2), np.float32), comm.rank == comm.size - 1
    for kind, text, how in (
        (ArgumentError, "micro=0 must be at least 1", {"micro": 0}),
        (ArgumentError, "schedule='1b1f' is unknown; known: gpipe, 1f1b, interleaved, pipedream", {"schedule": "1b1f"}),
        (ArgumentError, "micro=1 must be a multiple of the", {"micro": 1, "schedule": "interleaved"}),
        (ArgumentError, 'drain=False goes with schedule="pipedream", not with', {"drain": False}),
        (MismatchError, "different recompute", {"recompute": last}),
        (ArgumentError, 'update= goes with schedule="pipedream"', {"schedule": "pipedream"}),
        (ArgumentError, "must have parameters", {"schedule": "pipedream", "update": print}),
        (MismatchError, "different micro: 4 on rank 0", {"micro": 5 if last else 4}),
        (ArgumentError, "like must be a NumPy array", {"like": torch.empty(2, 2)}),
        (ArgumentError, "like must be a NumPy array", {"like": memoryview(b"12") if last else like}),
    ):
        with pytest.raises(kind, match=text):
            Pipeline(Linear(), comm, **{"like": like, **how})
    for stages, kind, text in (
        (None if last else Tanh(0), ArgumentError, rf"stage=None must have forward.* \(on rank {comm.size - 1}\)"),
        ([Tanh(0)] * 2, ArgumentError, "2 stages on this rank"),
    ):
        with pytest.raises(kind, match=text):
            Pipeline(stages, comm, like)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="different number of stages: 2 on rank 0, 1 on rank"):
        Pipeline([Tanh(0)] * (1 if last else 2), comm, like, micro=comm.size, schedule="interleaved")
    pipe = Pipeline(Tanh(0), comm, like, micro=3)
    with pytest.raises(ArgumentError, match=r"4 rows cannot be cut into 3 micro-batches \(on rank 0\)"):
        pipe.step(np.ones((4, 2), np.float32), loss_of(np.ones((3, 2)), 3))
    with pytest.raises(ArgumentError, match=r"a float32 without rows cannot be cut into 3 micro-batches \(on rank 0\)"):
        pipe.step(np.float32(3), loss_of(np.ones((3, 2)), 3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=rf"the last stage needs loss= \(on rank {comm.size - 1}\)"):
        pipe.step(np.ones((3, 2), np.float32))


class Linear:
    """A stage without parameters that can be found."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return x, None

    def backward(self, dy: Array, kept: Any) -> Array:
        return dy


@pytest.mark.parametrize(("size", "transport"), [(3, "tcp"), (4, "threads"), *more((2, "shm"))])
def test_stages(size: int, transport: str) -> None:
    spread((
        gradients_are_those_of_one_rank, several_stages_on_a_rank, no_order_of_sends_is_wrong,
        weights_are_those_of_the_forward_pass, a_pipeline_stays_full, wrong, a_pass_is_made_again,
    ), size, transport)  # fmt: skip


def test_as_many_bytes_of_another_shape() -> None:
    """The next stage would take them for what it was promised."""
    def program(comm: Any) -> None:
        pipe = Pipeline(Linear(), comm, np.empty((4, 1), np.float32), micro=2)
        if comm.rank == 0:
            with pytest.raises(MismatchError, match=r"gives shape \(2, 2\) .* made with like of shape \(4, 1\)"):
                pipe.step(np.ones((4, 2), np.float32))
            comm.close(timeout=0.5)
        else:
            with pytest.raises(hocket.Error):
                pipe.step(loss=loss_of(np.ones((4, 1)), 2))

    with hocket.local_world(2) as world:
        world.run(program)


def ended(name: str, ranks: int, micro: int, chunks: int) -> int:
    """When the last pass ends, each taking one time, and waiting for what it needs alone."""
    lists = [[*ORDERS[name](k, ranks, micro, chunks)] for k in range(ranks)]
    done: dict[tuple[str, int, int], int] = {}
    clocks, at, last = [0] * ranks, [0] * ranks, ranks * chunks - 1
    while any(at[k] < len(lists[k]) for k in range(ranks)):
        moved = False
        for k in range(ranks):
            while at[k] < len(lists[k]):
                way, m, chunk = lists[k][at[k]]
                number = chunk * ranks + k
                before = number + 1 if way == BACKWARD else number - 1
                needed = done.get((way, before, m)) if 0 <= before <= last else 0
                if way == BACKWARD and number == last:
                    needed = done.get(("forward", number, m))
                if needed is None:
                    break
                clocks[k] = done[way, number, m] = max(clocks[k], needed) + 1
                at[k], moved = at[k] + 1, True
        assert moved, f"{name} of {ranks} ranks and {micro} micro-batches waits for ever"
    return max(clocks)


@pytest.mark.parametrize("name", ORDERS)
def test_bubbles_are_those_of_the_law(name: str) -> None:
    for ranks in range(1, 7):
        for micro in (ranks, 2 * ranks, 5 * ranks) if name == "interleaved" else (1, 2, 3, 4, 8, 32):
            for chunks in (1, 2, 3) if name == "interleaved" else (1,):
                assert ended(name, ranks, micro, chunks) == 2 * (micro * chunks + ranks - 1)
                for k in range(ranks):
                    passes = [*ORDERS[name](k, ranks, micro, chunks)]
                    ways = ("forward", "backward")
                    assert sorted(passes) == sorted(product(ways, range(micro), range(chunks)))
                    kept = np.cumsum([-1 if way == BACKWARD else 1 for way, _, _ in passes]).max()
                    ahead = 2 * (ranks - k - 1) + (chunks - 1) * ranks if name == "interleaved" else ranks - k - 1
                    assert kept == min(micro * chunks, micro if name == "gpipe" else ahead + 1)


def test_a_lost_stage_is_named() -> None:
    """The others do not wait for it."""
    def program(comm: hocket.Communicator) -> Any:
        pipe = Pipeline(Tanh(comm.rank), comm, np.empty((ROWS // 4, WIDTH), np.float32), micro=4)
        if comm.rank == 1:
            comm.abort(ValueError("out of memory"))
            return None
        x, wanted = data()
        with pytest.raises(hocket.PeerLostError) as found:
            pipe.step(x if pipe.first else None, loss_of(wanted, 4) if pipe.last else None)
        return found.value.ranks

    assert hocket.local_world(3).run(program) == [(1,), None, (1,)]


def test_a_frozen_embedding_is_a_stage_of_torch() -> None:
    """Its rows need no gradient."""
    ids, wanted = torch.tensor([1, 2, 3, 4]), torch.zeros(4, 2)

    def program(comm: hocket.Communicator) -> Any:
        rows = torch.arange(20.0).reshape(5, 4)
        linear = torch.nn.utils.skip_init(torch.nn.Linear, 4, 2)
        with torch.no_grad():
            linear.weight.fill_(0.5)
            linear.bias.zero_()
        module = linear if comm.rank else torch.nn.Embedding.from_pretrained(rows)
        pipe = Pipeline(of_torch.Stage(module), comm, np.empty((2, 4), np.float32), micro=2)
        pipe.step(ids.numpy() if pipe.first else None, of_torch.loss(torch.nn.functional.mse_loss, wanted.chunk(2)))
        y = torch.nn.functional.linear(rows[ids], weight := torch.full((2, 4), 0.5).requires_grad_())
        sum(torch.nn.functional.mse_loss(*each) for each in zip(y.chunk(2), wanted.chunk(2), strict=True)).backward()
        return comm.rank == 0 or torch.equal(linear.weight.grad, weight.grad)

    assert hocket.local_world(2).run(program) == [True, True]


def test_a_cut_is_the_best_one() -> None:
    """Beside all cuts there are."""
    dice = np.random.default_rng(7)
    for _ in range(60):
        count = int(dice.integers(1, 9))
        stages, seconds, messages = int(dice.integers(1, count + 1)), dice.random(count), dice.random(count)

        def slowest(ends: Any, seconds: Any = seconds, messages: Any = messages) -> float:
            sums = [float(seconds[a:b].sum()) for a, b in zip((0, *ends), (*ends, len(seconds)), strict=True)]
            return max(*sums, *(2 * messages[end - 1] for end in ends), 0.0)

        found = cut(seconds.tolist(), stages, messages.tolist())
        assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
        assert (found[0].start, found[-1].stop) == (0, count) and all(part.start < part.stop for part in found)
        best = min(slowest(ends) for ends in combinations(range(1, count), stages - 1))
        assert slowest([part.start for part in found[1:]]) == pytest.approx(best)
    with pytest.raises(ArgumentError, match="2 layers cannot make 3 stages"):
        cut([1, 1], 3)


class Sleeping(Linear):
    """Takes so long, in either pass."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def forward(self, x: Array) -> tuple[Array, Any]:
        time.sleep(self.seconds)
        return x, None


def test_layers_are_timed_on_the_slowest_rank() -> None:
    def program(comm: hocket.Communicator) -> Any:
        layers = [Sleeping(0.002 if comm.rank else 0.001), Sleeping(0.001), Sleeping(0.02 * comm.rank)]
        seconds = timed(layers, np.ones(2), comm, rounds=3)
        return seconds, cut(seconds, 2)

    (seconds, parts), other = hocket.local_world(2).run(program)
    assert (seconds, parts) == other
    assert seconds[0] >= 0.002 and seconds[2] >= 0.02 and parts == [slice(0, 2), slice(2, 3)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stage_of_torch_may_begin_in_place(size: int) -> None:
    """ReLU(inplace=True) behind a cut, and a loss that changes its input; the batch stays as it was."""
    x, wanted = torch.linspace(-1, 1, 16).reshape(4, 4), torch.zeros(4, 4)

    def made() -> torch.nn.Sequential:
        layers = [torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4)) for _ in range(size)]
        for i, (_, linear) in enumerate(layers):
            with torch.no_grad():
                linear.weight.copy_(torch.linspace(-0.3, 0.5 + i, 16).reshape(4, 4))
                linear.bias.fill_(0.1)
        return torch.nn.Sequential(*layers)

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (y.sub_(1) - target).square().sum()

    alone = made()
    for part in x.chunk(2):
        loss(alone(part.clone().requires_grad_() * 1), torch.zeros(2, 4)).backward()

    def program(comm: hocket.Communicator) -> bool:
        module, batch = made()[comm.rank], x.clone().numpy()
        pipe = Pipeline(of_torch.Stage(module), comm, np.empty((2, 4), np.float32), micro=2)
        pipe.step(batch if pipe.first else None, of_torch.loss(loss, wanted.chunk(2)) if pipe.last else None)
        right = [torch.equal(*pair) for pair in zip(
            (p.grad for p in module.parameters()), (p.grad for p in alone[comm.rank].parameters()), strict=True)]
        return all(right) and (batch == x.numpy()).all()

    assert hocket.local_world(size).run(program) == [True] * size


def test_a_loss_that_gives_doubles_is_named() -> None:
    """A backward pass is held to the form of its stage's input, as a forward pass to that of the next one's."""

    def program(comm: hocket.Communicator) -> str:
        x, wanted = data()
        pipe = Pipeline(Tanh(comm.rank), comm, np.empty((ROWS // 2, WIDTH), np.float32), micro=2)
        with pytest.raises((MismatchError, hocket.PeerLostError)) as found:
            pipe.step(x if pipe.first else None, lambda y, m: (0.0, y.astype(np.float64)) if pipe.last else None)
        comm.abort(found.value)
        return str(found.value)

    text = hocket.local_world(2).run(program)[1]
    assert "the backward pass of stage 1 gives shape (12, 6) and dtype float64, and stage 0 waits for" in text
    assert "the loss has given shape (12, 6) and dtype float64 as the gradient of shape (12, 6) and" in text
