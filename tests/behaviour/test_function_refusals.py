"""Calls of a function that are refused, and errors on the ranks."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    PY,
    assert_same,
    refused,
)
from world_sizes import one_and_three_ranks

import synk


def _bad_calls():
    """Yield what is wrong, the call, and the error it must raise."""
    four = np.zeros(4)
    yield "one missing", lambda f: f(four), TypeError, "misses a value for y"
    yield "all missing", lambda f: f(), TypeError, "x, y, b"
    yield "too many", lambda f: f(four, four, 1.0, 2.0), TypeError, "3 arguments, got 4"
    yield "no such name", lambda f: f(four, four, z=1.0), TypeError, "no input.*'z'"
    yield "twice", lambda f: f(four, four, x=four), TypeError, "two values.*'x'"
    yield (
        "wrong dtype",
        lambda f: f(four.astype(complex), four, 1.0),
        TypeError,
        r"input x.*float64",
    )
    yield (
        "wrong ndim",
        lambda f: f(np.zeros((4, 1)), four, 1.0),
        TypeError,
        "input x.*dimensions",
    )
    yield (
        "wrong broadcast ndim",
        lambda f: f(four, four, four),
        TypeError,
        "input b.*dimensions",
    )
    yield "ragged", lambda f: f([[1], [1, 2]], four, 1.0), TypeError, "input x"
    yield "None", lambda f: f(None, four, 1.0), TypeError, "input x"
    yield "text", lambda f: f("abcd", four, 1.0), TypeError, "input x"
    yield (
        "lengths",
        lambda f: f(four, np.zeros(5), 1.0),
        ValueError,
        "'x': 4, 'y': 5",
    )
    yield (
        "Data of another dtype",
        lambda f: f(synk.data([1], dtype="int8"), [1.0], 1.0),
        TypeError,
        "input x is float64.*int8.*synk.data",
    )
    yield (
        "Data of other dimensions",
        lambda f: f(synk.data([[1.0]]), [1.0], 1.0),
        TypeError,
        "input x is float64 with 1 dim",
    )
    yield (
        "freed Data",
        lambda f: f(_freed(), four, 1.0),
        ValueError,
        "'gone'.*holds nothing",
    )
    yield (
        "empty broadcast Data",
        lambda f: f(four, four, synk.data(dtype="float64", ndim=0)),
        ValueError,
        "holds nothing",
    )
    yield (
        "row",
        lambda f: f(four, four, 1.0, batch=[0, 4]),
        IndexError,
        "row 4, out of range for 4",
    )
    yield (
        "negative row",
        lambda f: f(four, four, 1.0, batch=np.array([-5])),
        IndexError,
        "row -5",
    )
    yield "count", lambda f: f(four, four, 1.0, batch=5), IndexError, "first 5 of 4"
    yield "mask", lambda f: f(four, four, 1.0, batch=[True]), IndexError, "mask of 1"
    yield (
        "fractions",
        lambda f: f(four, four, 1.0, batch=[0.5]),
        TypeError,
        "float64",
    )
    yield (
        "table",
        lambda f: f(four, four, 1.0, batch=[[0]]),
        ValueError,
        "2 dimensions",
    )
    yield (
        "slices",
        lambda f: f(four, four, 1.0, num_slices=0),
        ValueError,
        "at least 1, got 0",
    )
    yield (
        "half slices",
        lambda f: f(four, four, 1.0, num_slices=1.5),
        TypeError,
        "integer",
    )
    yield (
        "subset",
        lambda f: f(four, four, 1.0, output_subset=[2]),
        IndexError,
        "output_subset has 2, out of range for 2",
    )
    yield (
        "named subset",
        lambda f: f(four, four, 1.0, output_subset=["loss"]),
        TypeError,
        "integer",
    )
    yield (
        "batch_s",
        lambda f: f(four, four, 1.0, batch_s=slice(2)),
        ValueError,
        "no sliceable_shareds",
    )


def _freed():
    made = synk.data(np.zeros(4), name="gone")
    made.free_memory()
    return made


@pytest.mark.parametrize(
    ("call", "error", "match"), [pytest.param(*c[1:], id=c[0]) for c in _bad_calls()]
)
def test_a_bad_call_is_refused_before_any_rank_is_told(two_ranks, call, error, match):
    x, y, b = pt.vector("x"), pt.vector("y"), pt.scalar("b")
    n = pytensor.shared(0)
    outputs = [(x * y, "gather"), (b, None)]
    f = synk.function([x, y], outputs, [b], updates={n: n + 1}, mode=PY, name="f")
    for calls in (0, 1):  # as its first call, and after another
        with refused(error, match):
            call(f)
        product, _ = f([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.0)
        assert_same(product, [4.0, 10, 18])
        assert synk.get_value(0, n) == synk.get_value(1, n) == calls + 1


def test_a_subset_always_gives_a_list(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    assert f([1.0, 2.0], output_subset=[]) == []
    assert f([1.0, 2.0], output_subset=[0]) == [3]
    assert f([1.0, 2.0], output_subset=[0, -1]) == [3, 3]
    assert f([1.0, 2.0]) == 3


def test_slices_of_nothing_are_refused(two_ranks):
    b = pt.scalar("b")
    f = synk.function([], (b, "sum"), [b], mode=PY)
    with refused(ValueError, "num_slices=2 needs scattered inputs"):
        f(1.0, num_slices=2)
    with refused(ValueError, "no scattered inputs"):
        f(1.0, batch=1)
    assert f(1.0) == 2


def test_outputs_whose_shapes_differ_between_ranks_say_so(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x.sum(axis=1), "sum"), (x.T, "gather")], mode=PY, name="f")
    with pytest.raises(synk.ShapeMismatch, match=r"output 0 .*\(2,\), \(1,\).*'sum'"):
        f(np.ones((3, 2)), output_subset=[0])
    with pytest.raises(ValueError, match=r"output 1 .*\(2, 2\), \(2, 1\).*'gather'"):
        f(np.ones((3, 2)), output_subset=[1])
    total, _ = f(np.ones((2, 2)))
    assert_same(total, [4.0])


@one_and_three_ranks
def test_an_error_of_the_graph_keeps_its_type_and_the_session_goes_on(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    f = synk.function([x], (x[3], "sum"), updates={w: w + 1}, mode=PY, name="fourth")
    with pytest.raises(IndexError) as caught:
        f(np.zeros(ranks))
    assert any("rank" in note for note in caught.value.__notes__)
    assert f(np.arange(4.0 * ranks)) == sum(4 * r + 3 for r in range(ranks))


@pytest.mark.parametrize("state", ["unforked", "closed"])
def test_a_call_without_a_session_says_what_to_do(state):
    x = pt.vector("x")
    f = synk.function([x], x.sum(), mode=PY)
    if state == "closed":
        with synk.session(2):
            f([1.0])
    with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
        f([1.0])
    with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
        synk.distribute()
