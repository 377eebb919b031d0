"""Compiling graphs of networks for a test, and comparing derivatives.

These tests run in the process of all others, with numpy kernels and without XLA, which
would forbid that process to fork ranks; ``test_nn_jax.py`` runs them again in a process
of their own, where ``SYNK_TEST_NN`` is "JAX", and ``test_mirror.py`` by ranks.
"""

import os

import numpy as np
import pytensor
from hypothesis import HealthCheck, settings

import synk  # noqa: F401

WHERE = os.environ.get("SYNK_TEST_NN", "numpy")
MODE = "JAX" if WHERE == "JAX" else "FAST_COMPILE"

few = settings(
    max_examples=8 if WHERE == "numpy" else 2,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def compiled(inputs, outputs):
    """Return a function of numpy arrays, compiled for what is tested."""
    import theano  # synk's, whose functions have the fixes of JAX mode

    function = theano.function(inputs, outputs, mode=MODE, on_unused_input="ignore")

    def call(*values):
        results = function(*values)
        if isinstance(results, list):
            return [np.asarray(result) for result in results]
        return np.asarray(results)

    return call


def evaluate(build, *values):
    """Return what a graph, built from variables like the values, is of these."""
    values = [np.asarray(value) for value in values]
    inputs = [
        pytensor.tensor.tensor(dtype=str(value.dtype), shape=(None,) * value.ndim)
        for value in values
    ]
    return compiled(inputs, build(*inputs))(*values)


def check_derivatives(build, *values, second=True):
    """Compare first, and second, derivatives in a direction with differences.

    The cost is a weighted sum of the graph's result, squared so that second derivatives
    are not 0. A central difference of float64 is right to about 1e-9 relative to the
    third derivative.
    """
    shapes = [(None,) * np.ndim(value) for value in values]
    inputs = [pytensor.tensor.tensor(dtype="float64", shape=s) for s in shapes]
    directions = [var.type() for var in inputs]
    result = build(*inputs)
    cost = ((result + 1) ** 2).sum()
    outputs = [pytensor.grad(cost, inputs)]
    along = sum((g * d).sum() for g, d in zip(outputs[0], directions, strict=True))
    if second:
        outputs.append(pytensor.grad(along, inputs))
    flat = [cost, *(g for gs in outputs for g in gs)]
    f = compiled([*inputs, *directions], flat)
    rng = np.random.default_rng(7)
    steps = [rng.normal(size=np.shape(v)) for v in values]
    h = 1e-5
    n = len(values)

    def at(scale):
        moved = [v + scale * s for v, s in zip(values, steps, strict=True)]
        cost, *rest = f(*moved, *steps)
        slope = sum((g * s).sum() for g, s in zip(rest[:n], steps, strict=True))
        return cost, slope

    _, *rest = f(*values, *steps)
    for value, gradient in zip(values, rest[:n], strict=True):
        assert gradient.shape == np.shape(value)
        assert gradient.dtype == "float64"
    (above, slope_above), (below, slope_below) = at(h), at(-h)
    slope = at(0)[1]
    np.testing.assert_allclose(slope, (above - below) / (2 * h), rtol=1e-5, atol=1e-5)
    if second:
        bend = sum((g * s).sum() for g, s in zip(rest[n:], steps, strict=True))
        difference = (slope_above - slope_below) / (2 * h)
        np.testing.assert_allclose(bend, difference, rtol=1e-5, atol=1e-4)
