"""``check="finite"``: what it names, and that the call is undone."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY
from world_sizes import one_and_three_ranks

import synk
from synk.call.finite import FiniteCheck, _first_row
from synk.ranks.session import SESSION


def rows_with(value: float, *places: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(23, 3)) ** 2 + 0.5
    rows[list(places), 1] = value
    return rows


@pytest.fixture
def x():
    return pt.matrix("x", dtype="float64")


def owner(row: int, size: int, total: int = 23) -> int:
    """Return whose a row is: parts differ by one row, and the first are larger."""
    sizes = [total // size + (rank < total % size) for rank in range(size)]
    return int(np.searchsorted(np.cumsum(sizes), row, "right"))


@one_and_three_ranks
@pytest.mark.parametrize("row", [0, 1, 12, 22])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_row_and_its_rank_are_named(ranks, row, bad, x):
    f = synk.function([x], [x.sum(), x.mean(axis=0), x.max()], name="f", mode=PY)
    f(rows_with(1.0), check="finite")
    with pytest.raises(synk.NotFinite) as caught:
        f(rows_with(bad, row, 22), check="finite")
    text = str(caught.value)
    assert isinstance(caught.value, FloatingPointError)
    assert text.startswith("<synk.Function f(x)>: not finite: output 0 ")
    assert f"; row {row} of the call is the first with which it is so" in text
    assert text.endswith(f"one of rank {owner(row, ranks)}'s")


@one_and_three_ranks
def test_a_step_that_gives_nan_is_undone(ranks, x):
    w = pytensor.shared(np.ones(3), "w")
    loss = pt.log(x @ w).mean()
    step = synk.function([x], loss, updates=synk.updates.sgd(loss, [w], 0.1), mode=PY)
    step(rows_with(1.0), check="finite")
    before = w.get_value()
    with pytest.raises(synk.NotFinite, match=r"the new value of w; row 7 of the call"):
        step(rows_with(np.nan, 7, 9), check="finite", batch=slice(0, 20))
    for rank in range(ranks):
        np.testing.assert_array_equal(synk.get_value(rank, w), before)
    step(rows_with(1.0), check="finite")
    assert not np.array_equal(w.get_value(), before)


@one_and_three_ranks
def test_rows_are_those_of_the_batch(ranks, x):
    f = synk.function([x], x.sum(axis=1), mode=PY)
    rows = rows_with(np.nan, 4)
    for batch in (np.array([20, 3, 4, 1, 4]), np.arange(23) > 1):
        with pytest.raises(synk.NotFinite, match="row 2 of the call is"):
            f(rows, batch=batch, check="finite")
    f(rows, batch=np.array([20, 3]), check="finite")
    with pytest.raises(synk.NotFinite, match="row 4 of the call"):
        f(rows, check="finite", num_slices=2)


@one_and_three_ranks
def test_what_no_row_makes_so_is_told_apart(ranks, x):
    w = pytensor.shared(np.array([1.0, np.nan, 1.0]), "w")
    f = synk.function([x], (x @ w).sum(), mode=PY)
    with pytest.raises(synk.NotFinite, match="no single row makes it so"):
        f(rows_with(1.0), check="finite")


def test_a_variable_of_one_rank_is_named_with_the_rank(x):
    kept = pytensor.shared(np.zeros(3), "kept")
    f = synk.function([x], updates={kept: x.sum(axis=0)}, local=True, mode=PY)
    with synk.session(3):
        with pytest.raises(synk.NotFinite, match="value of kept on rank 1; row 10"):
            f(rows_with(np.nan, 10), check="finite")
        for rank in range(3):
            assert not synk.get_value(rank, kept).any()


def test_integers_are_finite_and_random_draws_have_no_row(x):
    stream = pt.random.utils.RandomStream(1)
    noisy = synk.function([x], (x + stream.normal(size=x.shape)).sum(axis=1), mode=PY)
    count = synk.function([x], (x > 0).sum(), mode=PY)
    with synk.session(2):
        assert count(rows_with(np.nan, 3), check="finite") == 23 * 3 - 1
        with pytest.raises(synk.NotFinite, match=r"not finite: output[^;]*$"):
            noisy(rows_with(np.nan, 3), check="finite")


def test_a_call_without_a_check_looks_at_nothing(x, monkeypatch):
    monkeypatch.setattr(FiniteCheck, "__init__", None)
    f = synk.function([x], x.sum(), mode=PY)
    with synk.session(2):
        before = SESSION.control.command
        assert np.isnan(f(rows_with(np.nan, 3)))
        f(rows_with(1.0))
        command = SESSION.control.command
        f(rows_with(1.0))
        assert SESSION.control.command == command + 1 > before


def test_an_unknown_check_is_refused(x):
    f = synk.function([x], x.sum(), mode=PY)
    with synk.session(2), pytest.raises(ValueError, match="'serial' or 'finite', got"):
        f(rows_with(1.0), check="nan")


@pytest.mark.parametrize("total", [1, 2, 3, 8, 100])
def test_the_row_is_found_in_few_runs(total):
    for row in {0, 1, total // 2, total - 1} & set(range(total)):
        asked = []

        def is_bad(start, stop, row=row, asked=asked):
            asked.append((start, stop))
            return start <= row < stop

        assert _first_row(total, is_bad) == row
        assert len(asked) <= 5 + np.log2(total)
    assert _first_row(total, lambda a, b: False) is None
