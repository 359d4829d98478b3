"""The CPUs of each rank, on real machines' topologies: nodes, threads of cores, GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.errors import ArgumentError
from hocket.system.cores import bound, card_nodes, cpus, node_of

TWO = {
    "nodes": {0: "0-7", 1: "8-15"}, "threads": 1, "gpus": [("0x1a03", 0)],
    "infiniband": {"mlx4_0": "1", "scif0": None}, "net": {"eth0": "0", "eth1": "0", "ib0": "1", "lo": None},
}  # fmt: skip
"""Two sockets of 8 cores (Xeon), an InfiniBand card at the second, and a graphics chip that is no GPU."""
TURNS = {
    "nodes": {node: ",".join(map(str, range(node, 40, 4))) for node in range(4)}, "threads": 1,
    "infiniband": {"qib0": "2"}, "net": {"eth0": "-1", "eth1": "-1", "ib0": "2", "lo": None},
}  # fmt: skip
"""Four nodes whose CPUs are numbered in turns (Xeon); of its Ethernet cards the system does not tell where they are."""
PAIRS = {"nodes": {node: f"{node * 8}-{node * 8 + 7}" for node in range(8)}, "threads": 2}
"""Eight nodes of 4 cores with 2 threads (Opteron)."""
SPARSE = {"nodes": {n: f"{i * 6}-{i * 6 + 5}" for i, n in enumerate((0, 1, 2, 33, 34, 45, 72, 73))}, "threads": 1}
"""Node numbers with holes (Opteron)."""
MEMORY = {"nodes": {0: "0-15", 8: "88-103", 250: "", 251: ""}, "threads": 4}
"""Two sockets of Power9 with 4 threads a core, of which each has some CPUs, and nodes that are the memory of GPUs."""
GPUS = {**TWO, "gpus": [("0x10de", 1), ("0x10de", 1), ("0x10de", 0), ("0x10de", 0)]}
"""Simulated: four GPUs, of which the bus has those of the second socket first."""
UNTOLD = {**TWO, "gpus": [("0x1002", -1), ("0x1002", -1)]}
BARE: dict[str, object] = {"nodes": {}, "threads": 1}
"""A container without /sys."""


def tree(folder: Path, told: dict) -> str:  # type: ignore[type-arg]
    for node, text in told["nodes"].items():
        place = folder / f"devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{text}\n")
    for cpu in everybody(told) if told["nodes"] else ():
        place, first = folder / f"devices/system/cpu/cpu{cpu}/topology", cpu - cpu % told["threads"]
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{first}-{first + told['threads'] - 1}\n")
    for i, (maker, node) in enumerate(told.get("gpus", ())):
        place = folder / f"bus/pci/devices/0000:{i:02x}:00.0"
        place.mkdir(parents=True)
        for name, text in (("class", "0x030200"), ("vendor", maker), ("numa_node", str(node))):
            (place / name).write_text(f"{text}\n")
    for kind in ("infiniband", "net"):
        for name, where in told.get(kind, {}).items():
            place = folder / f"class/{kind}/{name}"
            place.mkdir(parents=True)
            if where is not None:
                (place / "device").mkdir()
                (place / "device/numa_node").write_text(f"{where}\n")
    return str(folder)


def everybody(told: dict) -> list[int]:  # type: ignore[type-arg]
    return sorted(cpu for text in told["nodes"].values() for cpu in cpus(text)) or [*range(16)]


@pytest.mark.parametrize(
    ("told", "how", "ranks", "wanted"),
    [
        (TWO, "core", 4, ["0-3", "4-7", "8-11", "12-15"]), (TWO, "core", 3, ["0-7", "8-11", "12-15"]),
        (TWO, "numa", 4, ["0-7", "0-7", "8-15", "8-15"]), (TWO, "numa", 40, ["0-7"] * 20 + ["8-15"] * 20),
        (TWO, "numa", 1, ["8-15"]), (TURNS, "numa", 1, [TURNS["nodes"][2]]), (BARE, "numa", 1, ["0-15"]),
        (TWO, "core", 16, [str(cpu) for cpu in range(16)]), (TWO, "none", 2, ["0-15"] * 2),
        (TURNS, "core", 4, [TURNS["nodes"][node] for node in range(4)]),
        (TURNS, "core", 8, ["0,4,8,12,16", "20,24,28,32,36", "1,5,9,13,17", "21,25,29,33,37", "2,6,10,14,18",
                            "22,26,30,34,38", "3,7,11,15,19", "23,27,31,35,39"]),
        (PAIRS, "core", 32, [f"{2 * rank}-{2 * rank + 1}" for rank in range(32)]),
        (PAIRS, "numa", 2, ["16-23", "48-55"]),
        (SPARSE, "numa", 8, [f"{6 * i}-{6 * i + 5}" for i in range(8)]),
        (MEMORY, "core", 4, ["0-7", "8-15", "88-95", "96-103"]),
        (GPUS, "core", 4, ["8-11", "12-15", "0-3", "4-7"]), (GPUS, "numa", 4, ["8-15", "8-15", "0-7", "0-7"]),
        (UNTOLD, "numa", 2, ["0-7", "8-15"]), (BARE, "core", 2, ["0-7", "8-15"]), (BARE, "numa", 2, ["0-15", "0-15"]),
    ],
)  # fmt: skip
def test_cores_of_ranks(told: dict, how: str, ranks: int, wanted: list[str], tmp_path: Path) -> None:  # type: ignore[type-arg]
    assert bound(how, ranks, everybody(told), tree(tmp_path, told)) == [cpus(text) for text in wanted]


def test_only_what_the_process_may_use(tmp_path: Path) -> None:
    """A batch system gave it half of each socket; the second socket alone is elsewhere."""
    system = tree(tmp_path, TWO)
    assert bound("core", 2, [4, 5, 6, 7, 12, 13], system) == [[4, 5, 6, 7], [12, 13]]
    assert bound("numa", 2, [12, 13], system) == [[12, 13], [12, 13]]


def test_cards_and_the_node_of_a_process(tmp_path: Path) -> None:
    """RDMA devices before others; one node of several, or none."""
    two, turns = tree(tmp_path / "two", TWO), tree(tmp_path / "turns", TURNS)
    ethernet = tree(tmp_path / "ethernet", {**TWO, "infiniband": {}})
    assert card_nodes(two) == {"mlx4_0": 1} and card_nodes(turns) == {"qib0": 2}
    assert card_nodes(ethernet) == {"eth0": 0, "eth1": 0, "ib0": 1} and card_nodes(str(tmp_path)) == {}
    assert [node_of(some, two) for some in ([8, 15], [0], [7, 8], [99])] == [1, 0, -1, -1]
    one = tree(tmp_path / "one", {"nodes": {0: "0-1"}, "threads": 1})
    assert node_of([0, 1], one) == node_of([0], str(tmp_path)) == -1


def test_more_ranks_than_cores(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="9 ranks are more than the 8 cores of NUMA node 1: give --bind numa"):
        bound("core", 17, range(16), tree(tmp_path, TWO))
