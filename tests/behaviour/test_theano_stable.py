"""Where PyTensor would be infinite, NaN or an error, and Theano was not."""

import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import theano
import theano.tensor as T

import synk
from synk.theano.pytensor_versions import KNOWS_CHOSEN_COLUMNS

MODE = "FAST_COMPILE"
LOGITS = np.array([[0.0, 1000.0, -1500.0], [800.0, -30.0, 20.0]])


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def negative_log_likelihood(p, y):
    return T.nnet.categorical_crossentropy(p, y).mean()


x, y = T.dmatrix("x"), T.ivector("y")
Y = np.array([2, 1], "int32")
P, S = T.nnet.softmax(x), T.nnet.sigmoid(x)
STABLE = {
    "log(softmax)": (T.log(P), log_softmax(LOGITS)),
    "likelihood": (negative_log_likelihood(P, y), (2500 + 830) / 2),
    "by hand": (-T.mean(T.log(P)[T.arange(y.shape[0]), y]), (2500 + 830) / 2),
    "distributions": (
        T.nnet.categorical_crossentropy(P, T.ones_like(P)),
        -log_softmax(LOGITS).sum(axis=1),
    ),
    "log(sigmoid)": (T.log(S), -softplus(-LOGITS)),
    "log(1 - sigmoid)": (T.log(1 - S), -softplus(LOGITS)),
    "log1p(-sigmoid)": (T.log1p(-S), -softplus(LOGITS)),
    "binary": (T.nnet.binary_crossentropy(S, 0.5), (softplus(LOGITS) - LOGITS / 2)),
    "log1p(exp)": (T.log1p(T.exp(x)), softplus(LOGITS)),
    "log(1 + exp)": (T.log(1 + T.exp(x)), softplus(LOGITS)),
    "logsumexp": (T.log(T.exp(x).sum(axis=1)), LOGITS.max(axis=1)),
}


@pytest.mark.parametrize("mode", [MODE, "mode object", "optimizer"])
@pytest.mark.parametrize("name", STABLE)
def test_fast_compile_is_finite_where_theanos_was(name, mode):
    expression, expected = STABLE[name]
    mode = {
        MODE: MODE,
        "mode object": theano.compile.mode.FAST_COMPILE,
        "optimizer": theano.Mode("py", "fast_compile"),
    }[mode]
    outputs = [expression, T.grad(expression.sum(), x)]
    if name == "by hand" and not KNOWS_CHOSEN_COLUMNS:
        outputs[1] = T.zeros_like(x)  # PyTensor's FAST_RUN has NaN there, too
    f = theano.function([x, y], outputs, mode=mode, on_unused_input="ignore")
    value, slope = f(LOGITS, Y)
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fast_compile_is_finite_on_ranks(n):
    loss = negative_log_likelihood(P, y)
    f = synk.function([x, y], [loss, T.grad(loss, x)], mode=MODE)
    with synk.session(n):
        value, slope = f(LOGITS, Y)
    np.testing.assert_allclose(value, (2500 + 830) / 2)
    p = np.exp(log_softmax(LOGITS))
    np.testing.assert_allclose(slope, (p - np.eye(3)[Y]) / 2, atol=1e-12)


@pytest.mark.parametrize("mode", [MODE, "NUMBA"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_gradient_of_likelihoods_knows_the_true_columns_only(mode, n):
    """Another class may have the probability 0."""
    p = np.array([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    columns = np.array([1, 0, 0], "int32")
    v = T.dmatrix("v")
    losses = T.nnet.categorical_crossentropy(v, y)
    slope = T.grad(losses.sum(), v)
    expected = np.zeros((3, 3))
    expected[[0, 1, 2], columns] = [-4, -2, -1]
    f = synk.function([v, y], [losses, slope], mode=mode)
    with synk.session(n):
        values, slopes = f(p, columns)
    np.testing.assert_allclose(values, -np.log([0.25, 0.5, 1]))
    np.testing.assert_allclose(slopes, expected)


def test_columns_are_returned_in_the_dtype_of_the_labels():
    for labels, dtype in (T.ivector(), "int32"), (T.bvector(), "int8"):
        made = T.nnet.crossentropy_softmax_argmax_1hot_with_bias(x, T.dvector(), labels)
        assert made[2].dtype == dtype
    made = T.nnet.crossentropy_softmax_max_and_argmax_1hot(x, T.ivector())
    assert made[3].dtype == "int64"


@pytest.mark.parametrize("mode", [MODE, "NUMBA"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "uint32", "int8", "int16", "int32", "bool"]
)
def test_floats_are_cast_alike_by_all_engines(mode, dtype):
    values = np.array([-2.9, 5.0, -0.5, 120.7])
    if dtype not in ("int32", "bool"):
        values = np.append(values, [300.7, -70000.2, 70000.2])
    v = T.dvector("v")
    f = theano.function([v], T.cast(v, dtype), mode=mode)
    expected = values if dtype == "bool" else values.astype("int64")
    np.testing.assert_array_equal(f(values), expected.astype(dtype))
    assert f(values).dtype == dtype


def test_variables_are_true_but_for_comparisons():
    w = theano.shared(0.0, "w")
    for variable in x, w, T.constant(0), x + 1, T.eq(x, 1), x[0]:
        assert bool(variable)
    assert (not x) is False
    assert (None or w) is w
    for variable in x > 0, x <= 1, w < 1, x >= w:
        with pytest.raises(TypeError):
            bool(variable)
    with pytest.raises(TypeError):
        assert 0 < w < 1


def test_code_that_theanos_calls_is_answered_as_theanos():
    scope = {"__name__": "helpers"}
    exec("def chosen(given, other):\n    return given or other", scope)
    assert scope["chosen"](x, None) is x


PYTENSOR_ALONE = """
import pytensor, pytensor.tensor as pt, synk
from pytensor.compile import predefined_modes
x = pt.dmatrix("x")
assert pt.TensorVariable.__bool__.__module__.startswith("pytensor")
assert "stabilize" not in predefined_modes["FAST_COMPILE"].provided_optimizer.include
__import__("theano")
try:
    bool(x)
    print("true")
except TypeError:
    print("refused")
"""


def test_who_uses_pytensor_alone_has_its_answer():
    command = [sys.executable, "-c", PYTENSOR_ALONE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split()[-1] == "refused"


def test_pytensors_own_code_has_its_answer():
    scope = {"__name__": "pytensor.somewhere"}
    exec("def asked(variable):\n    return bool(variable)", scope)
    with pytest.raises(TypeError):
        scope["asked"](pt.dscalar())
    assert pytensor.function([], pt.constant(1.0), mode=MODE)() == 1
