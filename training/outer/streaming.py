"""Streaming DiLoCo: fragments take turns, and a round is sent while `delay` further steps are computed.

Each fragment has a round every `every` steps, the next fragment every / fragments steps later; theta becomes
mix theta + (1 - mix) phi.

Law: fragments = 1, delay = 0, mix = 0 is DiLoCo, bit for bit.  Traffic: as DiLoCo's, and at one moment 1 / fragments of
it, behind the computation.  A rank that arrives within `delay` steps of the last waits for nobody.

Source: Douillard et al., "Streaming DiLoCo with overlapping communication" (arXiv 2501.18512); its mix is 0.5, and it
sends 4 bits an element: send="int4".
"""

from __future__ import annotations

from typing import Any

from hocket.training.outer.diloco import DiLoCo


class StreamingDiLoCo(DiLoCo):
    """DiLoCo in fragments, behind the computation.  More arguments: those of `Outer`."""

    kind = "streaming_diloco/1"

    def __init__(
        self, members: Any, parameters: Any, *, every: int = 100, fragments: Any = 4, delay: int = 1, mix: float = 0.5,
        **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(members, parameters, every=every, fragments=fragments, delay=delay, mix=mix, **more)
