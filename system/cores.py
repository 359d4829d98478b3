"""Which processor, and how many cores this process may use: its affinity, cut by the CPU quotas of its cgroups.

Places, too: the cores that ranks are bound to, and the NUMA nodes of processes, GPUs and network cards.

A quota counts wherever it stands between the process's own group and the root of what is mounted here, in either
version of cgroups: containers see their group as the root, batch systems and systemd put limits some levels above.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Sequence

from hocket.errors import ArgumentError


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


def bound(how: str, ranks: int, allowed: Collection[int], system: str = "/sys") -> list[list[int]]:
    """The logical CPUs of each rank of this host: all (`none`), its NUMA node's (`numa`), or its own cores' (`core`).

    Ranks are dealt to nodes in blocks, by the nodes' cores; where GPUs are, rank i is on the node of GPU i, in the
    order of the bus.  Without GPUs, where all ranks have room on nodes with a network card, each is on one of those.
    ArgumentError: `core`, and a node has more ranks than cores.
    """
    if how == "none":
        return [sorted(allowed)] * ranks
    cores = _cores(allowed, system)
    nodes: dict[int, list[tuple[int, ...]]] = {}
    for core, node in cores.items():
        nodes.setdefault(node, []).append(core)
    flat = [node for node, own in sorted(nodes.items()) for _ in own]
    gpus = _gpus(system)
    nics = sorted({*card_nodes(system).values()} & {*nodes})
    beside = gpus or (nics if ranks <= len(nics) else [])
    wanted = [beside[rank % len(beside)] if beside else -1 for rank in range(ranks)]
    dealt = [flat[(2 * rank + 1) * len(flat) // (2 * ranks)] for rank in range(ranks)]
    homes = [node if node in nodes else other for node, other in zip(wanted, dealt, strict=True)]
    found = []
    for rank, node in enumerate(homes):
        own, here = nodes[node], homes.count(node)
        if how == "core":
            each = len(own) // here
            if not each:
                raise ArgumentError(
                    f"--bind core: {here} ranks are more than the {len(own)} cores of NUMA node {node}: give --bind "
                    "numa or none, or fewer ranks"
                )
            first = homes[:rank].count(node) * each
            own = own[first : first + each]
        found.append(sorted(cpu for core in own for cpu in core))
    return found


def node_of(allowed: Collection[int], system: str = "/sys") -> int:
    """The NUMA node that has all these CPUs; -1: they are on several, or the machine has one only, or does not tell."""
    nodes = _nodes(system)
    own = {nodes.get(cpu, -1) for cpu in allowed}
    return own.pop() if len(own) == 1 and len(set(nodes.values())) > 1 else -1


def _nodes(system: str) -> dict[int, int]:
    """By CPU, where the system tells."""
    found: dict[int, int] = {}
    for name in _entries(f"{system}/devices/system/node", r"node(\d+)"):
        text = next(iter(_lines(f"{system}/devices/system/node/{name}/cpulist")), "")
        found |= dict.fromkeys(cpus(text), int(name[4:]))
    return found


def _cores(allowed: Collection[int], system: str) -> dict[tuple[int, ...], int]:
    """Cores, as the CPUs of each that are allowed, and their NUMA nodes; 0 where the system does not tell."""
    of_cpu = _nodes(system)
    found: dict[tuple[int, ...], int] = {}
    for cpu in sorted(allowed):
        siblings = next(iter(_lines(f"{system}/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")), str(cpu))
        core = tuple(each for each in cpus(siblings) if each in allowed) or (cpu,)
        found[core] = of_cpu.get(cpu, 0)
    return dict(sorted(found.items(), key=lambda each: (each[1], each[0])))


def _gpus(system: str) -> list[int]:
    """The NUMA node of each GPU of NVIDIA's or AMD's, in the order of the bus; -1: the system does not tell."""
    found = []
    folder = f"{system}/bus/pci/devices"
    for name in _entries(folder, r"[0-9a-f]+:.*"):
        kind, maker, node = ("".join(_lines(f"{folder}/{name}/{what}")) for what in ("class", "vendor", "numa_node"))
        if kind.startswith(("0x0300", "0x0302", "0x0380", "0x1200")) and maker in ("0x10de", "0x1002"):
            found.append(int(node or -1))
    return found


def card_nodes(system: str = "/sys") -> dict[str, int]:
    """The NUMA node of each network card, by name: RDMA devices; without any, interfaces that have a device."""
    for kind in ("infiniband", "net"):
        folder = f"{system}/class/{kind}"
        told = {name: "".join(_lines(f"{folder}/{name}/device/numa_node")) for name in _entries(folder, r"[^.].*")}
        found = {name: int(node) for name, node in told.items() if node.isdecimal()}  # -1: the system does not tell
        if found:
            return found
    return {}


def _entries(folder: str, pattern: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(folder) if re.fullmatch(pattern, name))
    return []


def cpus(text: str) -> list[int]:
    """The numbers of a list of Linux's: 0-3,8 is 0, 1, 2, 3, 8."""
    ranges = (each.partition("-") for each in text.split(",") if each.strip())
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]
