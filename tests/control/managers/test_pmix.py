"""Meeting through PMIx: real prterun and Open MPI's mpirun, on one host and on two."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hocket.control.managers import pmix
from hocket.system.namespaces.hosts import refusal
from support.launcher import MEETS
from support.sshd import machines

WHY_NOT = refusal()
PREFIX = dict.fromkeys(("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"), sys.prefix)
PROGRAM = MEETS % "PMIx"
RUN = [f"{sys.prefix}/bin/prterun", *["--allow-run-as-root"] * (os.geteuid() == 0)]


def test_a_bare_prterun_tells_the_number_of_ranks() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "MASTER_"))}
    words = [*RUN, "--map-by", ":OVERSUBSCRIBE", "-n", "2", sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env={**clean, **PREFIX, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall("<(.*?)>", done.stdout)) == ["0 2 2.0 0"] * 2 + ["1 2 2.0 0"] * 2


@pytest.mark.more
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("personality", [[], ["--personality", "ompi"]])
def test_ranks_on_two_hosts_meet_without_address_and_secret(personality: list[str]) -> None:
    with machines("a", "b") as net:
        where = ["--prtemca", "plm_ssh_agent", net.agent, "--prefix", sys.prefix, "--host", "a:2,b:2", "-n", "4"]
        command = net.here([*RUN, *personality, *where, sys.executable, "-c", PROGRAM])
        done = subprocess.run(command, env=net.env(**PREFIX), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = sorted(re.findall("<(.*?)>", done.stdout))
    assert said == [f"{rank} 4 4.0 {rank // 2}" for rank in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_no_manager() -> None:
    assert pmix.pmix({}) is None and pmix.pmix({"PMIX_RANK": "0"}) is None
