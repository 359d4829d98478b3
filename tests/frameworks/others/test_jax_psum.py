"""hocket under JAX's own collectives: values, groups, devices and errors in real processes, against NumPy."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hocket.xla import loading
from support.worlds import PATH

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
    return ready(mesh, names, every, body)()


def ready(mesh: Any, names: Any, every: Any, body: Callable[[Any], Any]) -> Callable[[], dict[int, Any]]:
    """The same, to be called again and again."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec

    program = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(names), out_specs=PartitionSpec(names), check_vma=False)
    )
    x, order = sharded(mesh, every, names), list(mesh.devices.flat)
    return lambda: {order.index(each.device): np.asarray(each.data) for each in program(x).addressable_shards}


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
    for place in (0, n - 1):  # Gloo loses one of the two NaNs, XLA on one process both
        every = np.ones((n, 2), np.float32)
        every[place, 1] = np.nan
        for peak in (jax.lax.pmax, jax.lax.pmin):
            for found in run(mesh, "i", every, lambda a, peak=peak: peak(a, "i")).values():
                assert np.array_equal(found, np.array([1, np.nan], np.float32), equal_nan=True), (place, peak, found)


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
    """Two, each with groups of its own: right.  On one group at once: an error that says so, on every rank."""
    import threading

    import jax
    import numpy as np

    devices = jax.devices()
    wrong: list[Any] = []

    def work(order: Any) -> None:
        every = np.arange(float(len(order)), dtype=np.float32).reshape(-1, 1)
        call = ready(mesh_of(order, "i"), "i", every, lambda a: jax.lax.psum(a, "i"))
        for _ in range(500):
            for found in call().values():
                if found.tolist() != [every.sum()]:
                    wrong.append(found)

    orders = devices, [devices[0], *devices[:0:-1]]  # alike in the first device, and in the rank there
    both = [threading.Thread(target=work, args=(order,)) for order in orders]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert not wrong, wrong[:3]

    every = np.ones((len(devices), 1), np.float32)
    said: list[str] = []

    def loop() -> None:
        body = lambda a: jax.lax.fori_loop(0, 3000, lambda i, y: jax.lax.pmax(y, "i"), a)  # noqa: E731
        try:
            for _ in range(20):
                run(mesh_of(devices, "i"), "i", every, body)
        except Exception as error:
            said.append(str(error))

    both = [threading.Thread(target=loop) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert said and all("two threads of this process" in each for each in said), said


@case
def calls_that_differ() -> None:
    """Op, dtype and count are compared: every rank hears what each called, then and later."""
    import jax
    import numpy as np

    mesh = mesh_of(jax.devices(), "i")
    every = np.ones((len(jax.devices()), 4), np.float32)
    mine = jax.lax.pmax if jax.process_index() else jax.lax.psum
    for _ in range(2):
        said = fails(lambda: run(mesh, "i", every, lambda a: mine(a, "i")))
        assert "the ranks called different things" in said and "op='max'" in said and "op='sum'" in said, said
    back = mesh_of(jax.devices()[::-1], "i")  # a group of its own, which works
    for found in run(back, "i", every, lambda a: jax.lax.psum(a, "i")).values():
        assert found.tolist() == [len(jax.devices())] * 4


@case
def kinds_that_differ() -> None:
    """A psum where others permute or exchange blocks: all hear so soon, with the names of both."""
    import itertools
    import time

    import jax
    import numpy as np

    devices = jax.devices()
    n, first = len(devices), jax.process_index() == 0
    every = np.ones((n, n), np.float32)
    ring = [(k, (k + 1) % n) for k in range(n)]
    kinds: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda a: jax.lax.psum(a, "i"),
        "allgather": lambda a: jax.lax.all_gather(a, "i")[0],
        "reduce_scatter": lambda a: jax.numpy.tile(jax.lax.psum_scatter(a, "i", tiled=True), n),
        "alltoall": lambda a: jax.lax.all_to_all(a, "i", 0, 0, tiled=True),
        "sendrecv": lambda a: jax.lax.ppermute(a, "i", ring),
    }
    orders = itertools.permutations(devices)
    for one, other in itertools.combinations(kinds, 2):
        mesh = mesh_of(list(next(orders)), "i")  # a group that fails stays so: a new one for each pair
        began = time.monotonic()
        # A rank whose messages do not meet the odd one's is through with its ppermute, and hears so at the next call.
        calls = [kinds[one if first else other], kinds["allreduce"]]
        said = fails(lambda m=mesh, c=calls: [run(m, "i", every, each) for each in c])
        assert f"{one}(" in said and f"{other}(" in said and said.count("of JAX's") > 1, said
        assert "the ranks called different things" in said and time.monotonic() - began < 5, said


@case
def threads_in_turn() -> None:
    """Two Python threads that never call at once: in one order on all ranks they are right, else all hear of it."""
    import threading

    import jax
    import numpy as np

    devices = jax.devices()
    every = np.arange(float(len(devices)), dtype=np.float32).reshape(-1, 1)
    said: list[str] = []

    def both(order: Any, turns: list[int]) -> None:
        call = ready(mesh_of(order, "i"), "i", every, lambda a: jax.lax.psum(a, "i"))
        done = [threading.Event() for _ in turns]

        def work(me: int) -> None:
            for place, who in enumerate(turns):
                if who == me:
                    assert place == 0 or done[place - 1].wait(60)
                    try:
                        assert all(found.tolist() == [every.sum()] for found in call().values())
                    except (jax.errors.JaxRuntimeError, ValueError) as error:
                        said.append(str(error))
                    finally:
                        done[place].set()

        call()
        each = [threading.Thread(target=work, args=(me,)) for me in range(2)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()

    both(devices, [0, 1, 1, 0, 0, 1])
    assert not said, said
    both(devices[::-1], [0, 1, 0] if jax.process_index() == 0 else [1, 0, 0])
    assert len(said) == 2 and "older Python thread" in said[0] and "younger Python thread" in said[0], said


@case
def readers() -> None:
    """`hocket top` and traces call these JAX's; `explain` tells the way of each group."""
    import jax
    import numpy as np

    import hocket.jax

    mesh = mesh_of(jax.devices(), "i")
    every = np.ones((len(jax.devices()), 4), np.float32)
    run(mesh, "i", every, lambda a: jax.lax.psum(jax.lax.ppermute(a, "i", [(0, 1), (1, 0)]), "i"))
    told = hocket.jax.explain("allreduce", 8)
    assert told.startswith("JAX's own collectives go by hocket\ndevices 0 (process 0), "), told
    assert "here rank" in told and ": shm" in told, told
    if jax.process_index() == 0:
        from hocket.tools.top import as_text, look

        assert "allreduce(float32[4], op='sum') within a program of JAX's" in as_text(look()), as_text(look())
    run(mesh, "i", every, lambda a: jax.lax.psum(a, "i"))


@case
def a_rank_dies() -> None:
    import time

    import jax
    import numpy as np

    last = jax.process_count() - 1
    mesh = mesh_of(jax.devices(), "i")
    every = np.ones((len(jax.devices()), 4), np.float32)
    call = lambda: run(mesh, "i", every, lambda a: jax.lax.psum(a, "i"))  # noqa: E731
    call()
    if jax.process_index() == last:
        print("done a_rank_dies", flush=True)
        os._exit(0)
    began = time.monotonic()
    said = fails(call)
    assert time.monotonic() - began < 1 and f"rank {last} is gone" in said, (time.monotonic() - began, said)
    print("done a_rank_dies", flush=True)
    os._exit(0)  # JAX's coordination would end the process by a signal


RENEWING = """
import os, sys, time
import hocket.jax, jax, numpy as np
from jax.experimental import multihost_utils
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_enable_recoverability", True)
hocket.jax.initialize(f"127.0.0.1:{port}", size, rank, shutdown_timeout_seconds=3)
gathered = lambda: multihost_utils.process_allgather(np.array([rank])).ravel().tolist()
assert gathered() == [0, 1, 2]
if rank == 2:
    os._exit(0)
try:
    gathered()
except Exception as error:
    assert "rank 2 is gone" in str(error), error
time.sleep(rank)  # the process that has JAX's service begins first, and must not end it yet
began = time.monotonic()
hocket.jax.renew(f"127.0.0.1:{sys.argv[4]}", 2, rank)
assert gathered() == [0, 1], gathered()
print("renewed", time.monotonic() - began < 4 - rank)
"""


def test_renewal_in_the_same_processes() -> None:
    for rank, (out, err) in enumerate(plain(3, lambda rank: {}, RENEWING)[:2]):
        assert out.split() == ["renewed", "True"], f"rank {rank}: {out}{err}"


CTRL_C = """
import os, signal, sys, threading, time
import hocket.jax, jax, numpy as np
from jax.experimental import multihost_utils
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
hocket.jax.initialize(f"127.0.0.1:{port}", size, rank)
gathered = lambda: multihost_utils.process_allgather(np.array([rank])).ravel().tolist()
assert gathered() == [0, 1]
if rank == 0:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
else:
    time.sleep(2)
began = time.monotonic()
try:
    try:
        gathered()
    except Exception as error:
        print("rank 0 was interrupted" in str(error), flush=True)
        time.sleep(0.1)
except KeyboardInterrupt:
    print("KeyboardInterrupt", time.monotonic() - began < 2, flush=True)
    time.sleep(3)  # this process has JAX's coordinator
sys.stdout.flush()
os._exit(0)
"""


def test_ctrl_c() -> None:
    (first, err), (second, other) = plain(2, lambda rank: {}, CTRL_C)
    assert first.split()[-2:] == ["KeyboardInterrupt", "True"], first + err
    assert second.split() == ["True"], second + other


BUSY = """
import ctypes, sys, threading, time
import hocket.jax, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
hocket.jax.initialize(f"127.0.0.1:{port}", size, rank)
mesh = Mesh(np.array(jax.devices()), "i")
body = lambda a: jax.lax.fori_loop(0, 200, lambda i, x: jax.lax.psum(x, "i") * 0.5, a)
specs = {"in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i"), "check_vma": False}
program = jax.jit(jax.shard_map(body, mesh=mesh, **specs))
x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("i")), np.ones(2, np.float32))
program(x).block_until_ready()
done = False
def keep():  # the GIL, without taking a core
    while not done:
        ctypes.PyDLL(None).usleep(20000)
if rank == 0:
    threading.Thread(target=keep).start()
    time.sleep(0.1)
took = []
for _ in range(5):
    began = time.monotonic()
    program(x).block_until_ready()
    took.append(time.monotonic() - began)
done = True
print(sorted(took)[2])
"""


def test_a_thread_that_keeps_the_gil_holds_up_no_sums() -> None:
    """200 calls that took the GIL would each wait 20 ms for it, 4 s in all."""
    for out, err in plain(2, lambda rank: {}, BUSY):
        assert out and float(out) < 2, out + err


def test_another_build() -> None:
    program = "import hocket.xla.meeting as m, sys; m.BUILD += sys.argv[1]\n" + PLAIN
    ours = loading.variables({})
    for rank, (out, err) in enumerate(plain(2, lambda rank: ours, program)):
        assert f"process {1 - rank} has another hocket" in out and "install the same" in out, out + err


@case
def others_are_refused() -> None:
    """A function that XLA does not call answers with its name; a count that XLA has cut to 32 bits, with why."""
    import ctypes

    library = ctypes.CDLL(loading.LIBRARY)
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    code = library.MPIABI_Win_create(0, 0, 0)
    library.MPIABI_Error_string(code, text, ctypes.byref(length))
    assert b"does not carry out MPI_Win_create" in text.value and length.value == len(text.value)
    group = (ctypes.c_char * 1100)()  # a group that is not broken
    library.MPIABI_Allreduce.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] + [ctypes.c_void_p] * 3
    code = library.MPIABI_Allreduce(None, None, -(2**31) + 64, None, None, ctypes.addressof(group))
    library.MPIABI_Error_string(code, text, ctypes.byref(length))
    assert code and b"XLA cuts counts to 32 bits" in text.value


def start(name: str, processes: int, devices: int = 1, *options: str) -> None:
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", str(processes), *options, "--", __file__, name],
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
    [
        ("a_part_of_the_processes", 3), ("a_group_inside_a_large_program", 3), ("threads", 3), ("calls_that_differ", 3),
        ("kinds_that_differ", 4), ("threads_in_turn", 2), ("a_rank_dies", 3), ("others_are_refused", 2),
    ],  # fmt: skip
)
def test_programs(name: str, processes: int) -> None:
    start(name, processes)


def test_readers(tmp_path: pathlib.Path) -> None:
    """`hocket top`, a trace and its report."""
    from hocket.observe.files.reading import read

    file = tmp_path / "t.pftrace.gz"
    start("readers", 2, 1, "--trace", str(file))
    names = " ".join(name for each in tmp_path.glob("t*.pftrace.gz") for name in read(str(each)).names)
    assert "allreduce(float32[4], op='sum') within a program of JAX's" in names, names
    assert "sendrecv(uint8[16], dest=1, source=1, within a ppermute of a program of JAX's" in names, names


PLAIN = """
import sys
import jax, numpy as np
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.distributed.initialize("127.0.0.1:" + port, size, rank)
from jax.experimental import multihost_utils
try:
    print(multihost_utils.process_allgather(np.array([rank])).ravel().tolist(), "hocket" in sys.modules)
except Exception as error:
    print(type(error).__name__, error)
"""


def plain(size: int, environment: Callable[[int], dict[str, str]], python: str = PLAIN) -> list[tuple[str, str]]:
    """The output of processes of a program that never heard of hocket; they are told two free ports."""
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = [str(each.getsockname()[1]) for each in (free, other)]
    bare = {name: value for name, value in os.environ.items() if name not in (loading.FILE, loading.CHOICE)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", python, str(rank), str(size), *ports], text=True,
            env={**bare, "PYTHONPATH": PATH, "JAX_PLATFORMS": "cpu", **environment(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        return [process.communicate(timeout=90) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_two_variables_are_enough() -> None:
    ours = loading.variables({})
    assert ours == {loading.FILE: loading.LIBRARY, loading.CHOICE: "mpi"}
    for out, err in plain(2, lambda rank: ours):
        assert out.split("\n")[0] == "[0, 1] True", out + err


def test_a_process_without_the_variables() -> None:
    ours = loading.variables({})
    (out, err), _ = plain(2, lambda rank: {} if rank else ours)
    assert "process 1 has no hocket under JAX's collectives" in out and "python -m hocket.xla" in out, out + err


ABSENT = """
import os, sys, threading, time
import jax, numpy as np
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.distributed.initialize("127.0.0.1:" + port, size, rank)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
late = rank == size - 1
def total(devices, wait=lambda: None):
    mesh = Mesh(np.array(devices), "i")
    def body(a):
        global began
        wait()
        began = time.monotonic()  # traced
        return jax.lax.psum(a, "i")
    body = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=PartitionSpec())
    mine = [jax.device_put(np.ones(1), device) for device in devices if device.process_index == rank]
    x = jax.make_array_from_single_device_arrays((len(devices),), NamedSharding(mesh, PartitionSpec("i")), mine)
    return int(np.asarray(jax.jit(body)(x).addressable_data(0))[0])
every = jax.devices()
if way == "gone" and late:
    os._exit(0)
if way == "ended" and late:
    sys.exit()
if way == "in a call":
    total(every)
if way in ("sleeps", "patience sleeps", "threads") and late:
    from jax._src import distributed
    while "came/0" not in str(distributed.global_state.client.key_value_dir_get("hocket/xla/")):
        time.sleep(0.1)
    time.sleep(6)
if way == "thread" and late:  # the main thread waits, and another one computes what the others wait for
    thread = threading.Thread(target=lambda: (sum(range(10**8)), print(total(every))))
    thread.start()
    thread.join()
    sys.exit()
if way == "threads":  # process 1 waits for a thread of 0 that can go on, and another one of 0 waits for 1
    pair, ends = every[:2], every[::2]
    thread = threading.Thread(target=lambda: rank or total(pair))
    thread.start()
    try:
        print("right", *sorted(map(total, [every, pair] if rank == 1 else [ends, every])))
    except Exception as error:
        print(error)
    thread.join()
    sys.exit()
if way == "crossed" and not rank:
    time.sleep(0.5)  # the others find the circle first, and leave it
try:
    turned = way in ("crossed", "in a call") and rank == 0
    wait = lambda: time.sleep(6) if way == "patience compiles" and late else None
    print(total(every[::-1] if turned else every, wait), flush=True)
except Exception as error:
    print(time.monotonic() - began < 5, error, flush=True)
    if way == "in a call":
        total(every)  # the call in which the others wait
    if way == "gone":
        time.sleep(1 - rank)
        os._exit(0)
"""


@pytest.mark.parametrize(
    ("way", "first", "last"),
    [
        ("gone", "True process 2 is gone", ""), ("ended", "True process 2 has ended its program", ""),
        ("crossed", "True wait for each other", "True wait for each other"),
        ("in a call", "True wait for each other", "3"),
        ("sleeps", "3", "3"), ("thread", "3", "3"), ("threads", "right 2 3", "right 2 3"),
        ("patience compiles", "3", "3"),
        ("patience sleeps", "within s: process 2 is outside JAX at <string>", "were not joined"),
    ],  # fmt: skip
)
def test_a_member_that_never_comes_is_named_and_a_late_one_is_waited_for(way: str, first: str, last: str) -> None:
    ours = loading.variables({}) | ({"HOCKET_ABSENT_AFTER": "3"} if way.startswith("patience") else {})
    found = plain(3, lambda rank: ours, f"way = {way!r}\n{ABSENT}")
    for (out, err), wanted in zip(found, (first, first if way != "in a call" else last, last), strict=True):
        assert all(word in out for word in wanted.split(maxsplit=1)), (out, err)
    told = "process 2 is outside JAX at <string>" in found[0][1]
    assert told == (way in ("sleeps", "threads")) or way == "thread", found[0][1]


def test_loaded_late_and_gloo() -> None:
    late = "import jax, hocket.jax\ntry: hocket.jax.initialize()\nexcept ImportError as e: print(e)"
    [(out, err)] = plain(1, lambda rank: {}, late)
    assert "jax was imported before hocket.jax" in out and "import hocket.jax before jax" in out, out + err
    early = "import hocket.jax, jax, os; print(os.environ.get('JAX_CPU_COLLECTIVES_IMPLEMENTATION'))"
    [(out, err)] = plain(1, lambda rank: {}, early)
    assert out.split() == ["mpi"], out + err
    [(out, err)] = plain(1, lambda rank: {loading.CHOICE: "gloo"}, early)
    assert out.split() == ["gloo"], out + err


def test_a_jaxlib_that_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "TRIED", ())
    assert loading.missing() == ""  # by what stands in its file
    monkeypatch.setattr(loading, "table", lambda: {"MPIABI_Init": ""})
    assert "which this hocket lacks: it knows jaxlib up to" in loading.missing()
    assert loading.variables({}) == {}


def test_the_example() -> None:
    example = str(pathlib.Path(__file__).parents[3] / "examples/frameworks/jax_psum.py")
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", "2", "--", example], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same as one process" in done.stdout, done.stdout


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
