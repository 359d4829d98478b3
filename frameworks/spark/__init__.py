"""hocket inside Spark: a function on all tasks of a barrier stage, each one rank.

    launch.py    `run(session, function)`
    store.py     the ranks meet through `BarrierTaskContext.allGather`
"""

from hocket.arguments import installed

with installed("spark"):
    from hocket.spark.launch import run

__all__ = ["run"]
