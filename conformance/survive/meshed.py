"""A member of a mesh: life.py's life, whose averages go along the axes of a grid of all members.

Most members share no axis with one that dies, and wait for others that have heard of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hocket.conformance.survive.life import Life
from hocket.training import Mesh

ALONE = 6
"""Calls of each step on one axis alone.  Its members hear of a loss on another axis from the job alone."""


class Meshed(Life):
    """The mesh is made anew with each generation."""

    mesh: Mesh | None = None

    def average(self, gradient: Any) -> None:
        if self.mesh is None or self.mesh.job is not self.comm:
            rows = max(n for n in range(1, math.isqrt(self.comm.size) + 1) if self.comm.size % n == 0)
            self.mesh = Mesh(self.comm, {"outer": rows, "inner": self.comm.size // rows})
        for _ in range(ALONE):
            self.mesh["inner"].allreduce(np.ones(1))
        for axis in ("inner", "outer"):
            self.mesh[axis].allreduce(gradient, "avg")
