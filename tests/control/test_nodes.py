"""Slurm's compressed lists."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hocket.control.nodes import names


@pytest.mark.parametrize(
    "nodes, written",
    [
        ("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("n[1,3],login", ["n1", "n3", "login"]), ("", []),
        ("node[08-11,20]-ib", ["node08-ib", "node09-ib", "node10-ib", "node11-ib", "node20-ib"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
    ],
)  # fmt: skip
def test_slurms_lists_of_nodes(nodes: str, written: list[str]) -> None:
    assert names(nodes) == written


@pytest.mark.parametrize("nodes", ["n[3-1]", "n[1-99999999]", "n[1-999]r[1-999]x[1-9]"])
def test_what_is_no_list_or_too_long_is_refused(nodes: str) -> None:
    with pytest.raises(ValueError, match="not a range|more than"):
        names(nodes)


@pytest.mark.more
@pytest.mark.parametrize("nodes", ["n[1-3]", "node-ib[08-11,20],x", "r[1-2]n[0-1],login", "a[001,3,05-06]", "n[9-11]"])
def test_as_slurm_writes_it_out(nodes: str, tmp_path: Path) -> None:
    """Before it looks at the list, scontrol wants a cluster's configuration, though it asks no cluster."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=any\nSlurmctldHost=any\n")
    command, env = ["scontrol", "show", "hostnames", nodes], {**os.environ, "SLURM_CONF": str(conf)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "") and names(nodes) == done.stdout.split()
