"""For Prometheus: a collector that reads when it is scraped, and who serves it.  Needs `pip install 'hocket[metrics]'`.

    from hocket.observe.metrics.prometheus import Collector, serve

    prometheus_client.REGISTRY.register(Collector(comm))        # where the program has a server of its own
    with serve(comm, path="/run/user/1000/rank0.sock"):         # or: this rank alone, for this user alone
        train(comm)
    with serve(comm, port=9400):                                # or: 127.0.0.1, port 9400 + the local rank
        train(comm)
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import socketserver
import stat
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as AnyCollector

import hocket
from hocket.errors import ArgumentError
from hocket.observe.metrics.families import FAMILIES, Reader

KIND = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE = 5.0
"""Seconds that a client may take to ask."""
LOCAL = {"localhost", "127.0.0.1"}


class Collector(AnyCollector):
    """This rank's numbers on these communicators.  They are read when it is scraped; calls pay nothing."""

    def __init__(self, *comms: hocket.Communicator) -> None:
        self._reader = Reader(comms)

    def describe(self) -> Iterable[Metric]:
        return [self._family(name) for name in FAMILIES]

    def collect(self) -> Iterable[Metric]:
        for name, values in self._reader.read().items():
            family = self._family(name)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family

    @staticmethod
    def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
        family = FAMILIES[name]
        kind = CounterMetricFamily if family.counts else GaugeMetricFamily
        return kind(name, family.about, labels=family.labels)


@contextlib.contextmanager
def serve(*comms: hocket.Communicator, path: str | None = None, port: int | None = None) -> Iterator[str]:
    """Answer `GET /metrics` in the block, from a thread; gives the socket's path, or the address.

    `path`: a Unix socket, which only this user may open (0600); that of a process that was killed is replaced.
    `port`: on 127.0.0.1, for every user of this host; the ranks of a host take this port and those after it, by their
    local rank, and who comes later one that is free; 0: any free one.  After `renew` the numbers are those of the new
    communicator.  Raises ArgumentError if it cannot listen there.
    """
    if (path is None) == (port is None) or not comms:
        raise ArgumentError("serve: give communicators, and either path= or port=")
    registry = CollectorRegistry()
    registry.register(Collector(*comms))
    try:
        server: socketserver.BaseServer
        if path is not None:
            server, where = _Unix(path, _answering(registry)), path
        else:
            assert port is not None
            server = _on_port(port, comms[0], _answering(registry))
            where = f"127.0.0.1:{server.server_address[1]}"
    except (OSError, OverflowError) as why:
        raise ArgumentError(f"serve: nothing can listen at {path or port!r}: {why}") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="hocket metrics", daemon=True)
    thread.start()
    try:
        yield where
    finally:
        server.shutdown()
        server.server_close()
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _on_port(port: int, comm: hocket.Communicator, answer: type[BaseHTTPRequestHandler]) -> _Loopback:
    """A newcomer's local rank may have been another's, who still listens: the place of who was lost is free."""
    places = [comm.local_rank, *(range(comm.local_size) if comm.generation else ())]
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            return _Loopback(("127.0.0.1", port + place if port else 0), answer)
    return _Loopback(("127.0.0.1", port + places[-1] if port else 0), answer)


class _Loopback(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


class _Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def server_bind(self) -> None:
        os.fchmod(self.socket.fileno(), 0o600)  # before it has a name
        path = self.server_address
        assert isinstance(path, str)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "there is a file, and no socket")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                if probe.connect_ex(path) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, "another process listens there")
            os.unlink(path)  # of a process that was killed
        super().server_bind()


def _answering(registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            host = self.headers.get("Host", "localhost").partition(":")[0]
            if self.server.address_family != socket.AF_UNIX and host not in LOCAL:  # type: ignore[attr-defined]
                self.send_error(403, "ask 127.0.0.1")  # a page of another site, by a name that leads here
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is served")
            else:
                body = generate_latest(registry)
                self.send_response(200)
                self.send_header("Content-Type", KIND)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def address_string(self) -> str:
            return "local"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Answer
