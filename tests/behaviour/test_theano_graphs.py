"""`theano.gof` and default updates, where PyTensor's own would not do for Theano's."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import theano
import theano.tensor as T
from pytensor.graph.basic import Variable as PyTensorVariable

import synk

MODE = "FAST_COMPILE"
X, Y, Z = (theano.shared(0.0, name) for name in "xyz")


@pytest.mark.parametrize(
    ("expressions", "expected"),
    [
        pytest.param([(X + Y) + Z], [X, Y, Z], id="left"),
        pytest.param([X + (Y + Z)], [X, Y, Z], id="right"),
        pytest.param([(Y * X) / (Z + Y)], [Y, X, Z], id="each once"),
        pytest.param([Z, Y + X], [Y, X, Z], id="the last expression first"),
        pytest.param(reversed([Z, Y + X]), [Z, Y, X], id="any iterable"),
        pytest.param([X], [X], id="itself"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_inputs_come_depth_first_from_the_left(expressions, expected):
    found = theano.gof.graph.inputs(expressions)
    assert isinstance(found, list)
    assert found == expected
    assert theano.gof.graph.inputs is theano.gof.inputs


def test_a_search_ends_at_blockers():
    middle = X + Y
    top = middle * Z
    assert theano.gof.graph.ancestors([top]) == [top, middle, X, Y, Z]
    assert theano.gof.graph.ancestors([top], [middle]) == [top, middle, Z]
    assert theano.gof.graph.inputs([top], blockers=[middle]) == [Z]


def test_long_graphs_are_searched_without_recursion():
    total = X
    for _ in range(3000):
        total = total + Y
    assert theano.gof.graph.inputs([total]) == [X, Y]


def test_graphs_are_compared():
    same = theano.gof.graph.is_same_graph
    x, y = T.matrices("x", "y")
    assert same((x * y).sum() / y.sum(), (x * y).sum() / y.sum())
    assert not same(x * (y * x), (x * y) * x)
    assert not same(x + 1, y + 1)
    assert same(x + 1, y + 1, givens={x: y})
    assert same(x + 1, y + 1, givens=[(y, x)])
    assert same(x, y, givens={x: y})
    assert not same(x + y, y + x, givens={x: x * y})
    assert not same(x, y)


def test_a_variable_may_be_made_of_a_type_alone():
    kind = T.dvector
    variable = theano.Variable(kind)
    assert (variable.type, variable.owner, variable.name) == (kind, None, None)
    assert theano.Variable(kind, None, None, "v").name == "v"
    assert theano.Variable is theano.gof.Variable is theano.gof.graph.Variable
    assert isinstance(variable, PyTensorVariable)
    assert pickle.loads(pickle.dumps(variable)).type == kind


def test_every_variable_is_one_of_theanos():
    class Own(theano.Variable):
        pass

    for variable in (X, T.matrix(), X + 1, T.constant(2), pt.as_tensor(3.0)):
        assert isinstance(variable, theano.Variable)
        assert issubclass(type(variable), theano.Variable)
        assert not isinstance(variable, Own)
    assert isinstance(Own(T.dvector), theano.Variable)
    for other in (3, None, np.zeros(2), T.dvector):
        assert not isinstance(other, theano.Variable)
        assert not isinstance(other, PyTensorVariable)


# -- default updates


def averaging(update=lambda average, x: 0.5 * average + 0.5 * x.mean(0)):
    """Return rows of 3 numbers and a vector of any length that averages over them."""
    x = T.TensorType("float64", shape=(None, 3))("x")
    average = theano.shared(np.zeros(3), name="average")
    assert average.type.shape == (None,)
    average.default_update = update(average, x)
    return x, average


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(lambda a, x: 0.5 * a + 0.5 * x.mean(0), id="computed"),
        pytest.param(lambda a, x: T.constant(np.arange(3.0)), id="a constant"),
        pytest.param(lambda a, x: np.arange(3.0), id="an array"),
        pytest.param(lambda a, x: T.as_tensor([x.sum(), x.min(), 1]), id="listed"),
    ],
)
def test_a_default_update_may_be_known_in_more_detail(update):
    x, average = averaging(update)
    rows = np.arange(6.0).reshape(2, 3)
    expected = update(np.zeros(3), T.constant(rows))
    expected = expected if isinstance(expected, np.ndarray) else expected.eval()
    f = theano.function([x], x + 0 * average, mode=MODE)
    np.testing.assert_array_equal(f(rows), rows)
    np.testing.assert_allclose(average.get_value(), expected)


def test_eval_and_pytensors_function_make_it_too():
    rows = np.arange(6.0).reshape(2, 3)
    x, average = averaging()
    with pytensor.config.change_flags(mode=MODE):
        (x + 0 * average).eval({x: rows})
    np.testing.assert_allclose(average.get_value(), 0.5 * rows.mean(0))
    pytensor.function([x], x + 0 * average, mode=MODE)(rows)
    np.testing.assert_allclose(average.get_value(), 0.75 * rows.mean(0))


def test_other_types_are_refused_as_ever():
    average = theano.shared(np.zeros(3))
    for other in T.dmatrix(), T.fvector():
        with pytest.raises(TypeError, match="Cannot convert"):
            average.default_update = other
    average.default_update = None
    assert average.default_update is None


def test_it_leaves_nothing_in_compiled_graphs():
    x, average = averaging()
    f = theano.function([x], x + 0 * average, mode="FAST_RUN")
    assert not any("tensor_copy" in str(node.op) for node in f.maker.fgraph.toposort())


def test_setting_it_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averaging()


def test_ranks_keep_averages_of_their_rows(two_ranks):
    x, average = averaging(lambda average, x: 0.5 * average + 0.5 * x.mean(0))
    f = synk.function([x], ((x + 0 * average).sum(), "sum"), mode=MODE)
    rows = np.arange(15.0).reshape(5, 3)
    assert f(rows) == rows.sum()
    synk.all_reduce(average)
    np.testing.assert_allclose(average.get_value(), 0.5 * rows.mean(0))
