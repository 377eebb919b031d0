"""Calls that rank 0 makes alone, where ranks take longer to meet than to compute."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from reference import PY
from test_interrupt_lines import InterruptedAt

import synk
from synk.call import engines
from synk.choice import trial
from synk.choice.engines_here import may_be_alone
from synk.choice.trial import Trial
from synk.ranks.session import SESSION

x, y = pt.dmatrix("x"), pt.dvector("y")
VALUES = np.arange(24.0).reshape(8, 3) % 5, np.arange(8.0)


class AloneAlways(Trial):
    """A trial whose end is that rank 0 makes the calls alone."""

    is_over = True

    def __init__(self, candidates, *more):
        super().__init__(candidates, *more)
        self.best = next((each for each in candidates if each.after), candidates[0])


@pytest.fixture
def chosen(two_engines, monkeypatch):
    """Let rank 0 make calls alone where that gives the same."""
    monkeypatch.setattr(engines, "may_be_alone", may_be_alone)
    names = {None: ["A", "B"]}
    monkeypatch.setattr(engines, "engines_for", lambda spec: names.get(spec.mode, []))


@pytest.fixture
def alone(chosen, monkeypatch):
    """Have it make them alone always."""
    monkeypatch.setattr(engines, "Trial", AloneAlways)


def made_alone(f) -> bool:
    return f._alone.was_last


def trained():
    """Return a training step, its variables, and a function on all ranks."""
    w, calls = pytensor.shared(np.zeros(3), "w"), pytensor.shared(np.int64(0), "calls")
    loss = ((x @ w - y) ** 2).mean()
    updates = [(w, w - 0.01 * pytensor.grad(loss, w)), (calls, calls + 1)]
    step = synk.function([x, y], loss, updates=updates)
    return step, w, calls, synk.function([x, y], loss, mode=PY)


def serial(steps: int, w=(0.0, 0.0, 0.0)) -> tuple[list[float], np.ndarray]:
    losses, w, (values, targets) = [], np.array(w), VALUES
    for _ in range(steps):
        rest = values @ w - targets
        losses.append((rest**2).mean())
        w = w - 0.02 * values.T @ rest / len(rest)
    return losses, w


# -- where it gives the same


class Add(Op):
    """An Op that notes which cores it may use, and raises errors when asked to."""

    cores: set | None = None
    raises: type[BaseException] | None = None

    def make_node(self, var):
        return Apply(self, [var], [var.type()])

    def perform(self, node, inputs, outputs):
        Add.cores = os.sched_getaffinity(0)
        if Add.raises is not None:
            raise Add.raises
        outputs[0][0] = inputs[0] + 1


@pytest.fixture(autouse=True)
def calm():
    yield
    Add.cores = Add.raises = None


ROWS, LOSS = x.sum(axis=1), (x.sum(axis=1) * y).mean()
SAME = {
    "a mean": LOSS,
    "rows": ROWS * 2,
    "a largest": (x.max(axis=0), "max"),
    "a constant": pt.constant(3.0),
    "all rows together": pt.sort(y),
}
OTHERS = {
    "a mean of largest": (x.max(axis=0), "avg"),
    "of rank 0": (x.sum(), None),
    "reduced by the script": synk.ops.all_reduce(x.sum(axis=0), "avg"),
    "of one rank": synk.ops.local(x).sum(),
}


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("what", SAME)
def test_what_is_the_serial_run_may_be_made_alone(what):
    assert may_be_alone(
        synk.function([x, y], SAME[what], on_unused_input="ignore")._spec
    )


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("what", OTHERS)
def test_what_is_of_several_ranks_is_not(what):
    f = synk.function([x, y], OTHERS[what], on_unused_input="ignore")
    assert not may_be_alone(f._spec)


def test_a_local_function_is_of_several_ranks():
    s = pytensor.shared(np.zeros(3), "s")
    f = synk.function([x], updates=[(s, s + x.sum(axis=0))], local=True)
    assert not may_be_alone(f._spec)


# -- what it makes


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_have_what_was_made_alone_when_they_need_it(alone, n):
    step, w, calls, loss = trained()
    losses, right = serial(6)
    with synk.session(n):
        for k in range(3):
            np.testing.assert_allclose(step(*VALUES), losses[k], rtol=1e-12)
            assert made_alone(step)
        np.testing.assert_allclose(loss(*VALUES), losses[3], rtol=1e-12)
        for rank in range(n):
            assert synk.get_value(rank, calls) == 3
        made = step.run([slice(0, 8)] * 3, *VALUES)
        np.testing.assert_allclose(made, losses[3:], rtol=1e-12)
        for rank in range(n):
            np.testing.assert_allclose(synk.get_value(rank, w), right, rtol=1e-12)
        w.set_value(np.ones(3))
        np.testing.assert_allclose(step(*VALUES), serial(1, np.ones(3))[0][0])
        assert made_alone(step)


def test_outputs_are_those_of_all_rows(alone, two_ranks):
    outputs = [LOSS, ROWS * 2, x.max(axis=0), pt.constant(3.0)]
    f = synk.function([x, y], outputs)
    g = synk.function([x, y], outputs, mode=PY)
    for batch in (None, 5, slice(6, 1, -2), np.array([3, 3, 0]), slice(0, 1)):
        mine, theirs = f(*VALUES, batch=batch), g(*VALUES, batch=batch)
        assert made_alone(f)
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
    data = synk.data(VALUES[0]), synk.data(VALUES[1])
    np.testing.assert_allclose(f(*data)[1], VALUES[0].sum(axis=1) * 2)


def test_calls_of_data_are_prepared_and_see_what_changes(alone, two_ranks):
    w, b = pytensor.shared(np.zeros(3), "w"), pt.dvector("b")
    f = synk.function([x, y], (x @ w - y).sum() + b.sum(), [b], updates=[(w, w + 1)])
    one, two = synk.data(VALUES[0]), synk.data(VALUES[1])
    right_w = np.zeros(3)

    def check(first=one, second=two, added=(0.5,), batch=None, prepared=True):
        nonlocal right_w
        assert (f._again is not None and f._again.is_of((first, second, 0), batch)) == (
            prepared
        )
        rows = slice(None) if batch is None else batch
        rows = slice(rows) if isinstance(rows, int) else rows
        right = np.array(first)[rows] @ right_w - np.array(second)[rows]
        found = f(first, second, np.array(added), batch=batch)
        np.testing.assert_allclose(found, right.sum() + sum(added), rtol=1e-12)
        assert made_alone(f)
        right_w = right_w + 1
        np.testing.assert_array_equal(w.get_value(), right_w)

    check(prepared=False)
    check()
    one[2], two[5] = 7.0, -3.0
    check()
    check(added=[1.0, 2.0, 3.0])
    right_w = np.array([1.0, -2.0, 3.0])
    w.set_value(right_w)
    check()
    assert synk.get_value(1, w).tolist() == right_w.tolist()
    check()
    check(batch=5, prepared=False)
    check(batch=5)
    check(batch=slice(3, 7), prepared=False)
    check(batch=slice(3, 7))
    for rows in (slice(0, 4), slice(4, 8), slice(-5, -1), slice(2, 6, 1)):
        check(batch=rows)  # as many
    check(batch=4)
    check(batch=slice(0, 8, 2))
    for rows in (slice(0, 3), slice(7, 9), slice(0, 5, 2)):
        check(batch=rows, prepared=False)  # another number of them
    chosen = np.array([7, 0, 0, 3])
    check(batch=chosen, prepared=False)
    chosen[1] = 5
    check(batch=chosen)
    check(batch=np.arange(8) % 2 == 0)
    check(batch=-np.ones(4, np.int64))
    check(batch=slice(3, 7))
    for rows in (np.array([1, 2, 3, 8]), np.zeros((2, 2), int), slice("a", "b")):
        with pytest.raises((IndexError, ValueError, TypeError)):
            f(one, two, np.zeros(1), batch=rows)
        np.testing.assert_array_equal(w.get_value(), right_w)
        check(batch=slice(3, 7), prepared=False)
    other = synk.data(VALUES[1] * 2)
    check(second=other, batch=slice(3, 7), prepared=False)
    for data, values in ((one, VALUES[0][:6]), (other, VALUES[1][:6])):
        data.set_value(values)
    check(second=other, prepared=False)
    check(second=other)
    other.set_value(VALUES[1][:5])
    with pytest.raises(ValueError, match="different lengths"):
        f(one, other, np.ones(1))
    for args in ((one, other), (one, other, np.ones((1, 1)))):
        with pytest.raises((TypeError, ValueError)):
            f(*args)
    np.testing.assert_array_equal(w.get_value(), right_w)


def test_a_prepared_call_holds_no_memory(alone, two_ranks):
    f = synk.function([y], y.sum())
    data = synk.data(VALUES[1])
    for _ in range(3):
        assert f(data) == 28
    assert f._again is not None
    array = data._held()
    data.free_memory()
    gc.collect()
    assert sys.getrefcount(array) == 2


def test_outputs_belong_to_the_caller(alone, two_ranks):
    w = pytensor.shared(np.ones(3), "w")
    f = synk.function([x], [x, w, w + 1], updates=[(w, w + 1)])
    data = synk.data(VALUES[0])
    for k in range(3):
        for value in f(data):
            value[...] = -1
        assert made_alone(f)
        np.testing.assert_array_equal(w.get_value(), np.full(3, 2 + k))
    np.testing.assert_array_equal(data[:], VALUES[0])


def test_a_function_without_inputs(alone, two_ranks):
    total = pytensor.shared(1.0, "total")
    f = synk.function([], total * 2, updates=[(total, total + 1)])
    assert [float(f()) for _ in range(3)] == [2, 4, 6]
    assert made_alone(f)
    assert f._again is not None
    assert [synk.get_value(rank, total) for rank in range(2)] == [4, 4]


def test_it_has_all_cores_and_gives_them_back(alone):
    f = synk.function([y], Add()(y).sum(), on_unused_input="ignore")
    g = synk.function([y], y.sum(), mode=PY)
    before = os.sched_getaffinity(0)
    with synk.session(2):
        own = os.sched_getaffinity(0)
        assert f(VALUES[1]) == 36
        assert made_alone(f)
        assert Add.cores == before
        g(VALUES[1])
        assert os.sched_getaffinity(0) == own
        f(VALUES[1])
    assert os.sched_getaffinity(0) == before
    assert len(own) <= len(before)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("error", [IndexError, KeyboardInterrupt])
def test_what_fails_changes_nothing(alone, two_ranks, error, is_prepared):
    total, other = pytensor.shared(0.0, "total"), pytensor.shared(1.0, "other")
    updates = [(total, total + y.sum()), (other, other * Add()(total + y.sum()))]
    f = synk.function([y], updates=updates)
    values = synk.data(VALUES[1]) if is_prepared else VALUES[1]
    f(values)
    assert (f._again is not None) == is_prepared
    before = total.get_value(), other.get_value()
    Add.raises = error
    with pytest.raises(error):
        f(values)
    assert made_alone(f)
    assert f._again is None
    for rank in range(2):
        assert (synk.get_value(rank, total), synk.get_value(rank, other)) == before
    Add.raises = None
    f(values)
    assert total.get_value() == 56


@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_interrupt_at_any_line_makes_it_or_leaves_it(alone, two_ranks, is_prepared):
    step, w, calls, loss = trained()
    values = list(map(synk.data, VALUES)) if is_prepared else VALUES
    step(*values)

    def interrupted_at(k: int) -> bool:
        """Interrupt calls at a line; the first is rank 0's, the other of all ranks."""
        w.set_value(np.zeros(3))
        calls.set_value(0)
        assert (step._again is not None) == is_prepared
        with InterruptedAt(k) as trace, contextlib.suppress(KeyboardInterrupt):
            step(*values)
            loss(*VALUES)
        made = int(calls.get_value())
        losses, right = serial(made + 1)
        np.testing.assert_allclose(w.get_value(), serial(made)[1], rtol=1e-12)
        np.testing.assert_allclose(loss(*VALUES), losses[made], rtol=1e-12)
        np.testing.assert_allclose(step(*values), losses[made], rtol=1e-12)
        for rank in range(2):
            found = synk.get_value(rank, w)
            np.testing.assert_allclose(found, right, rtol=1e-12, err_msg=str(trace))
            assert synk.get_value(rank, calls) == made + 1
        return bool(trace.raised_at)

    lines = next(k for k in itertools.count(1) if not interrupted_at(k))
    assert 100 < lines < 1000


def test_calls_of_a_run_before_one_that_fails_stay(alone, two_ranks):
    step, _, calls, _ = trained()
    values = VALUES[0], np.where(VALUES[1] == 7, np.nan, VALUES[1])
    assert len(step.run([slice(0, 4)] * 2, *values)) == 2

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step.run([slice(0, 4)] * 4, *values, progress=stop)
    assert [synk.get_value(rank, calls) for rank in range(2)] == [4, 4]


# -- where it cannot be


def test_what_ranks_hold_for_themselves_is_theirs(alone, two_ranks):
    s = pytensor.shared(np.arange(8.0), "s")
    f = synk.function([y], (y * s).sum())
    assert f(VALUES[1]) == 140
    assert made_alone(f)
    synk.scatter(s, s.get_value())
    assert f(VALUES[1]) == 140
    synk.all_gather(s)
    assert f(VALUES[1]) == 140
    assert made_alone(f)


def test_unusual_calls_are_made_by_all(alone, two_ranks):
    step, _, calls, _ = trained()
    losses, _ = serial(6)
    made = [
        step(*VALUES),
        step(*VALUES, num_slices=2),
        step(*VALUES, check="serial"),
        step(*VALUES, check="finite"),
        step(*VALUES, output_subset=[0])[0],
        step(*VALUES),
    ]
    np.testing.assert_allclose(made, losses, rtol=1e-12)
    assert [synk.get_value(rank, calls) for rank in range(2)] == [6, 6]


def test_the_next_session_begins_anew(alone):
    step, _, _, loss = trained()
    losses, _ = serial(4)
    for k in range(2):
        with synk.session(2 + k):
            np.testing.assert_allclose(step(*VALUES), losses[2 * k], rtol=1e-12)
            np.testing.assert_allclose(step(*VALUES), losses[2 * k + 1], rtol=1e-12)
    np.testing.assert_allclose(loss.as_theano(*VALUES), serial(5)[0][4], rtol=1e-12)


# -- how it is chosen


def test_it_is_chosen_and_remembered(chosen, two_ranks):
    step, *_ = trained()
    losses, _ = serial(1)
    rows = synk.tune(step, *VALUES)
    assert {row.name for row in rows} == {
        *("A", "B", "A, rank 0 alone", "B, rank 0 alone")
    }
    (best,) = [row.name for row in rows if row.is_best]
    assert best.endswith("alone")  # it takes a third of the time of two processes
    assert step(*VALUES) == pytest.approx(losses[0])
    again, *_ = trained()
    again(*VALUES)
    assert made_alone(again)
    assert not again._engines.present.are_there
    assert best in str(again.explain())


def test_it_is_tried_on_the_calls_of_the_script(chosen, two_ranks, monkeypatch):
    # What a trial may cost is tested by itself, without a clock: here a loaded machine
    # may take a second to compile, and 2000 calls are not twenty seconds.
    monkeypatch.setattr(trial, "SHARE", 1000.0)
    step, w, calls, _ = trained()
    made = []
    while step._engines.is_trying or not made:
        made.append(float(step(*VALUES)))
        assert len(made) < 2000
    losses, right = serial(len(made))
    np.testing.assert_allclose(made, losses, rtol=1e-8)
    np.testing.assert_allclose(w.get_value(), right, rtol=1e-8)
    assert [synk.get_value(rank, calls) for rank in range(2)] == [len(made)] * 2
    facts = step.explain().to_dict()["engines"]
    assert all(fact["first_call"] is not None for fact in facts)


def test_one_rank_has_no_others(chosen):
    step, *_ = trained()
    with synk.session(1):
        rows = synk.tune(step, *VALUES)
    assert {row.name for row in rows} == {"A", "B"}
    assert SESSION.state != "running"
