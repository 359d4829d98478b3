from typing import Any

from hocket.transports.mpi.library import Mpi

class MpiCall:
    capsule: Any
    under_way: bool
    def __init__(
        self, mpi: Mpi, function: str, words: dict[str, Any], in_place: bool = False, overlap: tuple[int, int] = (0, 0)
    ) -> None: ...
