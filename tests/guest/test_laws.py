"""The laws of transports over real devices, from one to itself and through the windows of its driver."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import TRANSPORTS


@pytest.mark.skipif("verbs" not in TRANSPORTS, reason="the laws over tcp are part of the plain tests")
@pytest.mark.parametrize("port", ["rxe0:1:1", "rxe0:1:0"], ids=["IPv4", "IPv6 link-local"])
def test_the_laws(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RDMA", port)
    command = [sys.executable, "-m", "hocket.conformance", "hocket.transports.verbs.transport:VerbsTransport"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and done.stdout.count("kept ") >= 16, done.stdout + done.stderr
