"""Kubernetes' systems and Slurm: what they set, as their sources say, and the manifests in examples/ that rely on it.

`python tests/support/manifests.py` holds a manifest against its system's own schema, which is not kept here.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from hocket.collectives.base.config import VARIABLES, Config
from hocket.collectives.job.launchers import claims_of
from hocket.collectives.job.place import detect
from hocket.errors import ArgumentError
from support import manifests, ports

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "cluster"
SECRET = Config(secret=b"s" * 16)

JOBSET = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "training-ranks-0-0.training",
          "MASTER_PORT": "29500"}  # fmt: skip
TRAINER = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1",
           "PET_MASTER_ADDR": "training-node-0-0.training", "PET_MASTER_PORT": "29400",
           "JOB_COMPLETION_INDEX": "1"}  # fmt: skip
TRAINER_TORCHRUN = {**TRAINER, "PET_NPROC_PER_NODE": "2", "TORCHELASTIC_RUN_ID": "none",
                    "TORCHELASTIC_RESTART_COUNT": "0", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
                    "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "training-node-0-0.training",
                    "MASTER_PORT": "29400"}  # fmt: skip
TRAINER_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
               "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-training-launcher-0-0-7@1",
               "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile", "OMPI_MCA_orte_set_default_slots": "2",
               "JOB_COMPLETION_INDEX": "0"}  # fmt: skip
PYTORCHJOB = {"PYTHONUNBUFFERED": "0", "MASTER_PORT": "23456", "MASTER_ADDR": "training-master-0", "WORLD_SIZE": "3",
              "RANK": "2", "PET_NPROC_PER_NODE": "1", "PET_NNODES": "3", "PET_NODE_RANK": "2",
              "PET_MASTER_ADDR": "training-master-0", "PET_MASTER_PORT": "23456"}  # fmt: skip
VOLCANO = {"VK_TASK_INDEX": "3", "VC_TASK_INDEX": "3", "VC_RANK_NUM": "4",
           "VC_RANK_HOSTS": "training-rank-0.training,training-rank-1.training,training-rank-2.training,"
                            "training-rank-3.training"}  # fmt: skip
VOLCANO_PYTORCH = {"VK_TASK_INDEX": "0", "VC_TASK_INDEX": "0", "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "2",
                   "VC_MASTER_HOSTS": "training-master-0.training",
                   "VC_WORKER_HOSTS": "training-worker-0.training,training-worker-1.training",
                   "MASTER_ADDR": "training-master-0.training", "MASTER_PORT": "23456", "WORLD_SIZE": "3",
                   "RANK": "1"}  # fmt: skip
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
         "SLURM_NNODES": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2",
         "SLURM_STEP_NODELIST": "node[03-04]"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "rank", "size", "launcher", "master", "port"),
    [
        (JOBSET, 2, 4, "an Indexed Job", "training-ranks-0-0.training", 29500),
        (TRAINER, 1, 2, "Kubeflow Trainer", "training-node-0-0.training", 29400),
        (TRAINER_TORCHRUN, 3, 4, "torchrun", "training-node-0-0.training", 29401),
        ({**TRAINER_MPI, "MASTER_ADDR": "host"}, 3, 4, "Open MPI", "host", None),
        (PYTORCHJOB, 2, 3, "the environment", "training-master-0", 23456),
        (VOLCANO, 3, 4, "Volcano", "training-rank-0.training", None),
        (VOLCANO_PYTORCH, 1, 3, "the environment", "training-master-0.training", 23456),
        (SLURM, 5, 8, "Slurm", "node03", None),
    ],
)
def test_what_each_system_sets(
    environ: dict[str, str], rank: int, size: int, launcher: str, master: str, port: int | None
) -> None:
    place = detect(environ, SECRET)
    assert (place.rank, place.size, place.launcher) == (rank, size, launcher) and not place.single_host, place
    assert place.address[:2] == ("tcp", master)
    assert port is None or place.address[2][0] == port  # type: ignore[misc, index]
    with pytest.raises(ArgumentError, match="HOCKET_SECRET"):
        detect(environ)


def test_the_variables_that_decided_are_named() -> None:
    assert "rank 2 of 4 from an Indexed Job (JOB_COMPLETION_INDEX, WORLD_SIZE)" in detect(JOBSET, SECRET).why
    assert "rank 3 of 4 from Volcano (VC_TASK_INDEX, VC_RANK_NUM)" in detect(VOLCANO, SECRET).why


@pytest.mark.parametrize(
    "environ",
    [
        {"JOB_COMPLETION_INDEX": "2"},  # pods that have nothing to do with each other
        {"VC_TASK_INDEX": "0", "VC_PS_NUM": "1", "VC_WORKER_NUM": "2"},  # an index in which task?
        {"VC_RANK_NUM": "4"},  # without the plugin env
        {**TRAINER, "PET_NNODES": "1"},
        {**TRAINER, "PET_NNODES": "1:4"},  # elastic: torchrun decides
    ],
)
def test_what_is_no_place(environ: dict[str, str]) -> None:
    assert detect(environ).launcher == "no launcher"


def test_what_runs_inside_a_pod_decides() -> None:
    hocket_run = {"HOCKET_RANK": "1", "HOCKET_SIZE": "2", "HOCKET_LOCAL_RANK": "1", "HOCKET_LOCAL_SIZE": "2",
                  "HOCKET_RENDEZVOUS": "unix:/run/x/meet", "RANK": "1", "WORLD_SIZE": "2"}  # fmt: skip
    for pod in (JOBSET, TRAINER, VOLCANO):
        assert claims_of({**pod, **hocket_run})[0].by.name == "hocket run"
    here = {name: value for name, value in TRAINER_MPI.items() if name != "JOB_COMPLETION_INDEX"}
    assert claims_of({**VOLCANO, **here})[0].by.name == "Open MPI"
    assert detect(JOBSET, SECRET, rank=0, size=2, address="tcp:host:5000").rank == 0


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**TRAINER, **VOLCANO}, ["Kubeflow Trainer says rank 1 of 2 (PET_NODE_RANK, PET_NNODES)", "Volcano says"]),
        ({**JOBSET, **VOLCANO}, ["an Indexed Job says rank 2 of 4", "Volcano says rank 3 of 4"]),
        ({**SLURM, **PYTORCHJOB}, ["Slurm says rank 5 of 8", "the environment says rank 2 of 3"]),
        ({**TRAINER, "PET_NPROC_PER_NODE": "4"}, ["PET_NPROC_PER_NODE is '4'", "start the program by torchrun"]),
        ({**JOBSET, "WORLD_SIZE": "2"}, ["ranks are 0 to"]),
        ({**VOLCANO, "VC_RANK_NUM": "many"}, ["whole number"]),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2"}, ["set MASTER_ADDR"]),
    ],
)
def test_contradictions(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        detect(environ, SECRET)
    assert all(word in str(caught.value) for word in words), caught.value


TRAIN = """
import sys, hocket
with hocket.init(timeout=60) as comm:
    sys.stdout.write(f"{comm.rank} {comm.size} {comm.allreduce(comm.rank + 1)}\\n")  # at once: two ranks share a pipe
"""


@pytest.mark.parametrize("system", ["jobset", "trainer", "volcano"])
def test_ranks_meet(system: str) -> None:
    """Two processes that have nothing but what the system sets, with loopback for the pods' names."""
    port, here = str(ports.free(8)[0]), "127.0.0.1"
    by_rank = {
        "jobset": {"WORLD_SIZE": "2", "MASTER_ADDR": here, "MASTER_PORT": port},
        "trainer": {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": here, "PET_MASTER_PORT": port},
        "volcano": {"VC_RANK_NUM": "2", "VC_RANK_HOSTS": f"{here},{here}", "HOCKET_PORTS": f"{port}-{int(port) + 7}"},
    }[system]  # fmt: skip
    index = {"jobset": "JOB_COMPLETION_INDEX", "trainer": "PET_NODE_RANK", "volcano": "VC_TASK_INDEX"}[system]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOCKET_")}
    env = {**clean, **by_rank, "HOCKET_SECRET": secrets.token_hex(32)}
    told: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([sys.executable, "-c", TRAIN], env={**env, index: str(r)}, **told) for r in range(2)]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    assert [out for out, _ in ends] == ["0 2 3\n", "1 2 3\n"], ends


# --- the manifests

MANIFESTS = ("kubernetes.yaml", "kubernetes_jobset.yaml", "kubeflow_torch.yaml", "kubeflow_mpi.yaml", "volcano.yaml")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def within(value: Any, key: str) -> Iterator[Any]:
    """All values of `key`, wherever they stand."""
    if isinstance(value, dict):
        yield from ([value[key]] if key in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from within(each, key)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_secret_is_mounted_where_ranks_look(name: str) -> None:
    """Every container has the mount, every pod the volume, and the path of HOCKET_SECRET_FILE lies below it."""
    parts = documents(name)
    text = (EXAMPLES / name).read_text()
    env = {each["name"]: each.get("value") for some in within(parts, "env") for each in some}
    known = {each.name for each in VARIABLES}
    assert all(variable in known for variable in env if variable.startswith("HOCKET_"))
    place, key = pathlib.Path(env["HOCKET_SECRET_FILE"]).parent, pathlib.Path(env["HOCKET_SECRET_FILE"]).name
    pods = [pod for pod in within(parts, "spec") if "containers" in pod]
    assert pods
    for pod in pods:
        ((volume,), container) = pod["volumes"], pod["containers"][0]
        (mount,) = container["volumeMounts"]
        assert mount == {"name": volume["name"], "mountPath": str(place), "readOnly": True}
        assert f"secret generic {volume['secret']['secretName']} --from-literal={key}=" in text
    assert "secrets.token_hex(32)" in text and env.get("HOCKET_SECRET") is None


def test_the_jobset_is_the_recorded_environment() -> None:
    (jobset,) = documents("kubernetes_jobset.yaml")
    (ranks,) = jobset["spec"]["replicatedJobs"]
    job = ranks["template"]["spec"]
    env = {each["name"]: each["value"] for each in job["template"]["spec"]["containers"][0]["env"]}
    name = jobset["metadata"]["name"]
    assert ranks["replicas"] == 1 and job["completionMode"] == "Indexed" and "RANK" not in env
    assert int(env["WORLD_SIZE"]) == job["completions"] == job["parallelism"] == int(JOBSET["WORLD_SIZE"])
    assert env["MASTER_ADDR"] == f"{name}-{ranks['name']}-0-0.{name}" == JOBSET["MASTER_ADDR"]


def test_the_volcano_job_is_the_recorded_environment() -> None:
    (job,) = documents("volcano.yaml")
    (task,) = job["spec"]["tasks"]
    assert set(job["spec"]["plugins"]) == {"env", "svc"}
    assert job["spec"]["minAvailable"] == task["replicas"] == int(VOLCANO[f"VC_{task['name'].upper()}_NUM"])
    pods = [f"{job['metadata']['name']}-{task['name']}-{i}.{job['metadata']['name']}" for i in range(task["replicas"])]
    assert VOLCANO[f"VC_{task['name'].upper()}_HOSTS"] == ",".join(pods)


def test_the_trainjobs_are_the_recorded_environments() -> None:
    (torch,) = documents("kubeflow_torch.yaml")
    trainer = torch["spec"]["trainer"]
    assert trainer["command"] == ["torchrun", "train.py"]
    assert int(TRAINER_TORCHRUN["WORLD_SIZE"]) == trainer["numNodes"] * trainer["numProcPerNode"]
    assert TRAINER_TORCHRUN["PET_MASTER_ADDR"] == "{0}-node-0-0.{0}".format(torch["metadata"]["name"])
    runtime, mpi = documents("kubeflow_mpi.yaml")
    reference = mpi["spec"]["runtimeRef"]
    assert reference == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    trainer, policy = mpi["spec"]["trainer"], runtime["spec"]["mlPolicy"]
    assert trainer["numNodes"] == policy["numNodes"] and trainer["numProcPerNode"] == policy["mpi"]["numProcPerNode"]
    assert int(TRAINER_MPI["OMPI_COMM_WORLD_SIZE"]) == trainer["numNodes"] * trainer["numProcPerNode"]
    passed = trainer["command"][trainer["command"].index("-x") + 1]
    assert passed in {each["name"] for each in trainer["env"]}


def test_the_batch_script_runs(tmp_path: pathlib.Path) -> None:
    """With a stand-in for srun that starts two ranks: they find the secret, and it is gone afterwards."""
    home, train = tmp_path / "home", tmp_path / "train.py"
    home.mkdir()
    train.write_text("import os\nassert os.stat(os.environ['HOCKET_SECRET_FILE']).st_mode & 0o777 == 0o600\n" + TRAIN)
    (tmp_path / "srun").write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "both = [subprocess.Popen(sys.argv[2:], env={**os.environ, 'SLURM_PROCID': str(r)}) for r in range(2)]\n"
        "sys.exit(max(each.wait() for each in both))\n"
    )
    (tmp_path / "srun").chmod(0o755)
    port = ports.free(8)[0]
    step = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
    path = os.pathsep.join([str(tmp_path), os.path.dirname(sys.executable), os.environ["PATH"]])
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOCKET_")}
    env = {**clean, **step, "PATH": path, "HOME": str(home), "HOCKET_PORTS": f"{port}-{port + 7}"}
    command = ["sh", str(EXAMPLES / "slurm.sbatch")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["0 2 3", "1 2 3"], done
    assert os.listdir(home) == []
    asked = (EXAMPLES / "slurm.sbatch").read_text()
    assert "--nodes=2" in asked and "--ntasks-per-node=4" in asked


# --- the check of manifests


def test_the_check_finds_what_is_wrong(tmp_path: pathlib.Path) -> None:
    pod = {"type": "object", "properties": {"image": {"type": "string"}, "replicas": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"apiVersion": {}, "kind": {}, "spec": pod}}
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    definition, manifest = tmp_path / "crd.yaml", tmp_path / "job.yaml"
    definition.write_text(json.dumps({"spec": {"group": "g", "names": {"kind": "Job"}, "versions": [version]}}))
    manifest.write_text(json.dumps({"apiVersion": "g/v1", "kind": "Job", "spec": {"image": "i", "replicas": 2}}))
    assert manifests.wrong(manifest, definition) == []
    manifest.write_text(json.dumps({"apiVersion": "g/v1", "kind": "Job", "spec": {"imag": "i", "replicas": "2"}}))
    assert len(manifests.wrong(manifest, definition)) == 2
    manifest.write_text(json.dumps({"apiVersion": "g/v2", "kind": "Job"}))
    assert "has nothing of" in manifests.wrong(manifest, definition)[0]
