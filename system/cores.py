"""Which processor, and how many cores this process may use: its affinity, cut by the CPU quotas of its cgroups.

A quota counts wherever it stands between the process's own group and the root of what is mounted here, in either
version of cgroups: containers see their group as the root, batch systems and systemd put limits some levels above.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence


def processor() -> str:
    """The processor's name, "unknown" where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.lower().startswith(("model name", "cpu part")):
                return line.partition(":")[2].strip()
    return "unknown"


def usable_cores(proc: str = "/proc/self") -> int:
    """At least 1.  `proc`: the process's folder."""
    cores = len(os.sched_getaffinity(0))
    for folder in _groups(proc):
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, max(1, int(quota)))
    return cores


def _groups(proc: str) -> Iterator[str]:
    """The folders of the process's groups that know quotas, each with all above it."""
    own = dict(_own_paths(proc))
    for version, root, point in _mounts(proc):
        if version not in own:
            continue
        path = os.path.relpath(own[version], root)
        # Without a namespace of its own a container's path may lie outside of what it has mounted.
        path = "." if path.startswith("..") else path
        while path:
            yield os.path.normpath(os.path.join(point, path))
            path = "" if path == "." else os.path.dirname(path) or "."


def _own_paths(proc: str) -> Iterator[tuple[int, str]]:
    """(version, the process's group), as in "4:cpu,cpuacct:/batch/job" and "0::/user.slice"."""
    for line in _lines(f"{proc}/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield 2, path
        elif "cpu" in controllers.split(","):
            yield 1, path


def _mounts(proc: str) -> Iterator[tuple[int, str, str]]:
    """(version, which group is mounted, where) of the hierarchies that know quotas."""
    for line in _lines(f"{proc}/mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        root, point = mount.split(" ")[3:5]
        if kind == "cgroup2":
            yield 2, root, point
        elif kind == "cgroup" and "cpu" in options.split(" ")[-1].split(","):
            yield 1, root, point


def _quota(folder: str) -> float | None:
    """Cores that a group may use; None: all."""
    try:
        both = _lines(f"{folder}/cpu.max")
        if both:
            quota, period = both[0].split()
        else:
            (quota,), (period,) = _lines(f"{folder}/cpu.cfs_quota_us"), _lines(f"{folder}/cpu.cfs_period_us")
        return float(quota) / float(period) if quota != "max" and float(quota) > 0 else None
    except (ValueError, ZeroDivisionError):  # no quotas here: the root of a hierarchy has no such file
        return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


def in_core_order(cpus: Sequence[int], topology: str = "/sys/devices/system/cpu") -> list[int]:
    """These logical CPUs: one of each core first, then the second threads of the cores."""
    threads: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        siblings = next(iter(_lines(f"{topology}/cpu{cpu}/topology/thread_siblings_list")), str(cpu))
        threads.setdefault(siblings, []).append(cpu)
    return sorted(cpus, key=lambda cpu: next((each.index(cpu), cpu) for each in threads.values() if cpu in each))
