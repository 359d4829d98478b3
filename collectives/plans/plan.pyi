from typing import Any

from hocket.collectives.plans.instr import Instr
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
    site: str
    peers: frozenset[int]
    small: bool
    traffic: int
    meets: bool
    nbytes: int
    coded: Codec | None
    mixed: bool
    counts: Counts
    def __init__(
        self, steps: list[list[Instr]], *, itemsize: int, dtype: int, scratch: int, segment: int,
        fingerprint: int, collective: str, algorithm: str, text: str, traffic: str = "one way", library: Any = None,
        meets: bool = False, site: str = "", nbytes: int = 0, codec: Codec | None = None,
    ) -> None: ...
    def words(self, tag: int | None) -> str: ...
