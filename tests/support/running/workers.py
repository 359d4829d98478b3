"""Tests run in forks of the process that has collected them: longest first, and those that read a clock last and alone.

A worker asks for a unit (the tests of a file, or of one function where a file takes long) when it has ended one.  One
that dies, or hangs beyond every limit of its test's, fails that test by name; the rest of its unit goes to another.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from support.running.record import Record

Unit = list[int]
"""Indices into the session's items."""
SLACK = 30.0
"""Seconds beyond a test's own limit (pytest-timeout's, which cannot end what holds the GIL) until it is ended."""


class Workers:
    """A plug-in of the process that collects."""

    def __init__(self, count: int, record: Record) -> None:
        self._count, self._record = count, record

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
        beside, alone = self._record.units(session.items)
        run = Run(session)
        try:
            run.all(beside, self._count)
            run.all(alone, 1)
        finally:
            run.end()
        return True


class Worker:
    """One fork, as the process that collected sees it."""

    def __init__(self, session: pytest.Session) -> None:
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # what faulthandler says when it is ended
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            serve(session, theirs, self.output)
        theirs.close()
        self._rest = b""
        self.left: Unit = []
        self.ends_by = float("inf")

    def give(self, unit: Unit, limit: float) -> None:
        self.left = list(unit)
        self.socket.sendall(f"{json.dumps(unit)}\n".encode())
        self.ends_by = time.monotonic() + limit

    def heard(self) -> list[tuple[int, Any]]:
        """Pairs that have come: a test's index and a report, or None at its end.  EOFError: the worker has ended."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def code(self) -> int:
        self.socket.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Run:
    """All tests of a session."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.workers: list[Worker] = []

    def all(self, units: list[Unit], count: int) -> None:
        waiting = units[::-1]
        while len(self.workers) > count:
            self._leave(self.workers.pop())
        while len(self.workers) < min(count, len(units)):
            self.workers.append(Worker(self.session))
        while waiting or any(worker.left for worker in self.workers):
            for worker in self.workers:
                if not worker.left and waiting:
                    unit = waiting.pop()
                    try:
                        worker.give(unit, self._limit(unit[0]))
                    except BrokenPipeError:  # it died after its last test
                        self._bury(worker, waiting)
            busy = [worker for worker in self.workers if worker.left]
            soonest = max(0.0, min(worker.ends_by for worker in busy) - time.monotonic())
            ready = select.select([worker.socket for worker in busy], [], [], soonest)[0]
            for worker in busy:
                if worker.socket in ready:
                    self._hear(worker, waiting)
                elif time.monotonic() >= worker.ends_by:
                    os.kill(worker.pid, signal.SIGABRT)  # faulthandler tells where it is
                    worker.ends_by += SLACK
            if self.session.shouldfail or self.session.shouldstop:
                raise self.session.Failed(self.session.shouldfail or self.session.shouldstop)

    def _hear(self, worker: Worker, waiting: list[Unit]) -> None:
        try:
            told = worker.heard()
        except (EOFError, ConnectionError):
            self._bury(worker, waiting)
            return
        hook, config = self.session.config.hook, self.session.config
        for index, data in told:
            item = self.session.items[index]
            if data is not None:
                if isinstance(data["longrepr"], list):  # of a skip: a tuple, which JSON does not know
                    data["longrepr"] = tuple(data["longrepr"])
                hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=data))
                continue
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            worker.left.remove(index)
            if worker.left:
                worker.ends_by = time.monotonic() + self._limit(worker.left[0])

    def _bury(self, worker: Worker, waiting: list[Unit]) -> None:
        code = worker.code()
        self.workers[self.workers.index(worker)] = Worker(self.session)
        item = self.session.items[worker.left[0]]
        hung = time.monotonic() > worker.ends_by - SLACK and code == -signal.SIGABRT
        worker.output.seek(0)
        why = "it hung, and its worker was ended" if hung else f"its worker ended with {code}"
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"{item.nodeid}: {why}\n{worker.output.read()}", "call"
        )
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if len(worker.left) > 1:
            waiting.append(worker.left[1:])

    def _limit(self, index: int) -> float:
        item = self.session.items[index]
        mark = item.get_closest_marker("timeout")
        own = (mark.kwargs.get("timeout") or (mark.args or [0])[0]) if mark else 0
        return float(own or item.config.getini("timeout") or 120) + SLACK

    def _leave(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            worker.socket.shutdown(socket.SHUT_WR)
            while worker.socket.recv(1 << 16):
                pass
        worker.code()

    def end(self) -> None:
        for worker in self.workers:
            if worker.left:  # the run was interrupted
                os.kill(worker.pid, signal.SIGKILL)
            self._leave(worker)
        self.workers.clear()


# --- in a worker


class Between:
    """The next item after a unit: it needs nothing of a module's, and all of the session's."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


class Teller:
    """Sends reports instead of showing them."""

    def __init__(self, session: pytest.Session, to: socket.socket) -> None:
        self._session, self._to = session, to
        self.index = 0

    def tell(self, data: Any) -> None:
        self._to.sendall(f"{json.dumps([self.index, data], default=str)}\n".encode())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self.tell(config.hook.pytest_report_to_serializable(config=config, report=report))


def serve(session: pytest.Session, theirs: socket.socket, output: Any) -> NoReturn:
    """Run the units that come, to the end of the connection."""
    code = 1
    try:
        plugins = session.config.pluginmanager
        writer = type(session.config.get_terminal_writer())
        session.config.get_terminal_writer = lambda: writer(sys.stderr)  # pytest-timeout's, of what a test hung in
        for name in ("terminalreporter", "junitxml", "record"):
            if plugins.has_plugin(name):
                plugins.unregister(name=name)
        capture = plugins.getplugin("capturemanager")
        if capture is not None:  # its files are the other workers', too
            capture.stop_global_capturing()
            capture.start_global_capturing()
        faulthandler.enable(output)
        teller = Teller(session, theirs)
        plugins.register(teller)
        with theirs.makefile("r") as lines:
            for unit in map(json.loads, lines):
                run_unit(session, unit, teller)
        session._setupstate.teardown_exact(None)
        code = 0
    except BaseException:
        traceback.print_exc(file=output)
        output.flush()
    finally:
        os._exit(code)


def run_unit(session: pytest.Session, unit: Unit, teller: Teller) -> None:
    follows: Iterator[Any] = iter([*(session.items[index] for index in unit[1:]), Between(session)])
    for index, after in zip(unit, follows, strict=True):
        teller.index = index
        item = session.items[index]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        teller.tell(None)

