"""`Scheduler`: gradients travel while the computation goes on.  What users hold; declared.py and agreed.py do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.errors import ArgumentError
from hocket.training.overlap.agreed import Agreed
from hocket.training.overlap.arrays import finite as is_finite
from hocket.training.overlap.declared import Declared
from hocket.training.overlap.gradient import Timing
from hocket.training.overlap.orders import AGREED
from hocket.training.overlap.settings import checked

KIND = "scheduler/1"


class Scheduler:
    """Averages gradients over all ranks while the computation goes on.

    `order`: "fifo", "priority" or "tic" (orders.py), or names, the most urgent first.  `lanes`: classes of
    urgency.  `slice`: bytes of a long tensor that travel as one call; None: all of it.  `fuse`: smaller tensors go
    together up to so many bytes; 0: none do.  "auto": a 64th of all, slices 2 to 4 MiB, buckets 64 KiB to 4.  `codec`:
    as in `allreduce`, for float32.  `compressor`: a method of `hocket.compression`, by name or made, for float32 in
    host memory: each lane has a `Compressor` with it, and a thread.  It gets tensors whole, so `slice` says nothing.
    `finite`: raise where an average holds a NaN or an infinity.  `exact`: averages are rounded once, whoever adds first
    (docs/numbers.md); with `passes`, each tensor has so many addends in a step on this rank, its micro-batches: `ready`
    gets the others as `earlier`, and the average is over all addends of all ranks.  `credit`: calls (slices, buckets)
    of a class that may be under way at once: ByteScheduler's, in slices, for each class.  More fill the gaps between
    two calls, and let less urgent ones overtake less.

    All ranks declare the same tensors in the order of their use, and make them ready in any order, in any thread.  The
    first `ready` is a call that all ranks make together on `comm`; the order of all others is free.  With a codec or a
    compressor, each lane sends one more small message a step; a compressor's lanes do not hold each other back.  Errors
    end the lanes of all ranks.

    `order="agreed"`: nothing is declared.  Rank 0 hears by name what each rank has ready, and tells all what is next,
    so ranks may have other tensors in each step.  It costs a message to rank 0 and back for what is ready together, and
    one for each `step`; `lanes`, `slice` and `credit` say nothing, and `passes` is 1.

    >>> import hocket, numpy as np
    >>> from hocket.training import Scheduler
    >>> def step(comm):
    ...     s, grads = Scheduler(comm), {"first": np.full(2, comm.rank, np.float32), "second": np.ones(3, np.float32)}
    ...     for name, grad in grads.items():        # as the forward pass uses them
    ...         s.declare(name, grad)
    ...     for name in reversed(grads):            # as the backward pass makes them
    ...         s.ready(name, grads[name])
    ...     late = s.step()
    ...     return late, s.wait("first").tolist(), s.wait("second").tolist()
    >>> hocket.local_world(2).run(step)[0]
    ([], [0.5, 0.5], [1.0, 1.0, 1.0])
    """

    def __init__(
        self, comm: Any, *, order: str | Sequence[str] = "priority", lanes: int = 4, slice: int | str | None = "auto",
        fuse: int | str = "auto", codec: Any = None, compressor: Any = None, finite: bool = True, exact: bool = False,
        passes: int = 1, credit: int = 1,
    ) -> None:  # fmt: skip
        if codec is None and compressor is None:
            codec = getattr(comm, "codec", None)  # an axis of a Mesh has one
        comm = getattr(comm, "plain", comm)  # what is told of tensors is exact
        self.comm, self.finite = comm, finite
        settings = checked(order, lanes, slice, fuse, codec, compressor, exact, passes, credit)
        self._policy: Agreed | Declared = (Agreed if order == AGREED else Declared)(comm, settings)

    def declare(self, name: str, like: Any) -> None:
        """There is a gradient of this name, with the shape and dtype of `like`: as the forward pass uses them."""
        self._policy.declare(name, like)

    def seal(self) -> None:
        """No more is declared.  All ranks together; the first `ready` or `step` calls it."""
        self._policy.seal()

    def ready(self, name: str, grad: Any, earlier: Sequence[Any] = ()) -> None:
        """This tensor's gradient is there.  Returns at once; its average will be in `grad`, which stays untouched until
        then.  From any thread, in any order; once a step.  `earlier`: with exact=True, those of earlier passes, at most
        passes - 1; of others zeros are added.
        """
        if earlier and len(earlier) >= self._policy.settings.passes:
            raise ArgumentError(f"ready({name!r}): {len(earlier)} earlier ones need exact=True and a larger passes=")
        self._policy.ready(name, grad, earlier)

    def step(self) -> list[str]:
        """The backward pass has ended here: what was not made ready counts as zeros.  The names of those.

        All ranks call it once a step.  A tensor that no rank made ready has no average: `wait` returns None.
        """
        return self._policy.step()

    def wait(self, name: str, timeout: float | None = None) -> Any:
        """The average of this tensor, when it is there: what `ready` was given.  None if no rank made it ready.

        A rank that had not made it ready at `step` gets memory of the scheduler's, which the next `step` may change.
        `timeout`: seconds.  Raises ArgumentError if this rank has not made it ready, unless a `timeout` is given, in
        which another thread may; TimeoutError; ArgumentError on all ranks if the average holds a NaN or an infinity.
        """
        result = self._policy.wait(name, timeout)
        if self.finite and result is not None and not is_finite(result):
            raise ArgumentError(f"wait({name!r}): the average holds a NaN or an infinity, from some rank's gradient")
        return result

    def close(self) -> None:
        """End its lanes and threads, when all averages were waited for.  All ranks together."""
        self._policy.close()

    def report(self) -> list[Timing]:
        """One row for each tensor, of its last step that was waited for, in the order of declaration."""
        return self._policy.report()

    def state_dict(self) -> dict[str, Any]:
        """The vectors that this rank's compressors owe: for any checkpoint.  Between two steps: it waits for what is
        under way."""
        comm = self.comm
        return {"kind": KIND, "size": comm.size, "rank": comm.rank, "compressors": self._policy.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this rank's `state_dict()`, with the same declarations and settings on as many ranks."""
        if not isinstance(state, dict) or state.get("kind") != KIND or state.get("size") != self.comm.size:
            raise ArgumentError(f"load_state_dict(): expected what state_dict() gave on {self.comm.size} ranks")
        self._policy.load(state["compressors"])
