"""`horovod.run`: a function on several ranks of this host, and what each returned."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from hocket.arguments import whole
from hocket.errors import ArgumentError, Error

RANK = """
import os, pickle
folder = {folder!r}
with open(os.path.join(folder, "call"), "rb") as file:
    function, args, kwargs = pickle.load(file)
result = function(*args, **kwargs)
with open(os.path.join(folder, "result." + os.environ["HOCKET_RANK"]), "wb") as file:
    pickle.dump(result, file)
"""
LOCAL = ("localhost", "127.0.0.1")


def run(
    func: Callable[..., Any], args: Any = (), kwargs: Any = None, np: int = 1, hosts: str | None = None,
    use_gloo: bool | None = None, use_mpi: bool | None = None, verbose: Any = None, **others: Any,
) -> list[Any]:  # fmt: skip
    """Call func(*args, **kwargs) in `np` new processes of this host, the ranks of a job; their results, by rank.

    The function is pickled, by cloudpickle if it is of the program itself.  `hosts`: "localhost:4"; for others there
    is `hocket run --hosts`.  use_gloo, use_mpi and verbose change nothing.  Raises hocket.Error if a rank fails, whose
    output has been printed.
    """
    if others:
        raise ArgumentError(f"horovod.run: {', '.join(others)} is not known; see `hocket run`")
    count = whole(np, "np")
    if hosts is not None:
        names = [each.partition(":") for each in hosts.split(",")]
        if any(name not in (*LOCAL, os.uname().nodename) for name, _, _ in names):
            raise ArgumentError(f"hosts={hosts!r}: ranks start on this host only; for others use hocket run --hosts")
        if sum(int(slots or 1) for _, _, slots in names) < count:
            raise ArgumentError(f"hosts={hosts!r} has fewer slots than np={count}")
    with tempfile.TemporaryDirectory(prefix="hocket-run-") as folder:
        with open(os.path.join(folder, "call"), "wb") as file:
            file.write(_pickled((func, tuple(args), kwargs or {})))
        program = RANK.format(folder=folder)
        command = [sys.executable, "-m", "hocket", "run", "-n", str(count), "--", sys.executable, "-c", program]
        paths = os.pathsep.join([each or os.getcwd() for each in sys.path])
        code = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode
        if code:
            raise Error(f"horovod.run: a rank failed, and `hocket run` ended with {code}; its output tells why")
        results = []
        for rank in range(count):
            with open(os.path.join(folder, f"result.{rank}"), "rb") as file:
                results.append(pickle.load(file))
        return results


def _pickled(call: Any) -> bytes:
    if getattr(call[0], "__module__", "") != "__main__":
        return pickle.dumps(call)
    try:
        import cloudpickle
    except ImportError:
        raise ImportError(
            "horovod.run sends a function of the program itself by cloudpickle: pip install cloudpickle, or put the "
            "function into a module"
        ) from None
    found: bytes = cloudpickle.dumps(call)
    return found
