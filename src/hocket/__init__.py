"""Collective communication from Python."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.collectives.public import *  # noqa: F403
    from hocket.collectives.public import __all__ as __all__

__version__ = "0.1.0"

_FOLDERS = (
    "algorithms", "codecs", "collectives", "errors", "extending", "hosting", "kernels", "recording", "transports",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """All public names are loaded when one is first used: `import torch`, which makes the backend known, needs none."""
    public = importlib.import_module("hocket.collectives.public")
    globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
    if name in _FOLDERS:
        return importlib.import_module(f"hocket.{name}")
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names that a user may want, for completion: the public names, and the folders that are there."""
    above = (
        "bench", "compression", "conformance", "dask", "flower", "horovod", "jax", "keras", "lightgbm", "ray", "spark",
        "tensorflow", "torch", "training", "xgboost",
    )  # fmt: skip
    on_top = [name for name in above if f"hocket.{name}" in sys.modules]
    dunder = [name for name in globals() if name.startswith("__")]
    return sorted({*dunder, *on_top, *_FOLDERS, *importlib.import_module("hocket.collectives.public").__all__})
