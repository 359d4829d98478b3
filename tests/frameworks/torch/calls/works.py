"""Works and their futures."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.variable import Variable

import hocket
import hocket.torch
import hocket.torch.calls.works
from calls.checks import check


@check
def futures() -> None:
    """They complete on their own, whoever waits; a callback may call collectives and wait for them."""
    p = dist.get_world_size()
    x, then = torch.ones(3), []

    def again(future: Any) -> float:
        y = future.value()[0].clone()
        dist.all_reduce(y)
        z = y.clone()
        dist.all_reduce(z, async_op=True).get_future().wait()
        then.append(z)
        return float(z[0])

    assert dist.all_reduce(x, async_op=True).get_future().then(again).wait() == p**3
    works = [dist.all_reduce(torch.ones(1000) * i, async_op=True) for i in range(20)]
    assert [f.wait()[0][0].item() for f in [w.get_future() for w in works]] == [p * i for i in range(20)]
    done = dist.all_reduce(torch.ones(2), async_op=True)
    done.wait()
    assert done.is_completed() and done.is_success() and done.exception() is None
    assert done.get_future().wait()[0].tolist() == [p, p] and done.result()[0].tolist() == [p, p]


@check
def futures_that_wait_for_others() -> None:
    """In a callback, and asked for by several threads at once."""
    p = dist.get_world_size()
    first, second = (dist.all_reduce(torch.ones(n), async_op=True).get_future() for n in (3, 4))
    assert first.then(lambda done: second.wait()[0].tolist()).wait() == [p] * 4
    for _ in range(30):
        work, found = dist.all_reduce(torch.ones(2), async_op=True), []
        ask = functools.partial(lambda work, found: found.append(work.get_future()), work, found)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [future.wait()[0].tolist() for future in found] == [[p, p]] * 2


@check
def futures_asked_for_in_a_backward_pass() -> None:
    """The end of the pass drives the call while data moves, and does not wait for ranks that come only after it."""
    p, rank = dist.get_world_size(), dist.get_rank()
    x, seen = torch.ones(3), []
    at_the_end = Variable._execution_engine.queue_callback

    def issued(gradient: Any) -> None:
        works.append(dist.all_reduce(x, async_op=True))
        works[-1].get_future()
        at_the_end(lambda: seen.append(works[-1].over()))

    def backward() -> None:
        y = torch.ones(1, requires_grad=True)
        y.register_hook(issued)
        y.sum().backward()

    usual = hocket.torch.calls.works.STILL
    for still, over in ((30.0, True), (usual, False)):
        works: list[Any] = []
        hocket.torch.calls.works.STILL = still
        if rank == 0:
            backward()
            assert seen.pop() == (over or p == 1)
            for other in range(1, p):
                dist.send(torch.ones(1), other)
        else:
            if over:
                time.sleep(0.2)
            else:  # rank 0 is through with its pass
                dist.recv(torch.ones(1), 0)
            backward()
            if over:
                dist.recv(torch.ones(1), 0)
        works[0].wait()
    assert x.tolist() == [p * p] * 3


@check
def waits_that_are_too_short() -> None:
    """They say so, and are of no consequence for the call."""
    for i in range(300):
        out = torch.zeros(4, 2)[:, 0]
        if dist.get_rank():
            time.sleep(0.0002)
        work = dist.all_reduce(out.add_(1), async_op=True)
        with contextlib.suppress(hocket.TimeoutError):
            work.wait(timedelta(microseconds=100 + i))
        assert work.wait() and work.is_success() and out.tolist() == [dist.get_world_size()] * 4


@check
def works_that_nobody_waits_for() -> None:
    """The memory that they hold goes with the next calls, also synchronous ones."""
    x = torch.ones(1000)
    seen = weakref.ref(x)
    dist.all_reduce(x, async_op=True)
    del x
    y = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(y)
    dist.barrier()
    dist.all_reduce(y)
    gc.collect()
    assert seen() is None
