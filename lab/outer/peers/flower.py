"""Flower's FedAvg as its programs run it: a SuperLink on a host of its own, a SuperNode on each site, over HTTP."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket.conformance.jobs.ranks import started
from hocket.lab.outer.peers.learning import SITES
from hocket.system.namespaces.hosts import on
from hocket.system.namespaces.switch import NET

SERVER, PORT = f"{NET}{SITES + 1}", "29512"
LINK = f"{SERVER}:{PORT}"
PROJECT = """
[project]
name = "digits"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "hocket"
[tool.flwr.app.components]
serverapp = "digits.app:server"
clientapp = "digits.app:client"
[tool.flwr.app.config]
rounds = {rounds}
"""
APP = "from hocket.lab.outer.peers import flower_app\n\nclient = flower_app.client\nserver = flower_app.server\n"
SETTINGS = f"""
[superlink]
default = "here"
[superlink.here]
address = "{LINK}"
insecure = true
"""
SAY = "PEERS_SAY"
"""The variable that names the file into which the server's app writes what came of it."""


def missing() -> str | None:
    return None if shutil.which("flower-superlink") else "there is no flower-superlink on the PATH: pip install flwr"


def federated(hosts: Sequence[str], rounds: int, place: str, seconds: float) -> dict[str, Any]:
    """The outcome of federated averaging.  `place`: an empty folder.  After so many seconds SystemExit, with the
    programs' log."""
    root = pathlib.Path(place)
    app, said = _app(root, rounds), root / "said.json"
    env = {**os.environ, SAY: str(said), "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "TMPDIR": place}
    server, *sites = [{**env, "FLWR_HOME": str(_home(root / str(i)))} for i in range(SITES + 1)]
    link = [*on(hosts[SITES], place), "flower-superlink", "--insecure", "--host", SERVER, "--port", PORT,
            "--disable-runtime-dependency-installation"]  # fmt: skip
    node = ["flower-supernode", "--insecure", "--superlink", LINK, "--node-config"]
    nodes = [([*on(hosts[i], place), *node, f"site={i}"], each) for i, each in enumerate(sites)]
    deadline = time.monotonic() + seconds
    with (root / "log").open("w") as log:
        there: dict[str, Any] = {"stdout": log.fileno(), "stderr": log.fileno()}
        with started([(link, server)], **there):
            submit = [*on(hosts[SITES], place), "flwr", "run", str(app), "here"]
            _until(lambda: not subprocess.call(submit, env=server, **there), deadline, root)
            with started(nodes, **there):
                _until(said.exists, deadline, root)
    return dict(json.loads(said.read_text()))


def _app(root: pathlib.Path, rounds: int) -> pathlib.Path:
    app = root / "digits"
    (app / "digits").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT.format(rounds=rounds))
    (app / "digits" / "app.py").write_text(APP)  # Flower wants its objects in the app's own file
    (app / "digits" / "__init__.py").write_text("")
    return app


def _home(home: pathlib.Path) -> pathlib.Path:
    home.mkdir()
    (home / "config.toml").write_text(SETTINGS)
    return home


def _until(true: Callable[[], bool], deadline: float, root: pathlib.Path) -> None:
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"Flower did not come so far: {(root / 'log').read_text()[-3000:]}")
        time.sleep(0.2)
