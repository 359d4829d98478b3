"""hocket inside JAX: values, dtypes, gradients, vmap and order, on real processes against NumPy and JAX alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

CASES: dict[str, Callable[[Any], None]] = {}


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Runs on every rank, as function(comm)."""
    CASES[function.__name__] = function
    return function


def both(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Its results under jit and without."""
    import jax

    return [jax.jit(function)(*args), function(*args)]


def rows(rank: int, n: int, dtype: Any = "float32") -> Any:
    """n rows of two small whole numbers, other ones on each rank."""
    import numpy as np

    return (np.arange(2 * n).reshape(n, 2) % 3 + rank % 2 + 1).astype(dtype)


def same(found: Any, expected: Any) -> None:
    import numpy as np

    found = np.asarray(found)
    assert found.shape == np.shape(expected), (found.shape, np.shape(expected))
    np.testing.assert_allclose(found.astype(complex), np.asarray(expected).astype(complex), rtol=1e-5, atol=1e-6)


@case
def shardings_as_layouts(comm: Any) -> None:
    """A process's devices are its rank's boxes; of a sharding that is replicated on some, each box is there once."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hocket

    devices = jax.local_devices()[:1]
    mesh = Mesh(devices, ("x",))
    layout = hocket.Layout.of_sharding(NamedSharding(mesh, PartitionSpec("x", None)), (6, 5))
    assert layout.shapes(jax.process_index()) == [(6, 5)]
    assert layout == hocket.Layout.of_sharding(NamedSharding(mesh, PartitionSpec()), (6, 5))


@case
def values(comm: Any) -> None:
    import jax
    import numpy as np

    import hocket.jax as hj

    rank, size = comm.rank, comm.size
    every = np.stack([rows(r, 2 * size) for r in range(size)])
    mine, m = every[rank], slice(2 * rank, 2 * rank + 2)
    for op, fold in {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}.items():
        for found in both(lambda x, op=op: hj.allreduce(x, op), mine):
            same(found, fold(every, axis=0))
        for found in both(lambda x, op=op: hj.reduce_scatter(x, op), mine):
            same(found, fold(every, axis=0)[m])
        for found in both(lambda x, op=op: hj.reduce(x, size - 1, op), mine):
            same(found, fold(every, axis=0) * (rank == size - 1))
    for found in both(hj.allgather, mine):
        same(found, every.reshape(-1, 2))
    for found in both(lambda x: hj.broadcast(x, size - 1), mine):
        same(found, every[-1])
    for found in both(hj.alltoall, mine):
        same(found, every[:, m].reshape(-1, 2))
    right, left = (rank + 1) % size, (rank - 1) % size
    for found in both(lambda x: hj.sendrecv(x, right, x, left, tag=3), mine):
        same(found, every[left])

    def around(x: Any) -> Any:
        hj.send(x, right)
        hj.barrier()
        return hj.recv(jax.ShapeDtypeStruct(x.shape, x.dtype), left)

    for found in both(around, mine):
        same(found, every[left])
    for found in both(lambda x: hj.allreduce(x, hj_premul(2.0)), mine):
        same(found, 2 * every.sum(0))
    for found in both(hj.allgather, float(rank)):
        same(found, np.arange(size))
    for found in both(lambda x: hj.sendrecv(x, right, x, left), np.float32(rank)):
        same(found, np.float32(left))
    tree = {"a": np.float32(rank), "b": [mine, np.int32([rank])]}
    for found in both(hj.allreduce, tree):
        same(found["a"], sum(range(size)))
        same(found["b"][0], every.sum(0))
        same(found["b"][1], [sum(range(size))])
    assert hj.allreduce({}) == {} and hj.allreduce(np.zeros((0, 3))).shape == (0, 3)


def hj_premul(factor: float) -> Any:
    import hocket

    return hocket.premul_sum(factor)


@case
def dtypes(comm: Any) -> None:
    import jax
    import ml_dtypes
    import numpy as np

    import hocket
    import hocket.jax as hj

    jax.config.update("jax_enable_x64", True)
    numbers = [
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
        "complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    ]  # fmt: skip
    for dtype in numbers:
        every = np.stack([rows(r, 3, dtype) for r in range(comm.size)])
        mine = every[comm.rank]
        if np.dtype(dtype).kind == "c":
            every, mine = every * (1 + 2j), mine * mine.dtype.type(1 + 2j)
        for found in both(hj.allreduce, mine):
            assert found.dtype == mine.dtype
            same(found, every.astype(complex).sum(0))
        for found in both(hj.allgather, mine):
            assert found.dtype == mine.dtype
            same(found, every.reshape(-1, 2))
    flags = np.array([[True, False, r == 0] for r in range(comm.size)])
    same(hj.allreduce(flags[comm.rank], "lor"), flags.any(0))
    same(hj.allreduce(flags[comm.rank], "land"), flags.all(0))
    bits = np.arange(4, dtype=np.int32) + comm.rank
    same(hj.allreduce(bits, "bxor"), np.bitwise_xor.reduce([np.arange(4) + r for r in range(comm.size)]))
    with pytest.raises(hocket.ArgumentError, match="'bor' needs integers"):
        jax.jit(lambda x: hj.allreduce(x, "bor"))(np.ones(2))
    with pytest.raises(hocket.ArgumentError, match="dtype key<fry>; known: bfloat16, bool"):
        hj.broadcast(jax.random.key(0))
    with pytest.raises(hocket.ArgumentError, match="dtype int4"):
        hj.allreduce(jax.numpy.ones(2, "int4"))


@case
def gradients(comm: Any) -> None:
    """Against jax.grad of one function of all ranks' arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hocket
    import hocket.jax as hj

    rank, size = comm.rank, comm.size
    every = jnp.stack([jnp.asarray(rows(r, 2 * size)) / 3 for r in range(size)])
    mine = every[rank]
    weight = jnp.arange(1.0, size + 1)  # each rank uses its result in another way

    def block(all_of_them: Any, r: int) -> Any:
        return all_of_them[2 * r : 2 * r + 2]

    def wanted(total: Callable[[Any], Any]) -> Any:
        return jax.grad(total)(every)[rank]

    # alike on all ranks, and counted once
    for op, factor in (("sum", 1.0), ("avg", 1 / size), (hocket.premul_sum(3.0), 3.0)):
        found = both(jax.grad(lambda x, op=op: (hj.allreduce(x, op) ** 3).sum()), mine)
        for each in found:
            same(each, wanted(lambda xs, f=factor: ((f * xs.sum(0)) ** 3).sum()))
    # each rank's own result, and all of them are added
    cases: list[tuple[Any, Any]] = [
        (lambda x: hj.allgather(x), lambda xs, r: xs.reshape(-1, 2)),
        (lambda x: hj.reduce_scatter(x), lambda xs, r: block(xs.sum(0), r)),
        (lambda x: hj.reduce_scatter(x, "avg"), lambda xs, r: block(xs.mean(0), r)),
        (lambda x: hj.allgather(hj.reduce_scatter(x)), lambda xs, r: xs.sum(0)),
        (lambda x: hj.alltoall(x), lambda xs, r: jnp.concatenate([block(x, r) for x in xs])),
        (lambda x: hj.broadcast(x, 1), lambda xs, r: xs[1]),
        (lambda x: hj.reduce(x, 1), lambda xs, r: xs.sum(0) * (r == 1)),
        (
            lambda x: hj.sendrecv(x[:rank + 1], (rank + 1) % size, x[: (rank - 1) % size + 1], (rank - 1) % size),
            lambda xs, r: xs[(r - 1) % size][: (r - 1) % size + 1],
        ),
    ]  # fmt: skip
    for ours, alone in cases:
        for found in both(jax.grad(lambda x, ours=ours: weight[rank] * (ours(x) ** 3).sum()), mine):
            same(found, wanted(lambda xs, alone=alone: sum(weight[r] * (alone(xs, r) ** 3).sum() for r in range(size))))
        tangents = jnp.sin(every)
        found, moved = jax.jit(lambda x, t, ours=ours: jax.jvp(ours, (x,), (t,)))(mine, tangents[rank])
        _, expected = jax.jvp(lambda xs, alone=alone: alone(xs, rank), (every,), (tangents,))
        same(moved, expected)
    # the transpose of the transpose is the call
    back = jax.linear_transpose(hj.allreduce, mine)
    again = jax.linear_transpose(lambda ct: back(ct)[0], mine)
    same(jax.jit(lambda x: again(x)[0])(mine), every.sum(0))
    # trees of which a part needs none
    found = jax.grad(lambda x: hj.allreduce({"a": x, "b": jnp.int32(3)})["a"].sum())(mine)
    same(found, np.ones_like(mine))
    # a second derivative, and rematerialisation
    cube = lambda x: (hj.allreduce(x) ** 3).sum()  # noqa: E731
    _, found = jax.jvp(jax.grad(cube), (mine,), (mine,))
    same(found, 6 * every.sum(0) * every.sum(0))
    same(jax.jit(jax.grad(jax.checkpoint(cube)))(mine), 3 * every.sum(0) ** 2)
    with pytest.raises(hocket.ArgumentError, match="op 'max' has no derivative"):
        jax.grad(lambda x: hj.allreduce(x, "max").sum())(mine)
    with pytest.raises(hocket.ArgumentError, match="send has no derivative"):
        jax.grad(lambda x: hj.send(x, 0) or x.sum())(mine)


@case
def gradients_of_loops(comm: Any) -> None:
    """Through scan, cond, checkpoint and custom_vjp, whose programs make calls backward too."""
    import jax
    import jax.numpy as jnp

    import hocket.jax as hj

    rank, size = comm.rank, comm.size
    every = jnp.stack([jnp.sin(jnp.arange(3.0 * size).reshape(3, size) + r) for r in range(size)])
    weight = jnp.arange(1.0, size + 1)

    def mean(x: Any) -> Any:
        return hj.allgather(hj.reduce_scatter(x, "avg"))

    def ours(x: Any) -> Any:
        carry, sums = jax.lax.scan(lambda c, row: (mean(c * row), mean(row).sum()), x[0], x)
        carry = jax.lax.cond(carry.sum() < 1e9, mean, lambda c: c, carry)
        return weight[rank] * (carry.sum() + (sums**2).sum())

    def alone(xs: Any) -> Any:
        carry = xs[:, 0]
        for i in range(3):
            carry = jnp.broadcast_to((carry * xs[:, i]).mean(0), carry.shape)
        return (weight @ carry).sum() + weight.sum() * (xs.mean(0).sum(1) ** 2).sum()

    expected = jax.grad(alone)(every)[rank]
    same(jax.jit(jax.grad(ours))(every[rank]), expected)
    same(jax.jit(jax.grad(jax.checkpoint(ours)))(every[rank]), expected)

    @jax.custom_vjp
    def summed(x: Any) -> Any:
        return hj.allreduce(x)

    summed.defvjp(lambda x: (hj.allreduce(x), None), lambda _, ct: (hj.allreduce(ct),))
    total = every.sum(0)
    same(jax.jit(jax.grad(lambda x: weight[rank] * (summed(x) ** 2).sum()))(every[rank]), 2 * total * weight.sum())


@case
def batches(comm: Any) -> None:
    """vmap gives what calls one by one give."""
    import jax
    import jax.numpy as jnp

    import hocket
    import hocket.jax as hj

    rank, size = comm.rank, comm.size
    x = jnp.arange(4.0 * 2 * size).reshape(4, 2 * size) * (rank + 1)
    calls: list[Any] = [
        hj.allreduce, hj.allgather, hj.alltoall, hj.reduce_scatter, hj.broadcast, hj.reduce,
        lambda row: hj.sendrecv(row, (rank + 1) % size, row, (rank - 1) % size),
        lambda row: hj.allreduce([row, jnp.ones(3)])[0],
        jax.grad(lambda row: (hj.allgather(row) ** 2).sum()),
    ]  # fmt: skip
    for call in calls:
        expected = jnp.stack([call(row) for row in x])
        for found in both(jax.vmap(call), x):
            same(found, expected)
        same(jax.jit(jax.vmap(call, in_axes=1))(x.T), expected)
    same(jax.vmap(hj.allgather)(x[:, 0]), jnp.stack([hj.allgather(each) for each in x[:, 0]]))
    same(jax.vmap(jax.vmap(hj.allgather))(x[None])[0], jnp.stack([hj.allgather(row) for row in x]))
    with pytest.raises(hocket.ArgumentError, match="send has no vmap"):
        jax.vmap(lambda row: hj.send(row, 0))(x)


@case
def order(comm: Any) -> None:
    """Calls that need nothing of each other, whose results nobody needs, and in loops: all in program order."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hocket.jax as hj

    rank, size = comm.rank, comm.size

    def calls() -> int:
        return sum(each.calls for each in comm.stats() if each.collective == "allreduce")

    def many(x: Any) -> Any:
        """Each of another length: in another order they would not fit.  One rank has other work between them."""
        found = []
        for i in range(30):
            y = x[: i % 5 + 1] * i
            found.append(hj.allreduce(jnp.sin(y @ y) * 0 + y if rank == 0 else y))
        return found[::-1]

    x = jnp.arange(8.0)
    for _ in range(5):
        for i, each in enumerate(jax.jit(many)(x)[::-1]):
            same(each, np.arange(i % 5 + 1) * i * size)

    def unused(x: Any) -> Any:
        hj.allreduce(x)
        hj.allreduce(x, "max")
        return x + 1

    before = calls()
    same(jax.jit(unused)(x), x + 1)
    jax.effects_barrier()
    assert calls() == before + 2

    def scanned(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            hj.allreduce(row)  # not used
            return hj.allreduce(carry, "avg") + row, hj.allgather(row)

        return jax.lax.scan(body, x[0], x)

    table = jnp.arange(12.0).reshape(3, 4) * (rank + 1)
    before = calls()
    carry, gathered = jax.jit(scanned)(table)
    jax.effects_barrier()
    assert calls() == before + 6 and gathered.shape == (3, 4 * size)
    expected = [np.asarray(table) / (rank + 1) * (r + 1) for r in range(size)]
    carries = [each[0] for each in expected]
    for i in range(3):
        mean = np.mean(carries, 0)
        carries = [mean + each[i] for each in expected]
    same(carry, carries[rank])

    def until(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.sum() < 1000, lambda y: hj.allreduce(y), x)

    same(jax.jit(until)(jnp.ones(1)), [next(size**i for i in range(20) if size**i >= 1000)])

    def either(flag: Any, x: Any) -> Any:
        return jax.lax.cond(flag, lambda y: hj.allreduce(y), lambda y: hj.allreduce(y, "max") * 10, x)

    for flag, factor in ((True, size), (False, 10)):
        same(jax.jit(either)(flag, x), x * factor)
    for n in (1, 7, 1 << 18):  # jit compiles anew for each shape
        same(jax.jit(hj.allreduce)(jnp.ones(n)), np.full(n, size))


@case
def communicators(comm: Any) -> None:
    import jax
    import jax.numpy as jnp

    import hocket
    import hocket.jax as hj

    twin, pair = comm.dup(), comm.subgroup([1, 0])

    def step(x: Any) -> Any:
        a = hj.allreduce(x, comm=twin)
        b = hj.allgather(x, comm=pair) if pair is not None else x
        return hj.allreduce(a), b

    total, gathered = jax.jit(step)(jnp.float32(comm.rank))
    same(total, sum(range(comm.size)) * comm.size)
    same(gathered, [1, 0] if comm.rank < 2 else comm.rank)
    wrong: list[tuple[str, Any]] = [
        ("root=9 is not a rank|root", lambda: hj.broadcast(1.0, 9)),
        ("must be a whole number|dest", lambda: hj.send(1.0, 0.5)),
        ("comm is a str", lambda: hj.allreduce(1.0, comm="world")),
        ("op is a function", lambda: hj.allreduce(1.0, lambda a, b: a)),
        ("did you mean 'sum'", lambda: hj.allreduce(1.0, "sun")),
        ("must be a multiple of", lambda: hj.reduce_scatter(jnp.ones(comm.size + 1))),
        ("like has dtype int32", lambda: hj.sendrecv(1.0, 0, jnp.int32(1), 0)),
        ("which JAX cannot make an array of", lambda: hj.allreduce("text")),
    ]
    for text, call in wrong:
        with pytest.raises(hocket.ArgumentError, match=text):
            call()
        with pytest.raises(hocket.ArgumentError, match=text):
            jax.jit(lambda call=call: call())()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_jax(name: str, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", str(size), "--", __file__, name],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.count(f"done {name}") == size


def main() -> None:
    import hocket.jax

    CASES[sys.argv[1]](hocket.jax.init())
    print(f"done {sys.argv[1]}", flush=True)


if __name__ == "__main__":
    main()
