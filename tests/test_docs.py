"""The examples in the docstrings, run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hocket

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(hocket.__path__, "hocket.") if not m.name.rpartition(".")[2].startswith("__")
)


def documented() -> list[str]:
    """Modules with examples.  One that cannot be imported fails; it is not left out."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [name for name in MODULES if any(t.examples for t in finder.find(importlib.import_module(name), name))]


@pytest.mark.parametrize("name", documented())
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried and not failed


def test_every_folder_is_walked() -> None:
    assert {name.split(".")[1] for name in MODULES} >= {"algorithms", "collectives", "kernels", "transports", "errors"}
