"""Tests as what a pool runs: pytest's process asks its ranks to run one, and each does so as pytest would."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from _pytest.tmpdir import TempPathFactory

from hocket import Communicator
from hocket.collectives.job.uncaught import leave_users_frames
from hocket.errors import Error
from hocket.tools.testing import pool, rank, reports
from hocket.tools.testing.hearing import Outcome
from hocket.tools.testing.plugin import MARK

LIMIT = pytest.StashKey[float]()
"""The seconds that pytest-timeout gives a test."""
USUAL = 60.0
"""Seconds, where nothing is said."""
_session: pytest.Session
_reporter: _RankReporter | None = None


class RanksMark(NamedTuple):
    """A mark's wishes: `ranks(size, timeout=)`, in seconds."""

    size: int
    timeout: float | None = None


def asked(item: pytest.Item) -> RanksMark:
    """Raises UsageError."""
    mark = item.get_closest_marker(MARK)
    assert mark is not None
    try:
        found = RanksMark(*mark.args, **mark.kwargs)
    except TypeError as why:
        raise pytest.UsageError(f"{item.nodeid}: ranks(size, timeout=60): {why}") from None
    if not isinstance(found.size, int) or found.size < 1:
        raise pytest.UsageError(f"{item.nodeid}: ranks({found.size!r}): size must be a whole number, at least 1")
    return found


# --------------------------------------------------------------------------------------------- in pytest's process


def prepare(session: pytest.Session, marked: Iterable[pytest.Item]) -> None:
    """All tests are collected: fork the process that ranks are forked from."""
    global _session
    option = session.config.option
    if option.usepdb or option.trace:
        raise pytest.UsageError(
            "tests on ranks cannot be used with --pdb or --trace, as ranks have no terminal: --showlocals prints "
            'values at a failure, `hocket top` shows where ranks are, and -m "not ranks" leaves such tests out'
        )
    for item in marked:
        asked(item)
    _session = session
    factory: TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    factory.getbasetemp()  # the ranks' folders are in it
    pool.prepare()


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """The protocol of one test: in pytest's process, and in each rank."""
    if _reporter is not None:
        _reporter.reports += runtestprotocol(item, nextitem=nextitem, log=False)
        return True
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in [*_on_ranks(item), *_left_here(item, nextitem)]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _on_ranks(item: pytest.Item) -> list[pytest.TestReport]:
    size, timeout = asked(item)
    index = _session.items.index(item)
    following = next((i for i in range(index + 1, len(_session.items)) if _size(_session.items[i]) == size), None)
    timeout = timeout or item.stash.get(LIMIT, USUAL)
    try:
        outcome = pool.pool_of(size).run(on_rank, index, following, timeout=timeout)
    except (Error, OSError) as why:
        outcome = Outcome(account=f"{type(why).__name__}: {why}")
    if messages := [each.stopped for each in outcome.done.values() if each.stopped is not None]:
        pytest.exit(messages[0])
    _pass_on_warnings(item, [each for done in outcome.done.values() for each in done.warnings])
    return reports.merged(item, size, outcome)


def _size(item: pytest.Item) -> int:
    mark = item.get_closest_marker(MARK)
    return 0 if mark is None else asked(item).size


def _left_here(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """End fixtures of this process that the next test does not need: the last test here could not know it."""
    teardown = item.session._setupstate.teardown_exact
    call = pytest.CallInfo.from_call(lambda: teardown(nextitem), when="teardown", reraise=(KeyboardInterrupt,))
    return [pytest.TestReport.from_item_and_call(item, call)] if call.excinfo is not None else []


def _pass_on_warnings(item: pytest.Item, found: Iterable[tuple[Any, ...]]) -> None:
    """Each once, whatever number of ranks warn."""
    once = {(str(message), *where): message for message, *where in found}
    for (_, *where), message in once.items():
        warning = warnings.WarningMessage(message, *where)
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": warning, "when": "runtest", "nodeid": item.nodeid, "location": None}
        )


# --------------------------------------------------------------------------------------------- in a rank


class Ran(NamedTuple):
    """One rank's account of a test."""

    reports: list[Any]
    warnings: list[tuple[Any, ...]]
    stopped: str | None = None
    """The reason that it gave to `pytest.exit`."""


def is_rank() -> bool:
    return _reporter is not None


def on_rank(comm: Communicator, index: int, following: int | None) -> Ran:
    """Run that test here; `following` is the next one that these ranks run."""
    global _reporter
    reporter = _reporter = _reporter or _RankReporter(comm)
    reporter.reports, reporter.warnings = [], []
    item, hook = _session.items[index], _session.config.hook
    nextitem = None if following is None else _session.items[following]
    _session._setupstate.teardown_exact(item)  # another test was thought to be the next one
    try:
        hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    except pytest.exit.Exception as stop:
        return Ran([], [], str(stop))
    config = _session.config
    reports = [hook.pytest_report_to_serializable(config=config, report=each) for each in reporter.reports]
    return Ran(reports, reporter.warnings)


class _RankReporter:
    """Changes the pytest that a rank is a copy of: it tells its pool alone."""

    def __init__(self, comm: Communicator) -> None:
        self.reports: list[pytest.TestReport] = []
        self._in_test = False
        self.warnings: list[tuple[Any, ...]] = []
        config = _session.config
        for hook in (config.hook.pytest_warning_recorded, config.hook.pytest_runtest_logreport):
            for each in hook.get_hookimpls():
                hook._remove_plugin(each.plugin)
        config.pluginmanager.register(self)
        self._capture = config.pluginmanager.getplugin("capturemanager")
        self._capture.stop_global_capturing()  # into files that all copies have
        self._capture.start_global_capturing()
        self._capture.suspend_global_capture()
        factory: TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / f"ranks-{comm.size}" / f"rank-{comm.rank}"
        factory._basetemp.mkdir(mode=0o700, parents=True, exist_ok=True)
        rank.at_end.append(self._leave)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        self._in_test = True
        try:
            return (yield)
        finally:
            self._in_test = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.excinfo is None:
            return (yield)
        error = call.excinfo.value
        if not self._in_test:  # after a subtest the rank goes on
            rank.failing(error)
        if rank.kind_of(error):
            leave_users_frames(error)
            call.excinfo = pytest.ExceptionInfo.from_exception(error)
        report = yield
        vars(report)["hocket_kind"] = rank.kind_of(error)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A subtest's report."""
        self.reports.append(report)

    def _leave(self) -> None:
        """End fixtures that no test has ended.  Nobody reads a report any more; what failed before is no news."""
        self._capture.resume_global_capture()
        try:
            _session._setupstate.teardown_exact(None)
        except Exception as error:
            self._capture.suspend_global_capture()
            if not rank.kind_of(error):
                traceback.print_exception(error)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        message: Any = warning_message.message
        try:
            pickle.loads(pickle.dumps(message))
        except Exception:
            message = UserWarning(str(message))
        self.warnings.append((message, warning_message.category, warning_message.filename, warning_message.lineno))
