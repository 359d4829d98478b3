"""torch's own lines are not the user's: errors that say where a call was made pass over them."""

from __future__ import annotations

import os
from functools import cache

import torch
import typing_extensions

from hocket.extending import pass_over


@cache
def pass_over_torch() -> None:
    for place in (os.path.dirname(torch.__file__), typing_extensions.__file__):  # the latter wraps torch's old names
        pass_over(place)
