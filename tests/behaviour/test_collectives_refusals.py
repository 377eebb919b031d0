"""Collectives that are refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    COMPLEX,
    DTYPES,
    assert_same,
    ops_of,
    refused,
    values_of,
)

import synk
from synk.ranks.session import SESSION


def _calls_with_bad_variables():
    value = np.zeros(3)
    return {
        "all_reduce": synk.all_reduce,
        "reduce": synk.reduce,
        "gather": synk.gather,
        "all_gather": synk.all_gather,
        "get_shapes": synk.get_shapes,
        "get_lengths": synk.get_lengths,
        "get_value": lambda v: synk.get_value(0, v),
        "broadcast": synk.broadcast,
        "scatter": lambda v: synk.scatter(v, [value, value]),
        "set_value": lambda v: synk.set_value(1, v, [value, value]),
    }


@pytest.mark.parametrize("seen", [False, True])
def test_what_is_no_list_of_shared_variables_is_refused(two_ranks, seen):
    a = pytensor.shared(np.zeros(3), name="a")
    if seen:
        synk.broadcast(a)
    for call in _calls_with_bad_variables().values():
        with refused(TypeError, "shared variables, got"):
            call([a, pt.vector("x")])
        with refused(TypeError, "shared variables, got"):
            call([a, np.zeros(3)])
        with refused(ValueError, "twice"):
            call([a, a])
        with refused(TypeError, "int"):
            call(3)
    assert_same(synk.gather(a), np.zeros((2, 3)))


@pytest.mark.parametrize("seen", [False, True])
def test_bad_arguments_are_refused_before_any_rank_is_told(two_ranks, seen):
    a, c = pytensor.shared(np.zeros(3), name="a"), pytensor.shared(0.0, name="c")
    flags = pytensor.shared(np.zeros(3, bool), name="flags")
    z = pytensor.shared(np.zeros(3, complex), name="z")
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    if seen:
        synk.broadcast([a, c, flags, z, rng])
    four = np.zeros(4)
    for reduction in (synk.all_reduce, synk.reduce):
        for op in ("mean", None, "gather", 3):
            with refused(ValueError, "must be one of 'avg', 'sum'"):
                reduction(a, op)
        with refused(TypeError, "flags.*no 'avg' of bools"):
            reduction([a, flags])
        with refused(TypeError, "z: complex numbers .* have no 'max'"):
            reduction([a, z], "max")
        with refused(TypeError, "rng.*not a tensor"):
            reduction(rng)
    for rank in (2, -1, 100):
        with refused(IndexError, f"no rank {rank}: ranks are 0 to 1"):
            synk.get_value(rank, a)
        with refused(IndexError, f"no rank {rank}"):
            synk.set_value(rank, a, four)
    for rank in (0.5, "0", None):
        with refused(TypeError, "integer"):
            synk.get_value(rank, a)
    for store in (
        lambda *args: synk.set_value(1, *args),
        synk.broadcast,
        synk.scatter,
    ):
        with refused(TypeError, "shared variable a .*imensions"):
            store(a, np.zeros((2, 2)))
        with refused(TypeError, "shared variable a"):
            store(a, four.astype(complex))
        with refused(TypeError, "shared variable a"):
            store(a, ["x", "y"])
        with refused(ValueError, "2 values for 1 variables"):
            store([a], [four, four])
        with refused(ValueError, "holds nothing"):
            store(a, synk.data(dtype="float64", ndim=1))
    with refused((TypeError, ValueError), "no rows|dimensions"):
        synk.scatter(c, 1.0)
    with refused(ValueError, "different lengths.*'a': 4.*'z': 3"):
        synk.scatter([a, z], [four, np.zeros(3)])
    for call in (
        lambda batch: synk.scatter(a, four, batch=batch),
        lambda batch: synk.set_value(1, a, four, batch=batch),
    ):
        with refused(IndexError, "row 4, out of range for 4"):
            call([4])
        with refused(IndexError, "row -5"):
            call([-5])
        with refused(IndexError, "first 5 of 4"):
            call(5)
        with refused(IndexError, "mask of 3"):
            call([True] * 3)
    with refused((TypeError, ValueError, IndexError), "."):
        synk.set_value(1, c, 1.0, batch=[0])
    with refused(ValueError, "nd_up must be 0 or 1, got 2"):
        synk.gather(a, nd_up=2)
    with refused(ValueError, "c has no (rows|dimensions)"):
        synk.gather(c, nd_up=0)
    with refused(ValueError, "c has no (rows|dimensions)"):
        synk.all_gather(c)
    with refused(ValueError, "c has no rows"):
        synk.get_lengths(c)
    with refused(TypeError, "rng.*not a tensor"):
        synk.gather(rng)
    synk.all_reduce([a, c], "sum")
    assert_same(synk.get_value(1, a), np.zeros(3))


def test_a_collective_without_a_session_says_what_to_do():
    a = pytensor.shared(np.zeros(3))
    for call in (
        lambda: synk.all_reduce(a),
        lambda: synk.reduce(a),
        lambda: synk.gather(a),
        lambda: synk.all_gather(a),
        lambda: synk.broadcast(a),
        lambda: synk.scatter(a, np.zeros(3)),
        lambda: synk.set_value(0, a, np.zeros(3)),
        lambda: synk.get_value(0, a),
        lambda: synk.get_shapes(a),
        lambda: synk.get_lengths(a),
    ):
        with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
            call()
    with synk.session(2):
        synk.all_reduce(a)
    with pytest.raises(synk.StateError, match="closed"):
        synk.all_reduce(a)


def test_no_collective_warns(two_ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in DTYPES:
            a = pytensor.shared(values_of(dtype, (5,), 1))
            for op in ops_of(dtype):
                if dtype not in COMPLEX or op != "prod":
                    synk.all_reduce(a, op)
            synk.gather(a)
            synk.broadcast(a)
    assert SESSION.state == "running"
