"""Indices out of range in JAX mode are errors, as in the other modes."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from reference import PY

import synk

x, k, i = pt.dmatrix("x"), pt.lvector("k"), pt.lscalar("i")
rows = pt.arange(x.shape[0])

GRAPHS = {
    "labels": x[rows, k].sum(),
    "their gradient": pytensor.grad((x[rows, k] ** 2).sum(), x),
    "a table's rows": pt.as_tensor(np.arange(9.0).reshape(3, 3))[k].sum(axis=1),
    "columns": x[:, k].sum(axis=1),
    "put": pt.set_subtensor(x[rows, k], 7.0),
    "added": pt.inc_subtensor(pt.zeros(3)[k], x[:, 0]),
    "one column": x[:, i],
    "the last but one": x[:, -2] + k,
    "of bytes": x[rows, pt.cast(k, "int8")],
    "of unsigned bytes": x[:, pt.cast(pt.maximum(k, 0), "uint8")],
    "the next one": x[:, i + 1] * (k + 1),
}
INDICES = [0, 1, 2, -1, -3, 3, -4, 100]


@in_a_child
def test_an_index_out_of_range_is_an_error_where_it_is_one_in_numpy():
    options = {"on_unused_input": "ignore"}
    values, refused = np.arange(12.0).reshape(4, 3), dict.fromkeys(GRAPHS, 0)
    with synk.session(1):
        for what, graph in GRAPHS.items():
            f = synk.function([x, k], graph, [i], mode="JAX", local=True, **options)
            plain = pytensor.function([x, k, i], graph, mode=PY, **options)
            for index in INDICES:
                given = values, np.array([0, 2, index, 1]), index
                try:
                    right = plain(*given)
                except IndexError:
                    refused[what] += 1
                    with pytest.raises(IndexError, match="an index is out of range"):
                        f(*given)
                else:
                    np.testing.assert_array_equal(f(*given), right, what)
    others = {"the last but one": 0, "of unsigned bytes": 2}
    assert refused == dict.fromkeys(GRAPHS, 3) | others


@in_a_child
def test_a_wrong_label_changes_nothing():
    w = pytensor.shared(np.eye(3), "w")
    p = pt.special.log_softmax(x @ w, axis=1)
    loss = -p[rows, k].mean()
    update = w - 0.1 * pytensor.grad(loss, w)
    f = synk.function([x, k], loss, updates=[(w, update)], mode="JAX")
    values = np.arange(12.0).reshape(4, 3)
    for size in (1, 2):
        with synk.session(size):
            f(values, [0, 1, 2, 0])
            before = w.get_value()
            line = r"test_jax_bounds.py:\d+: `loss = "
            with pytest.raises(IndexError, match=line) as caught:
                f(values, [0, 1, 2, 3])
            assert f"on rank {size - 1} of {size}" in caught.value.__notes__[-1]
            for rank in range(size):
                np.testing.assert_array_equal(synk.get_value(rank, w), before)
            f(values, [0, 1, 2, 2])
