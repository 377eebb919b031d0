"""Inputs with values of their own, and looking things up in compiled functions.

What is expected of ``In`` and ``f[s]`` is what Theano 1.0's tutorial on functions and
its tests of ``In`` say.
"""

import copy
import pickle

import numpy as np
import pytest
import theano
import theano.compile
import theano.compile.function
import theano.compile.io
import theano.compile.monitormode
import theano.tensor as T
from theano.compile.pfunc import pfunc

import synk

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODE = "FAST_COMPILE"
i, s, x = T.dscalars("i", "s", "x")


def accumulator(**options):
    return theano.function(
        [i, theano.In(s, value=10.0, update=s + i, **options)], s, mode=MODE
    )


def test_a_value_with_an_update_stays_from_call_to_call():
    f = accumulator()
    assert [f(1), f(1), f(2)] == [10, 11, 12]
    assert f[s] == f.value[s] == f["s"] == f[1] == f.container[s].value == 14
    assert s in f
    assert "s" in f.value
    assert x not in f
    f[s] = 100.0
    assert f(1) == 100
    f.value["s"] = 7
    assert [f(i=1), f(1, 50.0), f(1), f(1, s=3.0), f(0)] == [7, 50, 51, 3, 4]
    assert accumulator(name="total")(1, total=2) == 2


def test_functions_may_have_a_state_in_common():
    f = accumulator()
    g = theano.function(
        [x, theano.In(s, value=f.container[s], update=s - x)], s, mode=MODE
    )
    assert [f(5), g(3), f(0), g[s]] == [10, 15, 12, 12]
    with pytest.raises(TypeError, match="the input s is implicit"):
        g(1, 2.0)
    told = theano.In(s, value=f.container[s], implicit=False)
    assert theano.function([told], s * 2, mode=MODE)(20.0) == 40
    assert f[s] == 20
    w = theano.shared(3.0, "w")
    reads = theano.function([theano.In(x, value=w)], x + 1, mode=MODE)
    w.set_value(5.0)
    assert reads() == 6


def test_defaults_come_back_after_each_call():
    f = theano.function(
        [x, theano.In(i, value=3.0), theano.Param(s, default=2.0, name="scale")],
        (x + i) * s,
        mode=MODE,
    )
    assert [f(1), f(1, 0), f(1, scale=1.0), f(1, 0, 5), f(x=1)] == [8, 2, 4, 5, 8]
    f[i] = 9.0  # for one call
    assert [f[i], f(1), f[i], f(1)] == [9, 20, 3, 8]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: f(), "the input i has no value"),
        (lambda f: f(1, 2, 3), "3 arguments for 2 inputs"),
        (lambda f: f(1, i=2), "multiple values for the input i"),
        (lambda f: f(1, unknown=2), "unknown|Too many"),
        (lambda f: f["unknown"], "Unknown input or state: unknown"),
        (lambda f: f.container[x], "Unknown input or state"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call, said):
    with pytest.raises(TypeError, match=said):
        call(accumulator())


def test_an_update_must_have_the_type_of_its_input():
    with pytest.raises(TypeError, match="the update of s has the type"):
        theano.In(s, value=1.0, update=T.dvector())
    with pytest.raises(TypeError, match="implicit input s needs a value"):
        theano.In(s, implicit=True)


def test_a_state_without_a_first_value_is_given_by_calls():
    f = theano.function([theano.In(s, update=s + 1)], s * 2, mode=MODE)
    assert f(4.0) == 8
    assert f[s] == 5
    with pytest.raises(TypeError, match="s has no value"):
        f()


def test_arrays_that_were_given_stay_as_they_are():
    first, v, total = np.zeros(3), T.dvector("v"), T.dvector("total")
    f = theano.function([v, theano.In(total, value=first, update=total + v)], total)
    f(np.ones(3))
    f(np.ones(3))
    np.testing.assert_array_equal(f[total], [2, 2, 2])
    np.testing.assert_array_equal(first, 0)


def test_updates_givens_and_named_outputs_see_the_state():
    w = theano.shared(1.0, "w")
    f = theano.function(
        [theano.In(s, value=1.0, update=s * 2)],
        {"x": x, "s": s},
        givens={x: s + 1},
        updates={w: w + s},
        mode=MODE,
    )
    assert [f()["x"], f()["s"], w.get_value()] == [2, 2, 4]
    assert f(output_subset=["s"]) == {"s": 4}


def test_functions_with_states_are_printed():
    text = theano.printing.debugprint([accumulator(), T.exp(x)], file="str")
    assert "Add" in text
    assert "Exp" in text


def test_copies_have_states_of_their_own():
    f = accumulator()
    f(1)
    for g in f.copy(), copy.copy(f), pickle.loads(pickle.dumps(accumulator())):
        before = f[s]
        assert g(5) == g["s"] - 5
        assert f[s] == before


def test_plain_functions_are_looked_into_as_well():
    w = theano.shared(2.0, "w")
    f = theano.function([x], [x * w, x], updates=[(w, w + 1)], mode=MODE)
    assert f(3.0) == [6, 3]
    assert f[w] == f.value["w"] == 3
    f[w] = 10.0
    assert w.get_value() == 10
    assert f(3.0, output_subset=[0]) == [30]
    assert f.fn is f.vm
    assert isinstance(f, theano.compile.function_module.Function)
    other = theano.shared(5.0, "other")
    g = f.copy(swap={w: other})
    assert g(1.0) == [5, 1]
    assert g[other] == 6
    again = pickle.loads(pickle.dumps(f))
    assert [again(1.0)[0], again["w"], w.get_value()] == [11, 12, 11]


def test_in_is_one_class_in_all_its_places():
    for module in theano, theano.compile, theano.compile.io:
        assert module.In is theano.In
    assert theano.compile.function is theano.function
    assert theano.compile.pfunc is pfunc
    assert theano.compile.pfunc(params=[x], outputs=x + 1, mode=MODE)(1.0) == 2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_states_and_ranks_see_the_same_variable(n):
    """The plain function's state is a variable that a function on ranks updates."""
    rows, w = T.dvector("rows"), theano.shared(1.0, "w")
    plain = theano.function([i, theano.In(s, value=w, update=s + i)], s, mode=MODE)
    ours = synk.function([rows], updates=[(w, w + rows.sum())], mode=MODE)
    with synk.session(n):
        ours(np.arange(4.0))
        assert plain(1) == 7
        ours(np.arange(4.0))
        assert plain[w] == w.get_value() == 14
    with pytest.raises(TypeError, match="pass the variable itself"):
        synk.function([rows, theano.In(s, value=1.0, update=s + 1)], rows + s)


def test_monitor_mode_calls_functions_of_three_arguments(capsys):
    seen = []
    mode = theano.compile.MonitorMode(
        pre_func=lambda number, node, thunk: seen.append(thunk.inputs[0][0]),
        post_func=theano.compile.monitormode.detect_nan,
    )
    v = T.dvector("v")
    np.testing.assert_array_equal(
        theano.function([v], T.log(v), mode=mode)([1, -1]), [0, np.nan]
    )
    np.testing.assert_array_equal(seen, [[1, -1]])
    assert "NaN detected" in capsys.readouterr().out
    graphs = []

    def four(graph, number, node, thunk):
        graphs.append(graph.outputs)

    mode = theano.compile.MonitorMode(four)
    theano.function([v], T.exp(v), mode=mode)([1.0])
    assert len(graphs) == 1
