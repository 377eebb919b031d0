"""Sizes of what another part computes, from the shapes of inputs."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from reference import PY

import synk
from synk.compiler.sizes import sizes_from_inputs


def test_sizes_follow_from_the_shapes_of_inputs():
    x, w = pt.tensor4("x"), pytensor.shared(np.zeros((5, 3, 2, 2)))
    hidden = synk.nn.pool_2d(synk.nn.conv2d(x, w, border_mode="half"), (2, 2))
    reduced = synk.ops.all_reduce(hidden.mean(axis=0))
    both = pt.concatenate([hidden.flatten(2), reduced.flatten(1)[None]], axis=0)
    sizes = [
        hidden.shape,
        hidden.shape[2:].prod(),
        pt.stack([x.shape[0] * hidden.shape[2], pt.constant(-1)]),
        both.shape[0] + 1,
        pt.constant(3) + 4,
        reduced.shape[1],
        pt.scalar_from_tensor(hidden.shape[0]),  # as scans take them
    ]
    found = sizes_from_inputs(sizes)
    assert list(found) == sizes
    images = np.ones((4, 3, 6, 8))
    # What is computed of the values is not needed any more.
    plain = pytensor.function([x], sizes, mode=PY)
    alone = pytensor.function([x], list(found.values()), mode=PY)
    ops = {type(node.op).__name__ for node in alone.maker.fgraph.apply_nodes}
    assert not ops & {"Conv", "Pool", "AllReduce"}
    for size, expected in zip(alone(images), plain(images), strict=True):
        np.testing.assert_array_equal(size, expected)


def test_what_values_enter_is_no_size():
    x, n = pt.vector("x"), pt.lscalar("n")
    kept = x[x > 0]
    values = [n + x.shape[0], x.argmax(), x * 2, kept.shape[0], pt.arange(n).shape[0]]
    assert sizes_from_inputs(values) == {}


def test_the_rows_of_all_ranks_are_no_size():
    x = pt.matrix("x")
    rows = synk.ops.all_reduce(x.shape[0], "sum")
    assert sizes_from_inputs([rows, rows * x.shape[1], pt.ones((rows,)).shape]) == {}


def test_deep_graphs_are_no_problem():
    x = pt.matrix("x")
    y = x
    for _ in range(3000):
        y = y + 1
    (size,) = sizes_from_inputs([y.shape]).values()
    f = pytensor.function([x], size, mode=PY)
    np.testing.assert_array_equal(f(np.zeros((3, 2))), [3, 2])
