"""Products with thin matrices: NumPy's to rounding, at every shape around a vector and a span; orthonormal columns."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.codecs import thin


@pytest.mark.parametrize("wide", [1, 2, 4, 5, 9])
def test_as_numpy(wide: int) -> None:
    dice = np.random.default_rng(1)
    for rows in (1, 2, 3, 8):
        for columns in (1, 7, 8, 17, 1023, 8192, 8210):
            shapes = (rows, columns), (columns, wide), (rows, wide)
            m, q, p = (dice.standard_normal(shape, np.float32) for shape in shapes)
            np.testing.assert_allclose(thin.across(m, q), m.astype(float) @ q, atol=1e-3)
            np.testing.assert_allclose(thin.along(m, p), m.T.astype(float) @ p, atol=1e-5)
            rest, out = m.copy(), np.full_like(m, np.nan)
            thin.apart(rest, p, q, out)
            np.testing.assert_allclose(out, p.astype(float) @ q.T, atol=1e-5)
            assert np.array_equal(rest, m - out)


def test_columns_become_orthonormal() -> None:
    p = np.random.default_rng(2).standard_normal((50, 5), np.float32)
    made = thin.orthonormal(p)
    np.testing.assert_allclose(made.T @ made, np.eye(5), atol=1e-6)
    np.testing.assert_allclose(made @ (made.T @ p), p, atol=1e-5)
    p[:, 2] = 3 * p[:, 0] - p[:, 1]
    p[:, 4] = 0
    made = thin.orthonormal(p)
    assert not made[:, 2].any() and not made[:, 4].any()
    np.testing.assert_allclose(made.T @ made, np.diag([1, 1, 0, 1, 0]), atol=1e-6)
    assert thin.orthonormal(np.ones((0, 3), np.float32)).shape == (0, 3)


def test_shapes_that_do_not_fit() -> None:
    m, thick = np.ones((3, 4), np.float32), np.ones((5, 2), np.float32)
    for call in (lambda: thin.across(m, thick), lambda: thin.along(m, thick), lambda: thin.apart(m, thick, thick, m)):
        with pytest.raises(ValueError):
            call()
