"""The report to the driver: how each test ended, and which of them made a process group."""

from __future__ import annotations

import os
import pathlib
from typing import Any

PLACE = pathlib.Path(os.environ["SUITE_PLACE"])
BACKEND = os.environ["SUITE_BACKEND"]


def note(file: str, line: str) -> None:
    with open(PLACE / file, "a") as to:
        to.write(line + "\n")


def group() -> None:
    """A group of BACKEND was made, in the process of the tests or in one that a test has started."""
    note("groups", os.environ.get("PYTEST_CURRENT_TEST", "outside").partition("::")[2].partition(" ")[0])


class Ends:
    """A plugin for pytest: a line for each test, written when it ends, so that a test that hangs hides no other."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            note("ends", f"{report.nodeid.partition('::')[2]} {report.outcome}")
