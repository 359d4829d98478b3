"""The fate of an exception inside a compiled program, and of calls that are under way when the process ends."""

from __future__ import annotations

import _thread
import atexit
import collections
import contextlib
import sys

import jax

from hocket.errors import Error
from hocket.extending import fail_at_exit
from hocket.jax import handler, running

KEPT = 32
"""Errors whose Python object is kept."""
_errors: collections.deque[tuple[str, BaseException]] = collections.deque(maxlen=KEPT)


def _explained(error: BaseException) -> bytes:
    """The text of the program's error.  Its traceback goes: the frames hold arrays over memory that XLA takes back."""
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()  # the program fails, and Ctrl-C is raised when it returns
    running.has_failed()
    bare = error.with_traceback(None)
    bare.__context__ = bare.__cause__ = None
    text = f"{type(error).__module__}.{type(error).__qualname__}: {error}".removeprefix("builtins.")
    _errors.append((text, bare))
    return text.replace("\0", " ").encode(errors="replace")


def cause(error: BaseException) -> Error | None:
    """hocket's error that made a program fail with `error`, a JaxRuntimeError; None if it was none of hocket's.

    JAX has one class for all errors of programs, with hocket's text.  The object has what the text has not: the class,
    `ranks`, `missing`, `calls`.  The last 32 are kept.  After a failure JAX raises it again for every later program
    with calls of hocket's; no more so after `cause`, and with a new communicator.

    try:
        step(x).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        if isinstance(hocket.jax.cause(error), hocket.PeerLostError): ...
    """
    said = str(error)
    found = next((each for text, each in reversed(_errors) if text in said), None)
    if found is not None:
        running.begin_anew()
    return found if isinstance(found, Error) else None


handler.explain_by(_explained)


@atexit.register
def _last_calls() -> None:
    """Before hocket leaves the job: let the calls that this thread issued end.

    If the program ends with an exception, the other ranks may never come to them: so they end with that.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        for comm in running.known():
            with contextlib.suppress(Exception):
                comm.abort(error)
    try:
        jax.effects_barrier()
    except Exception as failed:
        running.begin_anew()  # else JAX raises it again at exit
        if error is None:
            sys.stderr.write(f"hocket.jax: {failed}\n")
            fail_at_exit()
