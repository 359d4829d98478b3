"""Ray Direct Transport: a tensor that an actor returns stays with it, and comes by hocket to the actors that use it.

An actor with tensors listens; who wants one connects, once, and asks for it by its object's name.  A thread answers, so
that no actor waits for another's turn: Ray calls such a transport one-sided.  Inside a host tensors go through shared
memory, between hosts over hocket's links.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.experimental import TensorTransportManager, register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata, TensorTransportMetadata

import hocket
from hocket import Communicator
from hocket.errors import Error, PeerLostError
from hocket.ray.errors import in_rays_words
from hocket.ray.register import NAME

NONE, LONGEST = -1, 1 << 12
"""The answer for an object that is not here; bytes of an object's name, at most."""
REACH = 10.0
"""Seconds in which an actor that has tensors answers, unless it is gone."""
_Manager: Any = TensorTransportManager
_lock = threading.Lock()
_registered = False


def register_transport() -> None:
    """Make Ray know the tensor transport "hocket", for torch tensors on the CPU; a second time does nothing.

    Call it in the process that creates the actors, before their class is declared: Ray tells them.  A method that is
    declared by `@ray.method(tensor_transport="hocket")` keeps the tensors that it returns.
    """
    global _registered
    with _lock:
        if not _registered:
            register_tensor_transport(NAME, ["cpu"], HocketTransport, torch.Tensor)
            _registered = True


@dataclass
class Where(TensorTransportMetadata):  # type: ignore[misc]
    """The words that travel with an object: where its tensors are, and the secret by which they are asked for."""

    address: str = ""
    secret: str = ""


class HocketTransport(_Manager):  # type: ignore[misc]
    """Ray makes one in each process, and calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[str, Sequence[Any]] = {}
        """By object, tensors of this actor."""
        self._where = "", ""
        self._pairs: Any = None
        self._links: dict[str, _ActorLink] = {}

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    # --- the actor that has tensors

    @in_rays_words
    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: Sequence[Any]) -> Where:
        tensors = [each.detach() for each in rdt_object]
        with self._lock:
            if self._pairs is None and tensors:
                self._where = self._listen()
            self._offered[obj_id] = tensors
        device = tensors[0].device.type if tensors else None
        return Where([(each.shape, each.dtype) for each in tensors], device, *self._where)

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: Any = None) -> None:
        with self._lock:
            self._offered.pop(obj_id, None)

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("this transport must be one-sided: nothing is sent before it is asked for")

    def _listen(self) -> tuple[str, str]:
        secret = secrets.token_hex(16)
        iface = os.environ.get("HOCKET_IFACE") or ray.util.get_node_ip_address()
        self._pairs = hocket.listen(secret=secret, iface=iface)
        threading.Thread(target=self._accept, daemon=True, name="hocket ray").start()
        return self._pairs.address, secret

    def _accept(self) -> None:
        for pair in self._pairs:
            threading.Thread(target=self._serve, args=(pair,), daemon=True, name="hocket ray").start()

    def _serve(self, pair: Communicator) -> None:
        """Answer one process, until it ends."""
        pair.set_timeout(float("inf"))
        try:
            while asked := _heard(pair):
                tensors = self._offered.get(asked)
                pair.send(np.array([NONE if tensors is None else len(tensors)]), 1)
                for each in tensors or ():
                    pair.send(each, 1)
        except Error:  # it has ended
            pass
        finally:
            pair.close(timeout=0.1, log_as="an actor that reads tensors")

    # --- the actor that wants them

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return CommunicatorMetadata()

    @in_rays_words
    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any, target_buffers: Any = None
    ) -> list[Any]:
        where = tensor_transport_metadata
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in where.tensor_meta]
        if target_buffers:
            tensors = list(target_buffers)
        if not tensors:
            return []
        with self._lock:
            link = self._links.setdefault(where.address, _ActorLink())
        try:
            link.get(obj_id, where, tensors)
        except Error:
            with self._lock:
                self._links.pop(where.address, None)
            raise
        return tensors

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Nothing has to be undone: an actor that is lost ends what others receive from it."""


class _ActorLink:
    """The connection to one actor: one object after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pair: Communicator | None = None

    def get(self, obj_id: str, where: Any, tensors: Sequence[Any]) -> None:
        with self._lock:
            if self._pair is None:
                self._pair = hocket.connect(where.address, secret=where.secret, timeout=REACH)
            self._pair.send(np.frombuffer(obj_id.encode(), np.uint8), 0)
            if self._pair.recv(np.zeros(1, np.int64), 0)[0] != len(tensors):
                raise PeerLostError(f"object {obj_id} is not with its actor any more")
            for each in tensors:
                self._pair.recv(each, 0)


def _heard(pair: Communicator) -> str:
    """The name of the next object."""
    message = pair.probe(1)
    if message is None or message.nbytes > LONGEST:
        return ""
    name: Any = pair.recv(np.empty(message.nbytes, np.uint8), 1)
    return str(name.tobytes().decode())
