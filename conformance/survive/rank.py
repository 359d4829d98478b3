"""One member's process: its life, and what it holds when it has left.

life.py has the life, together.py that of a crew, meshed.py that on a mesh.  __main__.py and lab/elastic/churn.py start
it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Collection
from typing import Any

from hocket.collectives.recording import memory
from hocket.conformance.jobs.elastic_trial import HOST, STEERED
from hocket.conformance.jobs.trial import listen, say
from hocket.conformance.survive.life import Fenced, Life
from hocket.conformance.survive.meshed import Meshed
from hocket.conformance.survive.together import DoesNotFit, Together
from hocket.control.elastic import mesh, processes


def own_kernel(everything: str = processes.kernel()) -> str:
    """A host knows its own processes alone, also where all hosts are namespaces of one kernel."""
    return f"{everything}:{os.environ.get(HOST, '0')}"


def held() -> list[str]:
    """The descriptors of this process, but for its recorder, and its threads."""
    found = [thread.name for thread in threading.enumerate()]
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return [what for what in found if what != memory.LINK and "/proc/" not in what]


def kept(before: Collection[str], seconds: float = 5.0) -> list[str]:
    """Its holdings beyond those of before; letting go may take a moment."""
    deadline = time.monotonic() + seconds
    while (more := [what for what in held() if what not in before]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return more


def main(words: list[str]) -> int:
    """0, unless something was raised that a loss does not explain."""
    listen()
    vars(mesh)["kernel"] = own_kernel
    before, kind = held(), {"crew": Together, "mesh": Meshed}.get(words[1], Life)
    life: Any = kind(float(words[0]), os.environ[STEERED], words[1] == "expel", *map(float, words[2:]))
    try:
        life.live()
        say(over=True, held=kept(before))
    except Fenced as why:
        say(fenced=str(why))
    except DoesNotFit as why:
        say(refused=str(why))
    except BaseException:
        say(crash=traceback.format_exc())
        return 3
    return 0


if __name__ == "__main__":
    from hocket.conformance.survive import rank  # as together.py has it: `Fenced` is one class

    sys.exit(rank.main(sys.argv[1:]))
