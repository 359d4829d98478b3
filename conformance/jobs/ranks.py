"""Ranks that are started by hand, each with its own command and environment, and what rank 0 prints."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from hocket.errors import ArgumentError
from hocket.system.namespaces.hosts import PORT, V4, hosts, on, refusal, remove_stale
from hocket.tools.rank import environment, start


def main_or_rank(main: Callable[[], int], rank: Callable[..., None]) -> NoReturn:
    """Run a program whose ranks are its own file again: they have the argument "rank", and perhaps further ones."""
    if sys.argv[1:2] != ["rank"]:
        sys.exit(main())
    rank(*sys.argv[2:])
    sys.exit(0)


def again(module: str, *said: object, warns: bool = True) -> list[str]:
    """The words that start a rank of such a program, a module of ours; `said`: its further arguments."""
    return [sys.executable, *([] if warns else ["-W", "ignore"]), "-m", module, "rank", *map(str, said)]


Command = tuple[Sequence[str], Mapping[str, str]]
"""The words that start a rank, and its environment."""


def on_this_machine(words: Sequence[str], size: int, place: str, **more: str) -> list[Command]:
    """`size` ranks that run `words` and meet in the folder `place`, which is the variable PLACE.

    They have torchrun's RANK, WORLD_SIZE and LOCAL_RANK, too.  `more`: further variables of their environment.
    """
    env, secret = {**os.environ, "PLACE": place, "OMP_NUM_THREADS": "1"}, secrets.token_hex(16)
    return [
        (words, {**env, **environment(rank, size, f"unix:{place}/meet", secret), **more}) for rank in range(size)
    ]  # fmt: skip


@contextlib.contextmanager
def started(commands: Iterable[Command], **pipes: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each command, whose output is read here; all are gone after the block.  `pipes`: as Popen's."""
    with contextlib.ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for words, env in commands:
            ranks.append(start(words, env, text=True, **{"stdout": subprocess.PIPE, **pipes}))
            stack.callback(_end, ranks[-1])
        yield ranks


def findings(commands: Iterable[Command], what: str, seconds: float) -> list[dict[str, Any]]:
    """Rank 0's lines of JSON; all ranks are gone afterwards.  SystemExit, naming `what`, if one of them failed."""
    with started(commands) as ranks:
        out, _ = ranks[0].communicate(timeout=seconds)
        if any(process.wait(timeout=20) for process in ranks):
            raise SystemExit(f"{what}: a rank failed; its reason is above")
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def found_here(words: Sequence[str], size: int, what: str, seconds: float, **more: str) -> list[dict[str, Any]]:
    """Rank 0's lines of JSON, of `size` ranks of this machine that run `words`; all are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"hocket-{what}-") as place:
        return findings(on_this_machine(words, size, place, **more), what, seconds)


def found_on(
    names: Sequence[str], each: int, words: Sequence[str], what: str, seconds: float, **more: str
) -> list[dict[str, Any]]:
    """Rank 0's lines of JSON, of `each` ranks on every host that run `words`; all are gone afterwards.

    `more`: variables of their environment.
    """
    size = each * len(names)
    env = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": V4[0], "MASTER_PORT": str(PORT),
        "HOCKET_SECRET": secrets.token_hex(16), "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        made = [tempfile.TemporaryDirectory(prefix=f"hocket-{what}-") for _ in range(len(names) + 1)]
        temporary, *own = map(stack.enter_context, made)
        commands = [
            ([*on(names[rank // each], own[rank // each]), *words], {**env, "RANK": str(rank), "TMPDIR": temporary})
            for rank in range(size)
        ]
        return findings(commands, what, seconds)


@contextlib.contextmanager
def cabled(rate: str | None = None, queue: str | None = None) -> Iterator[list[str]]:
    """The names of two hosts with a cable between them, of this rate in tc's words; as `hosts`.

    They are removed when SIGTERM ends this program, too.
    """
    hosts_may_come(rate)
    with hosts(rate, queue) as names:
        yield names


def hosts_may_come(rate: str | None = None) -> None:
    """ArgumentError where there can be no hosts, with cables of this rate.  Those of programs that died are removed."""
    if why := refusal(rate):
        raise ArgumentError(why)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that their blocks end
    remove_stale()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and all that it has started
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
