"""Graphs of all kinds reach the ranks: Ops of users, scans, modes, large ones."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.utils import MissingInputError
from reference import (
    PY,
    assert_same,
    refused,
)
from world_sizes import one_and_three_ranks

import synk
from synk.ranks.session import SESSION


class Shift(Op):
    """An Op that only this module knows."""

    __props__ = ("by",)

    def __init__(self, by):
        self.by = by

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + self.by


@one_and_three_ranks
def test_an_op_of_the_users_module_travels(ranks):
    x = pt.vector("x")
    f = synk.function([x], (Shift(3)(x), "gather"), mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) + 3)


@one_and_three_ranks
def test_a_local_op_with_a_lambda_travels(ranks):
    factor = 4

    class Apply1(Op):
        def __init__(self, function):
            self.function = function

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = self.function(inputs[0])

    x = pt.vector("x")
    f = synk.function([x], (Apply1(lambda v: v * factor)(x), "gather"), mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 4)


def test_an_op_defined_after_the_fork_travels(two_ranks):
    namespace = {"__name__": "made_later", "Op": Op, "Apply": Apply}
    exec(
        "class Negate(Op):\n"
        "    __props__ = ()\n"
        "    def make_node(self, x):\n"
        "        return Apply(self, [x], [x.type()])\n"
        "    def perform(self, node, inputs, outputs):\n"
        "        outputs[0][0] = -inputs[0]\n",
        namespace,
    )
    x = pt.vector("x")
    f = synk.function([x], (namespace["Negate"]()(x), "gather"), mode=PY)
    assert_same(f(np.arange(3.0)), -np.arange(3.0))


SCRIPT = """
import numpy as np, pytensor.tensor as pt, synk
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

synk.fork(2)

class Square(Op):
    __props__ = ()
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 2

x = pt.vector("x")
f = synk.function([x], (Square()(x), "gather"), mode=Mode("py", None))
np.testing.assert_array_equal(f(np.arange(5.0)), np.arange(5.0) ** 2)
print("squared on", synk.size(), "ranks")
"""


def test_an_op_of_a_script_travels(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "squared on 2 ranks\n", done.stderr


@one_and_three_ranks
@pytest.mark.usefixtures("scans_in_python")
def test_a_scan_equals_pytensors(ranks):
    x, k = pt.matrix("x"), pt.lscalar("k")
    w = pytensor.shared(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        powers, _ = _scan(lambda total, rows: total * w + rows, x, k)
    f = synk.function([x], (powers[-1].sum(axis=1), "gather"), [k], mode="FAST_COMPILE")
    value = np.arange(14.0).reshape(7, 2)
    right = np.zeros((7, 2))
    for _ in range(4):
        right = right * 0.5 + value
    assert_same(f(value, 4), right.sum(axis=1), ulps=8)


def _scan(step, x, k):
    """Return what scan returns, as a pair in every version of PyTensor."""
    result = pytensor.scan(
        step, outputs_info=pt.zeros_like(x), non_sequences=x, n_steps=k
    )
    return result if isinstance(result, (list, tuple)) else (result, None)


@one_and_three_ranks
def test_a_graph_with_an_inner_function_travels(ranks):
    from pytensor.compile.builders import OpFromGraph

    a, b, x = pt.vector("a"), pt.scalar("b"), pt.vector("x")
    w = pytensor.shared(3.0)
    try:
        y = OpFromGraph([a], [a * w])(x)
    except MissingInputError:  # PyTensor 3.3 wants every shared variable given
        y = OpFromGraph([a, b], [a * b])(x, w)
    f = synk.function([x], (y, "gather"), updates={w: w + 1}, mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 3)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 4)


@one_and_three_ranks
def test_a_sparse_shared_variable_travels(ranks):
    from pytensor import sparse

    matrix = scipy.sparse.csr_matrix(np.diag([2.0, 3.0]))
    w = pytensor.shared(matrix, name="w")
    x = pt.matrix("x")
    product = sparse.structured_dot(w, x.T).T
    f = synk.function([x], (product, "gather"), mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    assert_same(f(value), value * [2.0, 3.0])
    synk.broadcast(w, matrix * 2)
    assert_same(f(value), value * [4.0, 6.0])
    assert_same(synk.get_value(ranks - 1, w).toarray(), np.diag([4.0, 6.0]))
    with refused(TypeError, "w is a .*not a tensor"):
        synk.all_reduce(w)


def test_a_mode_travels_as_an_object_or_as_a_name(two_ranks):
    x = pt.vector("x")
    for mode in ("FAST_COMPILE", "FAST_RUN", PY, None):
        f = synk.function([x], (x.sum(), "sum"), mode=mode)
        assert f([1.0, 2.0, 3.0]) == 6


def test_a_network_of_many_variables_travels(two_ranks):
    """More bytes than the control segment's message room."""
    x = pt.vector("x")
    shareds = [pytensor.shared(np.full(100, float(i))) for i in range(200)]
    total = x.sum() + pt.stack([w[0] for w in shareds]).sum()
    f = synk.function(
        [x], (total, "max"), updates=[(w, w + 1) for w in shareds], mode=PY
    )
    assert f([0.0, 0.0]) == sum(range(200))
    assert f([0.0, 0.0]) == sum(range(200)) + 200


def worker_settings(context):
    """Return settings of PyTensor on this rank."""
    return pytensor.config.floatX, pytensor.config.cast_policy


def test_ranks_follow_settings_that_are_changed_after_the_fork():
    """Rewrites make 0.5 a float32 or a float64, by config.floatX."""
    x = pt.matrix("x", dtype="float32")
    with synk.session(2), pytensor.config.change_flags(floatX="float32"):
        f = synk.function([x], ((x * 0.5).sum(), "sum"), mode=PY)
        assert f(np.ones((5, 2), "float32")).dtype == "float32"
        assert SESSION.run(worker_settings) == [("float32", "custom")] * 2
        with pytensor.config.change_flags(cast_policy="numpy+floatX"):
            f(np.ones((5, 2), "float32"), num_slices=2)  # compiles anew
            assert SESSION.run(worker_settings) == [("float32", "numpy+floatX")] * 2
