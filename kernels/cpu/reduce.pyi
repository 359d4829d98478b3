from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.kernels.codecs import Codec

def features() -> str: ...
def levels() -> tuple[str, ...]: ...
def use_level(name: str) -> None: ...
def reduce_arrays(out: np.ndarray[Any, Any], inputs: Sequence[np.ndarray[Any, Any]], op: str) -> None: ...
def encode_array(
    out: np.ndarray[Any, Any],
    x: np.ndarray[Any, Any],
    codec: Codec,
    key: int = 0,
    residual: tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]] | None = None,
) -> None: ...
def decode_array(out: np.ndarray[Any, Any], x: np.ndarray[Any, Any], codec: Codec) -> None: ...
def fold_arrays(
    out: np.ndarray[Any, Any],
    inputs: Sequence[np.ndarray[Any, Any]],
    codec: Codec,
    count: int | None = None,
    key: int = 0,
    residual: tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]] | None = None,
) -> None: ...
def scale_array(out: np.ndarray[Any, Any], x: np.ndarray[Any, Any], factor: float) -> None: ...
