"""Products in other precisions, beside JAX written by hand, and numpy.

And training in them: on ranks, in slices, and checked.
"""

import os
import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from numba.core import event
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from reference import PY

import synk

EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
SHORT = tuple(EPSILON)


@pytest.fixture(autouse=True)
def errors_in_rewrites_are_errors():
    """PyTensor would tell of them, and go on with the graph as it is."""
    with pytensor.config.change_flags(on_opt_error="raise"):
        yield


def exactly() -> None:
    """Have XLA make each conversion; before JAX starts."""
    os.environ["XLA_FLAGS"] = "--xla_allow_excess_precision=false"


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def rounded(value, dtype: str) -> np.ndarray:
    """Return numbers rounded to a type of 16 bits, by numpy."""
    import ml_dtypes

    return np.asarray(value).astype(getattr(ml_dtypes, dtype, dtype)).astype("float64")


def on_one_rank(inputs, outputs, precision: str | None, *arrays, **options) -> list:
    """Return what a function of a precision makes of arrays."""
    f = synk.function(
        [],
        [(output, None) for output in outputs],
        bcast_inputs=inputs,
        mode="JAX",
        precision=precision,
        **options,
    )
    with synk.session(1):
        return f(*arrays)


# -- each product, and its gradients ---------------------------------------------------


def conv_by_hand(x, w, stride: int = 2):
    from jax import lax

    return lax.conv_general_dilated(x, w, (stride, stride), "VALID")


def transposed_by_hand(x, w):
    import jax

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1], 10, 12), x.dtype)
    return jax.linear_transpose(lambda image: conv_by_hand(image, w), shape)(x)[0]


def products() -> dict:
    """Return, by name, a product in a graph, the same in JAX, and factors."""
    import jax.numpy as jnp

    def rounded_once(x, w):
        # On a GPU XLA rounds each term of the sum otherwise.
        return jnp.dot(x.astype("float32"), w.astype("float32")).astype(x.dtype)

    return {
        "dot": (pt.dot, jnp.dot, normal(40, 300), normal(300, 30)),
        "matrix and vector": (pt.dot, rounded_once, normal(40, 300), normal(300)),
        "batched": (pt.matmul, jnp.matmul, normal(4, 20, 100), normal(4, 100, 3)),
        "einsum": (
            lambda x, w: pt.einsum("ijk,klm->ijlm", x, w),
            lambda x, w: jnp.einsum("ijk,klm->ijlm", x, w),
            normal(4, 5, 30),
            normal(30, 3, 6),
        ),
        "convolve": (
            lambda x, w: pt.signal.convolve1d(x, w, mode="valid"),
            lambda x, w: jnp.convolve(x, w, mode="valid"),
            normal(90),
            normal(17),
        ),
        "conv2d": (
            lambda x, w: synk.nn.conv2d(x, w, subsample=2, filter_flip=False),
            conv_by_hand,
            normal(3, 5, 10, 12),
            normal(4, 5, 3, 3),
        ),
        "transposed": (
            lambda x, w: synk.nn.conv2d_transpose(
                x, w, (10, 12), subsample=2, filter_flip=False
            ),
            transposed_by_hand,
            normal(3, 5, 4, 5),
            normal(5, 4, 3, 3),
        ),
    }


OTHERWISE = {"matrix and vector": 1}
"""A gradient that PyTensor computes in another way than JAX: it multiplies element by
element what is no sum at all."""


def gradients_by_hand(product, dtype: str, factors) -> list:
    """Return the gradients of a product in JAX with the usual casts."""
    import jax
    import jax.numpy as jnp

    def cost(*factors):
        value = product(*(factor.astype(dtype) for factor in factors))
        return jnp.tanh(value.astype("float32") / 16).sum()

    return jax.jit(jax.grad(cost, argnums=(0, 1)))(*factors)


@pytest.mark.parametrize(
    ("dtype", "names"), [("bfloat16", None), ("float16", ("dot", "conv2d"))], ids=SHORT
)
@in_a_child
def test_products_and_their_gradients_are_those_of_jax_by_hand(dtype, names):
    """A product is that of rounded factors, rounded: compared in float64."""
    exactly()
    for name in names or products():
        product, by_hand, *factors = products()[name]
        x, w = (pt.tensor(dtype="float32", shape=(None,) * f.ndim) for f in factors)
        outputs = [product(x, w)]
        expected = [by_hand(*(rounded(factor, dtype) for factor in factors))]
        if name != "convolve":  # whose gradients are not for JAX
            outputs += pytensor.grad(pt.tanh(outputs[0] / 16).sum(), [x, w])
            expected += gradients_by_hand(by_hand, dtype, factors)
        found = on_one_rank([x, w], outputs, dtype, *factors)
        for i, (got, right) in enumerate(zip(found, expected, strict=True)):
            assert got.dtype == "float32"
            if i == OTHERWISE.get(name):
                continue
            assert (got == rounded(right, dtype)).mean() > 0.95, name
            near = {"rtol": EPSILON[dtype], "atol": 1e-5 * np.abs(right).max()}
            np.testing.assert_allclose(got, right, **near, err_msg=name)


def test_a_precision_is_one_of_four_and_other_modes_have_none_but_float32():
    x = pt.fmatrix("x")
    product = (x @ np.ones((2, 3), "float32")).sum(axis=1)
    known = "tensorfloat32, bfloat16, float16, got 'tf32'"
    with pytest.raises(ValueError, match=known):
        synk.function([x], product, precision="tf32")
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        f = synk.function([x], product, precision="bfloat16")
        with synk.session(1):
            with pytest.raises(ValueError, match="needs mode='JAX'"):
                f(np.ones((3, 2), "float32"))
            with pytest.raises(ValueError, match="needs mode='JAX'"):
                synk.function([x], product, precision="bfloat16")
            f = synk.function([x], product, precision="float32")
            np.testing.assert_array_equal(f(np.ones((3, 2), "float32")), 3 * [6])
    for precision in ("tensorfloat32", *SHORT):
        with pytest.raises(ValueError, match="needs mode='JAX'"):
            synk.function([x], product, mode=PY, precision=precision)
        told = synk.function([x], product, mode="JAX", precision=precision).explain()
        assert told.to_dict()["precision"] == precision
        assert f"\n  products    of float32 in {precision}\n" in str(told)
    plain = synk.function([x], product, mode="JAX").explain()
    assert plain.to_dict()["precision"] is None
    assert "products" not in str(plain)


# -- what is a product, and what is not ------------------------------------------------


@in_a_child
def test_nothing_but_products_of_float32_is_rounded():
    exactly()
    x, wide, whole = pt.fmatrix("x"), pt.dmatrix("wide"), pt.imatrix("whole")
    values = normal(40, 30), normal(40, 30, seed=1).astype("float64")
    integers = np.arange(1200, dtype="int32").reshape(40, 30) * 1001
    others = [
        synk.nn.log_softmax(x),
        pt.tanh(x).sum(axis=0),
        (x - x.mean(axis=0)) / x.std(axis=0),
        x * wide[0],
        wide.T @ wide,
        whole.T @ whole,
        x.T @ wide,
    ]
    plain, short = (
        on_one_rank([x, wide, whole], [*others, x.T @ x], precision, *values, integers)
        for precision in (None, "bfloat16")
    )
    for before, now in zip(plain[:-1], short[:-1], strict=True):
        assert before.dtype == now.dtype
        near = 1e-13 if now.dtype == "float64" else 0
        np.testing.assert_allclose(before, now, rtol=near, atol=near)
    assert (plain[-1] != short[-1]).any()


@in_a_child
def test_products_in_loops_and_in_graphs_used_as_an_op_are_rounded():
    exactly()
    x, w, h = pt.fmatrix("x"), pt.fmatrix("w"), pt.fmatrix("h")
    arrays = [normal(6, 20), normal(20, 20, seed=1), normal(6, 20, seed=2)]
    inner = OpFromGraph([x, w], [x @ w])(x, w)
    looped = pytensor.scan(
        lambda h, w: h @ w,
        outputs_info=h,
        non_sequences=w,
        n_steps=3,
        return_updates=False,
    )
    outputs = [inner, *(looped[i] for i in range(3))]
    one, *steps = on_one_rank([x, w, h], outputs, "bfloat16", *arrays)
    weights = rounded(arrays[1], "bfloat16")
    near = {"rtol": EPSILON["bfloat16"], "atol": 1e-4}
    np.testing.assert_array_equal(one, rounded(one, "bfloat16"))
    np.testing.assert_allclose(one, rounded(arrays[0], "bfloat16") @ weights, **near)
    value = rounded(arrays[2], "bfloat16")
    for step in steps:
        np.testing.assert_array_equal(step, rounded(step, "bfloat16"))
        np.testing.assert_allclose(step, value @ weights, **near)
        value = step


def programs_in(folder) -> str:
    """Return what XLA was given since the last look, by JAX that is to write it."""
    import jax

    jax.config.update("jax_dump_ir_to", str(folder))
    paths = list(folder.glob("*.mlir"))
    text = "".join(path.read_text() for path in paths)
    for path in paths:
        path.unlink()
    return text


@in_a_child
def test_an_image_that_is_convolved_is_read_in_16_bits_by_all_but_the_caller(tmp_path):
    """As by what adds it to the outputs of a block; whatever XLA would rather do."""
    x, w = pt.ftensor4("x"), pt.ftensor4("w")
    image = pt.exp(x)
    total = image + synk.nn.conv2d(image, w)
    arrays = normal(2, 3, 4, 4), np.zeros((3, 3, 1, 1), "float32")
    programs_in(tmp_path)
    with synk.session(1):
        options = {"mode": "JAX", "precision": "bfloat16"}
        f = synk.function([x], [total, image], bcast_inputs=[w], **options)
        found, own = f(*arrays)
    np.testing.assert_allclose(own, np.exp(arrays[0]), rtol=1e-6)
    np.testing.assert_array_equal(found, rounded(own, "bfloat16"))
    barrier = r"optimization_barrier %\w+ : tensor<2x3x4x4xbf16>"
    assert len(re.findall(barrier, programs_in(tmp_path))) == 1


@in_a_child
def test_factors_that_are_views_keep_what_is_known_of_their_shapes():
    """A view may have a more precise type than its Op would give it."""
    x, w, shape = pt.fmatrix("x"), pt.ftensor4("w"), pt.lvector("shape")
    op = pt.reshape(x, shape, ndim=4).owner.op
    known = pt.TensorType("float32", (None, 3, None, None))
    view = Apply(op, [x, shape], [known()]).outputs[0]
    arrays = normal(2, 75), normal(4, 3, 2, 2)
    made = [synk.nn.conv2d(view, w)]
    options = {"givens": {shape: pt.stack([x.shape[0], 3, 5, 5])}}
    (found,) = on_one_rank([x, w], made, "bfloat16", *arrays, **options)
    right = conv_by_hand(
        rounded(arrays[0], "bfloat16").reshape(2, 3, 5, 5),
        rounded(arrays[1], "bfloat16")[:, :, ::-1, ::-1],
        stride=1,
    )
    np.testing.assert_allclose(found, right, rtol=EPSILON["bfloat16"], atol=1e-4)


@in_a_child
def test_precisions_of_32_bits_are_arguments_of_the_product_and_stay_with_it(tmp_path):
    x, w = pt.fmatrix("x"), pt.fmatrix("w")
    product = x @ w + x[0].sum()
    words = {None: None, "float32": "HIGHEST", "tensorfloat32": "HIGH"}
    with synk.session(1):
        functions = {
            name: synk.function(
                [x], product, bcast_inputs=[w], mode="JAX", precision=name
            )
            for name in words
        }
        for n in (2, 3):
            for name, f in functions.items():
                programs_in(tmp_path)
                f(np.ones((n, n), "float32"), np.ones((n, n), "float32"))
                text = programs_in(tmp_path)
                found = set(re.findall(r"precision = \[(\w+), (\w+)\]", text))
                word = words[name] or "DEFAULT"
                assert found == {(word, word)}
    # Convolutions and their gradients have them as well.
    images, filters = pt.ftensor4("images"), pt.ftensor4("filters")
    y = synk.nn.conv2d(images, filters)
    outputs = [y, *pytensor.grad((y**2).sum(), [images, filters])]
    arrays = np.ones((2, 3, 5, 5), "float32"), np.ones((4, 3, 2, 2), "float32")
    on_one_rank([images, filters], outputs, "tensorfloat32", *arrays)
    words = r"precision_config = \[#stablehlo<precision (\w+)>"
    assert re.findall(words, programs_in(tmp_path)) == ["HIGH"] * 3


# -- training --------------------------------------------------------------------------

SIZES = (12, 32, 4)
ROWS = 96
_random = np.random.default_rng(3)
FEATURES = _random.normal(size=(ROWS, SIZES[0])).astype("float32")
LABELS = (FEATURES[:, :4] ** 2).argmax(axis=1).astype("int32")
BATCH = slice(0, ROWS - 1)
START = [
    (_random.normal(size=shape) * scale).astype("float32")
    for shape, scale in ((SIZES[:2], 0.3), (SIZES[1], 0.1), (SIZES[1:], 0.3), (4, 0.1))
]


class Network:
    """Two dense layers, and the mean cross-entropy of rows."""

    def __init__(self) -> None:
        self.x, self.y = pt.fmatrix("x"), pt.ivector("y")
        self.params = [
            pytensor.shared(value, name)
            for value, name in zip(START, "WbVc", strict=True)
        ]
        w, b, v, c = self.params
        logits = pt.tanh(self.x @ w + b) @ v + c
        log_p = synk.nn.log_softmax(logits)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()

    def train(self, precision, scale=None):
        loss = self.loss if scale is None else scale.scaled(self.loss)
        grads = synk.grad(loss, self.params)
        if scale is not None:
            grads = scale.unscaled(grads)
        updates = synk.updates.momentum(grads, self.params, 0.5)
        if scale is not None:
            updates = scale.guarded(updates, grads)
        given = [self.x, self.y], self.loss
        return synk.function(*given, updates=updates, mode="JAX", precision=precision)

    def values(self, rank: int = 0) -> list[np.ndarray]:
        return synk.get_value(rank, self.params)


def distance(values, others) -> float:
    """Return the largest difference, as a part of the largest value."""
    pairs = list(zip(values, others, strict=True))
    return max(np.abs(one - other).max() / np.abs(other).max() for one, other in pairs)


def trained(precision, **options) -> tuple:
    """Return losses, the network and its step, after steps on rows of odd number."""
    network = Network()
    step = network.train(precision, **options)
    return step.run([BATCH] * 60, FEATURES, LABELS), network, step


@in_a_child
def test_networks_learn_in_16_bits_on_ranks_what_they_learn_in_32():
    """Losses, from 1.5 to 0.006, differ by three times what was measured, at most.

    Measured on the CPU: 8e-4 in bfloat16, 1.9e-4 in float16.
    """
    with synk.session(2):
        exact, *_ = trained(None)
        half, *_ = trained("float16", scale=synk.LossScale(2.0**16, interval=20))
        short, network, step = trained("bfloat16")
        assert short.dtype == "float32"
        assert distance(network.values(1), network.values(0)) == 0
        assert exact[-1] < exact[0] / 100
        assert (short != exact).any()
        assert np.abs(short - exact).max() < 2.5e-3
        assert np.abs(half - exact).max() < 6e-4
        # Slices make the step of the whole to rounding; `check` is in 16 bits as well.
        begin = [x for value in START for x in (np.zeros_like(value), value)]
        found = {}
        for name, options in {
            "whole": {},
            "checked": {"check": "serial"},
            "slices": {"num_slices": 3},
        }.items():
            synk.broadcast(step.updated, begin)
            with event.install_recorder("numba:compile") as compiled:
                step(FEATURES, LABELS, batch=BATCH, **options)
            assert not compiled.buffer  # not even a softmax within a softmax's gradient
            found[name] = network.values()
            assert distance(network.values(1), found[name]) == 0
    assert distance(found["checked"], found["whole"]) == 0
    moved = distance(found["whole"], START)
    assert 0 < distance(found["slices"], found["whole"]) < 2.0**-7 * moved


@in_a_child
def test_a_mistake_is_seen_beside_the_rounding_of_16_bits():
    x, w = pt.fmatrix("x"), pytensor.shared(START[0], "w")
    gradient = pytensor.grad(pt.tanh(x @ w).mean(), w)
    wrong = {w: w - synk.ops.all_reduce(gradient, "sum")}
    with synk.session(2):
        step = synk.function([x], updates=wrong, mode="JAX", precision="bfloat16")
        with pytest.raises(synk.SerialMismatch, match="the new value of w"):
            step(FEATURES, check="serial")
