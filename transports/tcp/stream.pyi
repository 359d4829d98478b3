import socket as _socket
from typing import Any

class SocketStreams:
    socket: _socket.socket
    send: Any
    recv: Any
    def __init__(self, socket: _socket.socket, receive: bool = True) -> None: ...
    def receive_from(self, socket: _socket.socket) -> None: ...
    def close(self) -> None: ...
