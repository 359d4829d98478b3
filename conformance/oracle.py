"""What NumPy knows of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.kernels.dtypes import DType

try:
    import ml_dtypes
except ImportError:  # then there are none of its own
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]


def numpy_dtype(dtype: DType) -> np.dtype[Any] | None:
    """The NumPy dtype of a row, None where this machine has no library for it."""
    if dtype.kind == "pair":
        value, index = dtype.name.split("_")
        return np.dtype([("value", value), ("index", index)])
    if hasattr(np, dtype.numpy):
        return np.dtype(dtype.numpy)
    return np.dtype(getattr(ml_dtypes, dtype.numpy)) if hasattr(ml_dtypes, dtype.numpy) else None
