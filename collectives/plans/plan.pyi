from collections.abc import Mapping
from typing import Any

from hocket.collectives.plans.instr import About, Instr
from hocket.kernels.codecs import Codec

class Counts:
    calls: int
    bytes: int
    seconds: float
    waited: float

class Plan:
    nsteps: int
    ninstrs: int
    nsegments: int
    segment: int
    itemsize: int
    scratch: int
    dtype: int
    fingerprint: int
    collective: str
    algorithm: str
    text: str
    facts: Mapping[str, Any]
    site: str
    peers: frozenset[int]
    small: bool
    traffic: int
    meets: bool
    nbytes: int
    coded: Codec | None
    mixed: bool
    counts: Counts
    what: int
    @property
    def way(self) -> str: ...
    def __init__(
        self, steps: list[list[Instr]], about: About, scratch: int = 0, segment: int = 0, *, traffic: str = "one way",
        library: Any = None, meets: bool = False, weighs: Any = (),
    ) -> None: ...
    def words(self, tag: int | None) -> str: ...
