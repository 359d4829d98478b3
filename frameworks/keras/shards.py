"""`shard`: of the data that all ranks have, the part of this one."""

from __future__ import annotations

from typing import Any

import keras

from hocket import Communicator
from hocket.arguments import kind
from hocket.errors import ArgumentError
from hocket.keras import refusing


def shard(data: Any, comm: Communicator | None = None) -> Any:
    """This rank's rows of `data`, which all ranks have alike: rows rank, rank + size, ...

    `data`: an array or tensor with rows on axis 0, a tree of them (tuple, list, dict), or a tf.data.Dataset of known
    length.  All ranks get as many: the last rows that do not go around are left out.  In batches of B rows a rank, the
    k-th batches of all ranks are rows k*B*size .. (k+1)*B*size.  Arrays of NumPy are views.  Local.

        x, y = hocket.keras.shard((x, y))
    """
    comm = refusing.checked_comm(comm)
    if hasattr(data, "element_spec") and hasattr(data, "cardinality"):
        return _of_dataset(data, comm)
    leaves = keras.tree.flatten(data)
    counts: dict[int, None] = {}
    for each in leaves:
        if not getattr(each, "shape", ()):
            raise ArgumentError(
                f"data has {kind(each)}: shard takes arrays, trees of them and tf.data datasets; let a generator or a "
                f"DataLoader of rank r of {comm.size} yield its own rows"
            )
        counts[int(each.shape[0])] = None
    if len(counts) != 1:
        raise ArgumentError(f"the arrays of data have {sorted(counts)} rows: give them one number of rows")
    rows = next(iter(counts))
    each_rank = rows // comm.size
    if not each_rank:
        raise ArgumentError(f"{rows} rows are too few for {comm.size} ranks: give at least a row for each")
    end = each_rank * comm.size
    return keras.tree.map_structure(lambda array: array[comm.rank : end : comm.size], data)


def _of_dataset(data: Any, comm: Communicator) -> Any:
    rows = int(data.cardinality())
    if rows < 0:
        raise ArgumentError(
            "the length of the dataset is unknown or infinite: use dataset.shard(comm.size, comm.rank), and "
            "steps_per_epoch= in fit, so that all ranks take as many steps"
        )
    if rows < comm.size:
        raise ArgumentError(f"{rows} elements are too few for {comm.size} ranks: shard before you batch")
    return data.shard(comm.size, comm.rank).take(rows // comm.size)
