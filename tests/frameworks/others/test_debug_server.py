"""torch's debug HTTP server with hocket's page, while a rank waits for another one that is late."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

from support.worlds import PATH

PROGRAM = """
import os, socket, sys, time, urllib.request
import torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server, stop_debug_server
import hocket.torch

dist.init_process_group("hocket")
rank = dist.get_rank()
with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
start_debug_server(port=port, handlers=hocket.torch.debug_handlers())
dist.all_reduce(torch.ones(4))
late = dist.all_reduce(torch.ones(8), async_op=True) if rank == 1 else None
if rank == 0:
    def page(name, until=time.monotonic() + 60):
        while True:
            try:
                return urllib.request.urlopen(f"http://localhost:{port}/{name}", timeout=60).read().decode()
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.1)
    for name in ("hocket", "hocket_json"):
        with open(os.path.join(sys.argv[1], name), "w") as file:
            file.write(page(name))
    dist.all_reduce(torch.ones(8))
    stop_debug_server()
else:
    late.wait()
dist.destroy_process_group()
"""


def test_the_page_shows_calls_of_all_ranks_and_who_is_missing(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*line, str(tmp_path)], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    compared, raw = ((tmp_path / name).read_text() for name in ("hocket", "hocket_json"))
    assert compared.count("gloo:all_reduce") >= 3, compared
    states = re.findall(r"state(?:&#34;|\"): (?:&#34;|\")(\w+)", raw)
    assert states.count("started") == 1 and states.count("completed") > 2, raw  # rank 1 waits
    assert json.dumps([8]) in re.sub(r"\s+", "", raw), raw
