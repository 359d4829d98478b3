"""The words that may come next on a line of `hocket`, for bash and zsh.

`hocket complete --install` adds the line to the shell's start file that makes it ask.  It asks with the line so far in
COMP_LINE: commands complete, and each command's options.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hocket.tools import cli
from hocket.tools.shell.parsers import actions, parser

BASH = "complete -o default -C 'hocket complete' hocket"
STARTS = {
    "bash": ("HOME", ".bashrc", BASH),
    "zsh": ("ZDOTDIR", ".zshrc", f"autoload -U bashcompinit && bashcompinit && {BASH}"),
}
"""Shell -> the variable that names its folder, HOME else; its start file; the line there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the words, one a line.  0; 2: bad arguments."""
    if "COMP_LINE" in os.environ:
        line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT", "100000"))]
        print(*candidates(line), sep="\n")
        return 0
    made = argparse.ArgumentParser(prog="hocket complete", description=cli.COMMANDS["complete"][1], allow_abbrev=False)
    made.add_argument("--install", action="store_true", help="add completion to the shell's start file, once")
    made.add_argument("--shell", choices=[*STARTS], help="(default: as SHELL says)")
    options = made.parse_args(argv)
    shell = options.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in STARTS:
        made.error(f"SHELL is {shell!r}: say --shell {' or --shell '.join(STARTS)}")
    folder, name, line = STARTS[shell]
    if not options.install:
        print(line)
        return 0
    file = Path(os.environ.get(folder) or Path.home()) / name
    try:
        return _install(file, line)
    except OSError as why:
        print(f"hocket complete: {file} cannot be written: {why.strerror}", file=sys.stderr)
        return 1


def _install(file: Path, line: str) -> int:
    there = file.read_text() if file.exists() else ""
    if line in there.splitlines():
        print(f"{file} has it already")
        return 0
    with file.open("a") as start:
        start.write(line + "\n" if there.endswith("\n") or not there else f"\n{line}\n")
    print(f"{file} has one more line: new shells complete hocket's words")
    return 0


def candidates(line: str) -> list[str]:
    """Words that may stand where the line ends."""
    words = line.split()
    last = words.pop() if words and not line.endswith(" ") else ""
    if len(words) < 2:
        return [word for word in [*cli.COMMANDS, "help", "--version"] if word.startswith(last)]
    if words[1] == "help":
        return [word for word in cli.COMMANDS if word.startswith(last)]
    if words[1] not in cli.COMMANDS or not last.startswith("-") or "--" in words:
        return []  # files, and other programs, are the shell's
    made = parser(words[1], *words[2:3])
    found = {word for action in actions(made) for word in action.option_strings} if made else set()
    return sorted(word for word in found if word.startswith(last))
