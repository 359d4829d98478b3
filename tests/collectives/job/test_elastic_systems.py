"""Recipes for jobs whose ranks come and go: what died is started again with the same words, and is a newcomer then."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml  # type: ignore[import-untyped]

import hocket
from hocket.collectives.base.config import PLACE, VARIABLES
from support import ports
from support.worlds import PATH

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "cluster"
SIZE = 3
TRAIN = """
import os, signal, sys, time
import numpy as np, hocket
comm = hocket.init(timeout=60)
total, new = 0.0, comm.generation > 0
if not new:
    open(f"{__file__}.{comm.rank}", "w").close()
    while comm.rank == 1 and not all(os.path.exists(f"{__file__}.{rank}") for rank in (0, 2)):  # in init, perhaps
        time.sleep(0.01)
while not comm.generation or comm.size < 3:      # one is lost, one comes: in two generations, or in one
    try:
        if comm.generation == 0 and comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = comm.allreduce(np.ones(4))[0]
        if comm.allreduce(float(comm.waiting > 0), "max"):
            comm = comm.renew()
    except hocket.PeerLostError:
        comm = comm.renew()
    time.sleep(0.01)
sys.stdout.write(f"{comm.rank} {comm.size} {new} {comm.allreduce(np.ones(4))[0]:g}\\n")
comm.close()
"""
ENDS = ["0 3 False 3", "1 3 False 3", "2 3 True 3"]


def clean(place: pathlib.Path, **env: str) -> dict[str, str]:
    (place / "train.py").write_text(TRAIN)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    path = os.pathsep.join([str(place), os.path.dirname(sys.executable), os.environ["PATH"]])
    return {**kept, "PYTHONPATH": PATH, "PATH": path, "OMP_NUM_THREADS": "1", **env}


def kubernetes() -> tuple[dict[str, str], dict[str, str]]:
    """The variables of the manifest's pods: with a value, and with the field that they come from."""
    env = _parts()["Job"]["spec"]["template"]["spec"]["containers"][0]["env"]
    values = {each["name"]: each["value"] for each in env if "value" in each}
    return values, {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in env if "valueFrom" in each}


def _parts() -> dict[str, dict[str, object]]:
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes_elastic.yaml").read_text())}


def test_the_manifests_parts_fit_each_other() -> None:
    parts = _parts()
    job: dict[str, object] = parts["Job"]["spec"]  # type: ignore[assignment]
    pod, values, fields = job["template"]["spec"], *kubernetes()  # type: ignore[index]
    known = {*(each.name for each in VARIABLES), *PLACE}
    assert {name for name in values if name.startswith("HOCKET_")} <= known
    assert (job["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never") and job["backoffLimitPerIndex"] > 0
    assert int(values["WORLD_SIZE"]) == job["completions"] == job["parallelism"]
    name = parts["Job"]["metadata"]["name"]  # type: ignore[index]
    assert parts["Service"]["spec"]["selector"] == {"job-name": name}  # type: ignore[index]
    assert values["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}" == f"{name}-0.{parts['Service']['metadata']['name']}"  # type: ignore[index]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert values["HOCKET_LOBBY"] == f"{mounts['lobby']}/$(RUN)" and "controller-uid" in fields["RUN"]
    assert pathlib.Path(values["HOCKET_SECRET_FILE"]).parent == pathlib.Path(mounts["secret"])
    claim = parts["PersistentVolumeClaim"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["lobby"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]  # type: ignore[index]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"] and mounts.keys() == volumes.keys()  # type: ignore[index]


def test_a_pod_that_died_comes_back_as_a_newcomer(tmp_path: pathlib.Path) -> None:
    """Processes with what the manifest says, but for the addresses; the one that died gets the same once more."""
    values, _ = kubernetes()
    (tmp_path / "secret").write_text("a secret of these tests, 12345678")
    (tmp_path / "secret").chmod(0o600)
    own = {"HOCKET_LOBBY": str(tmp_path / "lobby"), "HOCKET_SECRET_FILE": str(tmp_path / "secret")}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports.free()[0]), "WORLD_SIZE": str(SIZE)}
    env = clean(tmp_path, **values | own | meet)

    def start(rank: int) -> subprocess.Popen[str]:
        words = [sys.executable, str(tmp_path / "train.py")]
        return subprocess.Popen(words, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)

    ranks = [start(rank) for rank in range(SIZE)]
    try:
        assert ranks[1].wait(60) == -9
        ranks.append(start(1))
        said = [each.communicate(timeout=60)[0].strip() for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert sorted(filter(None, said)) == ENDS


def test_the_batch_scripts_ranks_come_back(tmp_path: pathlib.Path) -> None:
    """With a stand-in for srun that starts three tasks, each of which starts its rank again."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "srun").write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "words = sys.argv[1:]\n"
        "assert words[:2] == ['--kill-on-bad-exit=0', '--no-kill'], words\n"
        f"all = [subprocess.Popen(words[2:], env={{**os.environ, 'SLURM_PROCID': str(r)}}) for r in range({SIZE})]\n"
        "sys.exit(max(each.wait() for each in all))\n"
    )
    (tmp_path / "srun").chmod(0o755)
    step = {"SLURM_NTASKS": str(SIZE), "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
            "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": str(SIZE), "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_NODELIST": "localhost"}  # fmt: skip
    port = ports.free(8)[0]
    env = clean(tmp_path, **step, HOME=str(home), HOCKET_PORTS=f"{port}-{port + 7}")
    script = EXAMPLES / "slurm_elastic.sbatch"
    done = subprocess.run(["sh", str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ENDS, done
    assert os.listdir(home) == [], "the secret and the lobby are removed"
    assert re.search(r"^#SBATCH --no-kill$", script.read_text(), re.M)


def test_auto_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_LOBBY", raising=False)
    with pytest.raises(hocket.ArgumentError, match="HOCKET_LOBBY"):
        hocket.init(join="auto")
