"""Launch detection: from the variables of every launcher, and under the real ones; and the configuration."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest

from hocket.arguments import LONGEST
from hocket.collectives.base.config import VARIABLES, Config, interface_address
from hocket.collectives.choice import setting
from hocket.collectives.job.place import OPEN_KEY, ancestor, detect, parse_address, show_meeting
from hocket.collectives.start import init
from hocket.errors import ArgumentError
from support import jobs

SECRET = Config(secret=b"s" * 16)
BIN = sysconfig.get_path("scripts")

HOCKET = {"HOCKET_RANK": "1", "HOCKET_SIZE": "3", "HOCKET_LOCAL_RANK": "1", "HOCKET_LOCAL_SIZE": "3",
          "HOCKET_RENDEZVOUS": "unix:/run/x/meet",
          "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
          "MASTER_PORT": "29500"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "r1", "TORCHELASTIC_RESTART_COUNT": "0", "RANK": "5", "WORLD_SIZE": "8",
            "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "host-a", "MASTER_PORT": "29500"}  # fmt: skip
TORCHRUN_HERE = {**TORCHRUN, "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "5", "MASTER_ADDR": "localhost"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
           "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "prterun-vm-3746@1", "PMIX_RANK": "2"}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
         "SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "node[03-04]"}  # fmt: skip
SLURM_HERE = {**SLURM, "SLURM_NNODES": "1", "SLURM_LOCALID": "3"}
PLAIN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "environ, rank, size, local_rank, launcher, single",
    [
        (HOCKET, 1, 3, 1, "hocket run", True),
        (TORCHRUN, 5, 8, 1, "torchrun", False),
        (TORCHRUN_HERE, 5, 8, 5, "torchrun", True),
        (OPENMPI, 2, 4, 2, "Open MPI", True),
        (HYDRA, 1, 2, 1, "MPICH or Intel MPI", True),
        (SLURM, 3, 4, 1, "Slurm", False),
        (SLURM_HERE, 3, 4, 3, "Slurm", True),
        (PLAIN, 1, 2, 1, "the environment", True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1, 2, 1, "the environment", True),
        ({}, 0, 1, 0, "no launcher", True),
    ],
)
def test_each_launcher(environ, rank, size, local_rank, launcher, single):
    place = detect(environ, SECRET)
    assert (place.rank, place.size, place.local_rank, place.launcher) == (rank, size, local_rank, launcher)
    assert place.single_host == single and place.key == SECRET.secret
    assert place.address[0] == ("unix" if single else "tcp")
    assert f"rank {rank} of {size} from {launcher}" in place.why and show_meeting(place.address) in place.why
    if single:
        assert detect(environ).key is None, "one machine needs no secret"
    else:
        with pytest.raises(ArgumentError, match=r"HOCKET_SECRET.*HOCKET_SECRET_FILE.*auth=.none."):
            detect(environ)
        assert detect(environ, auth="none").key == OPEN_KEY
    assert "sss" not in repr(place) and "secret" not in repr(place)


def test_addresses():
    assert detect(HOCKET).address == ("unix", "/run/x/meet")
    assert detect(TORCHRUN, SECRET).address == ("tcp", "host-a", list(range(29501, 29509)))
    address = detect(SLURM, SECRET).address
    assert address[:2] == ("tcp", "node03") and 20000 <= address[2][0] < 32768
    assert detect({**PLAIN, "MASTER_ADDR": "192.0.2.1"}, SECRET).address[2][0] == 29500
    limited = dataclasses.replace(SECRET, ports=range(40000, 40003))
    assert detect(TORCHRUN, limited).address[2] == [40000, 40001, 40002]
    away = {**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(ArgumentError, match="set MASTER_ADDR"):
        detect(away, SECRET)
    assert detect({**away, "MASTER_ADDR": "host-b"}, SECRET).address[1] == "host-b"


def test_slurms_rank_0_need_not_be_on_the_first_node():
    """`srun -w n3 -n2 a : -w n1 -n3 b`, --distribution=arbitrary: the step's list is sorted, and rank 0 on another."""
    step = {**SLURM, "SLURM_STEP_NODELIST": "n[1,3]", "SLURM_NNODES": "2"}
    first = detect({**step, "SLURM_PROCID": "0", "SLURMD_NODENAME": "n3"}, SECRET)
    assert (first.address[1], first.also) == ("n3", ())
    place = detect({**step, "SLURMD_NODENAME": "n1"}, SECRET)
    assert [place.address[1], *(each[1] for each in place.also)] == ["n1", "n3"]
    assert place.address[2] == first.address[2] == place.also[0][2] and "n1:" in place.why and "n3:" in place.why
    place = detect({**step, "SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST_HET_GROUP_0": "n3"}, SECRET)
    assert [place.address[1], *(each[1] for each in place.also)] == ["n3", "n1"]
    by_pmi = detect({**step, "PMI_RANK": "3", "PMI_SIZE": "4"}, SECRET)
    assert by_pmi.launcher == "MPICH or Intel MPI" and by_pmi.address[1] == "n1"
    set_by_hand = detect({**step, "MASTER_ADDR": "n3"}, SECRET)
    assert set_by_hand.address[1] == "n3" and set_by_hand.also == ()


def test_all_ranks_of_a_job_meet_and_jobs_do_not():
    def path(environ):
        return detect(environ).address[1]

    assert path(OPENMPI) == path({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert path(HYDRA) == path({**HYDRA, "PMI_RANK": "0"})
    seen = [path(environ) for environ in (
        OPENMPI, {**OPENMPI, "PMIX_NAMESPACE": "other"}, TORCHRUN_HERE, {**TORCHRUN_HERE, "MASTER_PORT": "1"},
        {**TORCHRUN_HERE, "TORCHELASTIC_RESTART_COUNT": "1"}, HYDRA, SLURM_HERE, {**SLURM_HERE, "SLURM_STEP_ID": "1"},
        PLAIN, {**PLAIN, "MASTER_PORT": "1"},
    )]  # fmt: skip
    assert len(set(seen)) == len(seen)
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        assert path({**PLAIN, "TMPDIR": scratch}).startswith(f"{scratch}/hocket-{os.geteuid()}/")
    assert path({**PLAIN, "TMPDIR": scratch}).startswith("/tmp/"), "which is gone"
    assert len(path({**PLAIN, "TMPDIR": "/long" * 30})) < 108


@pytest.mark.parametrize(
    "environ, launcher, rank, size",
    [
        ({**TORCHRUN, **SLURM_HERE, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "torchrun", 5, 8),
        # srun starts one torchrun on each of two nodes
        ({**TORCHRUN, **SLURM, "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "torchrun", 5, 8),
        # mpirun of a batch job: Slurm's step started its daemons only
        ({**OPENMPI, **SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "Open MPI", 2, 4),
        # the batch script itself is in no step
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}, "no launcher", 0, 1),
        ({**OPENMPI, "RANK": "2", "WORLD_SIZE": "4"}, "Open MPI", 2, 4),
        ({**SLURM, "RANK": "3", "WORLD_SIZE": "4"}, "Slurm", 3, 4),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}, "MPICH or Intel MPI", 3, 4),
        ({**HYDRA, "PMI_RANK": "0", "PMI_SIZE": "1", "RANK": "1", "WORLD_SIZE": "2"}, "the environment", 1, 2),
    ],
)
def test_nested_launchers(environ, launcher, rank, size):
    place = detect({"MASTER_ADDR": "node03", **environ}, SECRET)
    assert (place.launcher, place.rank, place.size) == (launcher, rank, size)


@pytest.mark.parametrize(
    "environ, words",
    [
        ({**OPENMPI, **HYDRA}, ["Open MPI says rank 2 of 4", "OMPI_COMM_WORLD_RANK", "rank 1 of 2", "PMI_SIZE"]),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "4"}, ["Slurm says rank 3 of 4", "the environment says rank 0 of 4"]),
        ({**HOCKET, **OPENMPI}, ["hocket run says rank 1 of 3", "HOCKET_SIZE", "Open MPI says rank 2 of 4"]),
        ({**PLAIN, "RANK": "2"}, ["RANK is 2 and WORLD_SIZE is 2"]),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "-1"}, ["OMPI_COMM_WORLD_RANK is -1"]),
        ({**SLURM, "SLURM_PROCID": "x"}, ["SLURM_PROCID is 'x'", "whole number"]),
        ({**PLAIN, "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "http"}, ["MASTER_PORT is 'http'"]),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-x@1"}, ["PMIX_RANK is 1", "prterun --personality ompi"]),
        ({"RANK": "0"}, ["RANK is set but WORLD_SIZE is not"]),
        ({"HOCKET_SIZE": "2"}, ["HOCKET_SIZE is set but HOCKET_RANK is not"]),
        ({**HOCKET, "HOCKET_RENDEZVOUS": "http://x"}, ["'http://x'", "unix:/path"]),
    ],
)
def test_contradictions_and_nonsense_are_named(environ, words):
    with pytest.raises(ArgumentError) as caught:
        detect(environ, SECRET)
    assert all(word in str(caught.value) for word in words), caught.value


def test_arguments_beat_the_environment():
    place = detect({**OPENMPI, **HYDRA}, SECRET, rank=0, size=2, address="tcp:host:5000")
    assert (place.rank, place.size, place.address) == (0, 2, ("tcp", "host", [5000]))
    assert detect(OPENMPI, address="unix:/d/meet").address == ("unix", "/d/meet")
    assert detect({}, rank=1, size=2).address == detect({}, rank=0, size=2).address
    for bad in ({"rank": 0}, {"size": 2}, {"rank": 2, "size": 2}, {"address": "x"}, {"auth": "maybe"}):
        with pytest.raises(ArgumentError):
            detect({}, SECRET, **bad)


def test_address_texts():
    for text in ("unix:/a/b", "tcp:host:5000", "tcp:[::1]:5000-5003"):
        assert show_meeting(parse_address(text)) == text
    assert parse_address("tcp:[::1]:5000-5001") == ("tcp", "::1", [5000, 5001])
    for text in ("unix:a", "tcp:host", "tcp:host:0", "tcp:host:70000", "tcp:host:9-1", "udp:host:1", ""):
        with pytest.raises(ArgumentError, match="accepted"):
            parse_address(text)


def test_ancestor_is_the_same_for_siblings():
    code = "import os; from hocket.collectives.job.place import ancestor; print(ancestor((), os.getppid()))"
    seen = {subprocess.check_output([sys.executable, "-c", code], text=True, cold=True).strip() for _ in range(2)}
    assert seen == {ancestor((), os.getpid())}


# --- the real launchers ---

PLACE = """
import json, os
import hocket, numpy as np
from hocket.collectives.base.config import Config
from hocket.collectives.job.place import detect
from hocket.control.rendezvous import Identity, Where, join
place = detect(os.environ, Config.from_env())
session = join(Identity(place.rank, place.size, place.job, place.key), Where(place.address), 20)
told = session.exchange([place.rank, place.size, place.local_rank, place.launcher, place.why], 20)
session.close()
with hocket.init() as comm:
    assert comm.allgather(np.array([comm.rank])).tolist() == [0, 1, 2]
if place.rank == 0:
    print("PLACES " + json.dumps(told), flush=True)
"""


@pytest.mark.parametrize(
    "launcher, command",
    [
        ("MPICH or Intel MPI", ["mpiexec.hydra", "-n", "3"]),
        # What Open MPI's mpirun runs; mpirun itself may be MPICH's where both are installed.
        ("Open MPI", ["prterun", "--personality", "ompi", "--allow-run-as-root",
                      "--map-by", ":OVERSUBSCRIBE", "-n", "3"]),
        ("torchrun", ["torchrun", "--standalone", "--nproc-per-node", "3"]),
    ],
)  # fmt: skip
def test_under_the_real_launcher(launcher, command, tmp_path):
    program = tmp_path / "place.py"
    program.write_text(PLACE)
    python = [] if launcher == "torchrun" else [sys.executable]
    found = shutil.which(command[0], path=BIN) or shutil.which(command[0])
    assert found, f"{command[0]} is not installed: pip install hocket[test]"
    names = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
    env = {name: os.environ[name] for name in names if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    command = [found, *command[1:], *python, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    places = json.loads(re.search(r"PLACES (.*)", done.stdout)[1])
    assert [[place[0], place[1], place[3]] for place in places] == [[rank, 3, launcher] for rank in range(3)]
    # Open MPI may number the local ranks of one machine in another order than the ranks.
    assert sorted(place[2] for place in places) == [0, 1, 2]
    assert all("unix:" in place[4] for place in places)


# --- configuration ---


DIGITS = "ab12" * 4 + "0f" * 24


def test_config_reads_everything_and_hides_the_secret():
    environ = {"HOCKET_TRANSPORT": "shm,tcp", "HOCKET_ALGORITHM": "allreduce=ring", "HOCKET_TUNING": "off",
               "HOCKET_TIMEOUT": "2.5", "HOCKET_LOG": "INFO", "HOCKET_SECRET": DIGITS, "HOCKET_IFACE": "lo",
               "HOCKET_PORTS": "40000-40002"}  # fmt: skip
    config = Config.from_env(environ)
    assert config == Config("shm,tcp", "allreduce=ring", "off", 2.5, "info", bytes.fromhex(DIGITS), "127.0.0.1",
                            range(40000, 40003))  # fmt: skip
    assert "HOCKET_SECRET" not in environ and "ab12" not in repr(config)
    assert Config.from_env({"HOCKET_TIMEOUT": ""}) == Config()
    assert {"HOCKET_" + field.name.upper() for field in dataclasses.fields(Config)} == {
        variable.name for variable in VARIABLES
    } - {"HOCKET_SECRET_FILE"}
    assert float(next(v.default for v in VARIABLES if v.name == "HOCKET_TIMEOUT")) == Config().timeout


@pytest.mark.parametrize(
    "name, value",
    [("TIMEOUT", "soon"), ("TIMEOUT", "0"), ("TIMEOUT", "-1"), ("TIMEOUT", "nan"), ("LOG", "loud"), ("PORTS", "9-1"),
     ("PORTS", "x"), ("PORTS", "0-7"), ("PORTS", "70000"), ("TRANSPORT", "a b"), ("ALGORITHM", ","),
     ("IFACE", "no-such-if"), ("SECRET_FILE", "/no/such/file")],
)  # fmt: skip
def test_bad_values_are_named(name, value):
    with pytest.raises(ArgumentError, match=f"HOCKET_{name} is '{re.escape(value)}'.*accepted: "):
        Config.from_env({f"HOCKET_{name}": value})


def test_no_limit_of_time():
    for text in ("inf", "none", "1e12"):
        assert Config.from_env({"HOCKET_TIMEOUT": text}).timeout == LONGEST
    source = "import hocket\nwith hocket.init() as comm: print(comm.allreduce(1), comm.timeout)"
    assert jobs.run(2, source, HOCKET_TIMEOUT="none") == [f"2 {LONGEST}\n"] * 2


def test_unknown_settings_are_told(caplog):
    Config.from_env({"HOCKET_TIMOUT": "3", "HOCKET_RANK": "0", "HOME": "/"})
    (message,) = caplog.messages
    assert re.match("the environment has HOCKET_TIMOUT, which hocket does not know; known: .*HOCKET_TIMEOUT", message)
    assert message.endswith("; did you mean 'HOCKET_TIMEOUT'?")


ASKED = "ring,broadcast=chain,allreduce=tree"


def test_the_algorithm_asked_for():
    setting.check(ASKED)
    assert [setting.asked(ASKED, c) for c in ("allreduce", "broadcast", "allgather", "alltoall")] == [
        "ring", "chain", "ring", None
    ]  # fmt: skip
    assert setting.asked("hierarchical", "allreduce") == "hierarchical"
    assert setting.asked("hierarchical", "scan") is setting.asked(None, "allreduce") is None


@pytest.mark.parametrize(
    "setting, reason",
    [("telepathy", "no algorithm is called 'telepathy'; known: .*ring"),
     ("rings", "no algorithm is called 'rings'; known: .*; did you mean 'ring'"),
     ("allreduc=ring", "'allreduc' is not a collective; known: .*; did you mean 'allreduce'"),
     ("allreduce=chain", "no allreduce algorithm is called 'chain'; known: .*hierarchical"),
     ("allsum=ring", "'allsum' is not a collective; known: allreduce")],
)  # fmt: skip
def test_an_algorithm_that_does_not_exist(setting, reason, monkeypatch):
    monkeypatch.setattr(init, "_config", Config(algorithm=setting))
    with pytest.raises(ArgumentError, match=f"HOCKET_ALGORITHM: {reason}"):
        init.init()


def test_interfaces():
    assert interface_address("lo") == "127.0.0.1" and interface_address("::1") == "::1"
    with pytest.raises(ValueError, match="its interfaces: lo"):
        interface_address("no-such-if")
