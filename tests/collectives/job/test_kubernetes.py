"""examples/cluster/kubernetes.yaml: what its pods see, as network namespaces with names and a mounted secret."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from hocket.system.namespaces import hosts
from support import worlds

ROOT = pathlib.Path(__file__).parents[3]
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
TRAIN = """
import socket, sys, hocket
with hocket.init(timeout=60) as comm:
    total = comm.allreduce(comm.rank)
    print(comm.rank, comm.size, total, comm.world.transport((comm.rank + 1) % comm.size))
"""


@pytest.fixture
def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    service, job = yaml.safe_load_all((ROOT / "examples" / "cluster" / "kubernetes.yaml").read_text())
    return service, job


def test_its_parts_fit_each_other(manifest: Any) -> None:
    """The rules of Kubernetes' own page on jobs whose pods talk to each other."""
    service, job = manifest
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service") and service["spec"]["clusterIP"] == "None"
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"job-name": name} and spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] and pod["restartPolicy"] == "Never"
    env = {each["name"]: each for each in pod["containers"][0]["env"]}
    assert env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
    assert int(env["WORLD_SIZE"]["value"]) == spec["completions"] == spec["parallelism"]
    assert env["MASTER_ADDR"]["value"] == f"{name}-0.{pod['subdomain']}"
    (mount,), (volume,) = pod["containers"][0]["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"] and mount["readOnly"]
    assert pathlib.Path(env["HOCKET_SECRET_FILE"]["value"]).parent == pathlib.Path(mount["mountPath"])


@contextlib.contextmanager
def pods(env: dict[str, str], job: str, place: pathlib.Path) -> Iterator[list[list[str]]]:
    """The words before the command of the first two ranks, each in a pod of its own."""
    mounted, data = place / "secret", place / "secret" / "..data"
    data.mkdir(parents=True)
    (data / "hocket").write_text(secrets.token_hex(32))
    (mounted / "hocket").symlink_to("..data/hocket")  # as Kubernetes does
    names = place / "hosts"
    names.write_text("".join(f"{hosts.V4[r]} {job}-{r}.{job}\n" for r in range(2)))
    for folder in ("tmp", "0", "1"):  # a pod sees no other's files
        (place / folder).mkdir()
    at = env["HOCKET_SECRET_FILE"].rpartition("/")[0]
    script = (
        f'mount --bind {place}/"$0" {place}/tmp && mkdir -p {at} && mount --bind {mounted} {at} && '
        f'mount -o remount,bind,ro {at} && mount --bind {names} /etc/hosts && exec "$@"'
    )
    with hosts.hosts() as made:
        apart = [["ip", "netns", "exec", name, "unshare", "--mount", "env"] for name in made]
        yield [[*words, f"TMPDIR={place}/tmp", "sh", "-c", script, str(r)] for r, words in enumerate(apart)]


@pytest.mark.skipif(bool(hosts.refusal()), reason=hosts.refusal() or "")
def test_its_ranks_meet(manifest: Any, tmp_path: pathlib.Path) -> None:
    """Two of them: only what the manifest says, but for the size."""
    _, job = manifest
    spec = job["spec"]["template"]["spec"]["containers"][0]["env"]
    env = {each["name"]: each.get("value", "") for each in spec} | {"WORLD_SIZE": "2"}
    mounted = pathlib.Path(env["HOCKET_SECRET_FILE"]).parent
    existed = mounted.exists()
    (tmp_path / "train.py").write_text(TRAIN)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOCKET_")} | {"PYTHONPATH": worlds.PATH}
    try:
        with pods(env, job["metadata"]["name"], tmp_path) as prefixes:
            told: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            program = [sys.executable, str(tmp_path / "train.py")]
            ranks = [
                subprocess.Popen([*prefix, *program], env={**clean, **env, "RANK": str(r)}, **told)
                for r, prefix in enumerate(prefixes)
            ]
            ends = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        if not existed:
            mounted.rmdir()
    assert [out for out, _ in ends] == ["0 2 1 tcp\n", "1 2 1 tcp\n"], ends
