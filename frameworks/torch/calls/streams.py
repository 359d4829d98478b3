"""CUDA tensors: what comes after a call is done in the stream that the call is ordered in (`Work.stream`).

Such a call has ended when it has been issued there; a thread that waits makes its own stream follow that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hocket import Work as Handle


class Side:
    """The stream of a call, on this device."""

    def __init__(self, stream: Any, device: torch.device) -> None:
        self.stream, self.device = stream, device
        self._through: Any = None

    def current(self) -> Any:
        """A context in which the stream is the current one."""
        return torch.cuda.stream(self.stream)

    def keep(self, tensors: Any) -> None:
        """Let their memory be given to others only when what is now in the stream has been done."""
        for each in flat(tensors):
            if each.is_cuda:  # others may be among them, in coalesced calls
                each.record_stream(self.stream)

    def follow(self) -> None:
        """Order this after the caller's stream: work that it is given from now on comes after what is now in this one.
        """
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def mark(self) -> None:
        """All has been issued: remember this point of the stream for `is_past`."""
        self._through = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._through.record(self.stream)

    def is_past(self) -> bool:
        """Has the GPU done all before the mark?"""
        return self._through is not None and bool(self._through.query())


def side_of(handles: Sequence[Handle], tensors: Any) -> Side | None:
    """The stream of these calls on these tensors; None: they are ordered by the host.

    No handles: the calls were issued to the caller's stream, and nothing is left to do.
    """
    address = next((handle.stream for handle in handles if handle.stream), 0)
    if handles and not address:
        return None
    device = next((each.device for each in flat(tensors) if each.is_cuda), None)
    if device is None:
        return None
    if handles:
        return Side(torch.cuda.ExternalStream(address, device=device), device)  # type: ignore[no-untyped-call]
    made = Side(torch.cuda.current_stream(device), device)
    made.mark()
    return made


def flat(tensors: Any) -> Iterable[torch.Tensor]:
    """All tensors in lists of lists; anything else is left out."""
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, list | tuple):
        for each in tensors:
            yield from flat(each)
