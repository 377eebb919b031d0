"""`theano.function` and the rest of `theano`, with Theano's arguments and numbers.

What is expected of ``In`` and ``f[s]`` is what Theano 1.0's tutorial on functions and
its tests of ``In`` say.
"""

import copy
import os
import pickle
from collections import OrderedDict

import numpy as np
import pytensor
import pytest
import theano
import theano.compile
import theano.compile.function
import theano.compile.io
import theano.compile.monitormode
import theano.tensor as T
from children import run_python
from theano.compile.pfunc import pfunc

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
CXX = pytensor.config.cxx
i, s, x = T.dscalars("i", "s", "x")


def test_function_takes_theanos_arguments():
    x, y = T.dscalar("x"), T.dscalar("y")
    total = theano.shared(0.0, name="total")
    step = theano.function(
        inputs=[theano.In(x), theano.Param(y, default=2.0, name="y")],
        outputs=[x * y, x],
        updates=OrderedDict([(total, total + x)]),
        givens=[],
        mode=MODE,
        allow_input_downcast=True,
        on_unused_input="ignore",
        profile=None,
        name="step",
    )
    assert [float(v) for v in step(3.0)] == [6.0, 3.0]
    assert [float(v) for v in step(3.0, y=4.0)] == [12.0, 3.0]
    assert total.get_value() == 6.0
    with pytest.raises(TypeError, match="x has no value"):
        step(y=1.0)
    named = theano.function([x], {"twice": 2 * x, "same": x}, mode=MODE)
    assert named(2.0) == {"twice": 4.0, "same": 2.0}
    assert named.maker is not None
    with pytest.raises(TypeError, match="list or a tuple"):
        theano.function(x, x)
    with pytest.raises(TypeError, match="strings"):
        theano.function([x], {1: x})


def test_modes_by_name():
    x = T.dscalar("x")
    for mode in "FAST_COMPILE", theano.compile.get_mode("FAST_COMPILE"):
        assert theano.function([x], 2 * x, mode=mode)(1.5) == 3.0
    if CXX:  # it compares what C computes
        with pytensor.config.change_flags(cxx=CXX):
            assert theano.function([x], 2 * x, mode="DebugMode")(1.5) == 3.0
    guarded = theano.function([x], T.log(x), mode="NanGuardMode")
    assert guarded(1.0) == 0.0
    with pytest.raises(AssertionError, match="NaN"), np.errstate(invalid="ignore"):
        guarded(-1.0)
    with pytest.raises(ValueError, match="profile=True"):
        theano.function([x], x, mode="ProfileMode")


def test_shared_takes_no_other_target_and_clone_replaces():
    row = theano.shared(np.zeros((1, 3)), broadcastable=(True, False), borrow=True)
    assert row.broadcastable == (True, False)
    assert theano.shared(np.zeros((1, 3)), target="cpu").broadcastable == (False,) * 2
    with pytest.raises(TypeError, match=r"synk\.fork"):
        theano.shared(np.zeros(3), target="dev0")
    z = theano.clone(x**2, replace={x: i + 1})
    assert z.eval({i: 2.0}) == 9.0
    with pytest.warns(DeprecationWarning, match="share_inputs"):
        theano.clone(x, copy_inputs=True)


def test_loops_return_outputs_and_updates():
    x, rng = T.dvector("x"), T.shared_randomstreams.RandomStreams(3)
    squares, none = theano.map(lambda value: value**2, x)
    last, _ = theano.reduce(lambda v, acc: acc + v, x, T.constant(np.float64(0)))
    drawn, updates = theano.scan(lambda: rng.uniform(()), n_steps=4)
    assert (len(none), len(none + updates), len({} + updates)) == (0, 1, 1)
    with pytest.raises(KeyError, match="two updates"):
        _ = updates + dict.fromkeys(updates, x)
    loop = squares.owner.op
    assert (loop.inputs, loop.outputs) == (loop.inner_inputs, loop.inner_outputs)
    f = theano.function([x], [squares, last, drawn], updates=updates, mode=MODE)
    (squared, total, first), (_, _, second) = f([1.0, 2.0, 4.0]), f([0.0])
    assert [*squared, total, len({*first, *second})] == [1, 4, 16, 7, 8]


def test_products_with_jacobians():
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(3, 3)), rng.normal(size=3)
    x, point = T.dvector("x"), np.array([1.0, -2.0, 0.5])
    squares, v_ = T.dot(a, x**2), T.constant(v)
    graphs = [T.Rop(squares, x, v_), T.Lop(squares, x, v_)]
    forward, back = theano.function([x], graphs, mode=MODE)(point)
    np.testing.assert_allclose(forward, (a * 2 * point) @ v)
    np.testing.assert_allclose(back, v @ (a * 2 * point))


def test_gradients_that_are_stopped_and_scaled():
    x = T.dvector("x")
    for changed, known in (
        (theano.gradient.disconnected_grad(x) * x, [1, 2]),
        (theano.gradient.zero_grad(x) * x, [1, 2]),
        (theano.gradient.consider_constant(x) * x, [1, 2]),
        (theano.gradient.grad_scale(x, -2) ** 2, [-4, -8]),
        (theano.sparse_grad(x[T.arange(1)]) * 3, [3, 0]),
    ):
        gradient = theano.function([x], T.grad(changed.sum(), x), mode=MODE)
        assert gradient([1.0, 2.0]).tolist() == known


def test_printing(capsys):
    x = T.dscalar("x")
    assert theano.pp(x + 1) == theano.pprint(x + 1)
    text = theano.printing.debugprint(x + 1, ids="int", file="str")
    assert text.startswith("Add [id 0]")
    f = theano.function([x], x + 1, mode=MODE, profile=False)
    assert theano.printing.debugprint(f, file="str").startswith("Add")
    text = theano.printing.debugprint([accumulator(), T.exp(x)], file="str")
    assert "Exp" in text
    theano.function([x], theano.printing.Print("value")(x), mode=MODE)(1.0)
    assert "value __str__ = 1.0" in capsys.readouterr().out


def test_options_are_pytensors():
    assert theano.config.floatX == pytensor.config.floatX
    with theano.config.change_flags(floatX="float32"):
        assert T.matrix().dtype == "float32"
        assert theano.config.floatX == "float32"
        assert theano._asarray([1, 2], dtype="floatX").dtype == "float32"
    assert T.matrix().dtype == pytensor.config.floatX
    assert theano.config.device == "cpu"
    assert theano.config.NanGuardMode.nan_is_error in (True, False)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = theano.config.nonsense
    with pytest.raises(AttributeError, match="nonsense"):
        theano.config.nonsense = 1
    theano.config.warn.subtensor_merge_bug = False
    with pytest.warns(UserWarning, match=r"stays .*PYTENSOR_FLAGS=optimizer=None"):
        theano.config.optimizer = "None"
    with pytest.raises(ValueError, match="float8"):
        theano.config.floatX = "float8"
    with pytest.warns(UserWarning, match=r"synk\.fork"):
        theano.config.device = "cuda0"
    assert theano.config.device == "cpu"


PRINT_OPTIONS = """
import synk, theano
c = theano.config
print(c.floatX, theano.tensor.matrix().dtype, c.scan.allow_gc, c.lib.cnmem, c.device)
"""


def in_a_script(**environment):
    """Return what a script prints: options are read when `theano` is imported."""
    without = dict.fromkeys(["THEANORC", "THEANO_FLAGS", "PYTENSOR_FLAGS"])
    done = run_python("-c", PRINT_OPTIONS, **without | environment)
    return done.stdout.split(), done.stderr


def test_theanorc_is_read_and_flags_come_before(tmp_path):
    file, later, wrong = tmp_path / ".theanorc", tmp_path / "later", tmp_path / "wrong"
    file.write_text(
        "[global]\nFLOATX = float32\ndevice = gpu\n[lib]\ncnmem = 0.8\n"
        "[scan]\nallow_gc = True\n[nvcc]\nfastmath = True\n[mine]\na = %(USER)s\n"
    )
    later.write_text("[scan]\nallow_gc = False\n[global]\nfloatX = float16\n")
    wrong.write_text("floatX = float32\n")
    home = {"HOME": str(tmp_path)}
    printed, said = in_a_script(**home)
    assert printed == ["float32", "float32", "True", "0.8", "cpu"]
    assert said.count("UserWarning") == 1
    for option in "device=gpu", "nvcc.fastmath=True", "lib.cnmem=0.8", "mine.a=":
        assert option in said
    assert "allow_gc" not in said
    flags = "floatX=float64, lib.cnmem=0.5,nonsense=1,nvcc.fastmath=x,optimizer=None"
    printed, said = in_a_script(THEANO_FLAGS=flags, **home)
    assert printed[:4] == ["float64", "float64", "True", "0.5"]
    for reason in "nonsense=1", "optimizer stays", "neither True nor False":
        assert reason in said
    files = os.pathsep.join(map(str, (file, tmp_path / "none", wrong, later)))
    printed, said = in_a_script(HOME="/", THEANORC=files)
    assert printed[:4] == ["float16", "float16", "False", "0.8"]
    assert "is not read: File contains no section" in said


def test_options_are_changed_for_a_while():
    before = theano.config.floatX, theano.config.compute_test_value
    with theano.config.change_flags(compute_test_value="raise", floatX="float16"):
        assert theano.config.compute_test_value == "raise"
        assert T.scalar().dtype == "float16"

    @theano.change_flags({"scan.debug": True}, floatX="float32")
    def inside(again):
        assert theano.config.scan.debug
        assert T.scalar().dtype == "float32"
        return again and inside(False)

    inside(True)
    assert (theano.config.floatX, theano.config.compute_test_value) == before
    assert not theano.config.scan.debug
    refused = theano.change_flags(compute_test_value="warn", floatX="float8")
    with pytest.raises(ValueError, match="float8"), refused:
        pass
    assert (theano.config.floatX, theano.config.compute_test_value) == before
    with pytest.raises(AttributeError, match="nonsense"):
        theano.change_flags(nonsense=1)


# -- inputs with values of their own, and looking into functions


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
        (lambda f: f.container[x], "Unknown input or state"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call, said):
    with pytest.raises(TypeError, match=said):
        call(accumulator())


def test_a_state_without_a_first_value_is_given_by_calls():
    f = theano.function([theano.In(s, update=s + 1)], s * 2, mode=MODE)
    assert f(4.0) == 8
    assert f[s] == 5
    with pytest.raises(TypeError, match="s has no value"):
        f()
    with pytest.raises(TypeError, match="the update of s has the type"):
        theano.In(s, value=1.0, update=T.dvector())
    with pytest.raises(TypeError, match="implicit input s needs a value"):
        theano.In(s, implicit=True)


def test_arrays_that_were_given_stay_as_they_are():
    first, v, total = np.zeros(3), T.dvector("v"), T.dvector("total")
    f = theano.function([v, theano.In(total, value=first, update=total + v)], total)
    for _ in range(2):
        f(np.ones(3))
    assert (f[total].tolist(), first.tolist()) == ([2, 2, 2], [0, 0, 0])


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


def test_states_and_ranks_see_the_same_variable(two_ranks):
    """The plain function's state is a variable that a function on ranks updates."""
    rows, w = T.dvector("rows"), theano.shared(1.0, "w")
    plain = theano.function([i, theano.In(s, value=w, update=s + i)], s, mode=MODE)
    ours = synk.function([rows], updates=[(w, w + rows.sum())], mode=MODE)
    ours(np.arange(4.0))
    assert plain(1) == 7
    ours(np.arange(4.0))
    assert plain[w] == w.get_value() == 14
    with pytest.raises(TypeError, match="pass the variable itself"):
        synk.function([rows, theano.In(s, value=1.0, update=s + 1)], rows + s)


def test_monitor_mode_calls_functions_of_three_arguments(capsys):
    mode = theano.compile.MonitorMode(post_func=theano.compile.monitormode.detect_nan)
    v = T.dvector("v")
    found = theano.function([v], T.log(v), mode=mode)([1, -1])
    np.testing.assert_array_equal(found, [0, np.nan])
    assert "NaN detected" in capsys.readouterr().out
    graphs = []

    def four(graph, number, node, thunk):
        graphs.append(graph.outputs)

    mode = theano.compile.MonitorMode(four)
    theano.function([v], T.exp(v), mode=mode)([1.0])
    assert len(graphs) == 1
