"""One site of each way that has ranks: hocket's classes, and torchft's on its Gloo group and on hocket's."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import hocket
from hocket.lab.outer.peers.learning import EVERY, SITES, Learner
from hocket.system.namespaces.hosts import CABLE
from hocket.system.namespaces.switch import NET
from hocket.training import DiLoCo, LocalSGD

LIGHTHOUSE, LIMIT = f"{NET}1:29510", timedelta(seconds=60)
LR, OUTER_MOMENTUM = 0.7, 0.5

Site = Callable[[int, Learner], contextlib.AbstractContextManager[Callable[[], Any]]]
"""A site's rank and learner; what it enters is called after each of the learner's steps."""


def hocket_way(make: Callable[[Any, dict[str, Any]], Any]) -> Site:
    @contextlib.contextmanager
    def site(rank: int, learner: Learner) -> Iterator[Callable[[], Any]]:
        with hocket.init() as comm:
            yield make(comm, learner.weights()).step

    return site


def torchft_way(group: str, method: str) -> Site:
    @contextlib.contextmanager
    def site(rank: int, learner: Learner) -> Iterator[Callable[[], Any]]:
        import torchft.local_sgd

        with contextlib.ExitStack() as stack:
            if rank == 0:
                from torchft.coordination import LighthouseServer

                stack.callback(LighthouseServer(bind=LIGHTHOUSE, min_replicas=SITES, join_timeout_ms=5000).shutdown)
            manager = _manager(rank, group, learner)
            stack.callback(manager.shutdown, wait=False)
            model, inner = learner.model, learner.optimizer
            if method == "DiLoCo":
                outer = torch.optim.SGD(model.parameters(), lr=LR, momentum=OUTER_MOMENTUM, nesterov=True)
                loop = torchft.local_sgd.DiLoCo(manager, [model], inner, outer, EVERY, pin_memory=False)
            else:
                loop = torchft.local_sgd.LocalSGD(manager, model, inner, EVERY)
            stack.enter_context(loop)
            yield lambda: None  # a hook of the optimizer's does it

    return site


def _manager(rank: int, group: str, learner: Learner) -> Any:
    from torchft import Manager, ProcessGroupGloo

    from hocket.torch.torchft import ProcessGroupHocket

    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    here = f"{NET}{rank + 1}"
    socket.gethostname = lambda: here  # torchft tells the others where its store is; these hosts have no names
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    return Manager(
        pg={"Gloo": ProcessGroupGloo, "hocket": ProcessGroupHocket}[group](timeout=LIMIT), min_replica_size=SITES,
        rank=0, world_size=1, store_addr=here, store_port=store.port, hostname=here, lighthouse_addr=f"http://{LIGHTHOUSE}",
        replica_id=f"site{rank}", use_async_quorum=False, init_sync=False, timeout=LIMIT, quorum_timeout=LIMIT,
        connect_timeout=LIMIT, state_dict=learner.model.state_dict, load_state_dict=learner.model.load_state_dict,
    )  # fmt: skip


def _diloco(**more: Any) -> Site:
    return hocket_way(lambda comm, theta: DiLoCo(comm, theta, every=EVERY, lr=LR, momentum=OUTER_MOMENTUM, **more))


WAYS: dict[str, Site] = {
    "hocket, LocalSGD": hocket_way(lambda comm, theta: LocalSGD(comm, theta, every=EVERY)),
    "torchft, LocalSGD on Gloo": torchft_way("Gloo", "LocalSGD"),
    "torchft, LocalSGD on hocket": torchft_way("hocket", "LocalSGD"),
    "hocket, DiLoCo": _diloco(),
    "torchft, DiLoCo on Gloo": torchft_way("Gloo", "DiLoCo"),
    "torchft, DiLoCo on hocket": torchft_way("hocket", "DiLoCo"),
    "hocket, DiLoCo in int8": _diloco(send="int8"),
}
