"""Learning rates: what a gradient will be multiplied by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Rate = float | None
"""None: it is not known."""


def rate_of(group: Mapping[str, Any]) -> Rate:
    """That of one of the `param_groups` of a torch optimizer, which may have none."""
    lr = group.get("lr")
    return None if lr is None else float(lr)
