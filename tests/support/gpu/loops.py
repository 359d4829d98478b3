"""Training on a GPU's arrays beside the same on NumPy's, by the same ranks; all of it runs in the ranks.

The bits are the same where the arithmetic is.  LISTED has what waits for the GPU and what leaves it, and nothing else
does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from hocket import on_stream
from hocket.compression import Compressor, allreduce_sparse, encode
from hocket.compression.memory import copied
from hocket.conformance.gpu_check.torch.loops import Scaled
from hocket.errors import ArgumentError, MismatchError
from hocket.extending import gpu_of
from hocket.system.cuda import driver
from hocket.training import (
    SGD,
    Adagrad,
    Adam,
    Cached,
    Client,
    ColumnParallel,
    Delayed,
    DiLoCo,
    Experts,
    Flat,
    Lamb,
    Lars,
    LocalSGD,
    NoLoCo,
    Pipeline,
    Range,
    RowParallel,
    Scheduler,
    Sharded,
    SparseLoCo,
    StreamingDiLoCo,
    serve,
)
from hocket.training import norm as norms
from support.gpu import counted
from support.gpu import ranks as gpu_ranks
from support.gpu.counted import counting

Place = Callable[[Any], Any]
LISTED = {
    "a round": {"waits": 2, "to_host": 1 + 8},  # is the fragment finite, and a digest of phi
    "a round of pairs": {"waits": 3, "to_host": 1},  # and a message
    "a norm": {"waits": 2, "to_host": 2 * 8 + 3 * 8},
    "norms of layers": {"waits": 4, "to_host": 2 * 2 * 4 * (2 * 8 + 3 * 8)},
    "a routing": {"waits": 1, "to_host": 8 * 4},  # rows of each expert
    "a message": {"waits": 2, "to_host": 0},  # until it has been copied, at both ends
}
TRIAL = {"waits": 99, "to_host": 99999}
"""A communicator's first call on GPU arrays tries what the GPU can do."""
STRIDE = 1
"""The distance between cases that are tried."""
SHAPES = {"a": (33, 7), "b": (130,), "c": (5, 3, 4), "d": (1,)}


def some(cases: Iterable[Any]) -> list[Any]:
    return [*cases][::STRIDE]


def drawn(*seed: int, scale: float = 1.0) -> dict[str, Any]:
    dice = np.random.default_rng(seed)
    return {name: (dice.standard_normal(shape) * scale).astype(np.float32) for name, shape in SHAPES.items()}


def same(got: Any, want: Any, about: str, near: bool = False) -> None:
    right = np.allclose(got, want, 1e-4, 1e-5) if near else np.array_equal(got, want)
    assert got.shape == want.shape and right, (about, np.abs(got - want).max())


def alike(read: Place, there: dict[str, Any], here: dict[str, Any], about: str, near: bool = False) -> None:
    for name, each in there.items():
        same(read(each), here[name], f"{about}, {name}", near)


def loops() -> dict[str, tuple[Any, dict[str, Any], dict[str, int]]]:
    round_ = LISTED["a round"]
    return {
        "late": (StreamingDiLoCo, {"every": 4, "momentum": 0.5, "fragments": 2, "delay": 1}, round_),
        "local SGD": (LocalSGD, {"every": 2}, round_),
        "DiLoCo": (DiLoCo, {"every": 2, "momentum": 0.5, "fragments": 2, "weight": "count"}, round_),
        "pairs": (NoLoCo, {"every": 2}, LISTED["a round of pairs"]),
        "int8": (LocalSGD, {"every": 2, "send": "int8"}, round_),
        "top-k, late": (LocalSGD, {"every": 2, "send": "topk:0.1", "delay": 1}, round_),
    }


def outer(comm: Any, place: Place, read: Place) -> None:
    for name, (kind, how, round_) in some(loops().items()):
        apart = comm.dup(), comm.dup()
        start = drawn(1)
        theta, there = start, {key: place(x) for key, x in start.items()}
        made = kind(apart[0], theta, **how), kind(apart[1], there, **how)
        assert gpu_of(made[1].phi) == 0, name
        for turn in range(7):
            change = drawn(comm.rank, turn, scale=0.1)
            for key, x in change.items():
                theta[key] -= x
                there[key] -= place(x)
            count = 1 + comm.rank if "weight" in how else 1
            first = turn < 3
            with counting(**(TRIAL if first else round_), about=name):
                there_report = made[1].step(count)
            report = made[0].step(count)
            assert (report is None) == (there_report is None), (name, turn)
            alike(read, there, theta, f"{name}, step {turn}")
        saved = [each.state_dict() for each in made]
        for key, x in saved[0]["arrays"].items():
            same(saved[1]["arrays"][key], x, f"{name}: the state's {key}")
        made[1].load_state_dict(saved[1])
        for each in made:
            each.finish()
        alike(read, there, theta, f"{name}, at the end")
        lanes = [lane for loop in made for lane in loop._lanes.values()]
        for each in (*lanes, *apart):
            each.close()
    there = {key: place(x) for key, x in drawn(1).items()}
    assert gpu_of(SparseLoCo(comm, there, every=2).phi) < 0, "its two bits are NumPy's"
    kept = LocalSGD(comm, Flat(there, keep="host"), every=1)
    assert gpu_of(kept.phi) < 0 and kept.step() is not None
    with pytest.raises(ArgumentError, match="keep='disk'"):
        Flat(there, keep="disk")
    mixed = drawn(1) if comm.rank else there
    with pytest.raises(MismatchError, match="place of vectors"):
        LocalSGD(comm, mixed, every=1)


def sharded(comm: Any, place: Place, read: Place) -> None:
    cases: list[tuple[int, Any, dict[str, Any], dict[str, int]]] = [
        (1, Adam, {}, {}), (2, SGD, {"momentum": 0.9}, {}), (3, Adagrad, {}, {}),
        (1, Adam, {"clip": 0.5}, LISTED["a norm"]), (2, Lamb, {}, LISTED["norms of layers"]),
        (1, Lars, {}, LISTED["norms of layers"]), (3, Adam, {"codec": "fp16"}, {}),
    ]  # fmt: skip
    for stage, kind, how, listed in some(cases):
        settings = {name: how[name] for name in how.keys() & {"clip", "codec"}}
        rest = {name: value for name, value in how.items() if name not in settings}
        apart, start = (comm.dup(), comm.dup()), drawn(2)
        w, there = {k: x.copy() for k, x in start.items()}, {k: place(x) for k, x in start.items()}
        more = {"units": [["a"], ["b", "c", "d"]], **settings} if stage > 1 else settings
        here, far = (
            Sharded(kind(0.1, **rest), each, given, stage=stage, **more)
            for each, given in zip(apart, (w, there), strict=True)
        )
        about = f"stage {stage}, {kind.__name__}, {how}"
        near = hasattr(far.w, "data_ptr") and kind is not SGD  # torch divides by a number as it likes
        for turn in range(4):
            gradients = drawn(comm.rank, turn, 3)
            given = {name: place(x) for name, x in gradients.items()}
            if stage == 3:
                for each, read_ in ((here, copied), (far, read)):
                    with each.gathered("b") as found, each.gathered("a"):
                        begun = read_(found["c"])
                    (w if each is here else there)["c"] = begun
                same(there["c"], w["c"], about, near)
            with counting(**(listed if turn else TRIAL)):
                norm = far.step(given)
            assert norm == here.step(gradients), about
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(norms, "MOST", 100)
                patch.setattr(norms, "ROW", 16)
                wide = np.float64(gradients["a"].ravel()) * 1e-30
                for x in (gradients["a"].ravel(), wide, np.full(50, np.inf, np.float32), wide[:0], 0 * wide):
                    assert norms.norm(place(x)) == norms.norm(x), about
                assert np.isnan(norms.norm(place(np.full(200, np.nan)))), about
        same(read(far.w), here.w, about, near)
        if stage < 3:
            alike(read, there, w, about, near)
        saved = far.state_dict()
        for name, x in here.state_dict()["arrays"].items():
            same(saved["arrays"][name], x, f"{about}: the state's {name}", near)
        far.load_state_dict(saved)
        same(read(far.w), here.w, about, near)
        if stage == 1:
            with pytest.raises(ArgumentError, match="lies in host memory, the parameters on "):
                far.step(gradients)
        for each in apart:
            each.close()


def delayed(comm: Any, place: Place, read: Place) -> None:
    for how in some(({"momentum": 0.9}, {"local_lr": 0.0, "warmup": 1})):
        apart, start = (comm.dup(), comm.dup()), drawn(4)
        w, there = {k: x.copy() for k, x in start.items()}, {k: place(x) for k, x in start.items()}
        made = [
            Delayed(Scheduler(each, finite=False), given, lr=0.1, **how)  # type: ignore[arg-type]
            for each, given in zip(apart, (w, there), strict=True)
        ]
        for turn in range(5):
            gradients = drawn(comm.rank, turn, 5)
            given = {name: place(x) for name, x in gradients.items()}
            with counting(**({} if turn else TRIAL)):
                made[1].step(given)
            made[0].step(gradients)
            alike(read, there, w, f"Delayed, {how}, step {turn}")
        saved = [each.state_dict() for each in made]
        for name, x in saved[0]["velocity"].items():
            same(saved[1]["velocity"][name], x, f"the momentum of {name}")
        made[1].load_state_dict(saved[1])
        alike(read, there, w, f"Delayed, {how}, at the end")
        with pytest.raises(ArgumentError, match="the gradient of 'a' lies in host memory, the parameter on "):
            made[1].step(gradients)
        for each in made:
            each.scheduler.close()
        for each in apart:
            each.close()


def layers(comm: Any, place: Place, read: Place) -> None:
    """A layer by columns, then one by rows."""
    dice = np.random.default_rng(7)
    weights = [dice.standard_normal(shape, np.float32) for shape in ((6, 8), (8,), (8, 10), (10,))]
    for sequence in some((False, True)):
        made = []
        for put in (copied, place):
            w = [put(each) for each in weights]
            kinds = zip((ColumnParallel, RowParallel), (w[:2], w[2:]), strict=True)
            made.append([kind(*some, comm, sequence=sequence) for kind, some in kinds])
        x, dy = dice.standard_normal((4, 6), np.float32), dice.standard_normal((4, 10), np.float32)
        if sequence:
            x, dy = (each[2 * comm.rank : 2 * comm.rank + 2].copy() for each in (x, dy))
        for turn in range(2):
            found = []
            for (columns, rows), put in zip(made, (copied, place), strict=True):
                given, back = put(x), put(dy)
                with counting(**({} if turn else TRIAL)):
                    h, kept = columns.forward(given)
                    y, kept_too = rows.forward(h)
                    found.append((y, columns.backward(rows.backward(back, kept_too), kept)))
            for got, want in zip(found[1], found[0], strict=True):
                same(read(got), want, f"layers, sequence={sequence}", near=True)
        for one, other in zip(*made, strict=True):
            for name, gradient in one.gradients.items():
                same(read(other.gradients[name]), gradient, f"the gradient of {name}", near=True)


def experts(comm: Any, place: Place, read: Place) -> None:
    dice = np.random.default_rng(comm.rank)
    cases = ((2, 0.75, False), (2, 1.25, True), (1, None, False), (1, 0.5, False))
    for top, capacity, hierarchical in some(cases):
        how: dict[str, Any] = {"top": top, "capacity": capacity, "hierarchical": hierarchical}
        made = [Experts(comm, [Scaled(2.0 + comm.rank), Scaled(0.5)], **how) for _ in range(2)]
        for turn, tokens in enumerate((11, 11, 0)):
            x = dice.standard_normal((tokens, 6), np.float32)
            gates = dice.random((tokens, made[0].count), np.float32)
            gates[:2] = 0.25  # none is the highest
            dy = dice.standard_normal((tokens, 6), np.float32)
            y, kept = made[0].forward(x, gates)
            given = [place(each) for each in (x, gates, dy)]
            with counting(**(LISTED["a routing"] if turn else TRIAL)):
                got, needed = made[1].forward(*given[:2])
                back = made[1].backward(given[2], needed)
                loss = made[1].balancing(given[1])
            about = f"experts, top {top}, capacity {capacity}"
            same(read(got), y, about)
            for one, other in zip(back, made[0].backward(dy, kept), strict=True):
                same(read(one), other, about, near=True)
            assert made[1].dropped == made[0].dropped, about
            balance = made[0].balancing(gates)
            same(read(loss[1]), balance[1], about, near=True)
            assert abs(float(loss[0]) - balance[0]) < 1e-5, about
        for each in made if hierarchical else ():
            each.exchange.inside.close()
            each.exchange.between.close()
    with pytest.raises(ArgumentError, match=r"gates lie in host memory, x on .*\(on ranks 0, 1\)"):
        made[1].forward(place(np.ones((3, 6), np.float32)), np.ones((3, made[1].count), np.float32))


class Times:
    """A stage: x times its number, element by element."""

    def __init__(self, w: Any) -> None:
        self.parameters, self.gradient = {"w": w}, w * 0

    def forward(self, x: Any) -> tuple[Any, Any]:
        return x * self.parameters["w"], x

    def backward(self, dy: Any, kept: Any) -> Any:
        self.gradient += (dy * kept).sum(0)
        return dy * self.parameters["w"]


def pipeline(comm: Any, place: Place, read: Place) -> None:
    """Activations and gradients go from GPU to GPU."""
    w, batch = np.float32([2, 3, 4]) + comm.rank, np.arange(36, dtype=np.float32).reshape(12, 3)
    made = []
    for put in (copied, place):
        stage = Times(put(w))
        made.append((stage, Pipeline(stage, comm, put(batch[:3]), micro=4, schedule="1f1b")))
    for turn in range(2):
        losses = []
        for (_, pipe), put in zip(made, (copied, place), strict=True):
            given = put(batch) if pipe.first else None
            more = LISTED["a message"]
            with counting(waits=99 if not turn else 8 * more["waits"], to_host=9999 if not turn else more["to_host"]):
                losses.append(pipe.step(given, lambda y, micro: ((y * y).sum(), 2 * y)))
        if made[0][1].last:
            assert float(losses[0]) == float(losses[1]), losses
        same(read(made[1][0].gradient), made[0][0].gradient, "a pipeline's gradient")


def cached(comm: Any, place: Place, read: Place) -> None:
    """A server's layers: two stay on the GPU, three pass through two buffers; and back, without a pull."""
    shapes = [(3, 4), (40,), (500,), (7, 70), (500,)]
    tables = {f"l{i}": Range(shape, initial=np.full(shape, i + 1.0)) for i, shape in enumerate(shapes)}
    like, sizes = place(np.ones(1, np.float32)), [4 * int(np.prod(shape)) for shape in shapes]
    with serve(comm, tables, on=range(comm.size), clock="async", works=True) as server, Client(server) as client:
        with pytest.raises(ArgumentError, match="room=4100 bytes are too few: 3 buffers of the largest layer are 6000"):
            Cached(client, [*tables], like, room=4100, ahead=2)
        with pytest.raises(ArgumentError, match=r"out must be .* in host memory: it is on .*; or take Cached"):
            client.pull("l4", out=place(np.ones(500, np.float32)))
        client.push("l4", place(np.zeros(500, np.float32)))
        with pytest.raises(ArgumentError, match="encode's x must be in host memory: it is on .*; pass a copy"):
            encode(like, "int8")
        with pytest.raises(ArgumentError, match="values of allreduce_sparse must be in host memory"):
            allreduce_sparse(comm, np.zeros(1, int), like, 6)
        with pytest.raises(ArgumentError, match="there is Staged"):
            Cached(client, [*tables], np.ones(1), room=1 << 20)
        gpu_ranks.knob("delay", 3000)  # what was not waited for is seen
        layers = Cached(client, [*tables], like, room=sizes[0] + sizes[1] + 2 * 2000)
        assert layers.stays == ["l0", "l1"]
        with pytest.raises(ArgumentError, match=r"again\(\) comes behind a whole pass"):
            next(layers.again())
        for turn in range(2):
            for way, order in ((iter(layers), range(5)), (layers.again(), range(4, -1, -1))):
                seen = 0 * like
                with counting(waits=1):
                    found = [(name, values * 1) for name, values in way]
                    seen += found[0][1].reshape(-1)[:1]
                for i, (name, values) in zip(order, found, strict=True):
                    same(read(values), np.full(shapes[i], i + 1.0 + turn * comm.size, np.float32), f"{name}, {turn}")
            comm.barrier()
            for name, table in tables.items():
                client.push(name, np.ones(table.shape, np.float32))
            comm.barrier()
        for name, _ in layers:
            assert name == "l0"
            break
        with pytest.raises(ArgumentError, match="comes behind a whole pass"):
            next(layers.again())
        gpu_ranks.knob("delay", 0)
        comm.barrier()


def full(comm: Any, place: Place, read: Place) -> None:
    """Memory that is full is an error that names the bytes, and nothing has happened."""
    there = {"w": place(np.ones(300_000, np.float32))}
    gpu_ranks.knob("room", gpu_ranks.count("bytes"))
    for make in (lambda: LocalSGD(comm, there, every=1), lambda: Sharded(Adam(0.1), comm, there)):
        with pytest.raises(MemoryError, match="no room for [0-9]+00000 bytes on "):
            make()
    gpu_ranks.knob("room", 1 << 40)
    same(read(there["w"]), np.ones(300_000, np.float32), "after errors")
    comm.barrier()
    full_later(comm, place, read)
    captured(comm, place, read)


def full_later(comm: Any, place: Place, read: Place) -> None:
    """The same of `Delayed`, and of a Scheduler's buckets, which the first step takes: it can be made again."""
    w, given, apart = np.ones(300_000, np.float32), np.full(300_000, comm.rank, np.float32), comm.dup()
    scheduler = Scheduler(apart, finite=False, slice=None, fuse=4_000_000)
    there, gradient = {"w": place(w)}, {"w": place(given)}
    counted.drain()
    gpu_ranks.knob("room", gpu_ranks.count("bytes"))
    with pytest.raises(MemoryError, match="no room for 1200000 bytes on "):
        Delayed(scheduler, there, lr=0.5)
    gpu_ranks.knob("room", 1 << 40)
    delayed, want = Delayed(scheduler, there, lr=0.5, local_lr=0.25), w - 0.25 * given
    for momentum, wanted in ((0.0, "[0-9]+"), (0.5, "1200000")):
        delayed.momentum = momentum
        counted.drain()
        gpu_ranks.knob("room", gpu_ranks.count("bytes"))
        with pytest.raises(MemoryError, match=f"no room for {wanted} bytes on "):
            delayed.step(gradient)
        gpu_ranks.knob("room", 1 << 40)
        delayed.step(gradient)
        same(read(there["w"]), want, f"after an error, momentum {momentum}")
        want = want - np.float32(0.5 * 0.5)  # the average of the ranks' 0 and 1
    for each in (scheduler, apart):
        each.close()


def captured(comm: Any, place: Place, read: Place) -> None:
    """A step inside a capture is refused, with the reason, and the next one is as if it had not been made."""
    stream, given = driver.device(0).stream(), np.full(60, comm.rank + 1, np.float32)
    w, theta = (place(np.ones(60, np.float32)) for _ in "wt")
    falling = np.arange(60, 0, -1, dtype=np.float32)
    x = place(falling)
    shards, gradient = Sharded(SGD(1.0), comm, {"w": w}), place(given)
    loop, compressor = LocalSGD(comm, {"w": theta}, every=2), Compressor(comm, "topk:0.5")
    loop.step()
    apart, averaged, v = (comm.dup(), comm.dup()), place(given), place(np.ones(60, np.float32))
    schedulers = [Scheduler(each, finite=False) for each in apart]
    schedulers[0].declare("x", averaged)
    delayed = Delayed(schedulers[1], {"v": v}, lr=0.5, local_lr=0.0)
    calls = (
        lambda: shards.step({"w": gradient}), loop.step, lambda: compressor.allreduce(x, "x"),
        lambda: delayed.step({"v": gradient}), lambda: schedulers[0].ready("x", averaged),
    )  # fmt: skip
    theta -= gradient
    gpu_ranks.knob("capturing", stream)
    for call in calls:
        with counted.on(stream), pytest.raises(ArgumentError, match="captured into a CUDA graph"):
            call()
    gpu_ranks.knob("capturing", 0)
    for call in calls:
        call()
    same(read(w), np.full(60, -0.5, np.float32), "a step after a capture")
    same(read(theta), np.full(60, -0.5, np.float32), "a round after a capture")
    same(read(x), np.where(falling > 30, falling, 0), "a call after a capture")
    schedulers[0].step()
    same(read(schedulers[0].wait("x")), np.full(60, 1.5, np.float32), "an average after a capture")
    delayed.finish()
    same(read(v), np.full(60, 0.25, np.float32), "a delayed step after a capture")
    for each in (*schedulers, *apart):
        each.close()
    driver.device(0).end_stream(stream)


def two_streams(comm: Any, place: Place, read: Place) -> None:
    """A call waits, on the GPU alone, for what the last one has given to another stream: here for a word, which is
    written after a while.  (The stand-in's library goes on when the current stream has come so far.)"""
    device, released = driver.device(0), threading.Event()
    first, second, beside = (device.stream() for _ in range(3))
    word, apart = device.alloc(4096), [comm.dup() for _ in range(3)]
    schedulers = [Scheduler(apart[0], finite=False), Scheduler(apart[1], finite=False, order="agreed")]
    x, w = place(np.ones(60, np.float32)), place(np.ones(60, np.float32))

    def scheduled(which: int) -> None:
        schedulers[which].ready("w", x)
        schedulers[which].step()
        schedulers[which].wait("w")

    schedulers[0].declare("w", x)
    compressor, loop = Compressor(comm, "topk:0.5"), LocalSGD(comm, {"w": w}, every=1)
    shards, delayed = Sharded(SGD(1.0), comm, {"w": w}), Delayed(Scheduler(apart[2], finite=False), {"w": w}, lr=0.1)
    units = lambda: [sent.calls for lane in schedulers[0]._policy._lanes for sent in lane.units]  # noqa: E731
    cases: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]]]] = {
        "a Compressor": (lambda: compressor.allreduce(x, "x"), lambda: [compressor._calls]),
        "its state": (compressor.state_dict, lambda: [compressor._calls]),
        "a loop": (loop.step, lambda: [loop._calls]),
        "its end": (loop.finish, lambda: [loop._calls]),
        "Sharded": (lambda: shards.step({"w": x}), lambda: [shards._calls]),
        "its shards": (shards.state_dict, lambda: [shards._calls]),
        "Delayed": (lambda: delayed.step({"w": x}), lambda: [delayed._calls]),
        "Scheduler": (lambda: scheduled(0), units),
        "Scheduler, agreed": (lambda: scheduled(1), lambda: [schedulers[1]._policy._made]),
    }
    for name, (call, orders) in cases.items():
        with counted.on(first):
            call()
            device.clear(word, 4)
            for order in orders():
                with order(x):
                    device.wait_word(word, 1, first)
        released.clear()
        timer = threading.Timer(0.2, lambda: (released.set(), device.write_word(word, 1, beside)))
        timer.start()
        limits = TRIAL if "state" in name or "shards" in name else LISTED["a round"] if "loop" in name else {}
        with counted.on(second), counting(**limits, about=name):
            call()
        assert released.is_set(), f"{name} has not waited for its last call, which was in another stream"
        timer.join()
        device.settle()
    with pytest.raises(ArgumentError, match=r"on_stream\(\) has another: make that the"), on_stream(first):
        compressor.allreduce(x, "x")
    for each in (*schedulers, delayed.scheduler, *apart):
        each.close()
    for stream in (first, second, beside):
        device.end_stream(stream)
    device.free(word)


EVERYTHING = (outer, sharded, delayed, layers, experts, pipeline, cached)


def everything(comm: Any, place: Place, read: Place) -> None:
    for each in EVERYTHING:
        each(comm, place, read)
        comm.barrier()
