"""HOCKET_ALGORITHM: which algorithm the user asks for, by collective.

"ring": for all collectives that have a ring.  "allreduce=ring,broadcast=chain": for these.
"""

from __future__ import annotations

from hocket.algorithms.language import registry
from hocket.algorithms.language.contract import CONTRACTS
from hocket.arguments import choices
from hocket.collectives.choice import declared
from hocket.collectives.delegates.libraries import LIBRARIES
from hocket.errors import ArgumentError


def algorithms(collective: str) -> tuple[str, ...]:
    """The names that may be asked for."""
    declared.load()
    return (*registry.names(collective, for_hosts=True), *LIBRARIES)


def asked(setting: str | None, collective: str) -> str | None:
    """The algorithm that `setting` asks for, None if it says nothing of this collective."""
    for where, name in _items(setting):
        if where == collective or (not where and name in algorithms(collective)):
            return name
    return None


def check(setting: str | None) -> None:
    """Raise ArgumentError for a setting that names what does not exist."""
    for where, name in _items(setting):
        if where and where not in CONTRACTS:
            raise ArgumentError(f"HOCKET_ALGORITHM: {where!r} is not a collective; {choices(where, CONTRACTS)}")
        fitting = [where] if where else list(CONTRACTS)
        known = list(dict.fromkeys(each for collective in fitting for each in algorithms(collective)))
        if name not in known:
            of = f"{where} " if where else ""
            raise ArgumentError(f"HOCKET_ALGORITHM: no {of}algorithm is called {name!r}; {choices(name, known)}")


def _items(setting: str | None) -> list[tuple[str, str]]:
    """(collective or "", algorithm) for every item."""
    split = (item.rpartition("=") for item in (setting or "").split(",") if item)
    return [(where, name) for where, _, name in split]
