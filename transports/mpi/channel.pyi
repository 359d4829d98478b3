from typing import Any

from hocket.transports.mpi.library import Mpi

class MpiPair:
    send: Any
    recv: Any
    pinned: int
    def __init__(self, mpi: Mpi, comm: int, peer: int, send_tag: int, recv_tag: int) -> None: ...
    def close(self, seconds: float) -> bool: ...
