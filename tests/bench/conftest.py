"""Benches' own tests that start processes are for `make test-more`, but for two runs of the command."""

import pytest

from support.running.record import function

KEPT = {"test_two_ranks", "test_bad_arguments_are_named", "test_legends_lie_beside_the_curves"}


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = config.pluginmanager.get_plugin("record").lines
    for item in items:
        name = function(item.nodeid)
        if not name.startswith("tests/bench/") or name.rpartition(":")[2] in KEPT or name not in lines:
            continue
        if lines[name].starts or lines[name].cpu > 1:
            item.add_marker("more")
