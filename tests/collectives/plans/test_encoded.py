"""Where a plan encodes: before its first step between hosts, and no later; and where it decodes: at its end."""

from __future__ import annotations

import pytest

from hocket.algorithms import hierarchical
from hocket.collectives.plans.instr import IN, OUT, Apply, ChunkLayout, Elements, Wires
from hocket.collectives.plans.lower import lower
from hocket.kernels.dtypes import by_name

FLOAT32 = by_name("float32")
GROUPS = ((0, 1), (2, 3, 4))
PLAIN, CODED = 4096, 1040
"""Bytes of a chunk, as floats and as elements."""


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "reduce_scatter"])
def test_what_comes_back_to_a_host_is_handed_on_as_it_came(collective: str) -> None:
    algorithm, size = hierarchical(collective, GROUPS), 5
    assert algorithm.far is not None
    first, chunks = algorithm.far(size), algorithm.chunks(size)
    layout = ChunkLayout(
        [CODED] * chunks, lambda c: (IN, c * PLAIN), lambda c: (OUT, c * PLAIN), [1024] * chunks, [PLAIN] * chunks
    )
    for rank in range(size):
        elements = Elements(Apply(taken=FLOAT32), Apply(made=FLOAT32), far=first)
        lowered = lower(algorithm, rank, size, 0, layout, Wires(join=False), elements)
        near, (encode, *far, decode) = lowered.steps[:first], lowered.steps[first:]
        assert not any(instr.encoded for step in near for instr in step)
        assert all(instr.encoded and instr.kind != "copy" for step in far for instr in step)
        assert all(instr.applied == Apply(taken=FLOAT32) for instr in encode)
        assert [instr.applied for instr in decode] == [Apply(made=FLOAT32)]
