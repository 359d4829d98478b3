from typing import Any

import numpy as np

def not_below(x: np.ndarray[Any, Any], least: float, guess: int = ...) -> np.ndarray[Any, Any]: ...
