"""Pooling in JAX mode: the CPU has a way of its own, and others have theirs."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from children import in_a_child

from synk.nn import pool_jax
from synk.nn.poolops import Pool


def steps(op):
    """Return pooling and its two adjoints as functions of images."""
    return {
        "pool": lambda x: pool_jax.pool(op, x),
        "grad": lambda x: pool_jax.grad(op, x, pool_jax.pool(op, x), x[..., ::2, ::2]),
        "pick": lambda x: pool_jax.pick(op, x, pool_jax.pool(op, x), x),
    }


@pytest.mark.parametrize("name", ["pool", "grad", "pick"])
@in_a_child
def test_the_way_of_other_platforms_is_not_traced_where_there_are_none(name):
    import jax

    step = steps(Pool((2, 2), (2, 2), (0, 0), True, "max"))[name]
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 8))
    assert "platform_index" not in str(jax.make_jaxpr(step)(x))
    here = step(x)
    with mock.patch("jax.default_backend", return_value="gpu"):
        other = jax.jit(lambda x: step(x))  # which is not the one that was traced
        assert "platform_index" in str(jax.make_jaxpr(other)(x))
        assert np.array_equal(other(x), here)
        for platform in ("cpu", "cuda"):
            lowered = other.trace(x).lower(lowering_platforms=(platform,)).as_text()
            assert ("optimization_barrier" in lowered) == (platform == "cuda")
