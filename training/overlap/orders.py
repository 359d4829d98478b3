"""Orders: which tensors are the most urgent.

    fifo        as they become ready, on one lane: wait-free backpropagation
    priority    as the forward pass uses them, by declaration: P3, and with slices and credit ByteScheduler
    tic         as a recorded step has used them: TicTac's first order

TicTac's second order, TAC, asks which transfer lets the computation go on soonest.  It is not here: it differs from TIC
where a runtime may compute any of several branches, and a program in Python computes them one after the other, as it is
written, so that what is needed first is all that counts.  Among orders of such a chain TIC's is the best.

Sources: Zhang et al., "Poseidon", ATC 2017; Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN
Training", MLSys 2019; Hashemi et al., "TicTac", MLSys 2019; Peng et al., "A Generic Communication Scheduler for
Distributed DNN Training Acceleration", SOSP 2019.
"""

from __future__ import annotations

from hocket.training.overlap.record import Recorded, missing

ORDERS = ("fifo", "priority", "tic")
RECORDED = "tic"
"""The order that needs a recorded step."""
AGREED = "agreed"
"""For programs that declare nothing: as ranks have them ready, and as rank 0 tells all of them (agreed.py)."""


def tic(step: Recorded) -> list[int]:
    """By who is needed first; those needed together, as declared.

    >>> tic(Recorded([0, 1, 2], [[2], [1, 0]]))
    [2, 0, 1]
    """
    needed = list(dict.fromkeys(i for together in step.needed for i in sorted(together)))
    return needed + missing(needed, len(step.made))
