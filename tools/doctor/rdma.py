"""Facts from pyverbs, rdma-core's own Python module, about this machine's RDMA devices; hocket itself does without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Bytes, by verbs' code."""
ACTIVE = 4
LINKS = {1: "InfiniBand", 2: "Ethernet"}
WINDOWS = 1 << 24
"""IBV_DEVICE_MEM_WINDOW_TYPE_2B: keys that open just a message (docs/verbs.md)."""


def section() -> Iterator[str]:
    if find_spec("pyverbs") is None:
        yield "pyverbs: not installed; it would tell of devices here (Debian: python3-pyverbs)"
        return
    try:
        module = import_module("pyverbs.device")
        names = [each.name.decode() for each in module.get_device_list()]
    except Exception as why:  # it is built for one version of libibverbs, and raises what it likes
        yield f"pyverbs: cannot be used: {' '.join(str(why).split())}"
        return
    yield f"by pyverbs: {len(names)} devices"
    for name in names:
        try:
            yield from _device(name, module.Context(name=name))
        except Exception as why:
            yield f"{name}: cannot be opened: {' '.join(str(why).split())}"


def _device(name: str, context: Any) -> Iterator[str]:
    said = context.query_device()
    windows = "memory windows" if said.device_cap_flags & WINDOWS else "no memory windows (keys of their own instead)"
    yield (
        f"{name}: firmware {said.fw_version}, vendor {said.vendor_id:#x}, {said.max_qp} queue pairs and "
        f"{said.max_mr} registrations at most, {windows}"
    )
    for number in range(1, said.phys_port_cnt + 1):
        port = context.query_port(number)
        state = "active" if port.state == ACTIVE else "down"
        gid = str(context.query_gid(number, 0).gid)
        link = LINKS.get(port.link_layer, "an unknown link")
        yield f"{name} port {number}: {state}, {link}, MTU {MTU.get(port.active_mtu, 0)}, GID {gid}"
    context.close()
