"""Meeting through a process manager: real hydra, of MPICH and of Intel MPI, on one host and on two."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
import sys
import threading

import pytest

from hocket.bench.rivals import launchers
from hocket.control.managers import pmi
from hocket.errors import ArgumentError, TransportError
from hocket.system.namespaces.hosts import refusal
from support.launcher import MEETS
from support.sshd import machines

WHY_NOT = refusal()
PROGRAM = MEETS % "PMI" + """
if "then MPI" in sys.argv:
    del sys.modules["mpi4py"]
    from mpi4py import MPI
    assert MPI.COMM_WORLD.allreduce(1) == comm.size
if "fails" in sys.argv and comm.rank == 1:
    sys.exit(3)
"""
IMPI = f"impi={pathlib.Path(__file__).parents[3] / 'build/impi'}"


def ranks(*options: str, peer: str = "mpich", words: list[str]) -> subprocess.CompletedProcess[str]:
    """Ranks of an unknown number of hosts, without a secret."""
    line, own = launchers.mpirun(peer, 2)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "MASTER_"))}
    command = [line[0], *options, *line[1:], "env", "-u", "MPI_LOCALNRANKS", "OMP_NUM_THREADS=1", sys.executable]
    command += ["-c", PROGRAM, *words]
    return subprocess.run(command, env={**clean, **own}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("peer", ["mpich", pytest.param(IMPI, marks=pytest.mark.more)])
def test_ranks_meet_twice_and_an_mpi_can_begin_after(peer: str) -> None:
    done = ranks(peer=peer, words=["then MPI"])
    assert done.returncode == 0, done.stderr
    assert told(done) == ["0 2 2.0 0"] * 2 + ["1 2 2.0 0"] * 2


@pytest.mark.more
@pytest.mark.parametrize("peer", ["mpich", IMPI])
def test_a_rank_that_ends_badly_is_not_taken_for_one_that_forgot_to_finalize(peer: str) -> None:
    """hydra would kill the others, and say so; the exit code would be that of the kill."""
    done = ranks(peer=peer, words=["fails"])
    assert done.returncode == 3 and "BAD TERMINATION" not in done.stdout and len(told(done)) == 4, done


@pytest.mark.more
def test_a_manager_at_a_port_tells_rank_and_size() -> None:
    done = ranks("-pmi-port", words=[])
    assert done.returncode == 0 and len(told(done)) == 4, done


@pytest.mark.more
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("peer", ["mpich", IMPI])
def test_ranks_on_two_hosts_meet_without_address_and_secret(peer: str) -> None:
    with machines("a", "b") as net:
        ssh, program = net.folder / "ssh", net.folder / "program.py"
        ssh.write_text(f'#!/bin/sh\nexec {net.agent} "$@"\n')
        ssh.chmod(0o755)
        program.write_text(PROGRAM)
        line, own = launchers.mpirun(peer, 4)
        where = ["-launcher", "ssh", "-launcher-exec", str(ssh), "-hosts", "a,b", "-ppn", "2", "-iface", "v0"]
        command = net.here([line[0], *where, *line[1:], sys.executable, str(program)])
        done = subprocess.run(command, env=net.env(**own), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert told(done) == [f"{rank} 4 4.0 {rank // 2}" for rank in (0, 0, 1, 1, 2, 2, 3, 3)]


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """hydra may put the lines of two ranks into one another's."""
    return sorted(re.findall("<(.*?)>", done.stdout))


def manager(*answers: bytes) -> dict[str, str]:
    """The environment of a rank whose manager says this, a line for each line."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with theirs, theirs.makefile("rwb", buffering=0) as lines:
            for each in answers:
                lines.readline()
                lines.write(each)

    threading.Thread(target=answer, daemon=True).start()
    return {"PMI_FD": str(ours.detach()), "PMI_RANK": "0", "PMI_SIZE": "2"}


def test_a_manager_that_has_gone_or_refuses() -> None:
    with pytest.raises(TransportError, match="refuses `init` .*: too_old"):
        pmi.wire(manager(b"cmd=response_to_init rc=-1 msg=too_old\n"))
    with pytest.raises(TransportError, match="has closed its end|has gone"):
        pmi.wire(manager())
    with pytest.raises(ArgumentError, match="PMI_FD is '999', and no process manager is there"):
        pmi.wire({"PMI_FD": "999", "PMI_RANK": "0"})
    with pytest.raises(ArgumentError, match="PMI_PORT is 'nowhere'"):
        pmi.wire({"PMI_PORT": "nowhere", "PMI_ID": "0"})
    assert pmi.wire({"PMI_RANK": "0"}) is None
