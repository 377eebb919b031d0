"""What a script sees of variables that were updated by JAX: numpy's arrays."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

import synk

x = pt.vector("x")


def updated(mode="JAX"):
    w = pytensor.shared(np.zeros(4), "w")
    return w, synk.function([x], updates=[(w, w + x.sum())], mode=mode)


@in_a_child
def test_values_are_numpys_and_the_scripts_own():
    w, f = updated()
    with synk.session(2):
        f(np.ones(6))
        value = w.get_value()
        assert type(value) is np.ndarray
        value[0] = 5
        np.testing.assert_array_equal(w.get_value(), np.full(4, 6.0))
        borrowed = w.get_value(borrow=True)
        assert type(borrowed) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            borrowed[0] = 5
        internal = w.get_value(borrow=True, return_internal_type=True)
        assert not isinstance(internal, np.ndarray)  # else none of this is needed
        f(np.ones(6))
        np.testing.assert_array_equal(w.get_value(), np.full(4, 12.0))


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA", "JAX"])
@in_a_child
def test_plain_functions_read_them(mode):
    w, f = updated()
    total = pytensor.function([], w.sum(), mode=mode)
    step = pytensor.function([], [], updates=[(w, w * 2)], mode=mode)
    with synk.session(2):
        for k in (1, 3, 7):  # 2 k + 1
            f(np.ones(1))
            assert total() == 4 * k
            assert [synk.get_value(rank, w)[0] for rank in range(2)] == [k, k]
            step()


@in_a_child
def test_what_is_a_ranks_own_stays_so():
    s = pytensor.shared(np.zeros(1), "s")
    f = synk.function([x], updates=[(s, s + x.sum())], mode="JAX", local=True)
    total = pytensor.function([], s.sum(), mode="FAST_COMPILE")
    with synk.session(2):
        f(np.arange(4.0))
        assert total() == 1
        assert [synk.get_value(rank, s)[0] for rank in range(2)] == [1, 5]
        assert synk.state(s).startswith("each rank's own")
        f(np.arange(4.0))
        assert [synk.get_value(rank, s)[0] for rank in range(2)] == [2, 10]
