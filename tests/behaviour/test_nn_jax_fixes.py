"""Shapes in JAX mode: what is mended in PyTensor's, and whether it needs to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

import synk

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 10))
Y = RNG.integers(0, 10, 300).astype("int32")
ROWS = np.arange(300)


def compiled(inputs, outputs):
    return pytensor.function(inputs, outputs, mode="JAX", on_unused_input="ignore")


GRAPHS = {
    "rows": (lambda x, y: x[pt.arange(y.shape[0]), y], X[ROWS, Y]),
    "gradient": (
        lambda x, y: pytensor.grad(x[pt.arange(y.shape[0]), y].sum(), x),
        np.eye(10)[Y],
    ),
    "top 3": (
        lambda x, y: pt.any(pt.eq(pt.argsort(x, axis=-1)[:, -3:], y[:, None]), axis=-1),
        (np.argsort(X, axis=-1)[:, -3:] == Y[:, None]).any(-1),
    ),
    "mean of some": (
        lambda x, y: ((x > 0) * x).sum() / (x > 0).sum() + 0 * y[0],
        X[X > 0].mean(),
    ),
    "gradient of half": (
        lambda x, y: pytensor.grad((x[: x.shape[0] // 2 :] ** 2).sum() + 0.0 * y[0], x),
        np.vstack([2 * X[:150], np.zeros((150, 10))]),
    ),
    "a rounded number of rows": (
        lambda x, y: x[: pt.cast(pt.ceil(y.shape[0] / 7.0), "int64")],
        X[:43],
    ),
    "a shape of parts": (
        lambda x, y: x.reshape(pt.concatenate([y.shape[:1], [-1]]), ndim=2)[:, 0],
        X[:, 0],
    ),
    "along the middle axis": (
        lambda x, y: pt.take_along_axis(
            x.reshape((y.shape[0], 5, 2)), pt.argsort(x.reshape((-1, 5, 2)), axis=1), 1
        ),
        np.sort(X.reshape(300, 5, 2), axis=1),
    ),
    "repeated": (
        lambda x, y: pt.repeat(pt.arange(y.shape[0]), x.shape[1]),
        np.repeat(ROWS, 10),
    ),
    "joined": (
        lambda x, y: (
            pytensor.grad((pt.concatenate([x, x**2], axis=1) ** 2).sum(), x) + y[0] * 0
        ),
        2 * X + 4 * X**3,
    ),
    "one added to some rows": (
        lambda x, y: pt.inc_subtensor(x[y], 1.0),
        X + np.bincount(Y, minlength=300)[:, None],
    ),
    "all rows set, and turned round": (
        lambda x, y: (
            pt.inc_subtensor(pt.zeros_like(x)[: x.shape[0]], x)[::-1] + 0 * y[0]
        ),
        X[::-1],
    ),
    "a constant of single precision": (
        lambda x, y: pt.alloc(np.float32(2), y.shape[0]) + pt.zeros((), "float32"),
        np.full(300, 2, "float32"),
    ),
    "gradient of a product": (
        lambda x, y: pytensor.grad(pt.prod(x[:4], axis=0).sum() + 0.0 * y[0], x)[:1],
        X[1:4].prod(axis=0)[None],
    ),
    "a loop over all": (
        lambda x, y: pytensor.scan(
            lambda row, total: total + row,
            sequences=x,
            outputs_info=pt.zeros((x.shape[1],)),
            n_steps=y.shape[0],
            return_updates=False,
        ),
        np.cumsum(X, axis=0),
    ),
}


@in_a_child
def test_graphs_of_losses_compute_what_numpy_does():
    x, y = pt.matrix("x"), pt.ivector("y")
    for name, (build, expected) in GRAPHS.items():
        found = compiled([x, y], build(x, y))(X, Y)
        np.testing.assert_allclose(found, expected, err_msg=name)
    # The multi-class hinge loss, as Lasagne 0.2 has it, and its gradient.
    classes = pt.extra_ops.to_one_hot(y, x.shape[1])
    others = pt.reshape(x[(1 - classes).nonzero()], (-1, x.shape[1] - 1))
    loss = pt.maximum(others.max(axis=1) - x[classes.nonzero()] + 1, 0)
    value, gradient = compiled([x, y], [loss, pytensor.grad(loss.sum(), x)])(X, Y)
    others = np.where(np.eye(10)[Y] == 1, -np.inf, X)
    expected = np.maximum(others.max(1) - X[ROWS, Y] + 1, 0)
    np.testing.assert_allclose(value, expected)
    slope = np.eye(10)[others.argmax(1)] - np.eye(10)[Y]
    np.testing.assert_allclose(gradient, slope * (expected > 0)[:, None])


REFUSED = {
    "a length": (lambda x, y: pt.arange(y[0] + 3) + 0 * x[0, 0], "length of arange"),
    "a slice": (lambda x, y: x[: y[0] + 1], r"write x\[start \+ arange\(n\)\]"),
    "a shape": (lambda x, y: x.reshape((y.max() + 1, -1)), "shape of reshape"),
    "zeros": (lambda x, y: pt.zeros((y.max() + 1,)) + x[0, 0], "zeros or ones"),
    "one hot": (lambda x, y: pt.eye(y.max() + 1)[y] + x[0, 0], "shape of eye"),
    "a mask": (lambda x, y: x[x > 0] + y[0], r"switch\(mask, new, x\)"),
    "nonzero elements": (
        lambda x, y: x[(x > 0).nonzero()] + y[0],
        r"\(mask \* x\).sum\(\) / mask.sum\(\)",
    ),
    "repeats": (lambda x, y: pt.repeat(x, y, axis=0), "number of repeats"),
    "unique": (lambda x, y: pt.unique(y) + x[0, 0], "cannot list different values"),
    "random": (lambda x, y: pt.random.normal(size=(y[0] + 1,)) + x[0, 0], "random num"),
}


@in_a_child
def test_shapes_that_only_values_tell_are_refused_and_what_to_write_is_said():
    x, y = pt.matrix("x"), pt.ivector("y")
    for name, (build, message) in REFUSED.items():
        with pytest.raises(NotImplementedError, match=message):
            print(name, compiled([x, y], build(x, y))(X, Y))


@in_a_child
def test_dropout_masks():
    """Means and variances are those of the distribution, and calls differ."""
    x = pt.matrix("x")
    rng = pytensor.shared(np.random.default_rng(3))
    after, drawn = pt.random.binomial(
        1, pt.constant([0.2] * 10), size=x.shape, rng=rng
    ).owner.outputs
    more = pt.random.binomial(
        9, 0.5, size=pt.concatenate([x.shape[:1], [20]]), rng=after
    )
    f = pytensor.function(
        [x], [drawn, more], updates={rng: more.owner.outputs[0]}, mode="JAX"
    )
    first, second = f(X), f(X)
    for ones, nines in first, second:
        assert np.asarray(ones).shape == (300, 10)
        assert np.asarray(nines).shape == (300, 20)
        assert ones.dtype == nines.dtype == "int64"
        assert set(np.unique(ones)) == {0, 1}
        # Five standard deviations.
        assert abs(np.mean(ones) - 0.2) < 5 * np.sqrt(0.16 / 3000)
        assert abs(np.mean(nines) - 4.5) < 5 * np.sqrt(9 / 4 / 6000)
        assert abs(np.var(nines) / (9 / 4) - 1) < 0.1
    assert not np.array_equal(first[0], second[0])


NEEDED = {
    "arange": ("x[pt.arange(y.shape[0]), y]", "OverflowError"),
    "count_nonzero": (
        "x[pt.extra_ops.to_one_hot(y, 10).nonzero()]",
        "NotImplementedError",
    ),
    "sizes_at_compile_time": (
        "x.reshape((pt.maximum(x.shape[0], 1), -1)) + y[0]",
        "TypeError",
    ),
    "known bounds of slices": ("x[: x.shape[0] // 2] + y[0]", "IndexError"),
    "reshape": (
        "x.reshape(pt.concatenate([y.shape[:1], [-1]]), ndim=2)",
        "NotImplementedError",
    ),
    "split": (
        "pytensor.grad((pt.concatenate([x, x**2]) ** 2).sum() + 0. * y[0], x)",
        "ConcretizationTypeError or AttributeError",
    ),
    "with_arrays": ("pt.inc_subtensor(x[y], 1.0)", "AttributeError"),
    "prod_without_zeros": (
        "pytensor.grad(pt.prod(x, axis=0).sum() + 0. * y[0], x)",
        "AttributeError",
    ),
    "refuse_unique": ("pt.unique(y) + x[0, 0]", "AttributeError"),
    "random": (
        "pt.random.normal(size=pt.concatenate([x.shape[:1], [2]])) + y[0]",
        "NotImplementedError",
    ),
    "binomial": (
        "pt.random.binomial(1, 0.5, size=x.shape) + y[0]",
        "NotImplementedError",
    ),
}
"""What each fix is for, and what PyTensor 2.38.3 and 3.0.7 do without it."""
RIGHT_SINCE = dict.fromkeys(["arange", "prod_without_zeros", "with_arrays"], (3, 3))
"""What PyTensor does by itself since which version; it can go with older ones."""

WITHOUT = """
import sys, warnings, numpy as np, pytensor, pytensor.tensor as pt
warnings.simplefilter("ignore")
for name, graph in {graphs}.items():
    x, y = pt.matrix(), pt.ivector()
    graph = eval(graph)
    try:
        f = pytensor.function([x, y], graph, mode="JAX", on_unused_input="ignore")
        f(np.ones((300, 10)), np.zeros(300, "int32"))
    except Exception as error:
        print(name, type(error).__name__, sep=": ")
    else:
        print(name, "the fix can go", sep=": ")
"""

XLA = """
import jax, jax.numpy as jnp
print(jax.jit(lambda y: jnp.zeros(3).at[:].add(y)[::-1])(jnp.arange(3.0)))
"""


def alone(code):
    """Run code in a process without synk."""
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def test_pytensor_alone_still_needs_the_fixes():
    graphs = {name: graph for name, (graph, _) in NEEDED.items()}
    done = alone(WITHOUT.format(graphs=graphs))
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    version = tuple(map(int, pytensor.__version__.split(".")[:2]))
    assert set(found) == set(NEEDED), done.stderr
    for name, (_, error) in NEEDED.items():
        right = version >= RIGHT_SINCE.get(name, (9,))
        assert found[name] in ("the fix can go" if right else error), name


def test_xla_still_aborts_where_all_of_an_array_is_set():
    done = alone(XLA)
    assert done.returncode == -signal.SIGABRT, "the fix of_all can go"
    assert "opcode map" in done.stderr


def test_importing_synk_imports_no_jax():
    code = "import sys, synk; synk.nn.conv2d; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "conv2d" in synk.nn.__all__
