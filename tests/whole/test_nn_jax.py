"""The tests of `synk.nn` again: in JAX mode, and with XLA behind ``perform``.

A process in which XLA runs cannot fork ranks any more, which most other tests do; so
these run in a process of their own.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from children import in_a_child, run_python
from places import TESTS

from synk.nn import pool_jax
from synk.nn.poolops import Pool

KERNELS = {
    "conv": (
        "a_convolution_is_the_sum_over_channels_and_pixels",
        "first_and_second_derivatives_are_those_of_differences[2]",
        "the_named_gradients_are_those_of_grad[2]",
        "results_have_the_dtype_of_the_inputs",
        "shapes_that_do_not_fit_are_refused",
    ),
    "pool": (
        "pooling_reduces_each_window",
        "first_and_second_derivatives_are_those_of_differences",
        "windows_of_more_pixels_than_are_unrolled",
        "gradients_of_ties_and_of_what_is_no_number",
        "the_gradient_of_every_window_arrives",
        "windows_are_side_by_side_and_images_smaller_than_one_have_none",
        "results_have_the_dtype_of_the_inputs",
    ),
}
"""Claims that each way to compute a convolution, or a pooling, must hold by itself."""
GRAPHS = {
    "conv": ("a_transposed_convolution_is_the_adjoint",),
    "graphs": (
        "batch_normalisation_in_training",
        "local_response_normalisation_divides_by_neighbouring_channels[5]",
        "activations_are_their_formulas_without_overflow",
        "cross_entropy_of_classes",
        "cross_entropies_of_two_classes",
        "patches_are_rows_in_the_order_of_images[ignore_borders]",
        "patches_are_rows_in_the_order_of_images[wrap_centered]",
        "patches_side_by_side_make_the_images_again",
    ),
    "pool": ("the_numbers_are_those_of_given_sizes",),
}
"""Claims on graphs of other Ops, which JAX mode computes otherwise than the others."""
CLAIMS = {"JAX": [KERNELS, GRAPHS], "xla": [KERNELS]}


@pytest.mark.slow
@pytest.mark.parametrize("where", CLAIMS)
def test_all_is_the_same(where):
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    tests = [
        f"{TESTS}/behaviour/test_nn_{subject}.py::test_{claim}"
        for table in CLAIMS[where]
        for subject, claims in table.items()
        for claim in claims
    ]
    environment = {"SYNK_TEST_NN": where, "JAX_PLATFORMS": "cpu"}
    environment["SYNK_NN"] = "xla" if where == "xla" else None
    options = "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"
    done = run_python(*options, *tests, **environment)
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


# -- pooling: the CPU has a way of its own, and other platforms have theirs


def steps(op):
    """Return pooling and its two adjoints as functions of images."""
    return (
        lambda x: pool_jax.pool(op, x),
        lambda x: pool_jax.grad(op, x, pool_jax.pool(op, x), x[..., ::2, ::2]),
        lambda x: pool_jax.pick(op, x, pool_jax.pool(op, x), x),
    )


@in_a_child
def test_the_way_of_other_platforms_is_not_traced_where_there_are_none():
    import jax

    x = np.random.default_rng(0).normal(size=(2, 3, 6, 8))
    for step in steps(Pool((2, 2), (2, 2), (0, 0), True, "max")):
        assert "platform_index" not in str(jax.make_jaxpr(step)(x))
        here = step(x)
        with mock.patch("jax.default_backend", return_value="gpu"):
            other = jax.jit(lambda x, f=step: f(x))  # not the one that was traced
            assert "platform_index" in str(jax.make_jaxpr(other)(x))
            assert np.array_equal(other(x), here)
            for platform in ("cpu", "cuda"):
                lowered = other.trace(x).lower(lowering_platforms=(platform,)).as_text()
                assert ("optimization_barrier" in lowered) == (platform == "cuda")
