"""Shapes in JAX mode: what is mended in PyTensor's, and whether it needs to be."""

import signal

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child, run_python
from reference import PY

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 10))
Y = RNG.integers(0, 10, 300).astype("int32")

NOT_THERE = "NotImplementedError"
NO_SPLIT = "ConcretizationTypeError or AttributeError"
NEEDED = [
    ("x[pt.arange(y.shape[0]), y]", "OverflowError", (3, 3)),
    ("x[pt.extra_ops.to_one_hot(y, 10).nonzero()]", NOT_THERE, None),
    ("x.reshape((pt.maximum(x.shape[0], 1), -1)) + y[0]", "TypeError", None),
    ("x[: x.shape[0] // 2] + y[0]", "IndexError", None),
    ("x.reshape(pt.concatenate([y.shape[:1], [-1]]), ndim=2)", NOT_THERE, None),
    ("pt.grad((pt.concatenate([x, x]) ** 2).sum() + 0. * y[0], x)", NO_SPLIT, None),
    ("pt.inc_subtensor(x[y], 1.0)", "AttributeError", (3, 3)),
    ("pt.grad(pt.prod(x, axis=0).sum() + 0. * y[0], x)", "AttributeError", (3, 3)),
    ("pt.unique(y) + x[0, 0]", "AttributeError", None),
    ("pt.random.normal(size=pt.concatenate([x.shape[:1], [2]]))", NOT_THERE, None),
    ("pt.random.binomial(1, 0.5, size=x.shape) + y[0]", NOT_THERE, None),
]
"""What synk mends: graphs, what PyTensor 2.38.3 and 3.0.7 do alone, and how long."""

HINGE = (
    "pt.maximum(pt.reshape(x[(1 - ones).nonzero()], (-1, x.shape[1] - 1)).max(axis=1)"
    " - x[ones.nonzero()] + 1, 0)"
)
"""The multi-class hinge loss of Lasagne 0.2; `ones` are those of the classes."""
ALIKE = [
    *(HINGE, f"pt.grad({HINGE}.sum(), x)"),
    "pt.grad(x[pt.arange(y.shape[0]), y].sum(), x)",
    "pt.any(pt.eq(pt.argsort(x, axis=-1)[:, -3:], y[:, None]), axis=-1)",
    "((x > 0) * x).sum() / (x > 0).sum() + 0 * y[0]",
    "pt.grad((x[: x.shape[0] // 2 :] ** 2).sum() + 0.0 * y[0], x)",
    "x[: pt.cast(pt.ceil(y.shape[0] / 7.0), 'int64')]",
    "pt.take_along_axis(x.reshape((y.shape[0], 5, 2)),"
    " pt.argsort(x.reshape((-1, 5, 2)), axis=1), 1)",
    "pt.repeat(pt.arange(y.shape[0]), x.shape[1])",
    "pt.inc_subtensor(pt.zeros_like(x)[: x.shape[0]], x)[::-1] + 0 * y[0]",
    "pt.alloc(np.float32(2), y.shape[0]) + pt.zeros((), 'float32')",
    "pt.grad(pt.prod(pt.set_subtensor(x[0], 0.0)[:4], axis=0).sum(), x) + 0 * y[0]",
    "pytensor.scan(lambda row, total: total + row, x, pt.zeros((x.shape[1],)),"
    " n_steps=y.shape[0], return_updates=False)",
    # Sizes, and what is computed of them.
    "pt.maximum(x.shape[0] // 2, 1) + 3 * x.shape[1] - y.shape[0] % 3",
    "pt.switch(pt.gt(x.shape[0], x.shape[1]), x.shape[0], x.shape[1])",
    "pt.concatenate([x.shape, [5]])[1:].prod() * x.sum()",
    "pt.log(x.shape[0]) + pt.sqrt(pt.cast(x.shape[1], 'float32'))",
    "pt.true_div(x.shape[0], x.shape[1]) * x.sum()",
    "pt.stack([x.shape, x.shape[::-1]]).T.max(axis=1)",
]


def graph_of(text, x, y):
    ones = pt.extra_ops.to_one_hot(y, x.shape[1])
    names = {"pt": pt, "np": np, "pytensor": pytensor, "x": x, "y": y, "ones": ones}
    return eval(text, names)


def compiled(inputs, outputs, **options):
    """Return what synk has PyTensor make of a graph, with the fixes."""
    import theano

    return theano.function(inputs, outputs, mode="JAX", **options)


@in_a_child
def test_graphs_have_the_values_and_dtypes_of_other_modes():
    x, y = pt.matrix("x"), pt.ivector("y")
    texts = [text for text, *_ in NEEDED[:-3]] + ALIKE
    graphs = [graph_of(text, x, y) for text in texts]
    plain = pytensor.function([x, y], graphs, mode=PY)(X, Y)
    with synk.session(1):
        found = synk.function([], graphs, mode="JAX", bcast_inputs=[x, y])(X, Y)
    for text, one, other in zip(texts, found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, err_msg=text)
        assert np.asarray(one).dtype == np.asarray(other).dtype, text


REFUSED = {
    "pt.arange(y[0] + 3) + 0 * x[0, 0]": "length of arange",
    "x[: y[0] + 1]": r"write x\[start \+ arange\(n\)\]",
    "x.reshape((y.max() + 1, -1))": "shape of reshape",
    "pt.zeros((y.max() + 1,)) + x[0, 0]": "zeros or ones",
    "pt.eye(y.max() + 1)[y] + x[0, 0]": "shape of eye",
    "x[x > 0] + y[0]": r"switch\(mask, new, x\)",
    "x[(x > 0).nonzero()] + y[0]": r"\(mask \* x\).sum\(\) / mask.sum\(\)",
    "pt.repeat(x, y, axis=0)": "number of repeats",
    "pt.unique(y) + x[0, 0]": "cannot list different values",
    "pt.random.normal(size=(y[0] + 1,)) + x[0, 0]": "random num",
}


@in_a_child
def test_shapes_that_only_values_tell_are_refused_and_what_to_write_is_said():
    x, y = pt.matrix("x"), pt.ivector("y")
    for text, message in REFUSED.items():
        with pytest.raises(NotImplementedError, match=message):
            print(text, compiled([x, y], graph_of(text, x, y))(X, Y))


@in_a_child
def test_dropout_masks():
    """Means and variances are those of the distribution, and calls differ."""
    x = pt.matrix("x")
    rng = pytensor.shared(np.random.default_rng(3))
    after, drawn = pt.random.binomial(
        1, pt.constant([0.2] * 10), size=x.shape, rng=rng
    ).owner.outputs
    more = pt.random.binomial(
        9, 0.5, size=pt.concatenate([x.shape[:1], [20]]), rng=after
    )
    f = compiled([x], [drawn, more], updates={rng: more.owner.outputs[0]})
    first, second = f(X), f(X)
    for ones, nines in first, second:
        assert np.asarray(ones).shape == (300, 10)
        assert np.asarray(nines).shape == (300, 20)
        assert ones.dtype == nines.dtype == "int64"
        assert set(np.unique(ones)) == {0, 1}
        # Five standard deviations.
        assert abs(np.mean(ones) - 0.2) < 5 * np.sqrt(0.16 / 3000)
        assert abs(np.mean(nines) - 4.5) < 5 * np.sqrt(9 / 4 / 6000)
        assert abs(np.var(nines) / (9 / 4) - 1) < 0.1
    assert not np.array_equal(first[0], second[0])


WITHOUT = """
import sys, warnings, numpy as np, pytensor, pytensor.tensor as pt
warnings.simplefilter("ignore")
for text in {texts}:
    x, y = pt.matrix(), pt.ivector()
    graph = eval(text)
    try:
        f = pytensor.function([x, y], graph, mode="JAX", on_unused_input="ignore")
        f(np.ones((300, 10)), np.zeros(300, "int32"))
    except Exception as error:
        print(type(error).__name__)
    else:
        print("the fix can go")
"""

XLA = """
import jax, jax.numpy as jnp
print(jax.jit(lambda y: jnp.zeros(3).at[:].add(y)[::-1])(jnp.arange(3.0)))
"""


def alone(code):
    """Run code in a process without synk."""
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    return run_python("-c", code, check=False, JAX_PLATFORMS="cpu")


def test_pytensor_alone_still_needs_the_fixes():
    done = alone(WITHOUT.format(texts=[text for text, *_ in NEEDED]))
    version = tuple(map(int, pytensor.__version__.split(".")[:2]))
    found = done.stdout.splitlines()
    assert len(found) == len(NEEDED), done.stderr
    for (text, errors, until), line in zip(NEEDED, found, strict=True):
        right = until is not None and version >= until
        assert line in ("the fix can go" if right else errors), text


def test_xla_still_aborts_where_all_of_an_array_is_set():
    done = alone(XLA)
    assert done.returncode == -signal.SIGABRT, "the fix of_all can go"
    assert "opcode map" in done.stderr


def test_importing_synk_imports_no_jax():
    run_python("-c", "import sys, synk.nn; assert 'jax' not in sys.modules")
    assert "conv2d" in synk.nn.__all__
