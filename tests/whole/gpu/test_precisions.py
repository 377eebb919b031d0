"""Precisions of products where they matter: what the units of a GPU make of them."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
import test_precision as on_the_cpu
from children import in_a_child

import synk

# The same tests, on the GPU.
test_products = on_the_cpu.test_products_and_their_gradients_are_those_of_jax_by_hand
test_others = on_the_cpu.test_nothing_but_products_of_float32_is_rounded
test_images = (
    on_the_cpu.test_an_image_that_is_convolved_is_read_in_16_bits_by_all_but_the_caller
)


@pytest.mark.parametrize("what", ["dot", "conv2d"])
@in_a_child
def test_float32_is_float32_and_tensorfloat32_has_ten_bits(what):
    """Of random factors, errors of products are some 2**-11 of the rounded ones'."""
    random = np.random.default_rng(0)
    shapes = [(256, 512), (512, 128)]
    if what == "conv2d":
        shapes = [(8, 64, 16, 16), (64, 64, 3, 3)]
    factors = [random.normal(size=shape) for shape in shapes]
    x, w = (pt.tensor(dtype="float32", shape=(None,) * f.ndim) for f in factors)
    y = x @ w if what == "dot" else synk.nn.conv2d(x, w)
    errors = {}
    with synk.session(1, devices=[0]):
        wide = [pt.tensor(dtype="float64", shape=(None,) * f.ndim) for f in factors]
        product = pt.dot if what == "dot" else synk.nn.conv2d
        right = synk.function(
            [], (product(*wide), None), bcast_inputs=wide, mode="JAX"
        )(*(factor.astype("float32").astype("float64") for factor in factors))
        for precision in (None, "float32", "tensorfloat32"):
            f = synk.function(
                [], (y, None), bcast_inputs=[x, w], mode="JAX", precision=precision
            )
            found = f(*(factor.astype("float32") for factor in factors))
            errors[precision] = np.abs(found - right).max() / np.abs(right).max()
    assert errors[None] < 1e-5
    assert errors["float32"] < 1e-5
    assert 2e-5 < errors["tensorfloat32"] < 2e-3
