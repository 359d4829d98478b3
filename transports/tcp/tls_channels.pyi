from typing import Any

from hocket.system.tls import Tls

class TlsStreams:
    send: Any
    recv: Any
    def __init__(self, out: Tls) -> None: ...
    def receive_from(self, incoming: Tls) -> None: ...
    def close(self) -> None: ...
