"""Why a host's agent is not there, in words: what ssh or the host said, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import re
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.tools.remote.hosts import Host

KEPT = 20
"""Lines of what ssh said."""
REMEDIES = (
    (r"Host key verification failed|No .* host key is known|REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its key is not known here, or has changed: look at it and accept it by hand, `ssh {name} true`"),
    (r"Permission denied|Too many authentication failures|Enter passphrase",
     "it wants a password, or a key that is not there, and hocket answers no questions: let `ssh {name} true` work "
     "without one (ssh-copy-id, ssh-agent)"),
    (r"Could not resolve hostname|Name or service not known",
     "no such name is known here: look at the spelling, or give its address"),
    (r"Connection refused|timed out|No route to host|Network is unreachable|Connection closed by|kex_exchange",
     "no sshd answers there: is the host up, and does `ssh {name} true` work?"),
    (r"No module named '?hocket",
     "{python} there has no hocket: install it there, or give another Python by --python"),
    (r"(not found|No such file or directory|Permission denied)\b.*$",
     "{python} is not there: install Python and hocket at that path, or give another by --python"),
)  # fmt: skip
"""Patterns of what may be said, each with its remedy; the first that is found counts."""


class Complaints:
    """The error output of a command that reaches a host: kept, and shown only if the host is lost."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._held = b""
        self._source: IO[bytes] | None = None

    def hear(self, source: IO[bytes]) -> None:
        self._source = source
        os.set_blocking(source.fileno(), False)

    def feed(self, data: bytes, now: float) -> None:
        *lines, self._held = (self._held + data).split(b"\n")
        self._keep(lines)

    def finish(self) -> None:
        self._keep([self._held])
        self._held = b""

    def drain(self) -> None:
        """Take what is there by now."""
        with contextlib.suppress(OSError, ValueError):
            while self._source is not None and (data := os.read(self._source.fileno(), 65536)):
                self.feed(data, 0.0)
        self.finish()

    @property
    def text(self) -> str:
        return "; ".join(self.lines[-3:])

    def _keep(self, lines: list[bytes]) -> None:
        shown = (re.sub(r"[^ -~]", "?", line.decode(errors="replace").strip()) for line in lines)
        self.lines = [*self.lines, *filter(None, shown)][-KEPT:]


def ended(host: Host, code: int | None, said: Complaints, hello: Any, noise: bytes) -> str:
    """The connection has ended, and ranks have not."""
    how = "is still there" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    what = os.path.basename(host.words[0])
    if hello:
        heard = f" ({said.text})" if said.text else ""
        return f"its agent has gone, and its ranks with it; `{what}` {how}{heard}"
    every = [*said.lines, *noise.decode(errors="replace").splitlines()]
    found = next((remedy for pattern, remedy in _known(code) if any(re.search(pattern, line) for line in every)), None)
    heard = said.text or noise.decode(errors="replace").strip()[-300:] or f"`{what}` {how}, and said nothing"
    remedy = found or "does `{name}` take the command that hocket gives it? (--agent says how a host is reached)"
    return f"{heard}: {remedy.format(name=host.name, python=host.python)}"


def _known(code: int | None) -> list[tuple[str, str]]:
    """ssh's own failures end with 255; 126 and 127 are a shell's, of a command that is not there."""
    return [*REMEDIES[-1:], *REMEDIES] if code in (126, 127) else [*REMEDIES]


def silent(seconds: float, said: Complaints) -> str:
    heard = f" ({said.text})" if said.text else ""
    return f"no agent has answered for {seconds:g} s{heard}: does a login there wait for something?"
