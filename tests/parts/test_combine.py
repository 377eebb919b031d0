"""Values of many ranks are combined at once with the bits of one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from synk.reduce_ops import AT_ONCE, combine, shares


def one_after_the_other(op: str, values: list, weights: list) -> np.ndarray:
    """Add values in their order, in float64."""
    total = np.zeros(values[0].shape)
    for i, (value, share) in enumerate(zip(values, shares(weights), strict=True)):
        if op == "avg" and not share:
            continue
        term = value.astype(float) * (share if op == "avg" else 1)
        total = total + term if i else term
    return total.astype(values[0].dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (24,), (1, 2), (2, 1), (3, 4, 2)])
def test_the_bits_are_those_of_the_order_of_ranks(dtype, op, shape):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 9, 300):
        sizes = 10.0 ** rng.integers(-6, 6, n)
        values = [(rng.normal(size=shape) * size).astype(dtype) for size in sizes]
        if n % 2:
            values = [np.asfortranarray(value) for value in values]
        weights = rng.integers(0, 3, n).tolist()
        weights[0] = 1
        found = combine(op, values, weights)
        right = one_after_the_other(op, values, weights)
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        assert found.tobytes() == right.tobytes(), n


def test_many_large_values_take_no_array_of_all():
    values = [np.full(AT_ONCE // 4, i, np.float32) for i in range(5)]
    np.testing.assert_array_equal(combine("sum", values, [1] * 5), np.full(1 << 18, 10))
