"""Arrays of a benchmark as torch tensors."""

from __future__ import annotations

from typing import Any


def as_tensor(array: Any) -> Any:
    """The same memory as a torch tensor; ml_dtypes' arrays go by their bits."""
    if array is None:
        return None
    import torch

    name = array.dtype.name
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, name))
    return torch.from_numpy(array)
