"""A job of four ranks on two hosts: network namespaces with a cable between them, two ranks in each."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from hocket.system.namespaces.hosts import V4
from support.faulty import job

SECRET = secrets.token_hex(32)


@contextlib.contextmanager
def job_on(
    hosts: list[str], source: str, where: pathlib.Path, *, master: str = V4[0], on: Sequence[int] = (0, 0, 1, 1),
    **env: str,
) -> Iterator[Any]:  # fmt: skip
    """`on`: the host of each rank."""
    own = {"WORLD_SIZE": "4", "MASTER_ADDR": master, "MASTER_PORT": "29500", "HOCKET_SECRET": SECRET, **env}
    own = {k: v for k, v in own.items() if v}
    # A TMPDIR that is too long for sockets is left for /tmp, which both hosts see: then they are one.
    with tempfile.TemporaryDirectory(prefix="hosts-") as short:
        temporary = pathlib.Path(short, "tmp")
        temporary.mkdir()
        places = [pathlib.Path(short, f"host{on[r]}") for r in range(4)]
        for place in places:
            place.mkdir(exist_ok=True)
        named = [(hosts[on[r]], str(places[r])) for r in range(4)]
        with job(4, source, where, {"TMPDIR": str(temporary), **own}, hosts=named) as run:
            yield run
        for place in places:
            kept = "hocket-0", "hocket-events-"  # empty folders of sockets; what the ranks did last
            assert [name for name in os.listdir(place) if not name.startswith(kept)] == []
