"""The command `hocket`: a word, then that word's own arguments.  Nothing is imported before it is asked for."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence

COMMANDS = {
    "run": ("hocket.tools.run", "start the ranks of a job, here or on other hosts"),
    "bench": ("hocket.bench.__main__", "measure a collective, beside other libraries if you like"),
    "tune": ("hocket.tools.tune", "measure every algorithm here, so that later jobs choose by it"),
    "simulate": ("hocket.tools.simulate", "predict a collective on machines that are not at hand"),
    "advise": ("hocket.tools.advise.command", "which mesh for a model that is larger than a rank"),
    "show": ("hocket.tools.shell.show", "the steps of an algorithm, as a table or a picture"),
    "explain": ("hocket.tools.shell.explain", "which transports and algorithms a job uses, and why"),
    "top": ("hocket.tools.top", "this user's jobs on this host, also those that hang: where each rank is"),
    "report": ("hocket.tools.report", "what a trace says: in words, as a page, and what would help"),
    "reshard": ("hocket.tools.reshard.command", "a checkpoint in shards, written again for another number of ranks"),
    "trace": ("hocket.tools.trace", "join what the ranks of a job left, also after a crash, into one trace"),
    "doctor": ("hocket.tools.doctor.command", "what works on this machine, or (--job) between the ranks of a job"),
    "complete": ("hocket.tools.shell.complete", "the words that may come next, for a shell's completion"),
}
"""Word -> the module whose `main(argv)` runs it, and what it does."""


ENDED_BY_PIPE = 141
"""A shell's exit code of a program that SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code.  2: it made no sense.  141: who read its output has gone."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed
        return ENDED_BY_PIPE


def _reader_is_gone() -> bool:
    """Has who read this process's output gone, as `| head` does?"""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [words[1], "--help"] if len(words) == 2 else ["--help"]
    if words[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    if words[:1] == ["--version"]:
        from hocket import __version__

        print(f"hocket {__version__}")
        return 0
    if not words or words[0] not in COMMANDS:
        wrong = f"hocket: {words[0]!r} is no command; {_meant(words[0])}\n" if words else ""
        print(wrong + usage(), file=sys.stderr)
        return 2
    from importlib import import_module

    code: int = import_module(COMMANDS[words[0]][0]).main(words[1:])
    return code


def _meant(word: str) -> str:
    from hocket.arguments import choices

    return choices(word, COMMANDS)


def usage() -> str:
    """All commands."""
    lines = [f"  hocket {word:<8} {what}" for word, (_, what) in COMMANDS.items()]
    return "\n".join(["usage:", *lines, "  hocket --version", "more: hocket help COMMAND"])
