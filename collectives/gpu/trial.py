"""The members' GPUs, and what they can do with each other: tried by all of them together, at the first call on GPU
arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.base import wording
from hocket.collectives.gpu.meeting import FLAGS, Meeting
from hocket.errors import Error, TransportError
from hocket.kernels.gpu import launch
from hocket.system.cuda import driver
from hocket.transports.cuda_ipc.proof import Proof

if TYPE_CHECKING:
    from hocket.collectives.members.members import Members

Share = Callable[[Any], list[Any]]
"""Takes a JSON value and returns every member's, by rank.  All members call it together."""


class Abilities(NamedTuple):
    """The result of the trial.  The same on all members."""

    why_staged: str
    """Why arrays must go through host memory whole; "" if they need not."""
    mapped: list[list[str]]
    """[a][b]: why the memories of a's GPU and b's cannot be mapped by each other, "" if they can."""
    why_events: str
    """Why streams cannot wait for words that other ranks' streams write; "" if they can.  See mark.h."""
    why_apart: str
    """Why kernels of all ranks cannot meet (meeting.pyx); "" if they can."""
    processors: int
    """Multiprocessors that each rank has for kernels which meet: of the smallest GPU, by the ranks that share it."""


def tried(members: Members, ordinal: int, share: Share) -> Abilities:
    """All steps of the trial, on this rank's GPU number `ordinal`."""
    proof, why = None, ""
    try:
        proof = Proof(driver.device(ordinal), members.rank, members.size, FLAGS)
    except TransportError as error:
        why = str(error)
    try:
        return _found(members, share, proof, why)
    except BaseException:
        if proof is not None:
            proof.abandon()
        raise


def _found(members: Members, share: Share, proof: Proof | None, why: str) -> Abilities:
    why = first(share, why)
    if why or proof is None:
        if proof is not None:
            proof.close()
        return Abilities(why, [], "", "", 0)
    offers = share(proof.offer())
    refused = proof.reach(offers)
    tables = share([None if r == members.rank else why or _host(members, r) for r, why in enumerate(refused)])
    both = [[tables[a][b] or tables[b][a] or "" for b in range(members.size)] for a in range(members.size)]
    peers = [r for r, why in enumerate(both[members.rank]) if not why and r != members.rank]
    why_events = _no_words(members, share, proof, peers)
    why_apart = "a stream waits here for ever" if proof.stuck else _unfit(members, both, offers)
    processors = _processors(offers)
    why_apart = first(share, why_apart) or _no_meeting(members, share, proof, processors)
    proof.let_go()
    share(None)  # now no rank has this one's memory mapped
    proof.close()
    return Abilities("", both, why_events, why_apart, processors)


def _no_words(members: Members, share: Share, proof: Proof, peers: list[int]) -> str:
    why = first(share, "HOCKET_GPU_SYNC asks for events" if members.world.config.gpu_sync == "events" else "")
    if why:
        return why
    why = first(share, proof.wait(peers))
    if not why:
        why = first(share, proof.tell(peers))
    unheard = first(share, proof.heard())  # which also ends the waits of the streams that could wait
    return why or unheard


def _sharing(offers: list[dict[str, Any]]) -> list[list[int]]:
    """The ranks by GPU: those of one list share one."""
    by_gpu: dict[str, list[int]] = {}
    for rank, offer in enumerate(offers):
        by_gpu.setdefault(offer["uuid"], []).append(rank)
    return list(by_gpu.values())


def _processors(offers: list[dict[str, Any]]) -> int:
    shares: list[int] = [offers[rank]["processors"] // len(ranks) for ranks in _sharing(offers) for rank in ranks]
    return max(1, min(shares))


def _unfit(members: Members, mapped: list[list[str]], offers: list[dict[str, Any]]) -> str:
    """Why kernels that wait for each other may not even be tried."""
    if members.world.config.gpu_sync != "auto":
        return f"HOCKET_GPU_SYNC asks for {members.world.config.gpu_sync}"
    if members.size == 1:
        return "there is only one rank"
    if members.size > launch.RANKS:
        return f"{members.size} ranks, and a kernel meets at most {launch.RANKS}"
    if any(map(any, mapped)):
        return "some ranks' GPUs are not mapped by others"
    for ranks in _sharing(offers):
        if len(ranks) > 1 and not all(offers[rank]["side_by_side"] for rank in ranks):
            return f"{wording.ranks(ranks)} share a GPU, where kernels take turns (but not under CUDA's MPS)"
    return ""


def _no_meeting(members: Members, share: Share, proof: Proof, processors: int) -> str:
    """Let kernels of all ranks meet once: why they did not, or ""."""
    device, stack = proof.device, contextlib.ExitStack()
    meeting, stream, why = None, 0, ""
    with stack:
        try:
            stream = device.stream()
            stack.callback(device.end_stream, stream)
            meeting = Meeting(device, members.rank, [proof.room(r) for r in range(members.size)], processors)
            stack.callback(meeting.close)
            stack.callback(_refusal, device.synchronize, stream)  # the kernel uses what is given back after it
            meeting.prepare()
        except Error as error:  # the compiler's too
            why = str(error)
        why = first(share, why)
        if why or meeting is None:
            return why
        why = first(share, _refusal(meeting.barrier, stream))
        unmet = first(share, _refusal(device.synchronize, stream) or meeting.given_up)
        return why or unmet


def _refusal(function: Callable[..., object], *args: Any) -> str:
    try:
        function(*args)
    except TransportError as error:
        return str(error)
    return ""


def first(share: Share, why: str) -> str:
    """The first refusal by rank, with that rank's number; "" if no rank refuses."""
    return next((f"rank {rank}: {refusal}" for rank, refusal in enumerate(share(why)) if refusal), "")


def _host(members: Members, rank: int) -> str | None:
    """Why the host channel to `rank` is not memory, which a GPU channel needs below it; None if it is."""
    if rank == members.rank:
        return None
    host = members.world.transport(members.world_ranks[rank])
    return None if members.world.traits[host].local else f"the ranks' processes talk over {host}"
