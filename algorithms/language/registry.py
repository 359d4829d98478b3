"""The catalogue: (collective, name) -> Algorithm.  Restrictions are data beside the algorithm.

`@algorithm("allreduce", "ring", ...)` above a pure function is all it takes to add one, here or in another
package; `hocket.algorithms.proof.verify` then proves it for any size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from hocket.algorithms.language.contract import CONTRACTS, block_count
from hocket.algorithms.language.schedule import Schedule
from hocket.arguments import choices
from hocket.errors import ArgumentError

Order = Literal["rank", "any"]
Groups = Sequence[Sequence[int]]
"""Ranks by host."""


def any_size(size: int) -> str | None:
    """The usual `requires`: every size is welcome."""
    return None


def lopsided(size: int) -> int:
    """The usual `period`: every rank may do something of its own."""
    return size


def cyclic(size: int) -> int:
    """The `period` of algorithms that go by distances around the circle."""
    return 1


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A schedule for every rank of every size, and what one must know before choosing it.

    Each is equal to itself only, as nobody can tell whether two functions do the same.
    """

    collective: str
    name: str
    steps: Callable[[int, int, int], Schedule]
    """(rank, size, root) -> what that rank does; unrooted collectives ignore root."""
    chunks: Callable[[int], int]
    """size -> how many chunks the vector is cut into."""
    scratch: int = 0
    """Extra chunk ids chunks..chunks+scratch-1, each as long as a piece: no input, not wanted."""
    order: Order = "any"
    """"rank": every result combines contributions in rank order, so the op need not commute."""
    pipeline: bool = False
    """Worth running over segments."""
    even: bool = False
    """Does every step keep all links equally busy?  Then segments gain nothing between hosts, and each of them waits
    for the latency once more.  Inside a host they stay in a cache."""
    requires: Callable[[int], str | None] = any_size
    """size -> None, or the reason why this size is refused."""
    doc: str = ""
    period: Callable[[int], int] = lopsided
    """size -> k: ranks k apart do the same with as many chunks, all peers k further around; simulated only once."""
    far: Callable[[int], int] | None = None
    """size -> the first step that goes between hosts, if those before stay within and those behind add up nothing: a
    codec is worth its while from there on."""
    added: Callable[[int], int] | None = None
    """size -> the steps in which sums are made, on all ranks alike; those behind only hand the sums on: order="exact"
    rounds them in between."""
    repeats: bool = True
    """May several ranks make the same sum?  False says that no two ranks do.  Then a codec that rounds at random needs
    no walk over all ranks (proof/rounding.py)."""
    own: bool = field(default=False, init=False, repr=False)
    """Is it one of hocket's own, which its tests prove?  A copy that `dataclasses.replace` makes is not."""
    for_hosts: Callable[[Groups, bool], Algorithm] | None = None
    """The one for these ranks by host, and for hosts that are far from each other: this is an example of it, whose own
    `steps` are for two hosts.  None: hosts do not matter."""
    library: str = ""
    """The library that carries it out, if any: `steps` is then only how the ranks meet before it."""

    def cut(self, chunk: float, segment: int, across: bool) -> int:
        """`segment`, if a chunk is to run over segments as long as that, else 0: it is too short, or nothing is gained.
        `across`: the ranks are on several hosts."""
        return segment if self.pipeline and chunk >= 2 * segment and not (self.even and across) else 0


_known: dict[tuple[str, str], Algorithm] = {}
_unlisted: dict[tuple[str, str], Algorithm] = {}
"""Examples of what is made for the hosts of a job: `get` has them, `names` only if it is asked for them."""
Steps = TypeVar("Steps", bound=Callable[..., Schedule])


def register(entry: Algorithm, listed: bool = True) -> Algorithm:
    """Put an algorithm into the catalogue under its (collective, name); `listed`: `names` has it."""
    _check_collective(entry.collective)
    key = entry.collective, entry.name
    if key in _known or key in _unlisted:
        raise ArgumentError(f"{entry.collective} algorithm {entry.name!r} is registered already; choose another name")
    (_known if listed else _unlisted)[key] = entry
    return entry


def algorithm(
    collective: str,
    name: str | None = None,
    *,
    chunks: Callable[[int], int] | None = None,
    scratch: int = 0,
    order: Order = "any",
    pipeline: bool = False,
    even: bool = False,
    requires: Callable[[int], str | None] = any_size,
    period: Callable[[int], int] = lopsided,
    added: Callable[[int], int] | None = None,
    repeats: bool = True,
) -> Callable[[Steps], Steps]:
    """Register the decorated `(rank, size)` or `(rank, size, root)` function; its docstring becomes `doc`.

    `chunks` defaults to what the contract fixes: one per block, or the whole vector as one chunk.
    """
    _check_collective(collective)
    contract = CONTRACTS[collective]

    def default_chunks(size: int) -> int:
        return block_count(contract, size) if contract.blocks else 1

    def decorate(steps: Steps) -> Steps:
        entry = Algorithm(
            collective,
            name or steps.__name__,
            steps if contract.rooted else _ignore_root(steps),
            chunks or default_chunks,
            scratch,
            order,
            pipeline,
            even,
            requires,
            inspect.getdoc(steps) or "",
            period,
            added=added,
            repeats=repeats,
        )
        register(entry)
        return steps

    return decorate


def get(collective: str, name: str) -> Algorithm:
    """The algorithm of that name; an unknown one is an ArgumentError that lists the known ones.

    "hierarchical" is that of two hosts with half of the ranks each; `hierarchical(collective, groups)` makes any other.
    """
    _check_collective(collective)
    try:
        key = collective, name
        return _known[key] if key in _known else _unlisted[key]
    except (KeyError, TypeError):  # TypeError: what cannot be a key
        known = choices(name, names(collective, for_hosts=True))
        raise ArgumentError(f"no {collective} algorithm {name!r}; {known}") from None


def vouch(*algorithms: Algorithm) -> None:
    """Say that these are hocket's own.  For hocket's own modules."""
    for each in algorithms:
        object.__setattr__(each, "own", True)


def names(collective: str, for_hosts: bool = False) -> tuple[str, ...]:
    """The names registered for a collective, in order of registration; then, if asked, of those made for hosts."""
    _check_collective(collective)
    return tuple(name for known, name in (*_known, *(_unlisted if for_hosts else ())) if known == collective)


def _ignore_root(steps: Callable[..., Schedule]) -> Callable[[int, int, int], Schedule]:
    def unrooted(rank: int, size: int, root: int = 0) -> Schedule:
        return steps(rank, size)

    return unrooted


def _check_collective(collective: Any) -> None:
    if not isinstance(collective, str) or collective not in CONTRACTS:
        raise ArgumentError(f"no collective {collective!r}; {choices(collective, CONTRACTS)}")
