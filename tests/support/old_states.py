"""States of earlier versions in small files: nested dicts, lists and numbers as JSON, and arrays, in one .npz."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write(path: Path, tree: Any) -> None:
    """With the code of the version whose states they are."""
    arrays: list[Any] = []

    def plain(each: Any) -> Any:
        if isinstance(each, np.ndarray):
            arrays.append(each)
            return {"array": len(arrays) - 1}
        if isinstance(each, dict):
            return {"dict": [[key, plain(value)] for key, value in each.items()]}
        return [plain(value) for value in each] if isinstance(each, (list, tuple)) else each

    text = np.frombuffer(json.dumps(plain(tree)).encode(), np.uint8)
    np.savez_compressed(path, text, *arrays)


def read(path: Path) -> Any:
    with np.load(path) as file:
        text, *arrays = (file[f"arr_{i}"] for i in range(len(file.files)))

    def whole(each: Any) -> Any:
        if isinstance(each, dict):
            [[kind, value]] = each.items()
            return arrays[value] if kind == "array" else {key: whole(one) for key, one in value}
        return [whole(one) for one in each] if isinstance(each, list) else each

    return whole(json.loads(text.tobytes()))
