"""Ranks that are started by hand, each with its own command and environment, and what rank 0 prints."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from hocket.system.namespaces.hosts import PORT, V4, on
from hocket.system.parent import die_with


def main_or_rank(main: Callable[[], int], rank: Callable[..., None]) -> NoReturn:
    """Run a program whose ranks are its own file again: they have the argument "rank", and perhaps further ones."""
    if sys.argv[1:2] != ["rank"]:
        sys.exit(main())
    rank(*sys.argv[2:])
    sys.exit(0)


Command = tuple[Sequence[str], Mapping[str, str]]
"""The words that start a rank, and its environment."""


def on_this_machine(words: Sequence[str], size: int, place: str, **more: str) -> list[Command]:
    """`size` ranks that run `words` and meet in the folder `place`, which is the variable PLACE.

    They have torchrun's RANK, WORLD_SIZE and LOCAL_RANK, too.  `more`: further variables of their environment.
    """
    env = {
        **os.environ, "HOCKET_SIZE": str(size), "HOCKET_LOCAL_SIZE": str(size), "WORLD_SIZE": str(size), "PLACE": place,
        "HOCKET_RENDEZVOUS": f"unix:{place}/meet", "HOCKET_SECRET": secrets.token_hex(16), "OMP_NUM_THREADS": "1",
        **more,
    }  # fmt: skip
    names = "HOCKET_RANK", "HOCKET_LOCAL_RANK", "RANK", "LOCAL_RANK"
    return [(words, {**env, **dict.fromkeys(names, str(rank))}) for rank in range(size)]


@contextlib.contextmanager
def started(commands: Iterable[Command], **pipes: int) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each command, whose output is read here; all are gone after the block.  `pipes`: as Popen's."""
    with contextlib.ExitStack() as stack:
        ranks: list[subprocess.Popen[str]] = []
        for words, env in commands:
            ranks.append(
                subprocess.Popen(words, env=env, text=True, preexec_fn=die_with(os.getpid()),
                                 **{"stdout": subprocess.PIPE, **pipes}))  # type: ignore[call-overload]  # fmt: skip
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


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
