"""A communicator, as far as arrays that move need it: the one that users hold stands above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hocket.collectives.members.members import Members


class Comm(Protocol):
    """The communicator."""

    rank: int
    size: int
    membership: Members

    @property
    def send(self) -> Callable[..., Any]: ...
    @property
    def recv(self) -> Callable[..., Any]: ...
    @property
    def barrier(self) -> Callable[..., Any]: ...
    @property
    def share(self) -> Callable[..., Any]: ...
    @property
    def lane(self) -> Callable[..., Any]: ...
