"""hocket inside Dask: a function on all workers of a dask.distributed cluster, each one rank.

    launch.py    `run(client, function)`
    store.py     the ranks meet through a variable of the scheduler
"""

from hocket.arguments import installed

with installed("dask"):
    from hocket.dask.launch import run

__all__ = ["run"]
