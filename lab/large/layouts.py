"""Arrays that move from one layout to another: hocket beside what people do instead.

    python -m hocket.lab.large.layouts [--mb 120]                 four ranks of this host
    python -m hocket.lab.large.layouts --big                      one array of 1 GiB, and the memory that it takes
    python -m hocket.lab.large.layouts --rate 1gbit [--mb 48]     as root: two hosts of two ranks, and a cable

hocket: a plan that was prepared, run again.  gather: each rank broadcasts what it holds to all, and each takes its
slices.  DTensor: its `redistribute`, on hocket and on Gloo, where it can do the case.  files: torch's DCP saves to and
loads from /dev/shm.  pulls: each rank asks the others for its slices, by torch.distributed.rpc.  memcpy: the bytes of
the target, copied by as many ranks as there are cores.  All take turns in the same processes; medians of the slowest
rank.  peak: by how much a rank's memory grows in a call of `redistribute(into=)`, which plans and moves.  Between hosts
the bytes on the cable are the kernel's, beside the least that can be: what is wanted and not held, once for each host.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from hocket import Layout
from hocket.collectives.layouts.boxes import count, cover, inside
from hocket.collectives.layouts.deal import deal
from hocket.conformance.jobs.ranks import again, cabled, found_here, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import CABLE, sent

MODULE = "hocket.lab.large.layouts"
PATIENCE, RANKS = 600.0, 4
CORES = min(RANKS, len(os.sched_getaffinity(0)))
Mover = Callable[[], object]
ROWS = {
    "4 -> 2": "ranks 0 and 1 get halves of what all four hold quarters of",
    "2 -> 4": "the other way round",
    "4 -> 3": "uneven",
    "tensor -> ZeRO": "columns become pieces of a flat vector",
    "ZeRO -> tensor": "the other way round",
    "short rows": "columns of 16 numbers become pieces of a flat vector",
    "1,000 arrays": "rows become columns; 4 KiB to 1 MiB each",
}
BIG = {"4 -> 2", "4 -> 3", "tensor -> ZeRO"}
"""The rows for 1 GiB, beside memcpy alone: of the other ways each holds it several times."""
OTHERS = ("memcpy", "gather", "DTensor on hocket", "DTensor on Gloo", "files", "pulls")
GIB = 1 << 30


def cases(mb: float) -> dict[str, tuple[dict[str, Layout], dict[str, Layout]]]:
    """The layouts of each row of the table: float32, so many megabytes."""
    rows = int(mb * 250_000 / 1024) // 12 * 12
    shape = (rows, 1024)
    cut, halves, thirds = (Layout.cut(shape, n) for n in (4, 2, 3))
    columns, flat = Layout.cut(shape, 4, axis=1), Layout.flat(shape, 4)
    lengths = [1024 << (i % 9) for i in range(1000)]
    each = max(1, round(mb * 250_000 / sum(lengths) * 16)) / 16
    sides = [max(4, int((n * each) ** 0.5) // 4 * 4) for n in lengths]
    shapes = {f"w{i}": (n, n) for i, n in enumerate(sides)}
    many = ({k: Layout.cut(s, 4) for k, s in shapes.items()}, {k: Layout.cut(s, 4, axis=1) for k, s in shapes.items()})
    narrow = (rows * 16, 64)
    short = Layout.cut(narrow, 4, axis=1), Layout.flat(narrow, 4)
    pairs = (cut, halves), (halves, cut), (cut, thirds), (columns, flat), (flat, columns), short
    return {**{name: ({"w": a}, {"w": b}) for name, (a, b) in zip(ROWS, pairs, strict=False)}, "1,000 arrays": many}


def rank(mb: str, big: str, rounds: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each case."""
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(1)
    meeting = f"file://{os.environ['PLACE']}/store" if "PLACE" in os.environ else "env://"
    dist.init_process_group("hocket", init_method=meeting, rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))  # fmt: skip
    gloo = dist.new_group(backend="gloo")
    comm = hocket.init()
    _rpc()
    chosen = {name: each for name, each in cases(float(mb)).items() if not int(big) or name in BIG}
    for name, (source, target) in chosen.items():
        found = measured(comm, gloo, name, source, target, bool(int(big)), int(rounds))
        if comm.rank == 0:
            print(json.dumps({"case": name, **found}), flush=True)
    comm.barrier()
    torch.distributed.rpc.shutdown()
    dist.destroy_process_group()


def measured(
    comm: Any, gloo: Any, name: str, source: dict[str, Layout], target: dict[str, Layout], big: bool, rounds: int
) -> dict[str, Any]:  # fmt: skip
    """Median seconds by way, what moves, the memory that it took, and what crossed the cable."""
    tree = {k: [np.ones(s, np.float32) for s in lay.shapes(comm.rank)] for k, lay in source.items()}
    plan = comm.prepare_redistribute(tree, source, target)
    pairs = [(k, source[k], target[k], 4) for k in sorted(source)]
    moves = deal(pairs, [[*host] for host in comm.membership.hosts])
    n = _bytes(moves) // 4 // CORES if comm.rank < CORES else 1
    a, b = np.ones(n, np.float32), np.zeros(n, np.float32)
    ways: dict[str, Mover] = {"hocket": plan, "memcpy": lambda: np.copyto(b, a)}
    if not big:
        ways["gather"] = _gather(comm, tree, source, target)
        ways.update(_of_dtensor(name, source, gloo))
        ways["pulls"] = _of_rpc(comm, tree, source, target)
    if not big and name != "1,000 arrays":
        ways["files"] = _of_files(name, source, gloo)
    seconds = _turns(comm, ways, rounds)
    into = plan()
    peak = _peak(comm, lambda: comm.redistribute(tree, source, target, into=into))
    here = {r: i for i, host in enumerate(comm.membership.hosts) for r in host}
    crossing = _bytes(m for m in moves if here[m.source.rank] != here[m.target.rank])
    before = _cable(comm)
    if before is not None:
        plan()
        comm.barrier()
    return {
        "seconds": seconds, "peak": peak, "crossing": crossing,
        "moves": _bytes(m for m in moves if m.source.rank != m.target.rank),
        "cable": None if before is None else _cable(comm) - before,
    }  # fmt: skip


def _bytes(moves: Any) -> int:
    return sum(4 * count(move.box) for move in moves)


def _cable(comm: Any) -> Any:
    """Bytes that the hosts have put on the cable; None if there is none."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        return None
    comm.barrier()
    mine = sent() if comm.local_rank == 0 else 0
    return int(comm.allreduce(np.array([mine]))[0])


def _peak(comm: Any, call: Mover) -> int:
    """By how many bytes the memory of a rank grows in a call, at most; of the rank where it is most."""
    comm.barrier()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what there is now
    before = _memory("VmHWM")
    call()
    return int(comm.allreduce(np.array([_memory("VmHWM") - before]), "max")[0])


def _memory(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def _turns(comm: Any, ways: dict[str, Mover], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):  # the first warms up
        names = [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]
        for name in names:
            comm.barrier()
            began = time.perf_counter()
            ways[name]()
            took = time.perf_counter() - began
            comm.barrier()
            if turn:
                found[name].append(float(comm.allreduce(np.array([took]), "max")[0]))
    return {name: median(each) for name, each in found.items()}


def _gather(comm: Any, tree: Any, source: dict[str, Layout], target: dict[str, Layout]) -> Mover:
    """Everybody gets everything, and slices."""
    whole = {name: np.empty(layout.shape, np.float32) for name, layout in source.items()}

    def call() -> None:
        for name, layout in source.items():
            for holder in range(comm.size):
                for box, shape in zip(layout.of(holder), layout.shapes(holder), strict=True):
                    place = tuple(slice(r.start, r.stop) for r in box)
                    own = holder == comm.rank
                    piece = tree[name][layout.of(holder).index(box)] if own else np.empty(shape, np.float32)
                    whole[name][place] = comm.broadcast(piece, holder)
            for part in target[name].parts(whole[name], comm.rank):
                np.ascontiguousarray(part)

    return call


def _rpc() -> None:
    """Meet for `pulls`."""
    import torch.distributed

    rpc: Any = torch.distributed.rpc
    # Or it goes past the cable, by the memory that these hosts have in common.
    apart = {"_transports": ["uv"], "_channels": ["basic"]} if "TP_SOCKET_IFNAME" in os.environ else {}
    place = f"file://{os.environ['PLACE']}/rpc"
    how = rpc.TensorPipeRpcBackendOptions(init_method=place, num_worker_threads=4, **apart)
    rpc.init_rpc(f"rank-{os.environ['RANK']}", rank=int(os.environ["RANK"]), world_size=RANKS,
                 rpc_backend_options=how)  # fmt: skip


HELD: dict[str, list[Any]] = {}
"""This rank's tensors, for those who ask."""


def piece(name: str, place: int, part: tuple[slice, ...]) -> Any:
    """A part of one of this rank's tensors: called by others."""
    return HELD[name][place][part].contiguous()


def _of_rpc(comm: Any, tree: dict[str, Any], source: dict[str, Layout], target: dict[str, Layout]) -> Mover:
    """Each rank pulls what it wants: of each box what the first holder has."""
    import torch
    from torch.distributed import rpc

    HELD.clear()
    HELD.update({name: [torch.from_numpy(each) for each in arrays] for name, arrays in tree.items()})
    made = {name: [torch.empty(shape) for shape in layout.shapes(comm.rank)] for name, layout in target.items()}
    asked: list[tuple[str, int, int, Any, Any]] = []
    for name, layout in target.items():
        for to, box in zip(made[name], layout.of(comm.rank), strict=True):
            lacking = [box]
            for holder in range(comm.size):
                for place, held in enumerate(source[name].of(holder)):
                    met, lacking = cover(lacking, held)
                    asked += [(name, holder, place, inside(m, held)[:-1], to[inside(m, box)]) for m in met]

    def call() -> None:
        waiting = []
        for name, holder, place, part, into in asked:
            if holder == comm.rank:
                into[...] = HELD[name][place][part]
            else:
                waiting.append((rpc.rpc_async(f"rank-{holder}", piece, (name, place, part)), into))
        for future, into in waiting:
            into[...] = future.wait()

    return call


PLACEMENTS = {"2 -> 4": None, "4 -> 2": None, "4 -> 3": None, "tensor -> ZeRO": (1, 0), "ZeRO -> tensor": (0, 1),
              "short rows": (1, 0)}  # fmt: skip
"""The axes along which DTensor cuts before and after, where it can do the case, or one like it."""


def _of_dtensor(name: str, source: dict[str, Layout], gloo: Any) -> dict[str, Mover]:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    if not PLACEMENTS.get(name):
        return {}
    before, after = PLACEMENTS[name]  # type: ignore[misc]
    shape = next(iter(source.values())).shape
    ways: dict[str, Mover] = {}
    meshes = {"DTensor on hocket": DeviceMesh("cpu", range(RANKS))}
    meshes["DTensor on Gloo"] = DeviceMesh.from_group(gloo, "cpu")
    for called, mesh in meshes.items():
        local = torch.ones([n // RANKS if axis == before else n for axis, n in enumerate(shape)])
        made = DTensor.from_local(local, mesh, [Shard(before)])
        ways[called] = lambda made=made, mesh=mesh: made.redistribute(mesh, [Shard(after)])  # type: ignore[misc]
    return ways


def _of_files(name: str, source: dict[str, Layout], gloo: Any) -> Mover:
    """DCP saves by one sharding and loads by another; between hosts /dev/shm stands for a shared folder."""
    import torch
    import torch.distributed.checkpoint.state_dict_loader as loader
    import torch.distributed.checkpoint.state_dict_saver as saver
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    before, after = PLACEMENTS.get(name) or (0, 1)
    shape, mesh = next(iter(source.values())).shape, DeviceMesh.from_group(gloo, "cpu")

    def sharded(axis: int) -> Any:
        local = torch.ones([n // RANKS if axis == a else n for a, n in enumerate(shape)])
        return DTensor.from_local(local, mesh, [Shard(axis)])

    saved, loaded = {"w": sharded(before)}, {"w": sharded(after)}
    folder = f"/dev/shm/hocket-layouts-{os.environ.get('MEETS', os.getppid())}"

    def call() -> None:
        saver.save(saved, checkpoint_id=folder, process_group=gloo)
        loader.load(loaded, checkpoint_id=folder, process_group=gloo)
        if int(os.environ["RANK"]) == 0:
            shutil.rmtree(folder, ignore_errors=True)

    return call


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = arguments(MODULE, __doc__, argv, mb=120.0, big=False, rounds=7, rate=None)
    meets = str(os.getpid())
    mb = GIB / 1e6 if options.big else options.mb
    words = again(MODULE, mb, int(options.big), options.rounds)
    if options.rate is None:
        found = found_here(words, RANKS, MODULE, PATIENCE, MEETS=meets)
    else:
        with cabled(options.rate) as names, tempfile.TemporaryDirectory() as place:
            env = {"GLOO_SOCKET_IFNAME": CABLE, "TP_SOCKET_IFNAME": CABLE, "PLACE": place, "MEETS": meets}
            found = found_on(names, RANKS // 2, words, MODULE, PATIENCE, **env)
    columns = ("case", "moves, MB", "cable, MB", "least, MB", "peak, MB", "hocket, ms")
    heading((*columns, *(f"x {each}" for each in OTHERS)))
    for row in found:
        own = row["seconds"]["hocket"]
        ratios = [f"{own / row['seconds'][other]:.2f}" if other in row["seconds"] else "" for other in OTHERS]
        cable = "" if row["cable"] is None else f"{row['cable'] / 1e6:.2f}"
        print(f"| {row['case']} | {row['moves'] / 1e6:.1f} | {cable} | {row['crossing'] / 1e6:.2f} "
              f"| {row['peak'] / 1e6:.1f} | {own * 1e3:.1f} "
              f"| {' | '.join(ratios)} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
