"""The cost of each test: CPU and wall seconds, processes started.  Reports carry it, so it comes from every worker."""

from __future__ import annotations

import resource
import sys
from collections.abc import Generator
from time import monotonic  # tests replace the module's
from typing import Any

import pytest

from support.warm.popen import spent

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
"""Audit events of a new process."""


class Costs:
    """A plug-in of each process that runs tests: a report's `cost` is [CPU seconds, wall seconds, processes started].

    What a fixture of a module or the session starts counts for every test that uses it.  `forbids`: a test that starts
    a process fails.
    """

    def __init__(self, forbids: bool = False) -> None:
        self._forbids, self._running = forbids, False
        self._started = 0
        self._of_fixtures: dict[str, int] = {}
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            self._start()

    def _start(self) -> None:
        self._started += 1
        if self._forbids and self._running:
            raise AssertionError("a quick test starts a process: run make test once to record it")

    def _now(self) -> tuple[float, float, int]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(each.ru_utime + each.ru_stime for each in used) + spent.cpu
        return cpu, monotonic(), self._started

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        spent.hear = self._start
        self._before, self._running = self._now(), True
        try:
            return (yield)
        finally:
            self._running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        before = self._started
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._of_fixtures[fixturedef.argname] = self._started - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = self._now()
        cost = [b - a for a, b in zip(self._before, now, strict=True)]
        self._before = now
        if report.when == "setup":
            cost[2] = max(cost[2], sum(self._of_fixtures.get(name, 0) for name in getattr(item, "fixturenames", ())))
        report.cost = cost  # type: ignore[attr-defined]
        return report
