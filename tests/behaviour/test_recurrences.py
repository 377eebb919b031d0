"""Recurrences over the rows, where rows are time: their gradients are the serial ones.

Every rank makes all steps, from all rows. Each of the numbers that the scans of the
gradients take must be of all rows then: of steps, of states, of results.
"""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import Rop, jacobian
from pytensor.scan.utils import until
from reference import PY

import synk

ROWS = 8, 5, 2, 1
HAS_FLAG = "return_updates" in inspect.signature(pytensor.scan).parameters


def scan(step, sequences, initial, **options):
    """Scan with one kind of result in all versions of PyTensor."""
    if HAS_FLAG:
        return pytensor.scan(step, sequences, initial, return_updates=False, **options)
    return pytensor.scan(step, sequences, initial, **options)[0]


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


@functools.cache
def functions(mode=PY):
    """Return synk's function of all cases, PyTensor's, and their outputs' names."""
    x, w = pt.matrix("x"), pytensor.shared(np.array([0.3, -0.2, 0.5]), "w")
    graph, names = [], []
    for case in CASES if mode is PY else [of_mean_square]:
        made = case(x, w)
        made = made if isinstance(made, list) else [made]
        graph += made
        names += [case.__name__] * len(made)
    f = synk.function([x], graph, mode=mode)
    return f, pytensor.function([x], graph, mode=PY), names


def assert_as_in_the_serial_run(rows, mode=PY, **options):
    f, plain, names = functions(mode)
    x = np.random.default_rng(rows).normal(size=(rows, 3))
    for name, one, other in zip(names, f(x, **options), plain(x), strict=True):
        where = f"{name} of {rows} rows, {options}"
        np.testing.assert_allclose(one, other, 1e-9, 1e-12, err_msg=where)


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_goes_through_a_recurrence_is_as_in_the_serial_run(size, scans_in_python):
    with synk.session(size):
        for rows in ROWS:
            assert_as_in_the_serial_run(rows)
        assert_as_in_the_serial_run(8, num_slices=2)


def until_above(rows):
    """Square rows until one is above five; the gradient of their sum."""
    h = scan(lambda v: (v * v, until(v > 5)), [rows], [None])
    return pt.grad(h.sum(), rows)


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_after_the_last_step_have_no_gradient(size, scans_in_python):
    y = pt.vector("y")
    f = synk.function([y], until_above(y), mode=PY)
    with synk.session(size):
        np.testing.assert_array_equal(f(np.arange(8.0)), [0, 2, 4, 6, 8, 10, 12, 0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_compiled_code_gets_numbers_of_the_same_rows():
    with synk.session(2):
        for rows in ROWS:
            assert_as_in_the_serial_run(rows, "NUMBA")
