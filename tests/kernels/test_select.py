"""Which elements are large: NumPy's answer, at every length around a block, whatever the guess."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.codecs import not_below

SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e38, np.nextafter(np.float32(1), 2)])


@pytest.mark.parametrize("guess", [0, 7, 1 << 20])
def test_as_numpy(guess: int) -> None:
    dice = np.random.default_rng(1)
    for n in [*range(70), 127, 128, 129, 5000]:
        for least in (1e-45, 0.5, 1.0, float(np.nextafter(np.float32(1), 2)), 3.0, np.inf):
            x = dice.normal(size=n).astype(np.float32)
            x[dice.random(n) < 0.2] = dice.choice(SPECIAL).astype(np.float32)
            with np.errstate(invalid="ignore"):
                wanted = np.flatnonzero(~(np.abs(x) < np.float32(least)))
            found = not_below(x, least, guess)
            assert found.dtype == np.int64 and found.tolist() == wanted.tolist(), (n, least)
            assert not_below(x[n // 3 :], least, guess).tolist() == (wanted[wanted >= n // 3] - n // 3).tolist()
