"""A rank's reason to die, for `hocket run`, which names the rank that failed first, not one that only followed.

When a rank dies the others raise PeerLostError, and may end before it.  So at its exit a rank leaves a line of JSON in
a file of the job's private directory: {"followed": bool, "text": "ValueError: ..."}.  A rank that was killed leaves no
file, nor one that never called hocket: both count as not having followed.  An empty text: the rank just ends.

While a rank meets the others, a second file beside that one says so.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hocket.errors import ArgumentError, Error, PeerLostError, ScheduleError

PLACE = "HOCKET_LAST_WORDS"
"""The variable that names this rank's file."""
MEETS = "-meets"
"""The end of the name of the file that is there while the rank meets the others."""
LONGEST = 300  # characters of an error's first line
OWN_FAULT = (ArgumentError, ScheduleError)
"""Errors of hocket's that no other rank can be the cause of."""


class Words(NamedTuple):
    """Why a rank ends; `followed`: because of another one, which knows more."""

    followed: bool
    text: str


def tell(environ: Mapping[str, str], error: BaseException | None, broken: Iterable[BaseException]) -> None:
    """Leave this rank's words, before it leaves the job.  `error`: what nobody caught, if anything.

    `broken`: what ended its communicators, which counts where the program caught that and left by sys.exit.
    Never raises.
    """
    path = environ.get(PLACE)
    cause = error or next(filter(_from_others, broken), None)
    if path:
        words = Words(False, "") if cause is None else Words(_from_others(cause), _line(cause))
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8", errors="replace") as file:
                json.dump(words._asdict(), file)
            os.replace(f"{path}.new", path)  # the launcher may be reading


@contextlib.contextmanager
def seen_to_meet(environ: Mapping[str, str]) -> Iterator[None]:
    """While this rank meets the others, a file tells `hocket run`, which knows if one of them has ended.

    It lies in the job's private directory, which goes with the launcher.
    """
    path = environ.get(PLACE)
    if not path:
        yield
        return
    with contextlib.suppress(OSError):
        open(f"{path}{MEETS}", "x").close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}{MEETS}")


def heard(path: str) -> Words | None:
    """The words that a rank left, if it left any."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        return Words(bool(fields["followed"]), str(fields["text"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _from_others(error: BaseException) -> bool:
    """Is this, or what it was raised from or while handling, an error that another rank may be the cause of?"""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        own = isinstance(each, OWN_FAULT) or (isinstance(each, PeerLostError) and not each.ranks)
        if isinstance(each, Error) and not own:  # a communicator that this rank broke itself has lost nobody
            return True
        seen.add(id(each))
        each = each.__cause__ or each.__context__
    return False


def _line(error: BaseException) -> str:
    """The error as the last line of a traceback shows it, on one line and printable."""
    first = next(iter(str(error).splitlines()), "").removesuffix(":")  # which the lines below would explain
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
