"""The rows of a call: batch, minibatch data, sliceable_shareds and batch_s."""

import functools
import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks, three_ranks
from reference import PY, assert_same, cut
from samples import series

import synk

ROWS = 11

BATCHES = {
    "none": None,
    "int": 7,
    "numpy int": np.int32(7),
    "zero": 0,
    "all": ROWS,
    "one": 1,
    "slice": slice(2, 9),
    "open slice": slice(4, None),
    "step": slice(1, 10, 3),
    "negative step": slice(None, None, -1),
    "negative step and bounds": slice(-2, 1, -2),
    "beyond the end": slice(5, 100),
    "empty slice": slice(5, 5),
    "list": [3, 1, 10],
    "tuple": (3, 1, 10),
    "array": np.array([10, 0, 5, 2], "int16"),
    "unsigned": np.array([10, 0, 5, 2], "uint8"),
    "other byte order": np.array([10, 0, 5, 2], ">i8"),
    "strided": np.arange(ROWS)[::3],
    "negative rows": [-1, 0, -11, 5],
    "repeated rows": [4, 4, 4, 0, 4],
    "more rows than there are": list(range(ROWS)) * 3,
    "no rows": [],
    "mask": np.arange(ROWS) % 3 == 0,
    "mask in a list": [i > 6 for i in range(ROWS)],
    "empty mask": np.zeros(ROWS, bool),
    "range": range(8, 1, -3),
    "array of no dimensions": np.array(6),
    "Data": synk.data([9, 1, 1]),
}


def index_of(batch):
    """Return what numpy is indexed with to take the same rows."""
    if batch is None or isinstance(batch, slice):
        return slice(None) if batch is None else batch
    if np.ndim(batch) == 0:
        return slice(int(batch))
    rows = np.asarray(batch)
    return rows if rows.dtype == bool else rows.astype(int)


def function_of_rows():
    """Return a function that shows which rows it gets; to floats it adds 1000."""
    x, y, b = pt.matrix("x"), pt.vector("y", dtype="int32"), pt.vector("b")
    product = (x.sum(axis=1) * y).sum()
    outputs = [(x + b.sum(), "gather"), (y, "gather"), (product, "sum")]
    f = synk.function([x, y], outputs, [b], mode=PY)
    return functools.partial(f, b=[300.0, 700.0])


@one_and_three_ranks
def test_every_batch_means_what_it_means_to_numpy_in_any_slices(ranks):
    f = function_of_rows()
    X = np.arange(ROWS * 2.0).reshape(ROWS, 2)
    Y = np.arange(ROWS, dtype="int32") * 7 - 20
    data, pairs = synk.data(X), [(X, Y), (synk.data(X), synk.data(Y))]
    of_pandas = {
        "pandas rows": series([7, 2, 2]),
        "pandas mask": series(range(ROWS)) < 4,
    }
    for name, batch in (BATCHES | of_pandas).items():
        index = index_of(batch)
        before = np.copy(batch) if isinstance(batch, np.ndarray) else None
        for (x, y), slices in itertools.product([*pairs, (data, Y)], (1, 2, 5)):
            rows, labels, product = f(x, y, batch=batch, num_slices=slices)
            assert_same(rows, X[index] + 1000, err_msg=name)
            assert_same(labels, Y[index], err_msg=name)
            right = (X.sum(axis=1) * Y)[index].sum()
            assert_same(product, right, ulps=16, err_msg=name)
        if before is not None:
            assert_same(batch, before, err_msg=name)


@three_ranks
def test_every_rank_takes_a_contiguous_part_of_the_batch(ranks):
    x = pt.vector("x")
    own = pytensor.shared(np.zeros(0))
    f = synk.function([x], updates={own: x}, mode=PY, local=True)
    X = np.arange(ROWS) * 1.0
    for batch in (None, slice(None, None, -1), [5, 5, 0, -1, 2, 3, 1], X % 2 == 1, 5):
        f(synk.data(X), batch=batch)
        for rank, part in enumerate(cut(X[index_of(batch)], ranks)):
            assert_same(synk.get_value(rank, own), part)


# -- minibatch data: row i belongs to the i-th row of the batch ------------------------


@one_and_three_ranks
def test_minibatch_data_holds_the_rows_of_the_batch_in_its_order(ranks):
    whole = np.arange(20.0)
    x, y = pt.vectors("x", "y")
    f = synk.function([x, y], [(x, "gather"), (y, "gather")], mode=PY)
    for batch in (
        *(slice(4, 9), slice(4, 9, 2), slice(8, 3, -1), slice(0, 3), 5),
        *([4, 8, 5], [8, 4, 4, 6], [17, 0, 17, 3, 3, 19, 0], []),
        np.arange(20) // 5 == 1,
    ):
        rows = whole[index_of(batch)]
        own = 100.0 + np.arange(len(rows))
        window = synk.data(own, var=x, minibatch=True)
        longer = synk.data([*own, -1, -1, -1], var=x, minibatch=True)
        assert window.minibatch
        for other in (whole * 2, synk.data(whole * 2)):
            for held in (window, longer):
                got, doubled = f(held, other, batch=batch)
                assert_same(got, own, err_msg=str(batch))
                assert_same(doubled, rows * 2, err_msg=str(batch))
        alone, again = f(window, window, batch=batch)
        assert_same(alone, own, err_msg=str(batch))
        assert_same(again, own, err_msg=str(batch))


def test_minibatch_data_that_is_too_short_is_refused(two_ranks):
    x, y = pt.vectors("x", "y")
    f = synk.function([x, y], (x + y, "gather"), mode=PY)
    window = synk.data(np.zeros(3), minibatch=True)
    longer = synk.data(np.zeros(5), minibatch=True)
    whole = np.zeros(20)
    f(window, whole, batch=slice(5, 8))
    f(window, whole, batch=[19, 0, 0])
    for other, batch, error, said in (
        (whole, slice(5, 9), IndexError, r"has 3 rows.*the batch has 4"),
        (whole, [20], IndexError, "20 rows"),
        (longer, None, ValueError, "different lengths"),
        (window, slice(None, -1), ValueError, "explicit bounds"),
        (window, [-1, 0], IndexError, "negative"),
    ):
        with pytest.raises(error, match=said):
            f(window, other, batch=batch)
    assert_same(f(window, window), np.zeros(3))
    assert_same(f(window, longer, batch=slice(7, 10)), np.zeros(3))


# -- sliceable shared variables -------------------------------------------------------


def shared_rows(ranks):
    """Scatter 2 * ranks + 1 rows; return the variable and each rank's rows."""
    s = pytensor.shared(np.zeros((1, 2)), name="s")
    whole = np.arange(2.0 * (2 * ranks + 1)).reshape(-1, 2)
    synk.scatter(s, whole)
    return s, cut(whole, ranks)


@three_ranks
def test_batch_s_chooses_rows_of_every_rank(ranks):
    s, parts = shared_rows(ranks)
    f = synk.function([], [(s, "gather"), s.mean()], sliceable_shareds=[s], mode=PY)
    same = [None, slice(1), slice(1, None), slice(None, None, -1)]
    same += [np.array([1, 0, -1]), [1, 0, 1], 1, np.int64(2)]
    choices = [slice(1), [1, 0, 1], None, np.array([-1]), slice(None, None, -1)]
    by_rank = [[choices[(k + rank) % 5] for rank in range(ranks)] for k in range(5)]
    for batch_s, each in [(rows, [rows] * ranks) for rows in same] + [
        (rows, rows) for rows in by_rank
    ]:
        chosen = [p[index_of(rows)] for p, rows in zip(parts, each, strict=True)]
        chosen = np.concatenate(chosen)
        got, mean = f(batch_s=batch_s)
        assert_same(got, chosen, err_msg=str(batch_s))
        assert_same(mean, chosen.mean(), ulps=4, err_msg=str(batch_s))


@three_ranks
def test_a_rank_without_chosen_rows_contributes_nothing(ranks):
    s, parts = shared_rows(ranks)
    w, own_mean = (pytensor.shared(np.full(2, -1.0)) for _ in range(2))
    options, average = {"sliceable_shareds": [s], "mode": PY}, s.mean(axis=0)
    mine = synk.function([], updates={own_mean: average}, local=True, **options)
    outputs = [average, (s.max(), "max"), (s[0, 0], "min"), (s[0], None)]
    f = synk.function([], outputs, updates={w: average}, **options)
    for only in range(ranks):
        synk.broadcast([w, own_mean], [np.full(2, -1.0)] * 2)
        batch_s = [slice(None) if rank == only else slice(0) for rank in range(ranks)]
        mean, largest, first, own = f(batch_s=batch_s)
        part = parts[only]
        assert_same(mean, part.mean(axis=0))
        assert_same(largest, part.max())
        assert_same(first, part[0, 0])
        assert_same(own, part[0])
        mine(batch_s=batch_s)
        for rank in range(ranks):
            assert_same(synk.get_value(rank, w), part.mean(axis=0))
            right = part.mean(axis=0) if rank == only else np.full(2, -1.0)
            assert_same(synk.get_value(rank, own_mean), right)
        synk.all_reduce([w, own_mean])
        for var in (w, own_mean):
            assert_same(var.get_value(), part.mean(axis=0))


@three_ranks
def test_a_reduction_in_the_graph_weighs_sliceable_rows(ranks):
    """Two agreements in a row: on the rows of every rank, then on the reduction."""
    s, parts = shared_rows(ranks)
    mean = synk.ops.all_reduce(s.mean(axis=0))
    f = synk.function([], [(s - mean, "gather"), mean], sliceable_shareds=[s], mode=PY)
    choices = [slice(None), slice(1), slice(0), slice(None, None, -1)]
    for call in range(12):
        batch_s = [choices[(call + rank) % 4 if rank else 0] for rank in range(ranks)]
        rows = [part[chosen] for part, chosen in zip(parts, batch_s, strict=True)]
        rows = np.concatenate(rows)
        centred, got = f(batch_s=batch_s, num_slices=1 + call % 2)
        assert_same(got, rows.mean(axis=0), 16)
        assert_same(centred, rows - rows.mean(axis=0), 16, scale=20)


def test_bad_batch_s_is_refused(two_ranks):
    s, parts = shared_rows(2)
    f = synk.function([], (s, "gather"), sliceable_shareds=[s], mode=PY)
    for batch_s, error, said in (
        ([slice(1)] * 3, ValueError, "3 entries for 2 ranks"),
        ([np.array([0, 3]), None], IndexError, "row 3, out of range for 3"),
        (4, IndexError, "first 4 of 3"),
        ([0.5], TypeError, "float"),
        ([None, np.array([2])], IndexError, "row 2, out of range for 2"),
    ):
        with pytest.raises(error, match=said) as caught:
            f(batch_s=batch_s)
    assert any("rank 1" in note for note in caught.value.__notes__)  # who can check
    assert_same(f(), np.concatenate(parts))
