"""How the tests of GPU arrays vary their ranks: see gpu_ranks.py for what the ranks run."""

from __future__ import annotations

import pytest

DELAY = 60
"""Microseconds at most by which a stream carries out each thing late."""
BY_EVENTS = "os.environ['HOCKET_GPU_SYNC'] = 'events'\n"
"""Before a rank's program: streams wait for events, not for words in memory."""
MORE = pytest.param(4, marks=pytest.mark.gpu)
"""Ranks: as good as two in the plain run of the tests."""
