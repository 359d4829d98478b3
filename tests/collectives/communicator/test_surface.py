"""The surface that a user sees without reading: signatures, completion, and what objects say of themselves."""

from __future__ import annotations

import inspect
import sys
from typing import Any, get_type_hints

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.collectives import Collectives
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.communicator.observing import Observing

METHODS = [
    name
    for name, each in (vars(Collectives) | vars(Communicator) | vars(Observing)).items()
    if inspect.isroutine(each) and not isinstance(each, staticmethod | classmethod) and not name.startswith("_")
]


def types_of(function: Any) -> dict[str, Any]:
    """Its annotations.  Before CPython 3.11 an argument whose default is None is optional, where that is seen."""
    hints = get_type_hints(function)
    return {name: hint | None if sys.version_info < (3, 11) else hint for name, hint in hints.items()}


@pytest.mark.parametrize("name", [*METHODS, "close"])
def test_every_method_is_a_function_of_the_module(name: str) -> None:
    """With its signature and its types, but for self; and it does what the method does."""
    method, function = getattr(Communicator, name), getattr(hocket, name)
    whole, ours = inspect.signature(method), inspect.signature(function)
    assert list(ours.parameters.values()) == list(whole.parameters.values())[1:]
    assert ours.return_annotation == whole.return_annotation
    assert types_of(function) == types_of(method)
    assert function.__name__ == name and function.__module__ == "hocket" and method.__doc__ in function.__doc__


def test_public_functions_say_what_they_take() -> None:
    for name in hocket.__all__:
        each = getattr(hocket, name)
        if inspect.isfunction(each):
            kinds = [p.kind for p in inspect.signature(each).parameters.values()]
            assert inspect.Parameter.VAR_POSITIONAL not in kinds, name


def test_wrong_numbers_of_arguments_are_pythons_own_error() -> None:
    with hocket.local_world(1) as world:
        for call in (lambda c: hocket.allreduce(), lambda c: hocket.broadcast(np.ones(1), rot=0), lambda c: c.send(1)):
            with pytest.raises(TypeError):
                world.run(call)
            world = hocket.local_world(1)


def test_completion() -> None:
    with hocket.local_world(1) as world:
        seen = [name for name in dir(world.comms[0]) if not name.startswith("_")]
    assert {name for name in hocket.__all__ if hasattr(Communicator, name)} <= set(seen)
    assert set(METHODS) <= set(seen) and {"rank", "size", "name", "close"} <= set(seen)
    assert not {"disown", "hear", "give_up", "on_wait", "wire", "world", "runner", "stop"} & set(seen)
    assert all(hasattr(world.comms[0], name) for name in seen)
    offered = [name for name in dir(hocket) if not name.startswith("__")]
    folders = {
        "algorithms", "bench", "codecs", "collectives", "compression", "conformance", "control", "dask", "errors",
        "extending", "flower", "horovod", "hosting", "jax", "kernels", "lightgbm", "observe", "ray", "recording",
        "spark", "system", "tools", "torch", "training", "transports", "xgboost",
    }  # fmt: skip
    assert set(offered) - folders == set(hocket.__all__)
    assert all(hasattr(hocket, name) for name in offered)


def test_what_objects_say_of_themselves() -> None:
    world = hocket.local_world(2)
    assert repr(world) == "<LocalWorld: 2 ranks as threads, over 'threads'>"

    def program(comm: Communicator) -> list[str]:
        if comm.rank:
            comm.recv(np.empty(1), 0)
            comm.allreduce(np.ones(3))
            return []
        work = comm.allreduce(np.ones(3), async_op=True)
        said = [repr(work)]
        comm.send(np.ones(1), 1)
        work.wait()
        return [*said, repr(work), repr(comm)]

    said = world.run(program)[0]
    assert said[:2] == [f"<Work allreduce(float64[3], op='sum'): {state}>" for state in ("under way", "done")]
    assert said[2] == "<Communicator 'world': rank 0 of 2>"

    def late(comm: Communicator) -> Any:
        if comm.rank:
            return None
        work = comm.allreduce(np.ones(3), async_op=True, timeout=0.05)
        with pytest.raises(hocket.TimeoutError):
            work.wait()
        return repr(work)

    assert world.run(late)[0] == "<Work allreduce(float64[3], op='sum'): failed>"
    world.close()
    assert repr(world) == "<LocalWorld: 2 ranks as threads, over 'threads', closed>"


def test_a_barrier_has_no_result() -> None:
    def program(comm: Communicator) -> None:
        for _ in range(3):  # the first is made the general way, the others the short one
            assert comm.barrier(async_op=True).result() is None and comm.barrier() is None

    with hocket.local_world(2) as world:
        world.run(program)
