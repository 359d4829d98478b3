"""The options and hooks by which hocket's own tests run: in workers, by their record, all or the quick ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.running.costs import Costs
from support.running.record import Record, imports_torch, uses_torch
from support.running.workers import Workers
from support.warm import parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hocket's own tests")
    group.addoption("--workers", type=int, default=0, help="run in so many processes, in an order by the record")
    group.addoption("--quick", action="store_true", help="only tests that start nothing and take less than a second")
    group.addoption("--cpu", type=float, default=float("inf"), help="only tests that take at most so many CPU seconds")
    group.addoption("--torch", action="store_true", help="only files in which torch is imported")
    group.addoption("--record", action="store_true", help="write what has changed into tests/record.json")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(parent.RUN, str(os.getpid()))
    record = Record()
    config.pluginmanager.register(record, "record")
    config.pluginmanager.register(Costs(forbids=config.getoption("quick")))
    if count := config.getoption("workers"):
        config.pluginmanager.register(Workers(count, record))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    unwanted = config.getoption("quick") and imports_torch(collection_path)
    unwanted = unwanted or (config.getoption("torch") and not uses_torch(collection_path))
    return True if unwanted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    record, quick, limit = config.pluginmanager.get_plugin("record"), config.getoption("quick"), config.getoption("cpu")
    unwanted = [item for item in items if record.cpu(item) > limit or quick and not record.is_quick(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        left_out = set(unwanted)
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    came_to_its_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if session.config.getoption("record") and came_to_its_end:
        session.config.pluginmanager.get_plugin("record").write()
