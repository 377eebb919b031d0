"""A length is a value like any other: what is whole and a number are of the same rows.

Wherever an Op takes an array and a number of rows, both are a rank's own or both are of
all rows. Of recurrences over the rows every rank makes all steps: so are the numbers
that the scans of the gradients take, of steps, of states, of results. Ranks are
programs in one process here. The random graphs are few and the same in every run; those
who change a rule look at more of them by ``--hypothesis-profile=long``.
"""

from __future__ import annotations

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
    for values in calls:
        right = plain(*values)
        for n in counts:
            for i, (got, expected) in enumerate(
                zip(ranks(n, *values).outputs, right, strict=True)
            ):
                where = f"{graph[i]}, {len(values[0])} rows of {n} ranks"
                np.testing.assert_allclose(got, expected, 1e-9, 1e-12, err_msg=where)


# -- recurrences -----------------------------------------------------------------------


def zero():
    return pt.as_tensor(np.float64(0))


def states(x, w, **options):
    return scan(lambda a, h: pt.tanh(a + 0.5 * h), [x @ w], [zero()], **options)


def of_mean_square(x, w):
    return pt.grad((states(x, w) ** 2).mean(), [w, x])


def of_last_state(x, w):
    last = states(x, w)[-1]
    return [last, *pt.grad(last, [w, x])]


def backwards(x, w):
    return pt.grad((states(x, w, go_backwards=True) ** 2).sum(), w)


def truncated(x, w):
    return pt.grad((states(x, w, truncate_gradient=3) ** 2).mean(), w)


def second_derivatives(x, w):
    gradient = pt.grad((states(x, w) ** 2).mean(), w)
    return pt.grad((gradient**2).sum(), w)


def jacobians(x, w):
    return jacobian(states(x, w), w)


def taps(x, w):
    initial = {"initial": pt.zeros(2), "taps": [-2, -1]}
    h = scan(lambda a, h2, h1: pt.tanh(a + 0.5 * h1 - 0.2 * h2), [x @ w], [initial])
    return pt.grad((h**2).mean(), w)


def taps_of_rows(x, w):
    rows = {"input": x @ w, "taps": [-1, 0]}
    h = scan(lambda b, a, h: pt.tanh(a - 0.3 * b + 0.5 * h), [rows], [zero()])
    return pt.grad((h**2).mean(), w)


def a_mean_in_each_step(x, w):
    mean = (x @ w).mean()
    h = scan(
        lambda a, h, mean: pt.tanh(a * mean + 0.5 * h),
        *([x @ w], [zero()]),
        non_sequences=[mean],
    )
    return pt.grad((h**2).mean(), w)


def a_mean_at_first(x, w):
    h = scan(lambda a, h: pt.tanh(a + 0.5 * h), [x @ w], [(x @ w).mean()])
    return pt.grad((h**2).mean(), w)


def no_rows_but_their_number(x, w):
    h = scan(
        lambda h, mean: pt.tanh(mean + 0.5 * h),
        *([], [zero()]),
        non_sequences=[(x @ w).mean()],
        n_steps=x.shape[0],
    )
    return [h, *pt.grad((h**2).mean(), [w, x])]


def vectors(x, w):
    h = scan(
        lambda a, h, w: pt.tanh(a * w + 0.5 * h),
        *([x], [pt.zeros(3)]),
        non_sequences=[w],
        strict=True,
    )
    return [h.sum(axis=0), pt.grad((h**2).mean(), w)]


def states_and_results(x, w):
    h, out = scan(lambda a, h: (pt.tanh(a + 0.5 * h), a * h), [x @ w], [zero(), None])
    return pt.grad((h * out).mean(), w)


def the_forward_form(x, w):
    h = states(x, w)
    return [Rop(h, w, pt.ones_like(w)), Rop((h**2).mean(), w, w)]


def states_beside_rows(x, w):
    h = states(x, w)
    return [h[::-1], pt.grad(((h - x @ w) ** 2).mean() / x.shape[0], w)]


def until_a_row(x, w):
    h = scan(lambda v: (v * v, until(v > 0.5)), [x @ w], [None])
    return [h, h.sum(), *pt.grad(h.sum(), [w, x])]


CASES = [
    *(of_mean_square, of_last_state, backwards, truncated, taps, taps_of_rows),
    *(second_derivatives, jacobians, vectors, states_and_results),
    *(a_mean_in_each_step, a_mean_at_first, no_rows_but_their_number),
    *(the_forward_form, states_beside_rows, until_a_row),
]


def test_what_goes_through_a_recurrence_is_as_in_the_serial_run():
    x, w = pt.matrix("x"), pytensor.shared(np.array([0.3, -0.2, 0.5]), "w")
    graph = []
    for case in CASES:
        made = case(x, w)
        graph += made if isinstance(made, list) else [made]
    rng = np.random.default_rng(8)
    assert_serial([x], graph, *([rng.normal(size=(n, 3))] for n in (8, 5, 2, 1)))


def test_rows_after_the_last_step_have_no_gradient():
    y = pt.vector("y")
    squares = scan(lambda v: (v * v, until(v > 5)), [y], [None])
    ranks = InProcess(synk.function([y], pt.grad(squares.sum(), y), mode=PY))
    for n in (1, 2, 3):
        (found,) = ranks(n, np.arange(8.0)).outputs
        np.testing.assert_array_equal(found, [0, 2, 4, 6, 8, 10, 12, 0])


# -- lengths ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300 if LONG else 8))
def test_lengths_are_of_the_same_rows_as_what_they_meet(seed):
    graph = Graph(seed)
    graph.grow(8)
    made = graph.made
    f = synk.function(graph.inputs, [term.var for term in made], **OPTIONS)
    ranks = InProcess(f)
    with np.errstate(all="ignore"):
        for i, rows in enumerate(ROWS):
            for n in (1, 2, 3):
                for term, got in zip(
                    made, ranks(n, *inputs_of(rows)).outputs, strict=True
                ):
                    expected, where = term.values[i], (rows, n, term.var)
                    scale = 1e-9 * np.abs(expected).max(initial=1)
                    np.testing.assert_allclose(
                        got, expected, 1e-9, scale, True, str(where)
                    )


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
