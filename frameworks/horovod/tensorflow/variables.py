"""Variables and Python objects, from one rank to all or from all to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

import hocket.tensorflow
from hocket.horovod.exceptions import in_horovods_words
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.basics import of_set, place


@in_horovods_words()
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Give rank `root_rank`'s values to all ranks: tf.Variables, and Keras 3's; in a tf.function too.  One call."""
    comm, root = of_set(process_set), place(process_set, root_rank)
    own = [each if isinstance(each, tf.Variable) else each.value for each in variables]
    values = hocket.tensorflow.broadcast([each.read_value() for each in own], root, comm=comm)
    if comm.rank != root:
        for variable, value in zip(own, values, strict=True):
            variable.assign(tf.raw_ops.DeepCopy(x=value))  # else it would keep hocket's memory as its own


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The same, and returns the variables' new values."""
    own = list(variables)
    broadcast_variables(own, root_rank, process_set)
    return [(each if isinstance(each, tf.Variable) else each.value).read_value() for each in own]


@in_horovods_words()
def broadcast_object(
    obj: Any = None, root_rank: int = 0, session: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Rank `root_rank`'s object, on all ranks.  It is pickled; HOCKET_OBJECTS=0 refuses it."""
    return of_set(process_set).broadcast_object(obj, place(process_set, root_rank))


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that is `broadcast_object` from this rank."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


@in_horovods_words()
def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """All ranks' objects, in rank order."""
    found: list[Any] = of_set(process_set).allgather_object(obj)
    return found
