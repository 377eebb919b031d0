"""A length is a value like any other: what is whole and a number are of the same rows.

Wherever an Op takes an array and a number of rows, both are a rank's own or both are of
all rows. The graphs are few and the same in every run; those who change a rule look at
more of them by ``--hypothesis-profile=long``.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from hypothesis import settings
from random_lengths import ROWS, Graph, inputs_of
from reference import PY

import synk
from synk import nn
from synk.compiler.rules import reshape
from synk.nn import rows

LONG = settings.get_current_profile_name() == "long"
SEEDS = range(300 if LONG else 12)

pytestmark = pytest.mark.filterwarnings("ignore::synk.SplitWarning")


@functools.cache
def of_seed(seed):
    graph = Graph(seed)
    graph.grow(8)
    made = [term.var for term in graph.made]
    f = synk.function(graph.inputs, made, mode=PY, on_unused_input="ignore")
    return f, graph.made


@pytest.mark.parametrize("size", [1, 2, 3])
def test_lengths_are_of_the_same_rows_as_what_they_meet(size, scans_in_python):
    with synk.session(size), np.errstate(all="ignore"):
        for seed in SEEDS:
            f, terms = of_seed(seed)
            for i, n in enumerate(ROWS):
                for j, got in enumerate(f(*inputs_of(n))):
                    expected, where = terms[j].values[i], (seed, n, terms[j].var)
                    scale = 1e-9 * np.abs(expected).max(initial=1)
                    np.testing.assert_allclose(got, expected, 1e-9, scale, str(where))


def assert_serial(inputs, graph, *calls):
    """Compare a function with PyTensor's, on 2 and 3 ranks."""
    f = synk.function(inputs, graph, mode=PY, on_unused_input="ignore")
    plain = pytensor.function(inputs, graph, mode=PY, on_unused_input="ignore")
    for size in (2, 3):
        with synk.session(size):
            for values in calls:
                got = f(*values)
                for i, (one, other) in enumerate(zip(got, plain(*values), strict=True)):
                    where = f"output {i} of {len(values[0])} rows"
                    np.testing.assert_allclose(one, other, 1e-9, 1e-12, err_msg=where)


def test_arrays_whose_length_the_values_of_all_rows_decide(scans_in_python):
    x, y, k = pt.matrix("x"), pt.vector("y"), pt.lvector("k")
    many = pt.alloc(y, (y > y.mean()).sum(), y.shape[0])
    above = x[y > y.mean()]
    graph = [
        many.shape[0] * many,
        pt.inc_subtensor(pt.zeros((9, y.shape[0]))[: many.shape[0]], many),
        pt.zeros((9, 2))[: above.shape[0]],
        above.shape[0] + pt.arange(y.shape[0]),
        pt.inc_subtensor(pt.zeros((y.shape[0], x[k].shape[1]))[k], x[k]),
        pt.specify_shape(pt.sort(y), y.shape[0]),
        pt.specify_shape(y[k], x.shape[0]),
    ]
    assert_serial([x, y, k], graph, *map(inputs_of, (9, 4, 2)))


def test_gradients_of_images_that_are_needed_at_once():
    images = pt.tensor4("images")
    filters = pytensor.shared(np.random.default_rng(0).normal(size=(3, 2, 2, 2)))
    modes = "max", "sum", "average_exc_pad", "average_inc_pad"
    made = [nn.pool_2d(images, (2, 2), mode=mode) for mode in modes]
    made.append(nn.conv2d(images, filters))
    graph = [pt.grad((pt.cumsum(h, axis=0) ** 2).sum(), images) for h in made]
    values = np.random.default_rng(1).normal(size=(5, 2, 4, 4))
    assert_serial([images], graph, [values], [values[:4]])


BLIND = {
    "of images": (rows, "_check_as_many", lambda images: None),
    "of a given shape": (reshape, "_is_as_long", lambda value, axis, length: True),
}


@pytest.mark.parametrize("what", BLIND)
def test_a_rule_that_does_not_look_at_a_length_is_found_out(monkeypatch, what):
    monkeypatch.setattr(*BLIND[what])
    images = pt.tensor4("images")
    h = nn.pool_2d(images, (2, 2), mode="sum")
    graph = [
        pt.grad((pt.cumsum(h, axis=0) ** 2).sum(), images),
        pt.specify_shape(pt.cumsum(h, axis=0), [images.shape[0], None, None, None]),
    ]
    assert_serial([images], graph, [np.random.default_rng(1).normal(size=(5, 2, 4, 4))])


def groups():
    """Return rows, and reshapes of theirs that merge or split them."""
    x, w = pt.matrix("x"), pytensor.shared(np.random.default_rng(1).normal(size=(3, 2)))
    h = pt.tanh(x @ w)
    return x, [
        h.reshape((-1, 2, 2)),
        x.reshape((-1, 2)),
        x.reshape((-1, 3, 2)).mean(axis=1),
        x.reshape((-1, 3)).reshape((-1, 2)),
        x.flatten().reshape((-1, 6)),
        pt.repeat(x[:, 0], 3).reshape((-1, 2)).sum(axis=0),
        x.reshape((x.shape[0] // 2, 2, 3)),
        pt.grad((h.reshape((-1, 2, 2)) ** 2).mean(), w),
    ]


def test_reshapes_that_merge_rows_in_groups():
    x, graph = groups()
    rng = np.random.default_rng(0)
    assert_serial([x], graph, *([rng.normal(size=(n, 3))] for n in (10, 8, 12, 6, 2)))


def test_rows_that_fill_groups_stay_where_they_are():
    x, w = pt.matrix("x"), pytensor.shared(np.ones((3, 4)), "w")
    f = synk.function([x], pt.tanh(x @ w).reshape((-1, 2, 2)), mode=PY)
    assert f.output_modes == ["gather"]
    given = np.random.default_rng(0).normal(size=(8, 3))
    with synk.session(3):
        for columns in (4, 2, 4, 3):  # of two and three, rows make a group together
            w.set_value(np.ones((3, columns)))
            expected = np.tanh(given @ np.ones((3, columns))).reshape(-1, 2, 2)
            np.testing.assert_allclose(f(given), expected)


def test_groups_in_slices_and_in_runs():
    x, graph = groups()
    f, plain = (
        synk.function([x], graph, mode=PY),
        pytensor.function([x], graph, mode=PY),
    )
    given = np.random.default_rng(0).normal(size=(20, 3))
    with synk.session(2):
        for got, other in zip(f(given, num_slices=3), plain(given), strict=True):
            np.testing.assert_allclose(got, other)
        both = f.run([slice(0, 10), slice(10, 20)], given)
        for i in range(2):
            expected = plain(given[10 * i : 10 * i + 10])
            for got, other in zip(both, expected, strict=True):
                np.testing.assert_allclose(got[i], other)


@pytest.mark.slow
@in_a_child
def test_groups_in_calls_that_jax_pads():
    x, graph = groups()
    f = synk.function([x], graph, mode="JAX", pad=True)
    plain = pytensor.function([x], graph, mode=PY)
    given = np.random.default_rng(0).normal(size=(12, 3))
    with synk.session(2), warnings.catch_warnings(action="ignore"):
        for n in (12, 10, 8):
            for got, expected in zip(f(given[:n]), plain(given[:n]), strict=True):
                np.testing.assert_allclose(got, expected, 1e-9, 1e-12)
