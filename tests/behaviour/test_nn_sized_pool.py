"""Pooling whose windows, strides and padding are variables is that of their values.

What pooling of given sizes is, ``test_nn_pool.py`` tells.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from networks import MODE, check_derivatives, evaluate
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from reference import PY

import synk
from synk.nn.sizedpool import SizedPool

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODES = ["max", "sum", "average_inc_pad", "average_exc_pad"]
POOL = {2: synk.nn.pool_2d, 3: synk.nn.pool_3d}
IMAGES = np.random.default_rng(0).permutation(np.linspace(-1, 1, 2 * 7 * 9))
IMAGES = IMAGES.reshape(2, 7, 9)
VOLUMES = IMAGES.reshape(1, 3, 6, 7)
CASES = [
    (IMAGES, (2, 3), True, (1, 2), (1, 0)),
    (IMAGES, (3, 2), False, (2, 2), (0, 0)),
    (IMAGES, (2, 2), False, (1, 3), (0, 0)),
    (IMAGES, (8, 2), True, (1, 1), (0, 1)),  # a window too large: nothing
    (VOLUMES, (1, 2, 3), True, (1, 2, 2), (0, 1, 1)),
]


def of_shapes(sizes, x):
    """Return sizes as numbers that PyTensor cannot know before it has the images."""
    nothing = x.shape[-1] - x.shape[-1]
    return tuple(size + nothing for size in sizes)


def sized(x, ws, ignore_border, stride, pad, mode="max"):
    """Return the pooling, by an Op that has yet to learn its sizes."""
    ws, stride, pad = (of_shapes(sizes, x) for sizes in (ws, stride, pad))
    found = POOL[len(ws)](x, ws, ignore_border, stride, pad, mode)
    assert isinstance(found.owner.op, SizedPool)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_numbers_are_those_of_given_sizes(case, mode):
    x, ws, *others = CASES[case]
    expected = evaluate(lambda x: POOL[len(ws)](x, ws, *others, mode), x)
    got = evaluate(lambda x: sized(x, ws, *others, mode), x)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [0, 1, 4])
def test_first_and_second_derivatives_are_those_of_differences(case, mode):
    x, *parameters = CASES[case]
    check_derivatives(lambda x: sized(x, *parameters, mode), x)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_shapes_are_inferred_and_without_computing(case):
    x, ws, *others = CASES[case]
    xs = pt.tensor("x", shape=(None,) * x.ndim)
    f = pytensor.function(
        [xs], sized(xs, ws, *others).shape, mode=Mode("py", "fast_run")
    )
    assert not any("Pool" in str(node.op) for node in f.maker.fgraph.toposort())
    expected = evaluate(lambda x: POOL[len(ws)](x, ws, *others), x).shape
    assert tuple(f(x)) == expected


def test_sizes_may_be_vectors_numbers_or_inputs_of_the_function():
    x, window = pt.tensor3("x"), pt.ivector("window")
    rows, step = pt.iscalar("rows"), pt.lscalar("step")
    f = pytensor.function(
        [x, window, rows, step],
        [
            synk.nn.pool_2d(x, window, stride=window, pad=None),
            synk.nn.pool_2d(x, (rows, 3), stride=step),
        ],
        mode=MODE,
    )
    for ws, n, s in (([2, 3], 1, 2), ([3, 1], 4, 1)):
        got = f(IMAGES, np.array(ws, "int32"), n, s)
        expected = [
            evaluate(lambda x, ws=ws: synk.nn.pool_2d(x, tuple(ws)), IMAGES),
            evaluate(lambda x, n=n, s=s: synk.nn.pool_2d(x, (n, 3), stride=s), IMAGES),
        ]
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_sizes_that_turn_out_to_be_constants_cost_nothing():
    x = pt.tensor("x", shape=(None, 7, 9))
    pooled = synk.nn.pool_2d(x, (x.shape[1] // 2, x.shape[2] // 2))
    f = pytensor.function([x], pooled, mode=MODE)
    names = [type(node.op).__name__ for node in f.maker.fgraph.toposort()]
    assert "Pool" in names
    assert "SizedPool" not in names
    assert f(IMAGES).shape == (2, 2, 2)
    vector = pt.constant(np.array([2, 3]))
    assert not any(
        var.owner and isinstance(var.owner.op, SizedPool)
        for var in ancestors([synk.nn.pool_2d(x, vector)])
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (([0, 2], [1, 1], [0, 0]), "ws must be at least 1, got \\(0, 2\\)"),
        (([2, 2], [1, 0], [0, 0]), "stride must be at least 1, got \\(1, 0\\)"),
        (([2, 2], [1, 1], [0, 2]), "less than ws, got \\(0, 2\\) and \\(2, 2\\)"),
    ],
)
def test_values_that_make_no_sense_are_refused_when_they_come(values, message):
    x = pt.tensor3("x")
    sizes = [pt.lvector() for _ in values]
    pooled = synk.nn.pool_2d(x, sizes[0], stride=sizes[1], pad=sizes[2])
    f = pytensor.function([x, *sizes], pooled, mode=MODE)
    with pytest.raises(ValueError, match=message):
        f(IMAGES, *map(np.array, values))


@pytest.mark.parametrize(
    ("ws", "error", "message"),
    [
        (pt.vector(), TypeError, "ws must be ints"),
        ((2, pt.dscalar()), TypeError, "ws must be ints"),
        (pt.lmatrix(), ValueError, "ws must be one int or 2"),
        ((2, pt.lscalar(), 2), ValueError, "ws must be one int or 2"),
    ],
)
def test_variables_that_are_no_sizes_are_refused_at_once(ws, error, message):
    with pytest.raises(error, match=message):
        synk.nn.pool_2d(pt.tensor4(), ws)


def pyramid(x):
    """Return the largest of 4, 9 parts of images, of whatever size they are."""
    found = []
    for parts in 2, 3:
        window = tuple((n + parts - 1) // parts for n in x.shape[2:])
        stride = tuple(n // parts for n in x.shape[2:])
        found.append(synk.nn.pool_2d(x, window, stride=stride).flatten(3))
    return pt.concatenate(found, axis=2)


def test_ranks_give_the_serial_numbers(two_ranks):
    x = pt.tensor4("x")
    w = pytensor.shared(np.random.default_rng(1).normal(size=(13, 3)))
    loss = pt.sqr(pyramid(x) @ w).mean()
    outputs = [pyramid(x), loss, *synk.grad(loss, [w, x])[:1]]
    f = synk.function([x], outputs, mode=PY, strict=True)
    assert f.output_modes == ["gather", "avg", None]
    plain = pytensor.function([x], outputs, mode=PY)
    for shape in (5, 2, 6, 7), (1, 2, 9, 4):
        images = np.random.default_rng(2).normal(size=shape)
        for got, expected in zip(f(images), plain(images), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(lambda x: x.shape[0], id="a number of rows"),
        pytest.param(lambda x: pt.cast(x.sum(), "int64"), id="a sum over rows"),
    ],
)
def test_sizes_that_differ_between_parts_of_the_rows_are_those_of_all(size):
    x = pt.tensor4("x")
    pooled = synk.nn.pool_2d(x, size(x))
    with pytest.raises(synk.SplitError):
        synk.function([x], pooled, strict=True, local=True)
    images = np.zeros((3, 1, 7, 6))
    images[:, 0, 1, 2] = 1  # three rows, and a sum of three
    images[0, 0, 4, 4] = -1
    images[2, 0, 0, 0] = 1
    with synk.session(2):
        got = synk.function([x], pooled, mode=PY)(images)
    expected = pytensor.function([x], pooled, mode=PY)(images)
    np.testing.assert_array_equal(got, expected)
    assert got.shape == (3, 1, 2, 2)


JAX = """
import numpy as np, pytensor, pytensor.tensor as pt
import synk
from test_nn_sized_pool import pyramid

x, w = pt.tensor4("x"), pytensor.shared(0.7, "w")
window = tuple((n + 1) // 2 for n in x.shape[2:])
halves = synk.nn.pool_2d(x * w, window, stride=1)
with synk.session(2):
    for pooled, pad in (pyramid(x * w), False), (halves, True):
        loss = pt.sqr(pooled).mean()
        outputs = [loss, synk.grad(loss, w)]
        f = synk.function([x], outputs, mode="JAX", pad=pad)
        plain = pytensor.function([x], outputs, mode="FAST_COMPILE")
        for n in 6, 5:
            images = np.random.default_rng(n).normal(size=(n, 2, 6, 7))
            np.testing.assert_allclose(f(images), plain(images), rtol=1e-9)
window = pt.lvector()
f = pytensor.function([x, window], synk.nn.pool_2d(x, window), mode="JAX")
try:
    f(images, np.array([2, 2]))
except NotImplementedError as error:
    assert "JAX needs the windows, strides and padding of pooling" in str(error), error
    print("as in the others")
"""


@pytest.mark.slow
def test_jax_mode_takes_what_follows_from_shapes():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    done = subprocess.run(
        [sys.executable, "-c", JAX],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "as in the others", done.stderr[-4000:]
