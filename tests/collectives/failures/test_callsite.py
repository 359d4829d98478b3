"""Whose line an error names: the user's, through whatever folder of hocket the call went."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

import hocket
from hocket import compression
from hocket.collectives.base import callsite
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import MismatchError
from support import jobs
from support.worlds import spread

PACKAGE = pathlib.Path(hocket.__file__).parent


def test_hockets_own_files_are_passed_over() -> None:
    """All of the package but its programs, and those of a package that is installed where the user's files may be."""
    seen = set()
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        room = pathlib.Path(folder).relative_to(PACKAGE).parts[:1]
        seen |= {room for file in files if file.endswith(".py") and callsite._shown(os.path.join(folder, file))}
    assert seen == {(room,) for room in callsite.AS_USERS}
    assert callsite._shown(__file__) == "test_callsite.py"
    assert callsite._shown(str(PACKAGE.parent / "hocket.py")) == "hocket.py"


def test_what_is_made_from_text_is_its_modules() -> None:
    """A dataclass's __init__ has the file "<string>", as a program of `python -c` has, whose lines are the user's."""
    text = "def __init__(call): return call()"
    for names, shown in (
        ({"__file__": str(PACKAGE / "control" / "links.py")}, "test_callsite.py:"),
        ({"__name__": "namedtuple_Lost"}, "test_callsite.py:"),
        ({"__name__": "__main__"}, "<string>:1 in __init__"), ({"__file__": __file__}, "<string>:1 in __init__"),
    ):  # fmt: skip
        exec(text, names)
        site = names["__init__"](callsite.caller_site)
        assert site.startswith(shown), (site, shown)


def through_a_compressor(comm: Communicator) -> None:
    compressor = compression.Compressor(comm, "int8")
    with pytest.raises(MismatchError) as caught:
        compressor.allreduce(np.ones(64 + comm.rank, np.float32), "x")
        comm.close()
    line = through_a_compressor.__code__.co_firstlineno + 3
    assert f"test_callsite.py:{line} in through_a_compressor" in str(caught.value)
    assert ".py" not in str(caught.value).replace("test_callsite.py", "")


def test_through_a_compressor() -> None:
    spread(through_a_compressor, 2, "shm")


CHAINED = """
import hocket
comm = hocket.init()
def work():
    try:
        comm.allreduce(object())
    except hocket.Error as error:
        raise KeyError("epoch 3") from error
try:
    work()
except KeyError:
    raise RuntimeError("all of it failed")
"""


def test_what_an_uncaught_error_came_from_is_printed_without_our_frames() -> None:
    with jobs.Job(1, CHAINED) as job:
        (end,) = job.wait()
    assert end.code == 1 and "ArgumentError" in end.err and "RuntimeError: all of it failed" in end.err, end
    assert end.err.count('rank.py", line') == 4 and "/collectives/" not in end.err, end.err
