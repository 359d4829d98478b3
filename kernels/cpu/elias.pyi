from typing import Any

import numpy as np

from hocket.kernels.codecs import Codec

def shorten(elements: np.ndarray[Any, Any], codec: Codec) -> np.ndarray[Any, Any]: ...
def restore(shortened: np.ndarray[Any, Any], codec: Codec, count: int) -> np.ndarray[Any, Any]: ...
