"""Where the ranks of the guest's tests are: a transport, and which rank is at which of the two devices."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from hocket.transports.registry import BUILT_IN

TRANSPORTS = os.environ.get("GUEST_TRANSPORTS", "verbs" if "verbs" in BUILT_IN else "tcp").split(",")
"""Transports under test.  `GUEST_TRANSPORTS=tcp,verbs make test-verbs` runs all for both."""
DEVICES, ADDRESSES = ("rxe0", "rxe1"), ("10.77.0.1", "10.77.0.2")
PLACES = {"one device": (0, 0, 0, 0), "across": (0, 1, 0, 1)}
"""Rank -> device.  Inside one device the driver hands packets over; from one to the other they go through the cable."""
HOSTS = (0, 0, 1, 1)
"""Rank -> host, where there are hosts; each host has its own device."""


def env(transport: str, places: Sequence[int], also: str = "") -> list[dict[str, str]]:
    """The environment that sends each rank over that transport; `also`: transports to try before it."""
    made = []
    for place in places:
        where = {"HOCKET_RDMA": DEVICES[place]} if transport == "verbs" else {"HOCKET_IFACE": ADDRESSES[place]}
        made.append({"HOCKET_TRANSPORT": f"{also},{transport}" if also else transport, **where})
    return made


def held() -> dict[str, str]:
    """Objects of each device that are in use, by the kernel: protection domains, queues, regions, contexts."""
    if not any(transport == "verbs" for transport in TRANSPORTS):
        return {}
    lines = subprocess.run(["rdma", "resource", "show"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[1]: " ".join(line.split()[2:]) for line in lines}


def freed(before: dict[str, str], seconds: float = 10.0) -> None:
    """Assert that no more is in use than before; what killed processes had, the kernel frees a moment later."""
    deadline = time.monotonic() + seconds
    while (now := held()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert now == before, f"in use: {now}; before: {before}"
