"""hocket beside XGBoost: the ranks of a job become the workers of XGBoost's own communicator.

XGBoost has no plug-in for collectives.  Its bytes go over its own sockets; hocket finds the ranks, hands out what they
need to meet, and tells what went wrong.

    workers.py    `communicator(comm)`
"""

from hocket.arguments import installed

with installed("xgboost"):
    from hocket.xgboost.workers import TrainingError, communicator

__all__ = ["TrainingError", "communicator"]
