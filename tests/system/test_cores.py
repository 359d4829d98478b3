"""The number of cores that a process may use, in each kind of cgroup that batch systems and containers make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.system import cores

V2 = "29 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "30 23 0:27 {root} {point} rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = "31 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n22 1 0:20 / / rw - ext4 /dev/vda rw\n"


@pytest.mark.parametrize(
    "own, mounts, quotas, wanted",
    [
        ("0::/\n", V2, {"": "300000 100000"}, 3),  # a container with a namespace of its own
        ("0::/\n", V2, {"": "max 100000"}, 16),
        ("0::/\n", V2, {}, 16),
        ("0::/a/b\n", V2, {"a/b": "max 100000", "a": "250000 100000"}, 2),  # nested; the limit stands above
        ("0::/a/b\n", V2, {"a/b": "400000 100000", "a": "500000 100000"}, 4),
        ("0::/a/b\n", V2, {"a/b": "10000 100000"}, 1),
        ("0::/docker/x\n", V2.replace("{root}", "/docker/x"), {"": "600000 100000"}, 6),  # only its own is mounted
        ("0::/../other\n", V2, {"": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/batch/job\n0::/\n", V1 + OTHER, {"batch/job": (350000, 100000)}, 3),
        ("4:cpu,cpuacct:/batch/job\n", V1, {"batch/job": (-1, 100000), "batch": (50000, 25000)}, 2),
        ("4:cpu,cpuacct:/docker/x\n", V1, {"": (500000, 100000)}, 5),  # the path is the host's, what is mounted is not
        ("3:cpuset:/a\n1:name=systemd:/a\n", OTHER, {"a": (100000, 100000)}, 16),
        ("", "", {}, 16),
    ],
)
def test_quotas(own, mounts, quotas, wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = tmp_path / "cgroup"
    for group, quota in quotas.items():
        (point / group).mkdir(parents=True, exist_ok=True)
        if isinstance(quota, str):
            (point / group / "cpu.max").write_text(quota + "\n")
        else:
            for name, value in zip(("quota", "period"), quota, strict=True):
                (point / group / f"cpu.cfs_{name}_us").write_text(f"{value}\n")
    (tmp_path / "cgroup-of-process").mkdir()
    proc = tmp_path / "cgroup-of-process"
    (proc / "cgroup").write_text(own)
    (proc / "mountinfo").write_text(mounts.replace("{root}", "/").replace("{point}", str(point)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert cores.usable_cores(str(proc)) == wanted


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/cpu/cpu.shares", os.W_OK), reason="needs root, and cgroups version 1")
def test_a_real_quota() -> None:
    """A quota of a group above the process's own counts; the process then sees one core, whatever the machine has."""
    above = Path(f"/sys/fs/cgroup/cpu/hocket-test-{os.getpid()}")
    group = above / "job"
    try:
        group.mkdir(parents=True)
        (above / "cpu.cfs_quota_us").write_text("100000")
        code = "from hocket.system.cores import usable_cores; print(usable_cores())"
        enter = f"echo $$ > {group}/cgroup.procs && exec \"$@\""
        command = ["sh", "-c", enter, "sh", sys.executable, "-c", code]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
    finally:
        group.rmdir()
        above.rmdir()


def test_this_process() -> None:
    assert 1 <= cores.usable_cores() <= len(os.sched_getaffinity(0))


def test_first_threads_of_cores_come_first(tmp_path: Path) -> None:
    """Two logical CPUs of one core share what it has: ranks get cores of their own as long as there are any."""
    for cpu, siblings in enumerate(["0,3", "1,4", "2,5", "0,3", "1,4", "2,5"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert cores.in_core_order([5, 4, 3, 1, 0], str(tmp_path)) == [0, 1, 5, 3, 4]
    assert cores.in_core_order([2, 7], str(tmp_path / "nothing")) == [2, 7]
