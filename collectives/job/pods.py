"""Systems that number the processes they start, pod by pod, but set no RANK: what they set, in RANK's words.

They come last: a pod's number is that of a rank only where no launcher has started the ranks inside of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hocket.errors import ArgumentError

Environ = Mapping[str, str]


class Pod(NamedTuple):
    """A system's words about this process.  `variables`: those that say it, for a text."""

    system: str
    variables: str
    values: dict[str, str]
    """RANK, WORLD_SIZE, and MASTER_ADDR and MASTER_PORT where it knows them."""


def indexed_job(environ: Environ) -> Pod | None:
    """A Kubernetes Job with completionMode Indexed, alone or in a JobSet; the manifest adds WORLD_SIZE.

    kubernetes.io/docs/tasks/job/indexed-parallel-processing-static
    """
    if not (environ.get("JOB_COMPLETION_INDEX") and environ.get("WORLD_SIZE")):
        return None
    values = {"RANK": environ["JOB_COMPLETION_INDEX"], "WORLD_SIZE": environ["WORLD_SIZE"]}
    return Pod("an Indexed Job", "JOB_COMPLETION_INDEX, WORLD_SIZE", values)


def torch_policy(environ: Environ) -> Pod | None:
    """A node of a TrainJob of Kubeflow Trainer v2 (or of PyTorchJob's elastic policy): torchrun's own defaults.

    github.com/kubeflow/trainer, pkg/constants/constants.go and pkg/runtime/framework/plugins/torch/torch.go
    """
    nodes, rank = environ.get("PET_NNODES", ""), environ.get("PET_NODE_RANK", "")
    if not (nodes.isdecimal() and rank) or int(nodes) == 1:
        return None
    each = environ.get("PET_NPROC_PER_NODE") or "1"
    if each != "1":
        raise ArgumentError(
            f"PET_NNODES is {nodes} and PET_NPROC_PER_NODE is {each!r}, which is for torchrun, and torchrun has not "
            "started this process: start the program by torchrun, or set numProcPerNode to 1"
        )
    values = {"RANK": rank, "WORLD_SIZE": nodes}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if environ.get(f"PET_{name}"):
            values[name] = environ[f"PET_{name}"]
    return Pod("Kubeflow Trainer", "PET_NODE_RANK, PET_NNODES", values)


def volcano(environ: Environ) -> Pod | None:
    """A pod of a Volcano job with the plugins env and svc, if the job has one task only: an index counts in a task.

    github.com/volcano-sh/volcano, pkg/controllers/job/plugins/env/env.go and svc/svc.go
    """
    index = environ.get("VC_TASK_INDEX") or environ.get("VK_TASK_INDEX")
    tasks = [match[1] for name in environ if (match := re.fullmatch(r"VC_(\w+)_NUM", name))]
    if not index or len(tasks) != 1:
        return None
    values = {"RANK": index, "WORLD_SIZE": environ[f"VC_{tasks[0]}_NUM"]}
    if hosts := environ.get(f"VC_{tasks[0]}_HOSTS"):
        values["MASTER_ADDR"] = hosts.partition(",")[0]
    return Pod("Volcano", f"VC_TASK_INDEX, VC_{tasks[0]}_NUM", values)


SYSTEMS: tuple[Callable[[Environ], Pod | None], ...] = (indexed_job, torch_policy, volcano)


def pods(environ: Environ) -> Iterator[Pod]:
    """The pods that each present system tells of; nothing where RANK is set."""
    if environ.get("RANK"):
        return
    for system in SYSTEMS:
        pod = system(environ)
        if pod is not None:
            yield pod
