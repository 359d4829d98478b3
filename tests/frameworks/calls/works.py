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

import hocket
import hocket.torch
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
    """What they hold goes with the next calls, also synchronous ones."""
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
