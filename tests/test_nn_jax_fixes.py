"""What is mended in PyTensor's JAX mode; and whether it still needs to be.

They run in a process of their own: see ``test_nn_jax.py``.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from networks import WHERE, compiled, evaluate

import synk

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 10))
Y = RNG.integers(0, 10, 300).astype("int32")
ROWS = np.arange(300)


def matrix_and_classes():
    return pt.matrix("x"), pt.ivector("y")


GRAPHS = {
    "rows": (lambda x, y: x[pt.arange(y.shape[0]), y], X[ROWS, Y]),
    "rows of x": (lambda x, y: x[pt.arange(x.shape[0]), y], X[ROWS, Y]),
    "gradient": (
        lambda x, y: pytensor.grad(x[pt.arange(y.shape[0]), y].sum(), x),
        np.eye(10)[Y],
    ),
    "one hot": (lambda x, y: x * pt.extra_ops.to_one_hot(y, 10), X * np.eye(10)[Y]),
    "along axis": (lambda x, y: pt.take_along_axis(x, y[:, None], 1)[:, 0], X[ROWS, Y]),
    "sizes": (
        lambda x, y: x.reshape((pt.maximum(x.shape[0] // 2, 1), -1)) + y[0],
        X.reshape(150, -1) + Y[0],
    ),
    "computed length": (
        lambda x, y: pt.arange(x.shape[0] * 2 + 1) + y[0] + 0 * x[0, 0],
        np.arange(601) + Y[0],
    ),
    "squared error": (lambda x, y: ((x - y[:, None]) ** 2).mean(), None),
    "top 3": (
        lambda x, y: pt.any(pt.eq(pt.argsort(x, axis=-1)[:, -3:], y[:, None]), axis=-1),
        (np.argsort(X, axis=-1)[:, -3:] == Y[:, None]).any(-1),
    ),
    "accuracy": (
        lambda x, y: pt.eq(pt.argmax(x, axis=-1), y),
        X.argmax(-1) == Y,
    ),
    "hinge": (
        lambda x, y: pt.maximum(0, 1 - x * (2 * pt.extra_ops.to_one_hot(y, 10) - 1)),
        np.maximum(0, 1 - X * (2 * np.eye(10)[Y] - 1)),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_losses_compute_what_numpy_does(name):
    build, expected = GRAPHS[name]
    if expected is None:
        expected = ((X - Y[:, None]) ** 2).mean()
    x, y = matrix_and_classes()
    np.testing.assert_allclose(compiled([x, y], build(x, y))(X, Y), expected)


def test_a_length_that_only_values_tell_is_refused_in_jax_mode():
    if WHERE == "JAX":
        with pytest.raises(NotImplementedError, match="length of arange"):
            evaluate(lambda n: pt.arange(n), np.array(3))
    else:
        np.testing.assert_array_equal(
            evaluate(lambda n: pt.arange(n), np.array(3)), range(3)
        )


def hinge(x, y):
    """The multi-class hinge loss, as Lasagne 0.2 has it."""
    classes = pt.extra_ops.to_one_hot(y, x.shape[1])
    correct = x[classes.nonzero()]
    rest = pt.reshape(x[(1 - classes).nonzero()], (-1, x.shape[1] - 1))
    return pt.maximum(rest.max(axis=1) - correct + 1, 0)


def test_a_hinge_loss_of_classes_and_its_gradient():
    x, y = matrix_and_classes()
    loss = hinge(x, y)
    value, gradient = compiled([x, y], [loss, pytensor.grad(loss.sum(), x)])(X, Y)
    others = np.where(np.eye(10)[Y] == 1, -np.inf, X)
    expected = np.maximum(others.max(1) - X[ROWS, Y] + 1, 0)
    np.testing.assert_allclose(value, expected)
    slope = np.eye(10)[others.argmax(1)] - np.eye(10)[Y]
    np.testing.assert_allclose(gradient, slope * (expected > 0)[:, None])


def test_other_nonzero_elements_are_not_counted():
    x, y = matrix_and_classes()
    graph = x[pt.eq(x, x.max(axis=1, keepdims=True)).nonzero()] + 0 * y[0]
    if WHERE == "JAX":
        with pytest.raises(NotImplementedError, match="Nonzero"):
            compiled([x, y], graph)(X, Y)
    else:
        np.testing.assert_allclose(compiled([x, y], graph)(X, Y), X.max(1))


WITHOUT = """
import numpy as np, pytensor, pytensor.tensor as pt
x, y = pt.matrix(), pt.ivector()
try:
    f = pytensor.function([x, y], {graph}, mode="JAX")
    f(np.ones((300, 10)), np.zeros(300, "int32"))
except {error}:
    print("needed")
else:
    print("the fix can go")
"""


@pytest.mark.parametrize(
    ("graph", "error"),
    [
        ("x[pt.arange(y.shape[0]), y]", "OverflowError"),
        ("x[pt.extra_ops.to_one_hot(y, 10).nonzero()]", "NotImplementedError"),
        ("x.reshape((pt.maximum(x.shape[0], 1), -1)) + y[0]", "TypeError"),
    ],
)
def test_pytensor_alone_still_needs_the_fix(graph, error):
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(graph=graph, error=error)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "needed", done.stdout + done.stderr[-2000:]


def test_importing_synk_imports_no_jax():
    code = "import sys, synk; synk.nn.conv2d; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "conv2d" in synk.nn.__all__
