"""Real srun: three slurmd on this machine, whose nodes n1 to n3 have a loopback address each (make test-more)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ports

pytestmark = pytest.mark.more
RANK = """
import sys; sys.path[:0] = {path!r}
import hocket, numpy as np
comm = hocket.init(timeout=60)
print(comm.rank, comm.size, comm.allreduce(np.ones(3))[0], comm.explain().splitlines()[1])
comm.close()
"""
CONF = """
ClusterName=hocket
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/ctld.pid
SlurmdPidFile={place}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPort={ports[0]}
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=1000 State=UNKNOWN
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=n1,n2,n3 Default=YES MaxTime=10 State=UP OverSubscribe=YES
"""
APART = 'mount --make-rprivate / && mount --bind "$0/hosts" /etc/hosts && exec "$@"'
"""In a mount namespace, with names of its own."""


class Slurm:
    """A controller and three nodes."""

    def __init__(self, place: Path) -> None:
        self.place, self._started = place, list[subprocess.Popen[bytes]]()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HOCKET_", "SLURM_"))}
        self.env |= {"SLURM_CONF": str(place / "slurm.conf"), "HOCKET_SECRET": secrets.token_hex(32)}

    def _apart(self, *words: str) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", APART, str(self.place), *words]

    def begin(self) -> None:
        free = [ports.free()[0] for _ in range(4)]
        (self.place / "state").mkdir()
        (self.place / "hosts").write_text("127.0.0.1 localhost\n127.0.0.2 n1\n127.0.0.3 n2\n127.0.0.4 n3\n")
        (self.place / "slurm.conf").write_text(CONF.format(place=self.place, host=os.uname().nodename, ports=free))
        (self.place / "key").write_bytes(secrets.token_bytes(64))
        (self.place / "key").chmod(0o400)
        munge = [f"--{name}={self.place}/{file}" for name, file in (
            ("socket", "munge.socket"), ("key-file", "key"), ("pid-file", "munge.pid"), ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        )]  # fmt: skip
        self._start("munged", "--foreground", "--force", *munge)
        self._start("slurmctld", "-D")
        for node in ("n1", "n2", "n3"):
            self._start(*self._apart("slurmd", "-N", node, "-D"))
        end = time.monotonic() + 30
        while self.srun("-N3", "-n3", "true", seconds=60).returncode:
            assert time.monotonic() < end, "the nodes have not come"
            time.sleep(0.2)

    def _start(self, *words: str) -> None:
        with open(self.place / f"log-{len(self._started)}", "wb") as log:
            self._started.append(subprocess.Popen(words, env=self.env, stdout=log, stderr=log, start_new_session=True))

    def srun(self, *words: str, seconds: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        command = self._apart("srun", *words)
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=seconds)

    def end(self) -> None:
        end = time.monotonic() + 10
        while self._steps() and time.monotonic() < end:  # slurmd's end would leave them
            time.sleep(0.1)
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


    def _steps(self) -> list[Path]:
        """Processes that slurmd started for steps of these nodes."""
        found = []
        for name in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                is_one = name.read_text().startswith("slurmstepd")
                if is_one and str(self.place) in (name.parent / "environ").read_text():
                    found.append(name)
        return found


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    assert shutil.which("slurmctld") and os.geteuid() == 0, "as root: apt-get install slurm-wlm munge"
    with contextlib.ExitStack() as stack:
        place = Path(f"/tmp/hkslurm{os.getpid()}")  # pytest's own path is too long for sockets, and not munged's alone
        place.mkdir(mode=0o755)
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        (place / "rank.py").write_text(RANK.format(path=[path for path in sys.path if path]))
        made = Slurm(place)
        stack.callback(made.end)
        made.begin()
        yield made


@pytest.mark.parametrize("how", ["in order", "another node first", "arbitrary", "by PMI"])
def test_ranks_of_a_step_meet(slurm: Slurm, how: str) -> None:
    """Rank 0 is on n3 in two of them, and the step's list of nodes begins with n1."""
    rank = [sys.executable, str(slurm.place / "rank.py")]
    (slurm.place / "order").write_text("n3\nn1\nn1\n")
    done = {
        "in order": lambda: slurm.srun("-N2", "-n3", *rank),
        "another node first": lambda: slurm.srun("-w", "n3", "-n1", *rank, ":", "-w", "n1", "-n2", *rank),
        "arbitrary": lambda: slurm.srun(
            "--distribution=arbitrary", "-n3", *rank, SLURM_HOSTFILE=str(slurm.place / "order")),
        "by PMI": lambda: slurm.srun("--mpi=pmi2", "-N2", "-n3", *rank, HOCKET_SECRET=""),
    }[how]()  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert [line.split()[:3] for line in said] == [[str(rank), "3", "3.0"] for rank in range(3)]
    assert ("n3" in said[0]) == (how in ("another node first", "arbitrary"))
