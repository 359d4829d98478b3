"""check_equal: which arrays differ, and on which ranks."""

from __future__ import annotations

import numpy as np
import torch

import hocket
from support.worlds import spread


def all_kinds(comm: hocket.Communicator) -> None:
    odd = comm.rank == comm.size - 1
    tree = {
        "same": [np.arange(5.0), torch.ones(3), np.ones((4, 4))[:, ::2], 3, None],
        "value": np.full(100_000, 1 + odd * (np.arange(100_000) == 77_777), np.float32),
        "shape": (np.zeros((2 + odd, 3 - odd)), np.zeros(0)),
        "dtype": np.zeros(4, np.int32 if odd else np.uint32),
        "sign": np.array([-0.0 if odd else 0.0]), "nan": np.array([np.nan]), "number": 2 + odd,
        **({"only here": np.ones(1)} if odd else {}),
    }  # fmt: skip
    others = tuple(range(comm.size - 1))
    found = comm.check_equal(tree)
    for name in ("['value']", "['shape'][0]", "['dtype']", "['sign']", "['number']", "['only here']"):
        assert found.pop("x" + name) == [others, (comm.size - 1,)], name
    assert found == {}
    assert comm.check_equal(np.ones(3)) == {} and comm.check_equal(comm.rank % 2) == (
        {"x": [tuple(range(0, comm.size, 2)), tuple(range(1, comm.size, 2))]}
    )


def test_what_differs_is_named_with_its_ranks() -> None:
    spread(all_kinds, 3, "threads")
    spread(all_kinds, 2, "tcp")
