"""`Sharded`: an optimizer whose work and state are dealt to the ranks of a data-parallel group.

    stage 1   its state is cut                   zero1.py    weight-update sharding
    stage 2   and gradients                      zero2.py
    stage 3   and parameters                     zero3.py    FSDP

Law: with `order="rank"` the parameters have the bits of the optimizer that is not cut: one that is given
`comm.allreduce(gradient, "avg", order="rank")`, and clips by `norm` of it.  Optimizers work element by element, or
layer by layer (layered.py), gradients are added in the order of ranks, and sums of norms are exact (norm.py).  With a
codec it does not hold.

`shards="device"`, on `mesh.along("host", "device")`: shards lie along one axis, and ranks that differ on the others
have the same one.  Gradients are averaged along the first (reduce-scatter), then, as shards, along the others;
parameters are gathered along the first alone.  So a host of L ranks sends 2 (H-1)/H n between H hosts, 1/L of it each
rank.  The law is that of two averages, one after the other.

Sources: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020; Xu et al.,
"Automatic cross-replica sharding of weight update in data-parallel training", arXiv 2004.13336.
"""

from __future__ import annotations

from typing import Any, NoReturn

from hocket.arguments import choices
from hocket.errors import ArgumentError
from hocket.training.large.agreeing import agree
from hocket.training.large.sharding.shards import Shards
from hocket.training.large.sharding.zero1 import Zero1
from hocket.training.large.sharding.zero2 import Zero2
from hocket.training.large.sharding.zero3 import Zero3
from hocket.training.optimizers import Optimizer

STAGES: dict[int, type[Shards]] = {each.stage: each for each in (Zero1, Zero2, Zero3)}


def Sharded(optimizer: Optimizer, comm: Any, parameters: Any, *, stage: int = 1, **settings: Any) -> Any:  # noqa: N802
    """`Zero1`, `Zero2` or `Zero3`: `step(gradients)` averages over the ranks of `comm`, and steps.

    `optimizer`: `Adam`, `SGD`, `Adagrad`, `Lars`, `Lamb`, or what has their `slots` and `apply`.  `comm`: a
    communicator, or an axis of a `Mesh`; `shards`: along which axis, of `mesh.along` of several.  `parameters`: float
    arrays by name, of equal shapes on all ranks; they begin as rank 0's.  `units`: lists of names that are sent
    together.  `clip`: the largest norm of the average, over all axes that cut the model; `alike`: by axis, the names of
    parameters that are alike on its ranks (around.py says when it is needed).  `order`: "rank", or "any", which may be
    faster; or "exact": averages are rounded once, so their bits do not depend on the number of ranks.  `codec`: of
    gradients and parameters on their way.

    All ranks make it together, with equal arguments; ArgumentError and MismatchError name what is wrong on all of them.

    >>> import hocket, numpy as np
    >>> from hocket.training import SGD, Sharded
    >>> def program(comm):
    ...     w = {"w": np.ones(3, np.float32)}
    ...     sharded = Sharded(SGD(lr=0.5), comm, w)
    ...     sharded.step({"w": np.full(3, comm.rank, np.float32)})
    ...     return w["w"].tolist(), sharded.size
    >>> hocket.local_world(2).run(program)
    [([0.75, 0.75, 0.75], 1), ([0.75, 0.75, 0.75], 2)]
    """
    if stage not in STAGES:
        agree(comm, "Sharded", lambda: _refuse(stage))
    return STAGES[stage](optimizer, comm, parameters, **settings)


def _refuse(stage: object) -> NoReturn:
    raise ArgumentError(f"stage={stage!r} is unknown; {choices(stage, map(str, STAGES))}")
