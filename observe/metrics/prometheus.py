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
import stat
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as AnyCollector

import hocket
from hocket.errors import ArgumentError
from hocket.observe.metrics.families import FAMILIES, MetricsReader
from hocket.observe.metrics.server import TextServer

FRESH = 1.0
"""Seconds for which a text is given again at a port, where every user of the host may ask."""


class Collector(AnyCollector):
    """This rank's numbers on these communicators.  They are read when it is scraped; calls pay nothing."""

    def __init__(self, *comms: hocket.Communicator) -> None:
        self._reader = MetricsReader(comms)

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
        if path is not None:
            sock, where = _unix(path), path
        else:
            assert port is not None
            sock = _on_port(port, comms[0])
            where = f"127.0.0.1:{sock.getsockname()[1]}"
    except (OSError, OverflowError) as why:
        raise ArgumentError(f"serve: nothing can listen at {path or port!r}: {why}") from None
    server = TextServer(sock, lambda: generate_latest(registry), 0.0 if path is not None else FRESH)
    try:
        yield where
    finally:
        server.close()
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _on_port(port: int, comm: hocket.Communicator) -> socket.socket:
    """A newcomer's local rank may have been another's, who still listens: the place of who was lost is free."""
    places = [comm.local_rank, *(range(comm.local_size) if comm.generation else ())]
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            return _port(port + place if port else 0)
    return _port(port + places[-1] if port else 0)


def _port(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()  # where two have bound one port at once, this fails for one of them
        return sock
    except BaseException:
        sock.close()
        raise


def _unix(path: str) -> socket.socket:
    """A socket that listens by this name.  OSError: somebody is there."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(sock.fileno(), 0o600)  # before it has a name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(errno.EEXIST, "there is a file, and no socket")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                if probe.connect_ex(path) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, "another process listens there")
            os.unlink(path)  # of a process that was killed
        sock.bind(path)
        sock.listen()  # at once: a second process takes one that does not listen for a killed one's
        return sock
    except BaseException:
        sock.close()
        raise
