"""hocket under JAX's own collectives: values, groups, devices and errors in real processes, against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Runs in every process, after jax.distributed has begun."""
    CASES[function.__name__] = function
    return function


def mesh_of(devices: Any, *names: str) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(devices), names)


def sharded(mesh: Any, every: Any, names: Any) -> Any:
    """Row k of `every` on the mesh's k-th device."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    spread = NamedSharding(mesh, PartitionSpec(names))
    mine = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    order = list(mesh.devices.flat)
    parts = [jax.device_put(np.asarray(every[order.index(d)]), d) for d in mine]
    shape = (every.shape[0] * every.shape[1], *every.shape[2:])
    return jax.make_array_from_single_device_arrays(shape, spread, parts)


def run(mesh: Any, names: Any, every: Any, body: Callable[[Any], Any]) -> dict[int, Any]:
    """body on each device's row: what each device of this process has, by its place in the mesh."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec

    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(names), out_specs=PartitionSpec(names), check_vma=False)
    )
    found = program(sharded(mesh, every, names))
    order = list(mesh.devices.flat)
    return {order.index(shard.device): np.asarray(shard.data) for shard in found.addressable_shards}


def fails(call: Callable[[], Any]) -> str:
    import jax

    try:
        jax.block_until_ready(call())
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")


@case
def values() -> None:
    import jax
    import ml_dtypes
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    n = len(jax.devices())
    mesh = mesh_of(jax.devices(), "i")
    ring = [(k, (k + 1) % n) for k in range(n)]
    kinds = [
        "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "complex64",
        "complex128", "bfloat16", "bool", "float16",
    ]  # fmt: skip
    for kind in kinds:
        dtype = np.dtype(getattr(ml_dtypes, kind, kind))
        every = (np.arange(n * 2 * n).reshape(n, -1) % 3 + 1).astype(dtype)
        swap = every.reshape(n, n, 2).transpose(1, 0, 2).reshape(n, -1)
        none = every[0] * 0
        moves: list[tuple[Callable[[Any], Any], Any]] = [
            (lambda a: jax.lax.all_to_all(a, "i", 0, 0, tiled=True), swap),
            (lambda a: jax.lax.ppermute(a, "i", ring), np.roll(every, 1, 0)),
            (lambda a: jax.lax.ppermute(a, "i", [(0, 1)]), np.stack([none, every[0]] + [none] * (n - 2))),
        ]
        gathers = [(lambda a: jax.lax.all_gather(a, "i", tiled=True), np.stack([every.ravel()] * n))]
        total, parts = every.sum(0, dtype=dtype), every.sum(0, dtype=dtype).reshape(n, -1)
        sums: list[tuple[Callable[[Any], Any], Any]] = [
            (lambda a: jax.lax.psum(a, "i"), np.stack([total] * n)),
            (lambda a: jax.lax.psum_scatter(a, "i", tiled=True), parts),
        ]
        peaks: list[tuple[Callable[[Any], Any], Any]] = [
            (lambda a: jax.lax.pmax(a, "i"), np.stack([every.max(0)] * n)),
            (lambda a: jax.lax.pmin(a, "i"), np.stack([every.min(0)] * n)),
        ] if dtype.kind not in "c" else []  # fmt: skip
        if kind == "float16":  # XLA refuses to reduce it, and to gather it
            for body, _ in [*gathers, *sums, *peaks]:
                assert "f16" in fails(lambda b=body, x=every: run(mesh, "i", x, b))
            calls = moves
        else:
            calls = [*moves, *gathers, *peaks, *(sums if kind != "bool" else [])]
        for number, (body, expected) in enumerate(calls):
            for place, found in run(mesh, "i", every, body).items():
                assert found.dtype == dtype and np.array_equal(found, expected[place]), (kind, number, place, found)


@case
def groups() -> None:
    """Axes of a mesh, both together and each alone, first in one program; uneven groups; devices in reverse."""
    import jax
    import numpy as np

    devices = jax.devices()
    n = len(devices)
    every = np.arange(float(n * 3), dtype=np.float32).reshape(n, 3)
    square = mesh_of(np.array(devices).reshape(2, n // 2), "x", "y")

    def body(a: Any) -> Any:
        return jax.lax.psum(a, "x") * 100 + jax.lax.psum(a, "y") * 10 + jax.lax.psum(a, ("x", "y"))

    rows = every.reshape(2, n // 2, 3)
    expected = (rows.sum(0, keepdims=True) * 100 + rows.sum(1, keepdims=True) * 10 + every.sum(0)).reshape(n, 3)
    for place, found in run(square, ("x", "y"), every, body).items():
        assert np.array_equal(found, expected[place]), (found, expected[place])
    back = mesh_of(devices[::-1], "i")
    for place, found in run(back, "i", every, lambda a: jax.lax.all_gather(a, "i", tiled=True)).items():
        assert np.array_equal(found, every.ravel()), place
    uneven = [[0], list(range(1, n))]
    for place, found in run(
        mesh_of(devices, "i"), "i", every, lambda a: jax.lax.psum(a, "i", axis_index_groups=uneven)
    ).items():
        assert np.array_equal(found, every[0] if place == 0 else every[1:].sum(0))
    pairs = [[k, k + 1] for k in range(0, n, 2)]
    for turned in (pairs, [pair[::-1] for pair in pairs]):
        for place, found in run(
            mesh_of(devices, "i"), "i", every,
            lambda a, turned=turned: jax.lax.all_gather(a, "i", tiled=True, axis_index_groups=turned)[:3],
        ).items():  # fmt: skip
            assert np.array_equal(found, every[next(pair[0] for pair in turned if place in pair)])


@case
def a_part_of_the_processes() -> None:
    """The others are idle, and nobody waits for them."""
    import jax
    import numpy as np

    most = [d for d in jax.devices() if d.process_index != jax.process_count() - 1]
    if jax.process_index() != jax.process_count() - 1:
        every = np.arange(float(len(most)), dtype=np.float32).reshape(-1, 1)
        for found in run(mesh_of(most, "i"), "i", every, lambda a: jax.lax.psum(a, "i")).values():
            assert found.tolist() == [every.sum()]


@case
def a_group_inside_a_large_program() -> None:
    import jax
    import numpy as np

    n = len(jax.devices())
    every = np.ones((n, 1 << 14), np.float32)

    def body(a: Any) -> Any:
        for _ in range(25):
            a = jax.numpy.sin(a) * 0 + 1
        a = jax.lax.psum(a, "i")
        for _ in range(25):
            a = a + jax.numpy.cos(a) * 0
        return a

    for found in run(mesh_of(jax.devices(), "i"), "i", every, body).values():
        assert (found == n).all()


@case
def threads() -> None:
    """Two, each with groups of its own; then on one group: an error that says so, on every rank, or right sums."""
    import threading

    import jax
    import numpy as np

    devices = jax.devices()
    wrong: list[Any] = []

    def work(order: Any) -> None:
        every = np.arange(float(len(order)), dtype=np.float32).reshape(-1, 1)
        for _ in range(200):
            for found in run(mesh_of(order, "i"), "i", every, lambda a: jax.lax.psum(a, "i")).values():
                if found.tolist() != [every.sum()]:
                    wrong.append(found)

    both = [threading.Thread(target=work, args=(order,)) for order in (devices, devices[::-1])]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not wrong, wrong[:3]


def start(name: str, processes: int, devices: int = 1) -> None:
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", str(processes), "--", __file__, name],
        capture_output=True, text=True, timeout=110, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.count(f"done {name}") == processes


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (2, 2), (4, 1)])
def test_values(processes: int, devices: int) -> None:
    start("values", processes, devices)


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_groups(processes: int, devices: int) -> None:
    start("groups", processes, devices)


@pytest.mark.parametrize(
    ("name", "processes"),
    [("a_part_of_the_processes", 3), ("a_group_inside_a_large_program", 3), ("threads", 2)],
)
def test_programs(name: str, processes: int) -> None:
    start(name, processes)


def main() -> None:
    import hocket.jax

    hocket.jax.initialize()
    import jax

    assert jax.config.jax_cpu_collectives_implementation == "mpi"
    assert "hocket.xla.serving" in sys.modules or jax.devices()
    CASES[sys.argv[1]]()
    assert "hocket.xla.serving" in sys.modules
    print(f"done {sys.argv[1]}", flush=True)


if __name__ == "__main__":
    main()
