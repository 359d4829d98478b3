"""Failures inside a compiled program: an exception with hocket's text on every rank, hocket's error behind it."""

from __future__ import annotations

import sys
import time

import pytest

from support import jobs
from support.worlds import PATH

START = """
import os, signal, sys, time
import jax, jax.numpy as jnp, numpy as np
import hocket, hocket.jax
comm = hocket.jax.init()
rank, size = comm.rank, comm.size
step = jax.jit(hocket.jax.allreduce)

def fails(x, kind):
    try:
        jax.block_until_ready(step(x))
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        cause = hocket.jax.cause(error)
        assert isinstance(cause, kind), (type(cause), str(error))
        assert str(cause) in str(error) and kind.__name__ in str(error)
        return cause
    raise AssertionError("it did not fail")
"""


def ends(size: int, source: str) -> list[jobs.Ended]:
    """The ends of the ranks; JAX cannot be forked, so each begins anew."""
    argv = [sys.executable, "-c", START + source]
    with jobs.Job(size, argv=argv, env={"PYTHONPATH": PATH}) as job:
        return job.wait(90)


def fine(found: list[jobs.Ended]) -> None:
    for rank, end in enumerate(found):
        assert end.code == 0, f"rank {rank} ended with {end.code}:\n{end.err[-4000:]}\n{end.out[-2000:]}"


@pytest.mark.parametrize("size", [2, 3])
def test_calls_that_differ_and_a_new_communicator(size: int) -> None:
    """All ranks hear it, later calls say it again, and after init the same function works."""
    fine(ends(size, """
step(jnp.ones(3)).block_until_ready()
found = fails(jnp.ones(2 + rank), hocket.MismatchError)
assert set(found.calls) <= set(range(size)) and "the ranks called different things" in str(found), found
assert found.__traceback__ is None      # its frames would show memory that is gone
fails(jnp.ones(3), hocket.Error)
old = comm
comm = hocket.jax.init()
for _ in range(3):
    assert step(jnp.ones(3)).tolist() == [size] * 3
assert hocket.jax.cause(ValueError("of another kind")) is None
old.close()
"""))  # fmt: skip


def test_a_killed_rank() -> None:
    started = time.monotonic()
    found = ends(3, """
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda i, y: hocket.jax.allreduce(y, "max"), x))
if rank == 2:
    step(jnp.ones(1))
    import threading
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    loop(jnp.ones(1)).block_until_ready()
step(jnp.ones(1))
step = loop
assert fails(jnp.ones(1), hocket.PeerLostError).ranks == (2,)
""")
    assert found[2].code == -9
    fine(found[:2])
    assert time.monotonic() - started < 60


def test_a_rank_that_comes_too_late() -> None:
    fine(ends(2, """
step(jnp.ones(1)).block_until_ready()
comm.set_timeout(0.5)
if rank == 1:
    time.sleep(2)
    fails(jnp.ones(1), hocket.Error)
else:
    assert fails(jnp.ones(1), hocket.TimeoutError).missing == (1,)
"""))  # fmt: skip


def test_a_rank_that_raises_ends_the_others() -> None:
    found = ends(2, """
step(jnp.ones(1)).block_until_ready()
if rank == 1:
    time.sleep(1)
    raise ZeroDivisionError("by rank 1")
found = fails(jnp.ones(1), hocket.PeerLostError)
assert "by rank 1" in str(found), found
""")
    fine(found[:1])
    assert found[1].code == 1 and "by rank 1" in found[1].err


def test_a_rank_that_raises_while_its_own_call_is_under_way() -> None:
    """It waits for a long computation, which JAX has only started: the process ends with its own error."""
    found = ends(2, """
step(jnp.ones(1)).block_until_ready()
if rank == 1:
    big = jnp.ones((1000, 1000))
    step(jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda i, y: y @ x * 1e-3, x))(big))
    raise ZeroDivisionError("by rank 1")
time.sleep(2)
assert "by rank 1" in str(fails(jnp.ones(5), hocket.PeerLostError))
""")
    fine(found[:1])
    assert found[1].code == 1 and "by rank 1" in found[1].err and "Fatal" not in found[1].err


def test_calls_under_way_at_the_end_of_the_process() -> None:
    """They are carried out; one that fails then is told, with an exit code."""
    fine(ends(2, """
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, y: hocket.jax.allreduce(y), x))
time.sleep(rank)
for _ in range(5):
    loop(jnp.ones(1 << 16))
"""))  # fmt: skip
    late = """
loop = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, y: hocket.jax.allreduce(y), x))
loop(jnp.ones(1))
time.sleep(rank)
loop(jnp.ones(1 + rank))
"""
    for end in ends(2, late):
        assert end.code == 1 and "the ranks called different things" in end.err and "Fatal" not in end.err


def test_a_closed_communicator_and_a_program_of_another_process() -> None:
    fine(ends(2, """
twin = comm.dup()
step = jax.jit(lambda x: hocket.jax.allreduce(x, comm=twin))
step(jnp.ones(1)).block_until_ready()
twin.close()
assert "closed" in str(fails(jnp.ones(1), hocket.ArgumentError))
from hocket.jax import handler
handler.calls.clear()
try:
    jax.block_until_ready(step(jnp.ones(1)))
    raise AssertionError
except jax.errors.JaxRuntimeError as error:
    assert "is not known in this process" in str(error) or "closed" in str(error), error
"""))  # fmt: skip
