"""SIGUSR2 to a rank: it writes what the ranks of its host did last into a file, names it in the log, and goes on."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
import weakref
from functools import partial
from types import FrameType

from hocket.collectives.recording import dump
from hocket.collectives.recording.own import OwnRecorder
from hocket.collectives.recording.processes import recorders

log = logging.getLogger("hocket")
_own: weakref.WeakSet[OwnRecorder] = weakref.WeakSet()


def listen(own: OwnRecorder | None) -> None:
    """Answer the signal for this rank, too; not where the program, or another library, has a handler of its own."""
    if own is not None:
        _own.add(own)
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, answer)


def answer(number: int, frame: FrameType | None) -> None:
    """The handler."""
    for own in list(_own):
        try:
            job = re.sub(r"\W", "_", own.job)  # rank 0's word, which must not lead out of the folder
            path = os.path.join(dump.folder(), f"{job}-rank{own.rank}-asked-{time.time_ns():x}.txt")
            dump.write(path, partial(_last, own.job))
            log.warning("what the ranks on %s did last: %s", os.uname().nodename, path)
        except OSError as why:
            log.warning("what the ranks did last could not be written (%s)", why)


def _last(job: str) -> str:
    return dump.text(recorders(job))
