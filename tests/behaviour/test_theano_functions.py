"""`theano.function`, `shared`, `scan`, gradients, options: with Theano's arguments."""

import os
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytensor
import pytest
import theano
import theano.tensor as T
from theano.ifelse import ifelse

from synk.theano.configuration import Config
from synk.theano.configuration_files import read_files, read_flags, theanorc_files

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODE = "FAST_COMPILE"


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
    for mode in "FAST_COMPILE", "DebugMode", theano.compile.get_mode("FAST_COMPILE"):
        assert theano.function([x], 2 * x, mode=mode)(1.5) == 3.0
    guarded = theano.function([x], T.log(x), mode="NanGuardMode")
    assert guarded(1.0) == 0.0
    with pytest.raises(AssertionError, match="NaN"), np.errstate(invalid="ignore"):
        guarded(-1.0)
    with pytest.raises(ValueError, match="profile=True"):
        theano.function([x], x, mode="ProfileMode")


def test_shared_takes_broadcastable_and_no_other_target():
    row = theano.shared(np.zeros((1, 3)), broadcastable=(True, False), borrow=True)
    assert row.broadcastable == (True, False)
    assert theano.shared(np.zeros((1, 3)), target="cpu").broadcastable == (False,) * 2
    with pytest.raises(TypeError, match=r"synk\.fork"):
        theano.shared(np.zeros(3), target="dev0")


def test_clone_replaces():
    x, y = T.dscalar("x"), T.dscalar("y")
    z = theano.clone(x**2, replace={x: y + 1})
    assert z.eval({y: 2.0}) == 9.0
    with pytest.warns(DeprecationWarning, match="share_inputs"):
        theano.clone(x, copy_inputs=True)


def test_loops_return_outputs_and_updates():
    x = T.dvector("x")
    sums, updates = theano.scan(
        lambda value, total, factor: total + factor * value,
        sequences=[x],
        outputs_info=[T.constant(np.float64(0))],
        non_sequences=2.0,
        n_steps=None,
    )
    squares, none = theano.map(lambda value: value**2, x)
    last, _ = theano.reduce(lambda v, acc: acc + v, x, T.constant(np.float64(0)))
    left, _ = theano.foldl(lambda v, acc: 2 * acc + v, x, T.constant(np.float64(0)))
    right, _ = theano.foldr(lambda v, acc: 2 * acc + v, x, T.constant(np.float64(0)))
    assert not none
    f = theano.function(
        [x], [sums, squares, last, left, right], updates=updates, mode=MODE
    )
    got = f([1.0, 2.0, 4.0])
    expected = [2, 6, 14], [1, 4, 16], 7, 12, 21
    for value, known in zip(got, expected, strict=True):
        np.testing.assert_array_equal(value, known)


def test_a_loop_that_draws_brings_updates():
    rng = T.shared_randomstreams.RandomStreams(3)
    values, updates = theano.scan(lambda: rng.uniform(()), n_steps=4)
    assert len(updates) == 1
    f = theano.function([], values, updates=updates, mode=MODE)
    first, second = f(), f()
    assert len(set(first) | set(second)) == 8


def test_ifelse_computes_one_branch():
    x = T.dscalar("x")
    chosen = ifelse(T.gt(x, 0), T.sqrt(x), -x)
    f = theano.function([x], chosen, mode=MODE)
    assert (f(4.0), f(-3.0)) == (2.0, 3.0)


def test_products_with_jacobians_and_hessians():
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(3, 3)), rng.normal(size=3)
    x = T.dvector("x")
    y = T.dot(a, x**2)
    cost = (x**3).sum() + T.dot(x, T.dot(a, x))
    g = T.grad(cost, x)
    point = np.array([1.0, -2.0, 0.5])
    jacobian, hessian = a * (2 * point), np.diag(6 * point) + a + a.T
    v_ = T.constant(v)
    graphs = [
        T.Rop(y, x, v_),
        T.Lop(y, x, v_),
        theano.gradient.jacobian(y, x),
        theano.gradient.hessian(cost, x),
        theano.gradient.hessian_times_vector(g, x, v_),
        theano.gradient.hessian_times_vector(g, x, v_, r_op=True),
    ]
    got = theano.function([x], graphs, mode=MODE)(point)
    expected = [jacobian @ v, v @ jacobian, jacobian, hessian, hessian @ v, hessian @ v]
    for value, known in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, known)


def test_gradients_that_are_stopped_clipped_and_scaled():
    x = T.dvector("x")
    for changed, known in (
        (theano.gradient.disconnected_grad(x) * x, [1, 2]),
        (theano.gradient.zero_grad(x) * x, [1, 2]),
        (theano.gradient.consider_constant(x) * x, [1, 2]),
        (theano.gradient.grad_clip(x, -1, 3) ** 2, [2, 3]),
        (theano.gradient.grad_scale(x, -2) ** 2, [-4, -8]),
    ):
        gradient = theano.function([x], T.grad(changed.sum(), x), mode=MODE)
        assert gradient([1.0, 2.0]).tolist() == known
    theano.gradient.verify_grad(lambda z: z**2, [[1.0, 2.0]], mode=MODE)
    wrong = lambda z: theano.gradient.grad_scale(z, 2) ** 2  # noqa: E731
    with pytest.raises(theano.gradient.GradientError):
        theano.gradient.verify_grad(wrong, [[1.0, 2.0]], mode=MODE)


def test_printing(capsys):
    x = T.dscalar("x")
    assert theano.pp(x + 1) == theano.pprint(x + 1)
    text = theano.printing.debugprint(x + 1, ids="int", file="str")
    assert text.startswith("Add [id 0]")
    for profile in None, False:
        f = theano.function([x], x + 1, mode=MODE, profile=profile)
        assert theano.printing.debugprint(f, file="str").startswith("Add")
    theano.function([x], theano.printing.Print("value")(x), mode=MODE)(1.0)
    assert "value __str__ = 1.0" in capsys.readouterr().out


def test_options_are_pytensors():
    assert theano.config.floatX == pytensor.config.floatX
    with theano.config.change_flags(floatX="float32"):
        assert T.matrix().dtype == "float32"
        assert theano.config.floatX == "float32"
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


def test_theano_flags_are_read():
    config = Config()
    before = pytensor.config.floatX
    try:
        read_flags(
            config, "floatX=float32, device=cpu,lib.cnmem=0.8,nvcc.fastmath=True"
        )
        assert pytensor.config.floatX == "float32"
        assert config.lib.cnmem == 0.8
        assert config.nvcc.fastmath is True
        with pytest.warns(UserWarning, match="THEANO_FLAGS: .*nonsense=1"):
            read_flags(config, "nonsense=1")
        with pytest.warns(UserWarning, match="optimizer stays"):
            read_flags(config, "optimizer=fast_compile")
        with pytest.warns(UserWarning, match="neither True nor False"):
            read_flags(config, "nvcc.fastmath=perhaps")
    finally:
        pytensor.config.floatX = before


def in_a_script(code, **environment):
    """Return what a script prints; options are read when `theano` is imported."""
    left = {"THEANORC", "THEANO_FLAGS", "PYTENSOR_FLAGS"}
    kept = {name: value for name, value in os.environ.items() if name not in left}
    command = [sys.executable, "-c", "import synk, theano\n" + code]
    done = subprocess.run(
        command,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split(), done.stderr


PRINT_OPTIONS = """
c = theano.config
print(c.floatX, theano.tensor.matrix().dtype, c.scan.allow_gc, c.lib.cnmem, c.device)
"""


def test_theanorc_is_read_and_flags_come_before(tmp_path):
    file, later = tmp_path / ".theanorc", tmp_path / "later"
    file.write_text(
        "[global]\nFLOATX = float32\ndevice = gpu\n[lib]\ncnmem = 0.8\n"
        "[scan]\nallow_gc = True\n[nvcc]\nfastmath = True\n[mine]\na = %(USER)s\n"
    )
    later.write_text("[scan]\nallow_gc = False\n[global]\nfloatX = float16\n")
    home = {"HOME": str(tmp_path)}
    printed, said = in_a_script(PRINT_OPTIONS, **home)
    assert printed == ["float32", "float32", "True", "0.8", "cpu"]
    assert said.count("UserWarning") == 1
    for option in "device=gpu", "nvcc.fastmath=True", "lib.cnmem=0.8", "mine.a=":
        assert option in said
    assert "allow_gc" not in said
    printed, _ = in_a_script(PRINT_OPTIONS, THEANO_FLAGS="floatX=float64", **home)
    assert printed[:3] == ["float64", "float64", "True"]
    files = f"{file}{os.pathsep}{tmp_path / 'none'}{os.pathsep}{later}"
    printed, _ = in_a_script(PRINT_OPTIONS, HOME="/", THEANORC=files)
    assert printed[:4] == ["float16", "float16", "False", "0.8"]


def test_a_theanorc_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / ".theanorc").write_text("floatX = float32\n")
    config = Config()
    with pytest.warns(UserWarning, match="is not read: File contains no section"):
        read_files(config, theanorc_files({"THEANORC": str(tmp_path / ".theanorc")}))


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


def test_asarray_knows_floatx():
    from theano.misc.safe_asarray import _asarray

    assert _asarray is theano._asarray
    with theano.config.change_flags(floatX="float32"):
        assert theano._asarray([1, 2], dtype="floatX").dtype == "float32"
    assert theano._asarray([1.5, 2], "int64").tolist() == [1, 2]
