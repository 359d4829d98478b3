"""Collective communication from Python."""

from hocket.collectives import *  # noqa: F403
from hocket.collectives import __all__ as __all__

__version__ = "0.1.0"
