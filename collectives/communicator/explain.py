"""`comm.explain()`: which transport leads to each rank, why not another, and which algorithm for which size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hocket.algorithms.language.contract import CONTRACTS
from hocket.arguments import human, whole
from hocket.collectives.arrays import shared
from hocket.collectives.calls.encodings import AUTO
from hocket.collectives.calls.encodings import COLLECTIVES as CODED
from hocket.collectives.choice.choose import Choice, choose
from hocket.collectives.choice.fabric import candidates
from hocket.collectives.choice.setting import asked
from hocket.collectives.choice.tuning import Reads
from hocket.collectives.delegates.libraries import CHOSEN
from hocket.collectives.delegates.mpi import NO_JOB
from hocket.collectives.engine.queue import GATHERED_FROM
from hocket.collectives.members.reach import ways
from hocket.errors import ArgumentError
from hocket.system import tls

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator
    from hocket.collectives.engine.queue import Queue

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 26)
WORDS = ("reading", "writing", "both cores")
"""The ways that are told: messages go by slots unless another one was found to be faster."""


def explain(
    comm: Communicator, collective: str | None = None, nbytes: int | None = None, codec: str | None = None
) -> str:
    """The text of `Communicator.explain`."""
    world = comm.world
    if nbytes is not None and whole(nbytes, "nbytes") < 0:
        raise ArgumentError(f"nbytes={nbytes!r} is not a number of bytes")
    if codec is not None and (codec != AUTO or collective not in CODED or nbytes is None):
        raise ArgumentError(
            f"codec={codec!r}: only codec='auto' is explained, as in explain('allreduce', 1 << 24, codec='auto')"
        )
    priority = f", priority {comm.membership.priority}" if comm.membership.priority else ""
    lines = [f"communicator {comm.name!r}: rank {comm.rank} of {comm.size}{priority}"]
    if world.why:
        lines.append(f"  found by: {world.why}")
    lines.append(f"  hosts: {_grouped(comm.membership.hosts)} ({_proof(comm)})")
    if world.config.encrypt:
        by = f"; certificates of {world.config.tls_ca}" if world.config.tls_cert else ""
        lines.append(f"  encrypted: all TCP connections, of data and control, by TLS 1.3 ({tls.version()}{by})")
    lines.append("transports:")
    for way in ways(comm):
        lines.append(f"  rank {way.rank}: {way.transport}{way.detail and f' ({way.detail})'}")
        lines += [f"    not {name}: {why}" for name, why in way.refusals]
    arrays = shared.words(shared.window_of(world.transports.values()))
    lines += [f"  {arrays}"] * bool(arrays)
    lines += _queueing(comm)
    lines += _reads(comm)
    lines += comm.gpus.words(comm.size)
    lines.append("algorithms (by bytes of the whole vector):")
    for name in [row.collective for row in CONTRACTS.values() if row.tuned] if collective is None else [collective]:
        setting = asked(world.config.algorithm, name)
        if setting:
            lines.append(f"  {name}: {setting} (HOCKET_ALGORITHM)")
            continue
        gpu = comm.membership.queues.get(("gpu", None))
        if nbytes is not None:
            lines += _choice(comm, comm.membership.main, name, nbytes, name)
            lines += _choice(comm, gpu, name, nbytes, f"{name} on a GPU") if gpu is not None else []
            continue
        chosen = _sizes(comm, comm.membership.main, name)
        lines.append(f"  {name}: {chosen}")
        if gpu is not None and (differs := _sizes(comm, gpu, name)) != chosen:
            lines.append(f"  {name} on a GPU: {differs}")
    if codec is not None and collective is not None and nbytes is not None:
        lines.append(f"  {comm.runner.worth.words(collective, nbytes)}")
    lines.append(f'  algorithm="mpi": {world.mpi.about if world.mpi else NO_JOB}')
    lines += [f'  algorithm="nccl": {comm.gpus.nccl}'] * bool(comm.gpus.nccl)
    if not comm.tuning.points:
        lines.append("  nothing was measured here: the built-in table chooses (`hocket tune` measures and keeps it)")
    return "\n".join(lines)


def _grouped(groups: Iterable[Iterable[int]]) -> str:
    return " | ".join(",".join(map(str, group)) for group in groups)


def _proof(comm: Communicator) -> str:
    """The proof that says which ranks are on one host."""
    if not comm.world.near:
        return "by the kernel and the host's name; no transport that shares memory is used"
    if sorted(map(list, comm.groups)) == comm.membership.hosts:
        return "proven by sharing memory"
    return f"by the kernel, the host's name and its temporary folder; memory is shared by {_grouped(comm.groups)}"


def _queueing(comm: Communicator) -> list[str]:
    """Queueing disciplines below the transports used here, if they know: do lanes' priorities count there?"""
    used = sorted({way.transport for way in ways(comm)})
    asked = [(name, getattr(comm.world.transports[name], "queueing", lambda: "")()) for name in used]
    return [f"  {name} sends by {how}" for name, how in asked if how]


def _reads(comm: Communicator) -> list[str]:
    """From how many bytes messages are read where they lie, if all ranks can."""
    readable = comm.membership.main.readable
    if readable is None:
        return []
    by = "as hocket tune has measured" if comm.membership.reads else "by the CPU's maker"
    lines, faster = [f"  {Reads(*readable.rule).words} ({by})"], dict[str, list[str]]()
    for plan in [plan for queue in comm.membership.queues.values() for plan in queue.engine.plans.values()]:
        faster.setdefault(plan.way, []).append(plan.text)
    told = [f"  {way} is the faster way now for {', '.join(faster[way][:3])}" for way in WORDS if way in faster]
    slots = [f"  an allgather goes by slots below {human(GATHERED_FROM)} a block"]
    return lines + slots * comm.membership.main.gathers_by_slots(0) + told


def _libraries(comm: Communicator) -> tuple[str, ...]:
    """Choices besides the schedules, for the usual dtypes and ops."""
    return CHOSEN if comm.world.mpi_everywhere else ()


def _sizes(comm: Communicator, queue: Queue, collective: str) -> str:
    return ", ".join(f"{human(n)} {_chosen(comm, queue, collective, n).name}" for n in SIZES)


def _chosen(comm: Communicator, queue: Queue, collective: str, nbytes: int) -> Choice:
    return choose(comm.tuning, collective, nbytes, queue.layout, libraries=_libraries(comm))


def _choice(comm: Communicator, queue: Queue, collective: str, nbytes: int, title: str) -> list[str]:
    """Why this algorithm was chosen, and the times of the others."""
    tuning, libraries = comm.tuning, _libraries(comm)
    choice = _chosen(comm, queue, collective, nbytes)
    measured, predicted = (of(collective, queue.layout, nbytes) for of in (tuning.measured, tuning.predicted))
    lines = [f"  {title} {human(nbytes)}: {choice.name}, {choice.why}"]
    able = candidates(collective, queue.layout, libraries=libraries)
    for name in sorted(able, key=lambda name: measured.get(name, math.inf)):
        both = ("measured", measured.get(name)), ("predicted", predicted.get(name))
        times = [f"{what} {seconds * 1e6:.3g} us" for what, seconds in both if seconds]
        if times:
            lines.append(f"    {name}: {', '.join(times)}")
    return lines
