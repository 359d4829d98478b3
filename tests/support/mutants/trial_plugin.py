"""In the pytest of a trial: its tests run shortest first, some are left out, and what fails is written down."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ORDER = "TESTS_TRIAL"
"""A variable: the path of a JSON object: `without` these node ids; `slow`: no quick ones; `told`: where failures go."""


def pytest_configure(config: pytest.Config) -> None:
    if ORDER in os.environ:
        config.pluginmanager.register(Trial(json.loads(Path(os.environ.pop(ORDER)).read_text())), "trial")


class Trial:
    """A plug-in of the process that collects."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._without, self._slow, self._told = set(order["without"]), order["slow"], Path(order["told"])
        self._pid, self._failed = os.getpid(), list[str]()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        record: Any = config.pluginmanager.get_plugin("record")
        gone = [item for item in items if item.nodeid in self._without or self._slow and record.is_quick(item)]
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=gone)
        units = record.units
        record.units = lambda items: tuple(list(reversed(each)) for each in units(items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and os.getpid() == self._pid:
            self._failed.append(report.nodeid)
            self._told.write_text(json.dumps(self._failed))
