"""`python -m hocket.tools.shell.page > docs/commands.md`: each command with every option."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from hocket.tools.cli import COMMANDS
from hocket.tools.shell.parsers import actions, parser

HEAD = """# The command line

`hocket help COMMAND` prints this of one command. Exit codes: 0, it went well; 1, what was asked for could not be had;
2, the command line made no sense; 141, who read the output has gone (`| head`). `hocket run` gives the code of the
first rank that failed. `hocket complete --install` adds completion to the start file of bash or zsh.
"""
MORE = {"simulate": ("training",)}
"""Words behind a command that have options of their own."""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for command in COMMANDS for line in _part(command))])


def _part(command: str) -> Iterator[str]:
    for words in [(), *((word,) for word in MORE.get(command, ()))]:
        made = parser(command, *words)
        assert made is not None, command
        yield f"## hocket {' '.join([command, *words])}\n"
        if not words:
            about = COMMANDS[command][1]
            yield f"{about[0].upper()}{about[1:]}.\n"
        yield "| | |\n|---|---|"
        for action in actions(made):
            if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                yield f"| {_written(action)} | {_told(made, action)} |"
        yield ""


def _written(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def _told(made: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = made._get_formatter()._expand_help(action) if action.help else ""
    choices = "" if action.metavar or not action.choices else f"{', '.join(map(str, action.choices))} "
    return (choices + text).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(page(), end="")
