"""A rank of the publisher answers one reader, until it leaves.  Whatever goes wrong is that reader's alone."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.layouts.arrays import convertible, numpy_dtype
from hocket.collectives.layouts.boxes import count, meet
from hocket.collectives.layouts.deal import FETCH, Holding, Move
from hocket.collectives.layouts.given import Given
from hocket.collectives.layouts.moving import MOST, Arrays, Flow, Kinds, Parcel, drain
from hocket.collectives.layouts.redistribute import dtype_named
from hocket.collectives.publishing.versions import KEPT, Version, Versions
from hocket.collectives.publishing.words import ASKED, BYE, PACKS, STRAIGHT, hear, heard_box, leave, tell, told_layouts
from hocket.errors import ArgumentError, Error, TransportError
from hocket.kernels.codecs import PACKED

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

log = logging.getLogger("hocket")


class Offer:
    """All that a rank's answers are made of."""

    def __init__(
        self, rank: int, given: Given, kinds: Sequence[Kinds], ranks: Sequence[Sequence[str]], versions: Versions,
        now: Callable[[], tuple[int, list[int]]],
    ) -> None:  # fmt: skip
        """`ranks`: address and host of each; `now()`: the newest version, and the ranks that are lost."""
        self.rank, self.given, self.kinds, self.versions, self.now = rank, given, kinds, versions, now
        addresses, hosts = zip(*ranks, strict=True)
        self.address = addresses[rank]
        self._table = {
            "names": given.names, "listed": given.listed, "dtypes": [kind.have.name for kind in kinds],
            "layouts": told_layouts(given.sources), "addresses": addresses,
            "hosts": hosts,
        }  # fmt: skip
        self._digest = hashlib.blake2b(json.dumps(self._table).encode(), digest_size=16).hexdigest()

    def told(self, known: Any) -> dict[str, Any]:
        """The table as JSON; what never changes is left out where the reader knows it."""
        version, lost = self.now()
        table = None if known == self._digest else self._table
        return {"version": version, "lost": lost, "digest": self._digest, "table": table}


class _Reading(NamedTuple):
    """The version that a reader has begun with, and the dtypes that it wants."""

    number: int
    version: Version
    kinds: list[Kinds]


class Serving:
    """One reader."""

    def __init__(self, offer: Offer, pair: Communicator) -> None:
        self.offer, self.pair = offer, pair
        self._held: _Reading | None = None
        self._messages: list[Parcel] = []
        """The ones that it has asked for last."""
        self._made: deque[tuple[Version, list[Parcel]]] = deque(maxlen=KEPT + 1)
        """The same for each memory of a version, with tables of where parts lie."""

    def run(self) -> None:
        """Answer, until it leaves."""
        self.pair.set_timeout(float("inf"))
        try:
            while (asked := hear(self.pair, most=ASKED)) != BYE:
                self._answer(asked)
        except Error as error:
            log.info("a reader of %s is gone: %s", self.offer.address, error)
        except Exception:
            log.exception("a reader of %s asked for what it may not have", self.offer.address)
        finally:
            self._release()
            leave(self.pair, "a reader")

    def _release(self) -> None:
        if self._held is not None:
            self.offer.versions.release(self._held.number)
        self._held = None

    def _answer(self, asked: Any) -> None:
        what = asked.get("what") if isinstance(asked, dict) else None
        if what == "table":
            tell(self.pair, self.offer.told(asked.get("known")))
        elif what == "hold":
            tell(self.pair, self._hold(int(asked["version"]), asked["kinds"]))
        elif what == "send" and self._held is not None:
            self._send(self._held, asked["messages"], bool(asked.get("check")))
        else:
            raise TransportError(f"a reader asks {str(asked)[:40]!r}")

    def _hold(self, number: int, asked: Any) -> list[Any]:
        """Keep a version for it: does it have it?  And what is wrong with the dtypes that it wants."""
        kinds, why = list(self.offer.kinds), ""
        for array, name in asked:
            have = kinds[array].have
            try:
                kinds[array] = _converting(have.name, str(name))
            except ArgumentError as error:
                why = f"array {self.offer.given.names[array]!r}: the publisher says: {error}"
        version = None if why else self.offer.versions.hold(number)
        self._release()
        if version is not None:
            self._held = _Reading(number, version, kinds)
        return [version is not None, why]

    def _send(self, held: _Reading, asked: Any, check: bool) -> None:
        """`asked`: messages; None: those of the last time."""
        if asked is not None:
            self._messages = list(self._heard(asked, held.kinds))
            self._made.clear()
        made = next((messages for version, messages in self._made if version is held.version), None)
        if made is None:
            made = [Parcel(each.moves, each.nbytes, each.straight, each.form) for each in self._messages]
            self._made.append((held.version, made))
        arrays = Arrays(held.kinds, held.version, [], MOST)
        drain([Flow(self.pair, 1, made, False, arrays, None, [] if check else None)])

    def _heard(self, messages: Any, kinds: Sequence[Kinds]) -> Iterator[Parcel]:
        """The messages that a reader wants: parts of this rank's boxes."""
        for way, parts in messages:
            moves = tuple(self._part(*part) for part in parts)
            nbytes = sum(count(move.box) * kinds[move.array].want.itemsize for move in moves)
            form = PACKED.get(kinds[moves[0].array].want.name) if way == PACKS and len(moves) == 1 else None
            if (len(moves) != 1 if way == STRAIGHT else nbytes > MOST) or (way == PACKS and form is None):
                raise TransportError(f"a reader asks for a message of {len(moves)} parts and {nbytes} bytes")
            yield Parcel(moves, nbytes, way == STRAIGHT, form)

    def _part(self, array: int, place: int, told: Any) -> Move:
        box, given = heard_box(told), self.offer.given
        boxes = given.sources[array].of(self.offer.rank) if 0 <= array < len(given.names) else ()
        if not 0 <= place < len(boxes) or meet(box, boxes[place]) != box:
            raise TransportError("a reader asks for what is not here")
        held = Holding(self.offer.rank, place, boxes[place])
        return Move(array, FETCH, box, held, held)


def _converting(have: str, want: str) -> Kinds:
    """Raises ArgumentError."""
    kinds = Kinds(dtype_named(have), dtype_named(want))
    if not convertible(*kinds[:2]):
        raise ArgumentError(f"{have} cannot become {want}")
    for each in kinds[:2]:
        numpy_dtype(each)  # it may lack ml_dtypes
    return kinds
