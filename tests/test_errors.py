"""hocket's errors as classes of another system."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback

import pytest

from hocket import errors


class TheirError(Exception):
    """Another system's."""


class TheirNetworkError(TheirError):
    """A kind of it."""


OURS = errors.under(TheirError, __name__, str.upper, PeerLostError=TheirNetworkError)
Error, ArgumentError, MismatchError = OURS[errors.Error], OURS[errors.ArgumentError], OURS[errors.MismatchError]
PeerLostError, TimeoutError = OURS[errors.PeerLostError], OURS[errors.TimeoutError]
TransportError, ScheduleError = OURS[errors.TransportError], OURS[errors.ScheduleError]
MemoryError = OURS[errors.MemoryError]
ALL = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.Error)}


def test_there_is_one_for_each_class() -> None:
    assert set(errors.KINDS) == ALL


@pytest.mark.parametrize("kind", errors.KINDS, ids=lambda kind: kind.__name__)
def test_each_is_both_and_is_pickled(kind: type[errors.Error]) -> None:
    made = OURS.turned(kind("rank 1"))
    assert type(made) is OURS[kind] is globals()[kind.__name__]
    assert isinstance(made, kind) and isinstance(made, TheirError) and str(made) == "RANK 1"
    assert isinstance(made, TheirNetworkError) == (kind is errors.PeerLostError)
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made) and vars(again) == vars(made)


def test_what_an_error_knows_stays() -> None:
    with pytest.raises(errors.MismatchError) as caught, OURS.raised():
        raise errors.MismatchError("no", {3: "allreduce"})
    assert type(caught.value) is MismatchError and caught.value.calls == {3: "allreduce"}
    assert caught.value.__suppress_context__
    assert "what_an_error_knows" in traceback.format_tb(caught.value.__traceback__)[-1]


def test_other_errors_are_left_alone() -> None:
    """Also those that are one of these classes already, and a base that is one of hocket's own classes."""

    @OURS.raised()
    def fails(error: Exception) -> None:
        raise error

    mine = TimeoutError("late", [2])
    for error in (KeyError("k"), mine):
        with pytest.raises(type(error)) as caught:
            fails(error)
        assert caught.value is error


def test_a_base_that_is_an_error_of_hockets_is_taken_as_it_is() -> None:
    theirs = errors.under(PeerLostError, __name__)
    assert theirs[errors.Error] is theirs[errors.PeerLostError] is PeerLostError
    assert issubclass(theirs[errors.TimeoutError], PeerLostError)


MISSING = """
import importlib, sys
for extra, package in {found}.items():
    sys.modules[package] = None
    try:
        importlib.import_module("hocket." + extra)
    except ImportError as error:
        print(error)
"""


def test_a_framework_that_is_missing_is_named_with_what_installs_it() -> None:
    found = {each: each for each in ("jax", "keras", "lightgbm", "ray", "tensorflow", "torch", "xgboost")}
    found |= {"dask": "distributed", "flower": "flwr", "spark": "pyspark"}
    command = [sys.executable, "-c", MISSING.format(found=found)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, cold=True).stdout.splitlines()
    for line, (extra, package) in zip(said, found.items(), strict=True):
        assert line.startswith(f"hocket.{extra}: ") and package in line, line
        assert line.endswith(f": pip install 'hocket[{extra}]'"), line
