"""Where the user's own code made a call: the innermost frame that is neither hocket's nor Python's library."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import sys
import threading
from types import CodeType, FrameType

PACKAGE = pathlib.Path(__file__).parents[2]
"""hocket/; in a working tree its folders are links to those beside it."""
AS_USERS = ("bench", "conformance")
"""Folders of it that call hocket as its users do: their lines are shown."""
_rooms = [each for each in PACKAGE.iterdir() if each.is_dir() and each.name not in AS_USERS]
_passed_over = [os.path.join(os.path.realpath(each), "") for each in _rooms]
_own_files = os.path.realpath(PACKAGE)
LIBRARY = os.path.join(os.path.dirname(os.path.realpath(os.__file__)), "")


def pass_over(place: str) -> None:
    """Code in this folder or file is not the user's: a framework that calls us, say."""
    path = os.path.realpath(place)
    _passed_over.append(os.path.join(path, "") if os.path.isdir(path) else path)
    _shown.cache_clear()


@functools.lru_cache(maxsize=1024)
def _shown(filename: str) -> str:
    """The name under which a source file is shown; "" for hocket's own, Python's library, and what was passed over."""
    path = os.path.realpath(filename)
    ours = path.startswith(tuple(_passed_over)) or os.path.dirname(path) == _own_files
    theirs = path.startswith(LIBRARY) and "-packages" not in path
    return "" if ours or theirs or filename.startswith("<frozen") else os.path.basename(path)


def _users(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The innermost frame of the user's own: its code and line."""
    while frame is not None:
        if _shown(frame.f_code.co_filename) and not _is_made(frame):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None, 0


def _is_made(frame: FrameType) -> bool:
    """Is it a method that a dataclass or a named tuple of the library's made from text?  Its file is "<string>"."""
    if not frame.f_code.co_filename.startswith("<"):
        return False
    file = frame.f_globals.get("__file__")
    return file is not None and not _shown(file) or str(frame.f_globals.get("__name__")).startswith("namedtuple_")


def caller() -> tuple[CodeType | None, int]:
    """Where the user's code called us, seen from the calling thread; `shown_site` puts it into words."""
    return _users(sys._getframe())


def shown_site(code: CodeType | None, line: int) -> str:
    """A line of a program: "train.py:88 in step"."""
    return "?" if code is None else f"{_shown(code.co_filename)}:{line} in {code.co_name}"


def caller_site() -> str:
    """`caller`, in words."""
    return shown_site(*caller())


NO_THREAD = -1
"""No thread has this identifier."""


def thread_site(ident: int | None = None) -> str:
    """Where another thread (the main one if None) is now; "?" if it has ended."""
    ident = ident or threading.main_thread().ident
    return shown_site(*_users(sys._current_frames().get(ident or 0)))


def has_handlers() -> bool:
    """Has the program a handler of its own for a signal?"""
    handlers = map(signal.getsignal, signal.valid_signals() - {signal.SIGUSR2})  # hocket's own (job/asked.py)
    return any(callable(each) and each is not signal.default_int_handler for each in handlers)


def in_handler(ident: int) -> bool:
    """Is another thread in the handler of a signal?"""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    frame = sys._current_frames().get(ident)
    while frame is not None and frame.f_code not in handlers:
        frame = frame.f_back
    return frame is not None
