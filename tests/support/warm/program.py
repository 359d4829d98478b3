"""Be, in a fork, the program that `python WORDS` would be: its arguments, variables, streams, signals and end."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import glob
import importlib.util
import io
import os
import runpy
import signal
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

FLAGS = {"-u", "-Xfaulthandler"}
"""Python's options that a fork can honour: none is left to be done."""
AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "ASAN_", "TSAN_", "UBSAN_", "LC_", "LANG")
"""Prefixes of variables that Python, the loader or a library reads when a process starts."""
LATER = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER"}
"""Variables of these that a fork can honour."""
SOURCES = os.path.dirname(os.path.dirname(str(importlib.util.find_spec("hocket").origin)))  # type: ignore[union-attr]
"""Where a program finds hocket."""
TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Where it finds these files."""
base_path: list[str] = []
"""Where modules are found by a program that has no folder."""
libraries: list[ctypes.CDLL] = []


class Program(NamedTuple):
    """A program: `how` is "-c", "-m" or "" (a script), and `what` the text, the module or the path."""

    how: str
    what: str
    arguments: list[str]
    source: str = ""
    """A script's, as it may not be seen from the host that it runs on."""

    def text(self, folder: str) -> str:
        """Text that tells which modules it wants: its words, and the scripts among them."""
        texts = [self.what, *self.arguments, self.source]
        for word in self.arguments:
            path = os.path.join(folder, word)
            if word.endswith(".py") and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
        return " ".join(texts)


def parsed(words: Sequence[str], folder: str | os.PathLike[str] | None) -> Program | None:
    """The program of a command that begins with this Python.  None: it has to be a process of its own."""
    if not words or words[0] != sys.executable:
        return None
    rest = list(words[1:])
    while rest and (rest[0] in FLAGS or rest[:2] == ["-X", "faulthandler"]):
        rest = rest[1 + (rest[0] == "-X") :]
    if len(rest) > 1 and rest[0] == "-c" or rest[:1] == ["-m"] and rest[1].partition(".")[0] in ("hocket", "torch"):
        return Program(rest[0], rest[1], rest[2:])
    if not rest or rest[0].startswith("-"):
        return None
    path = os.path.join(folder or "", rest[0])
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return Program("", rest[0], rest[1:], file.read())
    return None


def allowed(env: Mapping[str, str], here: Mapping[str, str]) -> bool:
    """May a process with the variables `env` be forked from one that was started with `here`?"""
    stand_ins = "FAKE_CUDA" in env  # _variables does what the loader would
    differ = {name for name in {*env, *here} if env.get(name) != here.get(name)} - LATER
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if any(path != SOURCES and os.path.exists(os.path.join(path, "hocket")) for path in paths):  # another hocket
        return False
    return not any(name.startswith(AT_START) and not (stand_ins and name == "LD_LIBRARY_PATH") for name in differ)


def place(descriptors: Mapping[int, int]) -> None:
    """Each of these numbers becomes what the descriptor beside it is; all others are closed."""
    above = max(descriptors) + 1
    high = {target: fcntl.fcntl(fd, fcntl.F_DUPFD, above) for target, fd in descriptors.items()}
    for target, fd in high.items():
        os.dup2(fd, target)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in descriptors:
            with contextlib.suppress(OSError):  # it was the list's own
                os.close(fd)


def forget() -> None:
    """Right after the fork: what a process that is executed would not have of its parent's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio._set_running_loop(None)
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]
        each.atexit = False  # torch takes each of its operators back: 40 ms


def run(program: Program, env: Mapping[str, str], words: Sequence[str]) -> NoReturn:
    """Run it to its end; this process ends with it."""
    end_without_torch()
    end(ended(program, env, words))


def ended(program: Program, env: Mapping[str, str], words: Sequence[str]) -> int | None:
    """Run it; with which code it ends.  None: it has come to its last line."""
    _variables(env)
    _streams(bool(env.get("PYTHONUNBUFFERED")))
    _paths(program, env)
    sys.orig_argv[:] = words
    try:
        _run(program)
    except SystemExit as asked:
        return _code(asked)
    except BaseException as error:
        _tell(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return None


def _run(program: Program) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if program.how == "-m":
        _forget_module(program.what)
        sys.argv[:] = ["-m", *program.arguments]
        runpy._run_module_as_main(program.what)  # type: ignore[attr-defined]
        return
    if program.how == "-c":
        sys.argv[:] = ["-c", *program.arguments]
        exec(compile(program.what, "<string>", "exec"), vars(main))
        return
    sys.argv[:] = [program.what, *program.arguments]
    main.__file__ = program.what
    exec(compile(program.source, program.what, "exec"), vars(main))


def _forget_module(name: str) -> None:
    """Else runpy warns that the module was there before it was run."""
    for each in (name, f"{name}.__main__"):
        if each in sys.modules and not hasattr(sys.modules[each], "__path__"):
            del sys.modules[each]


def _variables(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    if "FAKE_CUDA" in env:  # the loader reads its path at a process's start, but knows by name what is loaded
        folder = env["LD_LIBRARY_PATH"].partition(os.pathsep)[0]
        libraries.extend(map(ctypes.CDLL, sorted(glob.glob(f"{folder}/lib*.so.*"))))
    tempfile.tempdir = None  # as TMPDIR says now
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))


def _streams(unbuffered: bool) -> None:
    for fd, name, errors in ((0, "stdin", "strict"), (1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        text: io.TextIOWrapper | None = None
        with contextlib.suppress(OSError):  # a closed one is None, as in Python
            mode, size = ("wb", 0 if unbuffered else -1) if fd else ("rb", -1)
            raw = open(fd, mode, size, closefd=False)  # noqa: SIM115
            lines = fd == 2 or raw.isatty()
            text = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=fd > 0 and unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _paths(program: Program, env: Mapping[str, str]) -> None:
    named = list(filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))
    beside = {"-m": os.getcwd(), "-c": ""}.get(program.how, os.path.dirname(os.path.realpath(program.what)))
    sys.path[:] = [*([] if env.get("PYTHONSAFEPATH") else [beside]), *named, *base_path]
    if found := [path for folder in named if os.path.isfile(path := os.path.join(folder, "sitecustomize.py"))]:
        runpy.run_path(found[0])


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _tell(error: BaseException) -> None:
    """Print it as Python does, without our own frames."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        tb = tb.tb_next
    error = error.with_traceback(tb)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
    sys.last_exc = error  # type: ignore[attr-defined]
    sys.excepthook(type(error), error, tb)


def end_without_torch() -> None:
    """At this process's end, after Python's and our own handlers, leave torch's as they are: they take 0.2 s."""
    if "torch" not in sys.modules:
        return
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)


def end(code: int | None) -> NoReturn:
    """End well, as Python does, but leave the modules that the parent imported whole: 30 ms, with torch 80."""
    code = code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    ctypes.PyDLL(None).exit(code)  # with the GIL: no other thread's Python runs any more
    raise AssertionError("exit(3) returned")
