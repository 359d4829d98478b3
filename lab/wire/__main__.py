"""Allreduce over long links, two hosts: hocket, an older hocket, Gloo, Open MPI and plain sockets in one run.

    python -m hocket.lab.wire [--old SRC] [--links 0,5] [--mb 1,16,64] [--kinds hocket,gloo,mpi,plain8] [--control reno]

--old: the src folder of another checkout that is built, or "-": this one, without what it does for long links.
--control: the hosts' default; `--force` has hocket keep it.  --kinds: also outer, sharded and pipeline, steps of a
training (ends.py).
Needs root, iproute2 and gcc; takes a minute for each contestant where losses bind it.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

from hocket.bench.rivals.launchers import mpirun
from hocket.lab.program import arguments
from hocket.lab.wire.bed import ADDRESS, URGENT, Cable, bed
from hocket.system.namespaces.hosts import on
from hocket.tools.rank import start

LINKS = (
    Cable("100mbit", 0.00015), Cable("100mbit", 0.05), Cable("100mbit", 0.05, 1000), Cable("100mbit", 0.05, 10_000),
    Cable("100mbit", 0.01, 1000), Cable("1gbit", 0.05, 0, 9000),
)  # fmt: skip
"""The six of docs/long-links.md."""
OURS = ("hocket", "outer", "sharded", "pipeline")
SYSTEMS = {"HOCKET_CONGESTION": "system"}
BEFORE = {**SYSTEMS, "HOCKET_STREAMS": "1", "HOCKET_ALGORITHM": "allreduce=direct"}
"""Settings by which hocket does as it did before it knew of long links."""
ENDS = pathlib.Path(__file__).with_name("ends.py")
PATIENCE = 240.0


def measured(names: list[str], kind: str, sizes: list[str], env: dict[str, str], src: str) -> list[dict[str, float]]:
    """The lines of rank 0."""
    with tempfile.TemporaryDirectory(prefix="wire-") as folder:
        hosts = []
        for rank, name in enumerate(names):
            own = pathlib.Path(folder, f"host{rank}")
            own.mkdir()
            hosts.append([*URGENT, *on(name, str(own), f"wire{rank}")])
        pathlib.Path(folder, "tmp").mkdir()
        ours = {"WORLD_SIZE": "2", "MASTER_ADDR": ADDRESS.format(0, 1), "MASTER_PORT": "29611", "PYTHONPATH": src,
                "TMPDIR": str(pathlib.Path(folder, "tmp")), "GLOO_SOCKET_IFNAME": "w0", "OMP_NUM_THREADS": "1",
                "WIRE_BASE": str(time.monotonic())}  # fmt: skip
        words = [sys.executable, str(ENDS), kind, *sizes]
        commands = [[*host, *words] for host in hosts]
        if kind == "mpi":
            agent = pathlib.Path(folder, "agent")
            agent.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(hosts[1])} sh -c "$*"\n')
            agent.chmod(0o755)
            started, told = mpirun("openmpi", 2, tcp=True)
            started[started.index(":OVERSUBSCRIBE")] = "node"
            ours |= {**told, "OMPI_MCA_btl_tcp_if_include": "w0"}
            started += ["--prefix", sys.prefix, "--host", "wire0:1,wire1:1", "--prtemca", "prte_if_include", "w0",
                        "--prtemca", "plm_ssh_agent", str(agent)]  # fmt: skip
            commands = [[*hosts[0], *started, *words]]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        both = {**os.environ, **env, **ours}
        ranks = [start(each, {**both, "RANK": str(rank)}, text=True, **pipes) for rank, each in enumerate(commands)]
        try:
            out = ranks[0].communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            ranks[0].kill()
            out = ranks[0].communicate()[0]
        for each in ranks:
            each.kill()
            each.wait()
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def main() -> None:
    args = arguments(
        "hocket.lab.wire", __doc__, None, old="", links=",".join(map(str, range(len(LINKS)))), mb="1,16,64",
        kinds="hocket,gloo,mpi,plain1,plain8", control="reno", force=False,
    )  # fmt: skip
    here, sizes = str(pathlib.Path(__file__).parents[2]), args.mb.split(",")
    src = here if here.endswith("src") else str(pathlib.Path(here, "src"))
    secret = {"HOCKET_SECRET": secrets.token_hex(32), "HOCKET_TRANSPORT": "tcp"}
    print(f"| link ({args.control}) | contestant | {' | '.join(f'{mb} MB: s' for mb in sizes)} | |")
    print("|---" * (len(sizes) + 3) + "|", flush=True)
    for number in map(int, args.links.split(",")):
        for kind in args.kinds.split(","):
            ways: list[tuple[str, str, dict[str, str]]] = [(kind, src, SYSTEMS if args.force else {})]
            if kind in OURS and args.old:
                ways.append((f"{kind} before", args.old if args.old != "-" else src, BEFORE if args.old == "-" else {}))
            for which, where, more in ways:
                env = {**secret, **more}
                with bed(LINKS[number], control=args.control) as names:
                    found = measured(names, kind, sizes, env, where)
                times = {row["mb"]: f"{row['median']:.2f}" for row in found if "mb" in row}
                told = next((str(row["told"]) for row in found if "told" in row), "did not end in time")
                row = " | ".join(times.get(float(mb), "-") for mb in sizes)
                print(f"| {LINKS[number]} | {which} | {row} | {told}; load {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
