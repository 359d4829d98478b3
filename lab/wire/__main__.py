"""Allreduce over long links, two hosts: hocket, an older hocket, Gloo and plain sockets in one run.

    python -m hocket.lab.wire [--old SRC] [--links 0,5] [--mb 1,16,64] [--kinds hocket,gloo,plain8] [--control reno]

--old: the src folder of another checkout that is built.  --control: the hosts' default; `--force` has hocket keep it.
Needs root, iproute2 and gcc; takes a minute for each contestant where losses bind it.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
from typing import Any

from hocket.lab.program import arguments
from hocket.lab.wire.bed import ADDRESS, Wire, bed
from hocket.system.namespaces.hosts import on
from hocket.tools.rank import start

LINKS = (
    Wire("100mbit", 0.00015), Wire("100mbit", 0.05), Wire("100mbit", 0.05, 1000), Wire("100mbit", 0.05, 10_000),
    Wire("100mbit", 0.01, 1000), Wire("1gbit", 0.05, 0, 9000),
)  # fmt: skip
"""The six of docs/long-links.md."""
ENDS = pathlib.Path(__file__).with_name("ends.py")
PATIENCE = 240.0
NICE = "-10"
"""The ranks' priority: what else this machine does should not count."""


def measured(names: list[str], kind: str, sizes: list[str], env: dict[str, str], src: str) -> list[dict[str, float]]:
    """The lines of rank 0."""
    with tempfile.TemporaryDirectory(prefix="wire-") as folder:
        ranks = []
        for rank in range(2):
            own = pathlib.Path(folder, f"host{rank}")
            own.mkdir()
            job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESS.format(0, 1), "MASTER_PORT": "29611",
                   "TMPDIR": str(pathlib.Path(folder, "tmp")), "GLOO_SOCKET_IFNAME": "w0", "PYTHONPATH": src,
                   "OMP_NUM_THREADS": "1"}  # fmt: skip
            pathlib.Path(folder, "tmp").mkdir(exist_ok=True)
            host = ["nice", "-n", NICE, *on(names[rank], str(own), f"wire{rank}")]
            words = [*host, sys.executable, str(ENDS), kind, *sizes]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            ranks.append(start(words, {**os.environ, **env, **job}, text=True, **pipes))
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
        kinds="hocket,gloo,plain1,plain8", control="reno", force=False,
    )  # fmt: skip
    here, sizes = str(pathlib.Path(__file__).parents[2]), args.mb.split(",")
    src = here if here.endswith("src") else str(pathlib.Path(here, "src"))
    secret = {"HOCKET_SECRET": secrets.token_hex(32), "HOCKET_TRANSPORT": "tcp"}
    print(f"| link ({args.control}) | contestant | {' | '.join(f'{mb} MB: s' for mb in sizes)} | |")
    print("|---" * (len(sizes) + 3) + "|", flush=True)
    for number in map(int, args.links.split(",")):
        for kind in args.kinds.split(","):
            before = [("hocket before", args.old)] if kind == "hocket" and args.old else []
            for which, where in [(kind, src), *before]:
                env = {**secret, **({"HOCKET_CONGESTION": "system"} if args.force and where == src else {})}
                with bed(LINKS[number], control=args.control) as names:
                    found = measured(names, kind, sizes, env, where)
                times = {row["mb"]: f"{row['median']:.2f}" for row in found if "mb" in row}
                told = next((str(row["told"]) for row in found if "told" in row), "did not end in time")
                row = " | ".join(times.get(float(mb), "-") for mb in sizes)
                print(f"| {LINKS[number]} | {which} | {row} | {told}; load {os.getloadavg()[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
