"""Print an error of hocket's that nobody catches: without hocket's own frames, and by one rank of a job.

Ranks that fail together raise the same text, which tells of all of them.  Under `hocket run` the first of them prints
it; the others print one line, with the user's lines that led there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import zlib
from collections.abc import Callable
from types import TracebackType

from hocket.collectives.base.callsite import AS_USERS
from hocket.collectives.job.last_words import PLACE
from hocket.errors import Error

MOST_FRAMES = 6
"""The innermost ones that the line of another rank shows."""
_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_before: _Hook | None = None


def install() -> None:
    """Print such errors so from now on; every other one goes to the hook that was there."""
    global _before
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _hook


def once(text: str, rank: int) -> str:
    """`text`, or its first line if another rank of this `hocket run` prints it."""
    first, _, more = text.partition("\n")
    place = os.environ.get(PLACE)
    if not more or not place:
        return text
    path = os.path.join(os.path.dirname(place), f"printed-{zlib.crc32(text.encode()):08x}")
    try:
        os.symlink(str(rank), path)  # it is there with what it says, or not at all
    except FileExistsError:
        by = ""
        with contextlib.suppress(OSError):
            by = os.readlink(path)
        who = f"rank {by}" if by else "another rank"
        return f"{first.removesuffix(':')} ({who} prints the full text)"
    except OSError:  # the directory is gone with its launcher
        return text
    return text


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    assert _before is not None
    leave_users_frames(error)
    if isinstance(error, Error):
        trace = error.__traceback__
        text = once(str(error), int(os.environ.get("HOCKET_RANK", "0")))
        if text != str(error):
            frames = traceback.extract_tb(trace)[: -MOST_FRAMES - 1 : -1]
            here = " < ".join(f"{os.path.basename(each.filename)}:{each.lineno} in {each.name}" for each in frames)
            with contextlib.suppress(OSError, ValueError):  # a closed stderr
                print(f"{kind.__module__}.{kind.__qualname__}: {text}, at {here}", file=sys.stderr)
            return
    _before(kind, error, trace)


def leave_users_frames(error: BaseException) -> None:
    """Take hocket's own frames out of its errors in this chain."""
    for each in _chain(error):
        if isinstance(each, Error):
            each.__traceback__ = _users(each.__traceback__)


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and those that it came from or during which it was raised."""
    chain = [error]
    for each in chain:
        inner = [more for more in (each.__cause__, each.__context__) if more is not None]
        chain += [more for more in inner if not any(more is known for known in chain)]
    return chain


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Without hocket's frames, if others are left."""
    kept = []
    each = trace
    while each is not None:
        room, _, rest = str(each.tb_frame.f_globals.get("__name__", "")).partition(".")
        if room != "hocket" or rest.partition(".")[0] in AS_USERS:
            kept.append(each)
        each = each.tb_next
    rebuilt = None
    for each in reversed(kept):
        rebuilt = TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt or trace
