"""The plug-in for pytest: `@pytest.mark.ranks(3)` runs a test on three ranks (docs/testing.md).

Every test run of whoever has hocket loads this file, so it loads nothing more until a test asks for ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hocket import Communicator

MARK = "ranks"
POOL, ITEMS = "hocket.tools.testing.pool", "hocket.tools.testing.items"


def pytest_configure(config: pytest.Config) -> None:
    text = "ranks(size, timeout=60): run the test on so many ranks of hocket, each a process of its own"
    config.addinivalue_line("markers", text)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    marked = [item for item in session.items if item.get_closest_marker(MARK)]
    if marked and not session.config.option.collectonly:
        from hocket.tools.testing import items

        items.prepare(session, marked)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if item.get_closest_marker(MARK) is None:
        return None
    from hocket.tools.testing import items

    return items.run(item, nextitem)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """An error of hocket's ends at the test's own call, but with --full-trace."""
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    if error is not None and "hocket.errors" in sys.modules and not item.config.option.fulltrace:
        from hocket.collectives.job.uncaught import leave_users_frames

        leave_users_frames(error)
        outcome.force_exception(error)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """pytest-timeout's limit counts, and the account of who waits where replaces what it would do then."""
    if item.get_closest_marker(MARK) is None:
        return None
    from hocket.tools.testing import items

    item.stash[items.LIMIT] = settings.timeout
    return True


def pytest_unconfigure() -> None:
    if POOL in sys.modules:
        sys.modules[POOL].close_all()


@pytest.fixture(scope="session")
def comm() -> Communicator:
    """The communicator of the ranks that run the test: `hocket.communicator()`."""
    if ITEMS not in sys.modules or not sys.modules[ITEMS].is_rank():
        pytest.fail("the fixture comm is for tests on ranks: mark this with @pytest.mark.ranks(size)", pytrace=False)
    import hocket

    return hocket.communicator()
