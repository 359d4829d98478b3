"""The parsers of the commands, as their `main` makes them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

from hocket.tools.cli import COMMANDS


class _Found(BaseException):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _found(parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
    raise _Found(parser)


def parser(command: str, *words: str) -> argparse.ArgumentParser | None:
    """That of `hocket COMMAND`; None: it has no options.  `words`: of a command that chooses its parser by them."""
    kept: Any = argparse.ArgumentParser.parse_args
    line = os.environ.pop("COMP_LINE", None)  # with it `hocket complete` completes
    argparse.ArgumentParser.parse_args = _found  # type: ignore[method-assign, assignment]
    try:
        import_module(COMMANDS[command][0]).main([*words])
    except _Found as found:
        return found.parser
    finally:
        argparse.ArgumentParser.parse_args = kept  # type: ignore[method-assign]
        if line is not None:
            os.environ["COMP_LINE"] = line
    return None


def actions(made: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """A parser's arguments, and those of the commands below it."""
    for action in made._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from actions(below)
