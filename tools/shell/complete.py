"""`complete -o default -C 'hocket complete' hocket` in bash: the words that may come next on a line of `hocket`.

Bash asks with the line so far in COMP_LINE.  Commands complete, and each command's options, as its own --help has them.
zsh does the same after `autoload -U bashcompinit && bashcompinit`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from importlib import import_module

from hocket.tools import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Print the words, one a line.  0."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "100000"))]
    print(*candidates(line), sep="\n")
    return 0


def candidates(line: str) -> list[str]:
    """What may stand where the line ends."""
    words = line.split()
    last = words.pop() if words and not line.endswith(" ") else ""
    if len(words) < 2:
        return [word for word in [*cli.COMMANDS, "help", "--version"] if word.startswith(last)]
    if words[1] == "help":
        return [word for word in cli.COMMANDS if word.startswith(last)]
    if words[1] not in cli.COMMANDS or not last.startswith("-") or "--" in words:
        return []  # files, and other programs, are the shell's
    return [word for word in _options(words[1]) if word.startswith(last)]


def _options(command: str) -> list[str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        import_module(cli.COMMANDS[command][0]).main(["--help"])
    return sorted(set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", said.getvalue())))
