"""A length is a value like any other: what is whole and a number are of the same rows.

Wherever an Op takes an array and a number of rows, both are a rank's own or both are of
all rows. Of recurrences over the rows every rank makes all steps: so are the numbers
that the scans of the gradients take, of steps, of states, of results. Ranks are
programs in one process here. The random graphs are few and the same in every run; those
who change a rule look at more of them by ``--hypothesis-profile=long``.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import settings
from in_process import InProcess
from pytensor.gradient import Rop, jacobian
from pytensor.scan.utils import until
from random_lengths import ROWS, Graph, inputs_of, scan
from reference import PY

import synk
from synk import nn

LONG = settings.get_current_profile_name() == "long"
OPTIONS = {"mode": PY, "on_unused_input": "ignore"}

pytestmark = pytest.mark.filterwarnings("ignore::synk.SplitWarning")


@pytest.fixture(autouse=True, scope="module")
def in_python():
    """Have scans, and Ops that are graphs, run in Python."""
    with pytensor.config.change_flags(mode="FAST_COMPILE", linker="py", cxx=""):
        yield


def assert_serial(inputs, graph, *calls, counts=(1, 2, 3)):
    """Compare a function with PyTensor's."""
    ranks = InProcess(synk.function(inputs, list(graph), **OPTIONS))
    plain = pytensor.function(inputs, list(graph), **OPTIONS)
    for values, n in itertools.product(calls, counts):
        triples = zip(graph, ranks(n, *values).outputs, plain(*values), strict=True)
        for var, got, expected in triples:
            where = f"{var}, {len(values[0])} rows of {n} ranks"
            np.testing.assert_allclose(got, expected, 1e-9, 1e-12, err_msg=where)


def recurrences(x, w):
    """Yield gradients and values that go through steps from row to row."""
    a, zero = x @ w, pt.as_tensor(np.float64(0))
    mean = a.mean()

    def states(**options):
        return scan(lambda a, h: pt.tanh(a + 0.5 * h), [a], [zero], **options)

    def slope(h, wrt=w):
        return pt.grad((h**2).mean(), wrt)

    yield slope(states(go_backwards=True))
    yield slope(states(truncate_gradient=3))
    yield pt.grad((slope(states()) ** 2).sum(), w)
    yield jacobian(states(), w)
    taps = {"initial": pt.zeros(2), "taps": [-2, -1]}
    yield slope(scan(lambda a, g, h: pt.tanh(a + 0.5 * h - 0.2 * g), [a], [taps]))
    taps = {"input": a, "taps": [-1, 0]}
    yield slope(scan(lambda b, a, h: pt.tanh(a - 0.3 * b + 0.5 * h), [taps], [zero]))
    by_mean = {"non_sequences": [mean]}
    yield slope(scan(lambda a, h, m: pt.tanh(a * m + 0.5 * h), [a], [zero], **by_mean))
    yield slope(scan(lambda a, h: pt.tanh(a + 0.5 * h), [a], [mean]))
    by_mean["n_steps"] = x.shape[0]  # no rows but their number
    h = scan(lambda h, m: pt.tanh(m + 0.5 * h), [], [zero], **by_mean)
    yield from [h, *slope(h, [w, x])]
    vectors = {"non_sequences": [w], "strict": True}
    h = scan(lambda a, h, w: pt.tanh(a * w + 0.5 * h), [x], [pt.zeros(3)], **vectors)
    yield from [h.sum(axis=0), slope(h)]
    h, out = scan(lambda a, h: (pt.tanh(a + 0.5 * h), a * h), [a], [zero, None])
    yield pt.grad((h * out).mean(), w)
    yield from [Rop(states(), w, pt.ones_like(w)), Rop((states() ** 2).mean(), w, w)]
    h = states()
    yield from [h[::-1], pt.grad(((h - a) ** 2).mean() / x.shape[0], w)]
    h = scan(lambda v: (v * v, until(v > 0.5)), [a], [None])
    yield from [h, h.sum(), *pt.grad(h.sum(), [w, x])]


def test_what_goes_through_a_recurrence_is_as_in_the_serial_run():
    x, w = pt.matrix("x"), pytensor.shared(np.array([0.3, -0.2, 0.5]), "w")
    rng = np.random.default_rng(8)
    calls = [[rng.normal(size=(n, 3))] for n in (8, 5, 2, 1)]
    assert_serial([x], list(recurrences(x, w)), *calls, counts=(2, 3))


@pytest.mark.parametrize("seed", range(300 if LONG else 8))
def test_lengths_are_of_the_same_rows_as_what_they_meet(seed):
    graph = Graph(seed)
    graph.grow(8)
    made = graph.made
    f = synk.function(graph.inputs, [term.var for term in made], **OPTIONS)
    ranks = InProcess(f)
    for (i, rows), n in itertools.product(enumerate(ROWS), (1, 2, 3)):
        with np.errstate(all="ignore"):
            found = ranks(n, *inputs_of(rows)).outputs
        for term, got in zip(made, found, strict=True):
            expected, where = term.values[i], f"{(rows, n, term.var)}"
            scale = 1e-9 * np.abs(expected).max(initial=1)
            np.testing.assert_allclose(got, expected, 1e-9, scale, True, where)


def test_arrays_whose_length_the_values_of_all_rows_decide():
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
