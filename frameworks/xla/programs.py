"""The groups of devices that compiled programs reduce over, read from the programs; each is made before it is needed.

XLA asks for a communicator when a program first comes to a collective, and says neither which devices are in it nor how
many.  So where a program is about to run for the first time, a small one runs before it for every group of its that is
new: then it is known which group XLA asks for.  All members do that in the order of the program's text.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.xla import absent
from hocket.xla.loading import CHOICE, KNOWN, TRIED

Group = tuple[tuple[int, int], ...]
"""(device's id, its process) of each rank."""
CALLS = re.compile(
    r"\b(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)(?:-start)?\("
)
LISTED = re.compile(r"replica_groups=\{(\{[\d,{} ]*\})\}")
IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\)?)\))? ?\{([^}]*)\}")
AXIS = re.compile(r"'((?:[^'\\]|\\.)*)'(?:=(\d+))?(?::\((\d+)\)(\d+))?")
_programs: dict[int, tuple[Any, list[Group]]] = {}
"""By its id: a program that has not run yet, and its groups."""
_lock = threading.Lock()
_made: set[Group] = set()
_making: list[tuple[Group, threading.Thread]] = []
"""Groups that are being made, and the threads whose small programs do so."""
_alone: set[Group] = set()
"""Groups of one device: a program that sums over it asks for no communicator, so they cannot be made beforehand."""
_threads: set[threading.Thread] = set()
_watching = False


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each.strip()]


def replica_groups(line: str, size: int) -> list[list[int]]:
    """The groups in a line of HLO, as places in the program's list of `size` devices.

    >>> replica_groups("all-reduce(p), replica_groups={{0,1},{2,3}}", 4)
    [[0, 1], [2, 3]]
    >>> replica_groups("all-gather(p), replica_groups=[2,2]<=[2,2]T(1,0)", 4)
    [[0, 2], [1, 3]]
    >>> replica_groups("all-reduce(p), replica_groups=mesh['a'=2,'b'=2] {'a'}", 4)
    [[0, 2], [1, 3]]
    >>> replica_groups("collective-permute(p), source_target_pairs={{0,1}}", 2)
    [[0, 1]]
    """
    if listed := LISTED.search(line):
        return [numbers(each) for each in re.findall(r"\{([\d, ]*)\}", listed[1])]
    if iota := IOTA.search(line):
        found: list[list[int]] = _iota(iota[2], iota[3]).reshape(numbers(iota[1])).tolist()
        return found
    if mesh := MESH.search(line):
        return _along_axes(*mesh.groups())
    if re.search(r"replica_groups=(?!\{\})", line):
        raise RuntimeError(
            f"hocket cannot read the groups of {line.strip()[:300]!r}: it knows jaxlib {TRIED[0]} to {KNOWN}; "
            f"set {CHOICE}=gloo"
        )
    return [list(range(size))]


def _iota(dims: str, order: str | None) -> Any:
    shape = numbers(dims)
    return np.arange(math.prod(shape)).reshape(shape).transpose(numbers(order) if order else range(len(shape)))


def _along_axes(axes: str, ids: str | None, along: str) -> list[list[int]]:
    """Groups over named axes of a mesh; of an axis perhaps a part: 'a':(2)4 is what lies behind 2, 4 long."""
    whole = {name: int(size) for name, size, _, _ in AXIS.findall(axes)}
    places = np.arange(math.prod(whole.values()))
    if ids is not None:
        turned = re.match(r"\[[\d,]+\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", ids)
        places = _iota(*turned.groups()).ravel() if turned else np.array(numbers(ids))
    wanted = [(name, int(before or 1), int(size or whole[name])) for name, _, before, size in AXIS.findall(along)]
    cuts = {name: {1, size} for name, size in whole.items()}
    for name, before, size in wanted:
        cuts[name] |= {before, before * size}
    pieces = [(name, a, b // a) for name, size in whole.items() for a, b in itertools.pairwise(sorted(cuts[name]))]
    inner = [k for name, before, size in wanted for k, (other, a, _) in enumerate(pieces)
             if other == name and before <= a < before * size]  # fmt: skip
    outer = [k for k in range(len(pieces)) if k not in inner]
    sizes = [size for _, _, size in pieces]
    length = math.prod(sizes[k] for k in inner)
    found: list[list[int]] = places.reshape(sizes).transpose(outer + inner).reshape(-1, length).tolist()
    return found


def groups_of(text: str, devices: Sequence[Any]) -> list[Group]:
    """The groups in a program's text, in its order."""
    found: dict[Group, None] = {}
    for line in text.splitlines():
        if CALLS.search(line):
            for places in replica_groups(line, len(devices)):
                found[tuple((devices[k].id, devices[k].process_index) for k in places)] = None
    return list(found)


def groups(color: int, key: int) -> list[Group]:
    """The groups being made with this first device, and one of this process at `key`; else that of it alone.

    XLA asks in the thread that has started the small program, if the process has one device.
    """
    import jax

    mine, here = jax.process_index(), threading.current_thread()
    found = [(g, by) for g, by in list(_making) if g[0][0] == color and key < len(g) and g[key][1] == mine]
    if found:
        return [g for g, by in found if by is here] or [g for g, _ in found]
    return [g for g in _alone if g == ((color, mine),) and not key]


def watch() -> None:
    """From now on, see each program when it has been compiled, and before it first runs."""
    global _watching
    with _lock:
        _made.clear()
        if _watching:
            return
        _watching = True
    from jax._src import compiler
    from jax._src.interpreters import pxla

    compiled, call = compiler.compile_or_get_cached, pxla.ExecuteReplicated.__call__

    def compile_or_get_cached(backend: Any, computation: Any, devices: Any, *args: Any, **kwargs: Any) -> Any:
        made = compiled(backend, computation, devices, *args, **kwargs)
        if backend.platform == "cpu":
            text = "\n".join(each.to_string() for each in made.hlo_modules())
            _programs[id(made)] = made, groups_of(text, list(np.ravel(devices)))
        return made

    def first_call(self: Any, *args: Any) -> Any:
        for group in _programs.pop(id(self.xla_executable), (None, ()))[1]:
            make(group, self.backend)
        return call(self, *args)

    compiler.compile_or_get_cached = compile_or_get_cached
    pxla.ExecuteReplicated.__call__ = first_call


def make(group: Group, backend: Any) -> None:
    """Let XLA ask for the group's communicator now, if it has not and a device of this process is in it."""
    import jax

    mine = jax.process_index()
    with _lock:
        if group in _made or all(process != mine for _, process in group):
            return
        _made.add(group)
        if len(group) == 1:
            _alone.add(group)
            return
    _elsewhere(group, functools.partial(_sum_over, group, backend))


def _elsewhere(group: Group, work: Callable[[], None]) -> None:
    """In a thread of its own, which has none of the contexts (mesh, dtypes, transfer guards) that this one has set.

    Ctrl-C ends the caller's wait alone: the group is made as the others know it.
    """
    errors: list[BaseException] = []

    def body() -> None:
        made = group, threading.current_thread()
        _making.append(made)
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            _making.remove(made)
            _threads.discard(made[1])

    thread = threading.Thread(target=body, daemon=True, name="hocket.xla")
    _threads.add(thread)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def end() -> None:
    """The process ends: threads whose program was interrupted wait for nobody any more."""
    absent.leaving.set()
    for thread in list(_threads):
        thread.join(1)


def _sum_over(group: Group, backend: Any) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    known = {device.id: device for device in backend.devices()}
    mesh = Mesh(np.array([known[device] for device, _ in group]), "hocket")
    spread = NamedSharding(mesh, PartitionSpec("hocket"))
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    parts = [jax.device_put(np.zeros(1, np.int32), device) for device in local]
    x = jax.make_array_from_single_device_arrays((len(group),), spread, parts)
    body = lambda a: jax.lax.psum(a, "hocket")  # noqa: E731
    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("hocket"), out_specs=PartitionSpec()))
    program(x).block_until_ready()
