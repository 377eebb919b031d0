"""`Function.run`: many calls in one launch, with the numbers of single calls."""

import itertools
import json
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks
from processes import ROWS, TOTAL, acting, summing
from reference import PY

import synk

X = np.random.default_rng(0).normal(size=(23, 3))
BATCHES = [
    slice(0, 9),
    [5, 0, 21, -1],
    slice(3, 20, 4),
    1,
    np.arange(23) % 3 == 0,
    7,
    None,
]


def many_outputs():
    """Return a function with an output of every op, and one of its updates."""
    x, scale = pt.matrix("x"), pt.scalar("scale")
    count = pytensor.shared(0.0, name="count")
    total = synk.ops.all_reduce(x.sum(axis=0) * scale, "sum")
    outputs = [
        (x.sum(), "sum"),
        ((x * scale).sum(axis=1), "gather"),
        (total, None),
        (x.shape[0] + 0.0, "max"),
        (x.sum(axis=0), "sum"),
    ]
    updates = [(count, count + total.sum())]
    f = synk.function([x], outputs, [scale], updates=updates, mode=PY, name="many")
    return f, count


def assert_equal_to_calls(f, count, batches, given, **how):
    start = np.zeros(())
    synk.broadcast(count, start)
    expected = [f(*given, batch=batch, **how) for batch in batches]
    expected_count = [synk.get_value(rank, count) for rank in range(synk.size())]
    synk.broadcast(count, start)
    got = f.run(batches, *given, **how)
    for i, (found, *right) in enumerate(zip(got, *expected, strict=True)):
        for k, values in enumerate(zip(found, right, strict=True)):
            np.testing.assert_array_equal(*values, f"output {i} {k}")
    for rank, value in enumerate(expected_count):
        np.testing.assert_array_equal(synk.get_value(rank, count), value)
    return got


@one_and_three_ranks
def test_a_run_gives_what_single_calls_give(ranks):
    f, count = many_outputs()
    for given in ((X, 2.0), (synk.data(X), synk.data(np.array(4.0)))):
        got = assert_equal_to_calls(f, count, BATCHES, given)
        # The rows of each are a list: there are as many as the batch has.
        assert [type(value) is list for value in got] == [False, True, *[False] * 3]
        assert got[2].shape == (len(BATCHES), 3)
    assert_equal_to_calls(f, count, [[2, 3, 4], slice(5, 8)], (X, 2.0))
    assert_equal_to_calls(f, count, BATCHES[:4], (X, 1.0), num_slices=2)
    of_one_size = np.random.default_rng(1).permutation(20).reshape(4, 5)
    got = assert_equal_to_calls(f, count, list(of_one_size), (X, 2.0))
    assert [value.shape for value in got] == [(4,), (4, 5), (4, 3), (4,), (4, 3)]
    again = f.run(of_one_size, X, scale=2.0)  # an array of batches; by name
    for one, other in zip(again, got, strict=True):
        np.testing.assert_allclose(one, other)


def test_outputs_come_as_in_a_call(two_ranks):
    x = pt.matrix("x")
    total, count = (x.sum(), "sum"), (x[:, 0].sum() * 0 + x.shape[0], "sum")
    one = synk.function([x], total, mode=PY)
    np.testing.assert_allclose(one.run([3, 4], X), [X[:3].sum(), X[:4].sum()])
    many = synk.function([x], [total, count], mode=PY)
    picked = many.run([3, 4], X, output_subset=[1, 0, -1])
    np.testing.assert_allclose(picked[0], [3, 4])
    np.testing.assert_allclose(picked[1], [X[:3].sum(), X[:4].sum()])
    np.testing.assert_allclose(picked[2], [3, 4])
    w = pytensor.shared(0.0)
    none = synk.function([x], updates=[(w, w + x.shape[0])], mode=PY)
    assert none.run([2, 4], X) is None
    assert synk.get_value(0, w) == synk.get_value(1, w) == 6
    assert len(one.run([], X)) == 0


def test_a_list_is_one_launch_and_a_generator_is_one_for_every_64(two_ranks, tmp_path):
    f = summing()
    f(ROWS)
    with synk.trace(tmp_path / "run.json"):
        f.run([2] * 200, ROWS)
    with synk.trace(tmp_path / "runs.json"):
        got = f.run((2 + k % 11 for k in range(129)), ROWS)
    for name, launches in ("run.json", 1), ("runs.json", 3):
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        names = [event["name"] for event in events if event["tid"] == 0]
        assert names.count("Function run") == launches
    expected = [ROWS[: 2 + k % 11].sum() for k in range(129)]
    np.testing.assert_allclose(got, expected)
    assert f.run(iter(()), ROWS) == []


@one_and_three_ranks
def test_functions_of_shared_rows_take_batches_of_these(ranks):
    rows = pytensor.shared(X, name="rows")
    f = synk.function([], (rows.sum(), "sum"), sliceable_shareds=[rows], mode=PY)
    synk.broadcast(rows)
    got = f.run([slice(0, 4), [1, 3, 5], None], batch_s=slice(0, 2))
    expected = [X[:4].sum(), X[[1, 3, 5]].sum(), X[:2].sum()]
    np.testing.assert_allclose(got, np.multiply(expected, ranks))
    step = pytensor.shared(0.0)
    counting = synk.function([], step * 1, updates=[(step, step + 1)], mode=PY)
    np.testing.assert_array_equal(counting.run([None] * 3), [0, 1, 2])


@pytest.mark.parametrize("threads", [1, 2])
def test_shared_rows_that_a_call_changes_are_not_taken_ahead(threads):
    rows, x = pytensor.shared(np.ones((4, 2)), name="rows"), pt.matrix("x")
    total = x.sum() + rows.sum(), "sum"
    given = {"updates": [(rows, rows * 2)], "sliceable_shareds": [rows]}
    f = synk.function([x], total, mode=PY, **given)
    with synk.session(1, threads=threads):
        got = f.run([1] * 3, np.zeros((4, 2)), batch_s=slice(0, 1))
        np.testing.assert_allclose(got, [2, 2 * 2, 2 * 4])


def test_rows_taken_ahead_give_the_same_numbers():
    f, count = many_outputs()
    with synk.session(2, threads=2):
        assert_equal_to_calls(f, count, BATCHES, (X, 2.0))
        assert_equal_to_calls(f, count, BATCHES, (synk.data(X), 2.0))


# -- progress -------------------------------------------------------------------------


def test_progress_is_told_after_every_call_or_by_a_bar(two_ranks, monkeypatch, capsys):
    f, seen = summing(), []
    f.run([1, 2, 3], ROWS, progress=seen.append)
    f.run(itertools.repeat(1, 69), ROWS, progress=seen.append)
    assert seen == [1, 2, 3, *range(1, 70)]
    pytest.importorskip("tqdm")
    f.run([1, 2, 3], ROWS, progress=True)
    assert "3/3" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        f.run([1], ROWS, progress=True)
    assert f.run([12], ROWS) == [TOTAL]


# -- errors ---------------------------------------------------------------------------


def test_a_wrong_batch_is_refused_before_any_rank_is_told(two_ranks):
    f = summing()
    f(ROWS)
    for batches, arguments, how, error, why in (
        ([1, 13], [ROWS], {}, IndexError, "12"),
        ([1, [0, 12]], [ROWS], {}, IndexError, "12"),
        ([1], [synk.data(ROWS, minibatch=True)], {}, ValueError, "minibatch"),
        ([1], [ROWS, ROWS], {}, TypeError, "takes 1 argument"),
        ([1], [ROWS], {"batch_s": 1}, ValueError, "sliceable"),
    ):
        with pytest.raises(error, match=why):
            f.run(batches, *arguments, **how)
    assert f.run([12], ROWS) == [TOTAL]


_calls: list[int] = []


def fail_at(number: int) -> None:
    _calls.append(1)
    if len(_calls) == number:
        raise ValueError("the third call")


def test_an_error_in_a_call_ends_the_run_and_not_the_session(two_ranks):
    for rank in (0, 1):
        _calls.clear()
        f = acting(rank, fail_at, 3)
        with pytest.raises(ValueError, match="the third call") as caught:
            f.run([12] * 50, ROWS)
        assert any(f"rank {rank}" in note for note in caught.value.__notes__)
        assert summing().run([12] * 3, ROWS).tolist() == [TOTAL] * 3
