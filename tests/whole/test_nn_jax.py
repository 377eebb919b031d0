"""The tests of `synk.nn` again, in JAX mode.

A process in which XLA runs cannot fork ranks any more, which most other tests do; so
these run in a process of their own.
"""

import os
from functools import partial
from unittest import mock

import numpy as np
import pytest
from children import in_a_child, run_python
from places import TESTS

from synk.nn import conv_jax, pool_jax
from synk.nn.convops import Conv
from synk.nn.windows import Pooling

CLAIMS = {
    "conv": (
        "a_convolution_is_the_sum_over_channels_and_pixels",
        "first_and_second_derivatives_are_those_of_differences[2]",
        "the_named_gradients_are_those_of_grad[2]",
        "results_have_the_dtype_of_the_inputs[float32]",
        "shapes_that_do_not_fit_are_refused",
        "a_transposed_convolution_is_the_adjoint[border2]",
        "a_transposed_convolution_is_the_adjoint[border3]",
    ),
    "graphs": (
        "batch_normalisation_in_training",
        "local_response_normalisation_divides_by_neighbouring_channels[5]",
        "activations_are_their_formulas_without_overflow",
        "cross_entropy_of_classes",
        "cross_entropies_of_two_classes",
        "patches_are_rows_in_the_order_of_images[ignore_borders]",
        "patches_are_rows_in_the_order_of_images[full]",
        "patches_are_rows_in_the_order_of_images[wrap_centered]",
        "patches_side_by_side_make_the_images_again",
    ),
    "pool": (
        "pooling_reduces_each_window",
        "first_and_second_derivatives_are_those_of_differences[2]",
        "windows_of_more_pixels_than_are_unrolled",
        "gradients_of_ties_and_of_what_is_no_number",
        "the_gradient_of_every_window_arrives[window1]",
        "the_gradient_of_every_window_arrives[window2]",
        "windows_are_side_by_side_and_images_smaller_than_one_have_none",
        "results_have_the_dtype_of_the_inputs[float32]",
        *(f"the_numbers_are_those_of_given_sizes[{case}]" for case in (1, 3, 4)),
    ),
}
"""Claims that must hold of JAX mode, too, which computes all this otherwise."""


def test_all_is_the_same():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    tests = [
        f"{TESTS}/behaviour/test_nn_{subject}.py::test_{claim}"
        for subject, claims in CLAIMS.items()
        for claim in claims
    ]
    options = "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"
    done = run_python(*options, *tests, SYNK_TEST_NN="JAX", JAX_PLATFORMS="cpu")
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
    for step in steps(Pooling((2, 2), (2, 2), (0, 0), True, "max")):
        assert "platform_index" not in str(jax.make_jaxpr(step)(x))
        here = step(x)
        with mock.patch("jax.default_backend", return_value="gpu"):
            other = jax.jit(lambda x, f=step: f(x))  # not the one that was traced
            assert "platform_index" in str(jax.make_jaxpr(other)(x))
            assert np.array_equal(other(x), here)
            for platform in ("cpu", "cuda"):
                lowered = other.trace(x).lower(lowering_platforms=(platform,)).as_text()
                assert ("optimization_barrier" in lowered) == (platform == "cuda")


# -- convolutions: on one core many of them are products of matrices, image by image

CONVOLUTIONS = {
    "few channels": ((3, 2, 9, 19), (5, 2, 3, 2), Conv("half", (1, 2), (1, 1))),
    "spread": ((2, 1, 15, 9), (3, 1, 2, 3), Conv("full", (2, 1), (3, 2), flip=False)),
    "uneven": ((2, 3, 9, 9), (4, 3, 3, 3), Conv(((0, 2), (1, 0)), (1, 1), (1, 1))),
    "one pixel": ((2, 9, 16, 15), (6, 9, 1, 1), Conv(((0, 0),) * 2, (2, 2), (1, 1))),
    "an axis": ((4, 2, 140), (3, 2, 4), Conv("full", (2,), (2,))),
    "three axes": ((2, 2, 4, 5, 4), (3, 2, 2, 2, 2), Conv("half", (1,) * 3, (1,) * 3)),
}
BY_XLA = {
    "no image": ((0, 2, 9, 9), (3, 2, 3, 3), Conv("half", (1, 1), (1, 1))),
    "groups": ((2, 4, 9, 9), (2, 2, 3, 3), Conv("half", (1, 1), (1, 1), groups=2)),
    "many pixels": ((2, 2, 9, 9), (3, 2, 8, 8), Conv("half", (1, 1), (1, 1))),
    "small images": ((2, 2, 7, 9), (3, 2, 3, 3), Conv("half", (1, 1), (1, 1))),
}


@in_a_child
def test_convolutions_on_one_core_are_those_of_several():
    import jax

    jax.config.update("jax_enable_x64", True)
    cores, rng = os.sched_getaffinity(0), np.random.default_rng(0)
    for what, (images, filters, op) in (CONVOLUTIONS | BY_XLA).items():
        x, w = rng.normal(size=images), rng.normal(size=filters)
        y = rng.normal(size=op.outputs_shape(images, filters))
        for name in ("outputs", "inputs", "filters"):
            args = (x, w) if name == "outputs" else (x, w, y)
            compute, found = partial(getattr(conv_jax, name), op), []
            for allowed in ({min(cores)}, cores | {max(cores) + 1}):
                with mock.patch("os.sched_getaffinity", return_value=allowed):
                    graph = str(jax.make_jaxpr(partial(compute))(*args))
                    if what in CONVOLUTIONS:
                        found.append(jax.jit(partial(compute))(*args))
                is_by_image = len(allowed) == 1 and what in CONVOLUTIONS
                assert ("scan" in graph) == is_by_image, (what, name)
            if found:
                assert found[0].shape == found[1].shape, (what, name)
                np.testing.assert_allclose(*found, 1e-12, 1e-12, err_msg=what)
