"""send and recv with codec="lossless": the same bits, and what does not go with it is said."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError, TimeoutError
from support.exact_sums import addends
from support.worlds import spread


def passed_on(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    given = [(np.float32, 100_003), (np.float16, 7), (ml_dtypes.bfloat16, 40_000), (np.float32, 0)]
    for i, (dtype, n) in enumerate(given):
        x, before = (addends(np.random.default_rng(r), np.dtype(dtype).name, (n,), "bits") for r in (comm.rank, left))
        work = comm.send(x, right, tag=i, codec="lossless", async_op=True)
        out = np.empty_like(x)
        assert comm.recv(out, left if i else None, tag=i, codec="lossless") is out
        assert out.tobytes() == before.tobytes()
        work.wait()


def torch_and_strides(comm: Communicator) -> None:
    x = torch.arange(6, dtype=torch.bfloat16)
    comm.send(x, comm.rank, codec="lossless")
    assert torch.equal(comm.recv(torch.empty_like(x), comm.rank, codec="lossless"), x)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((4, 3), np.float32).T
    comm.send(rows[:, ::2], comm.rank, codec="lossless")
    comm.recv(out[:, ::2], comm.rank, codec="lossless")
    assert (out[:, ::2] == rows[:, ::2]).all() and not out[:, 1::2].any()


def test_tensors_and_strides() -> None:
    spread(torch_and_strides, 1, "threads")


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), (2, "tcp")])
def test_the_same_bits(size: int, transport: str) -> None:
    spread(passed_on, size, transport)


def refusals(comm: Communicator) -> None:
    x = np.ones(3, np.float32)
    comm.send(x, comm.rank, tag=9)
    for told, call in {
        "messages take 'lossless' alone": lambda: comm.send(x, 0, codec="bf16"),
        "takes float32, float16, bfloat16, got int64": lambda: comm.send(np.arange(3), 0, codec="lossless"),
        "omit async_op and transport": lambda: comm.recv(x, 0, async_op=True, codec="lossless"),
        "sent float32 without codec='lossless'": lambda: comm.recv(x, comm.rank, tag=9, codec="lossless"),
    }.items():
        with pytest.raises(ArgumentError, match=re.escape(told)):
            call()
    comm.recv(x, comm.rank, tag=9)
    comm.send(x, comm.rank, codec="lossless")
    found = comm.probe(comm.rank)
    assert found is not None and (found.dtype, found.codec, found.count) == ("float32", "lossless", -1)
    with pytest.raises(ArgumentError, match=f"rank {comm.rank} sent float32, and out has dtype float16"):
        comm.recv(x.astype(np.float16), comm.rank, codec="lossless")
    with pytest.raises(ArgumentError, match="are not 16 bytes"):
        comm.recv(np.empty(4, np.float32), comm.rank, codec="lossless")
    assert comm.recv(x, hocket.PROC_NULL, codec="lossless") is x and x.tolist() == [1, 1, 1]
    with pytest.raises(TimeoutError, match="tag=7 came within 0.1 s"):
        comm.recv(x, comm.rank, tag=7, codec="lossless", timeout=0.1)
    comm.messenger.members.timeout = 0.1
    with pytest.raises(TimeoutError, match="tag=7 came within 0.1 s"):
        comm.recv(x, comm.rank, tag=7, codec="lossless")


def test_what_is_refused() -> None:
    spread(refusals, 2, "threads")


def plainly(comm: Communicator) -> None:
    x = np.ones(40, np.float32)
    comm.send(x, comm.rank, codec="lossless")
    with pytest.raises(MismatchError, match=re.escape("got float32 that codec='lossless' has packed (a recv says")):
        comm.recv(x, comm.rank)


def test_a_plain_recv_is_told_what_came() -> None:
    spread(plainly, 1, "threads")
