"""Three hosts with an sshd each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.sshd import Machines, machines


@pytest.fixture(scope="package")
def net() -> Iterator[Machines]:
    with machines("a", "b", "c") as made:
        yield made
