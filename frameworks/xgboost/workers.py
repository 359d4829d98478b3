"""`communicator(comm)`: in place of a tracker that somebody starts, and of arguments that somebody hands out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from xgboost import collective
from xgboost.core import XGBoostError
from xgboost.tracker import RabitTracker

from hocket import Communicator
from hocket.arguments import seconds, whole
from hocket.errors import Error

WITHIN = "training by XGBoost"


class TrainingError(Error, XGBoostError):  # type: ignore[misc]
    """XGBoost failed on some ranks; the text has what each of them says."""


@contextlib.contextmanager
def communicator(
    comm: Communicator, *, host: str | None = None, port: int = 0, timeout: float | None = None
) -> Iterator[None]:
    """In the block, XGBoost trains on all ranks of `comm`, each with rows of its own.  All ranks enter and leave it.

        with hocket.xgboost.communicator(comm):
            model = xgboost.train({"tree_method": "hist"}, xgboost.DMatrix(x, y))

    Rank 0 runs XGBoost's tracker while the block lasts.  XGBoost's ranks are those of `comm`, in the thread that calls
    this.  All ranks get the same model.

    - `host`: the address at which rank 0's tracker listens.  Default: HOCKET_IFACE, or the one at which rank 0 is
      reached by the job's other hosts; 127.0.0.1 on a single host.
    - `port`: of the tracker; 0: any that is free.
    - `timeout`: whole seconds for the ranks to meet, and for each of XGBoost's calls.  Default HOCKET_TIMEOUT (300).

    If a rank raises, the others' training ends, and they raise PeerLostError that names it; so with one that is killed.
    If XGBoost itself fails, all ranks raise TrainingError, which is an XGBoostError too.

    XGBoost's sockets have no authentication and no encryption: `HOCKET_ENCRYPT` does not reach them.
    """
    limit = max(1, round(comm.config.timeout if timeout is None else seconds(timeout, "timeout")))
    with comm.dup() as own:  # whoever leaves by an error is told to the others
        tracker = _tracker(own, host, whole(port, "port"), limit) if own.rank == 0 else None
        try:
            given = own.share(None if tracker is None else tracker.worker_args(), WITHIN)[0]
            failed = None
            try:
                collective.init(**given, dmlc_task_id=f"{own.rank:08d}", dmlc_timeout=limit, dmlc_retry=3)
                yield
            except XGBoostError as error:
                failed = error
            finally:
                with contextlib.suppress(XGBoostError):  # closes the sockets, so ends what the others wait for
                    collective.finalize()
            _compare(own, failed)
        finally:
            if tracker is not None:
                with contextlib.suppress(XGBoostError):  # it tells that workers did not say goodbye, which we know
                    tracker.free()


def _tracker(comm: Communicator, host: str | None, port: int, timeout: int) -> Any:
    """Sorted by task, the workers have comm's ranks."""
    found = host or comm.address or "127.0.0.1"  # None: no other host has to reach this one
    tracker = RabitTracker(comm.size, found, port, sortby="task", timeout=timeout)
    tracker.start()
    return tracker


def _compare(comm: Communicator, failed: XGBoostError | None) -> None:
    """All ranks have come through the block, or fail together."""
    texts = comm.share(None if failed is None else _told(failed), WITHIN)
    if any(text is not None for text in texts):
        told = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text is not None)
        raise TrainingError(f"XGBoost failed on some ranks: {told}") from failed


def _told(error: XGBoostError) -> str:
    """Without the stack, and without where in its sources."""
    lines = str(error).partition("Stack trace:")[0].splitlines()
    return " ".join(line.strip(" -") for line in lines if line.strip())
