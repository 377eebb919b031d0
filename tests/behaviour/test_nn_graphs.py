"""Normalisation, activations, losses, patches: against numpy; networks on ranks."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import check_derivatives, compiled, evaluate, few
from reference import PY
from scipy import special

import synk
from synk import nn

pytestmark = pytest.mark.usefixtures("graphs_in_python")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3, 2, 5))


def close(got, expected, rtol=1e-10):
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-12)


# -- batch normalisation


AXES = {"per-activation": (0,), "spatial": (0, 2, 3), 0: (0,), (1, 0): (0, 1)}


@st.composite
def batches(draw):
    axes = draw(st.sampled_from(list(AXES)))
    full = [1 if i in AXES[axes] else n for i, n in enumerate(X.shape)]
    short = [n for i, n in enumerate(X.shape) if i not in AXES[axes]]
    return axes, AXES[axes], full, draw(st.sampled_from([full, short]))


@few
@given(batches())
def test_batch_normalisation_in_training(case):
    axes, reduced, full, shape = case
    gamma, beta, mean, var = (RNG.uniform(0.5, 2, shape) for _ in range(4))

    def build(x, gamma, beta, *running):
        options = axes, 1e-3, 0.3
        return synk.nn.batch_normalization_train(x, gamma, beta, *options, *running)

    got = evaluate(build, X, gamma, beta, mean, var)
    m, v = X.mean(reduced, keepdims=True), X.var(reduced, keepdims=True)
    count = X.size / m.size
    out = (X - m) / np.sqrt(v + 1e-3) * gamma.reshape(full) + beta.reshape(full)
    close(got[0], out)
    close(got[1], m.reshape(shape))
    close(got[2], (1 / np.sqrt(v + 1e-3)).reshape(shape))
    close(got[3], 0.7 * mean + 0.3 * m.reshape(shape))
    close(got[4], 0.7 * var + 0.3 * (v * count / (count - 1)).reshape(shape))


@few
@given(batches())
def test_batch_normalisation_in_use(case):
    axes, _, full, shape = case
    gamma, beta, mean, var = (RNG.uniform(0.5, 2, shape) for _ in range(4))

    def build(*inputs):
        return synk.nn.batch_normalization_test(*inputs, axes, 1e-3)

    g, b, m, v = (values.reshape(full) for values in (gamma, beta, mean, var))
    expected = (X - m) / np.sqrt(v + 1e-3) * g + b
    close(evaluate(build, X, gamma, beta, mean, var), expected)


def test_derivatives_of_batch_normalisation_are_those_of_differences():
    gamma, beta = RNG.uniform(0.5, 2, (1, 3, 1, 1)), RNG.normal(size=(1, 3, 1, 1))
    check_derivatives(
        lambda *inputs: synk.nn.batch_normalization_train(*inputs, "spatial")[0],
        X,
        gamma,
        beta,
    )


@pytest.mark.parametrize("n", [1, 3, 5])
def test_local_response_normalisation_divides_by_neighbouring_channels(n):
    x = RNG.normal(size=(2, 6, 2, 2))
    options = {"alpha": 0.1, "k": 1.5, "beta": 0.6, "n": n}
    got = evaluate(lambda x: synk.nn.local_response_normalization(x, **options), x)
    for c in range(6):
        near = x[:, max(0, c - n // 2) : c + n // 2 + 1]
        close(got[:, c], x[:, c] / (1.5 + 0.1 * (near**2).sum(1)) ** 0.6)
    check_derivatives(lambda x: synk.nn.local_response_normalization(x, **options), x)


# -- activations

VALUES = np.array([-800.0, -2.0, -0.5, 0.3, 1.0, 3.0, 800.0])
ELU = np.where(VALUES > 0, VALUES, np.expm1(np.minimum(VALUES, 0)))
SLOPES = np.linspace(0, 1, 7)
ACTIVATIONS = {
    "relu": (synk.nn.relu, np.maximum(VALUES, 0)),
    "leaky": (lambda x: synk.nn.relu(x, 0.1), np.maximum(VALUES, 0.1 * VALUES)),
    "slopes": (lambda x: synk.nn.relu(x, SLOPES), np.maximum(VALUES, SLOPES * VALUES)),
    "elu": (synk.nn.elu, ELU),
    "elu_alpha": (lambda x: synk.nn.elu(x, 0.5), np.where(VALUES > 0, VALUES, ELU / 2)),
    "selu": (
        synk.nn.selu,
        1.0507009873554805 * np.where(VALUES > 0, VALUES, 1.6732632423543772 * ELU),
    ),
    "softmax": (synk.nn.softmax, special.softmax(VALUES)),
    "log_softmax": (synk.nn.log_softmax, special.log_softmax(VALUES)),
}


def test_activations_are_their_formulas_without_overflow():
    def activated(x):
        return pt.stack([build(x) for build, _ in ACTIVATIONS.values()])

    def both(x):
        return [activated(x), pytensor.grad(activated(x).sum(), x)]

    found, gradient = evaluate(both, VALUES)
    for (name, (_, expected)), value in zip(ACTIVATIONS.items(), found, strict=True):
        np.testing.assert_allclose(value, expected, 1e-10, 1e-12, err_msg=name)
    assert np.isfinite(gradient).all()
    check_derivatives(activated, np.clip(VALUES, -4, 4))


def test_softmax_along_an_axis():
    x = X[:, :, 0, 0]
    for axis in 0, 1, None:
        for ours, scipys in (
            (synk.nn.softmax, special.softmax),
            (synk.nn.log_softmax, special.log_softmax),
        ):
            close(evaluate(lambda x, f=ours, a=axis: f(x, a), x), scipys(x, axis))


def test_graphs_keep_single_precision():
    x = pt.vector("x", dtype="float32")
    for name, (build, _) in ACTIVATIONS.items():
        if name != "slopes":
            assert build(x).type.dtype == "float32", name
    images = pt.tensor4("x", dtype="float32")
    channels = pt.vector("c", dtype="float32")
    normalised = synk.nn.batch_normalization_train(
        images, channels, channels, "spatial", 1e-3, 0.1, channels, channels
    )
    used = synk.nn.batch_normalization_test(images, *[channels] * 4, "spatial", 1e-3)
    near = synk.nn.local_response_normalization(images)
    assert {var.type.dtype for var in (*normalised, used, near)} == {"float32"}


# -- losses


@pytest.mark.parametrize(
    ("shape", "dtype"), [((300, 7), "int64"), ((2, 3, 5), "int8"), ((9, 4), "uint8")]
)
def test_cross_entropy_of_classes(shape, dtype):
    logits = RNG.normal(size=shape)
    classes = RNG.integers(0, shape[-1], shape[:-1]).astype(dtype)

    def build(x, y):
        losses = synk.nn.categorical_crossentropy(synk.nn.softmax(x), y)
        return [losses, pytensor.grad(losses.sum(), x)]

    log = special.log_softmax(logits, axis=-1)
    picked = np.take_along_axis(log, classes[..., None].astype("int64"), -1)[..., 0]
    losses, gradient = evaluate(build, logits, classes)
    close(losses, -picked)
    close(gradient, np.exp(log) - np.eye(shape[-1])[classes])


def test_cross_entropy_of_probabilities():
    p, q = (special.softmax(RNG.normal(size=(5, 4)), axis=1) for _ in range(2))
    close(evaluate(synk.nn.categorical_crossentropy, p, q), -(q * np.log(p)).sum(1))
    check_derivatives(synk.nn.categorical_crossentropy, p, q)


def test_cross_entropies_of_two_classes():
    z, t = RNG.normal(size=6), RNG.uniform(size=6)
    p = special.expit(z)
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    close(evaluate(synk.nn.binary_crossentropy, p, t), expected)
    close(evaluate(synk.nn.sigmoid_binary_crossentropy, z, t), expected)
    check_derivatives(synk.nn.binary_crossentropy, p, t)
    check_derivatives(synk.nn.sigmoid_binary_crossentropy, z, t)
    far = np.array([-1e4, 1e4])
    got = evaluate(synk.nn.sigmoid_binary_crossentropy, far, np.array([0.0, 1.0]))
    close(got, [0, 0])


# -- patches


def patches(x, shape, step):
    windows = np.lib.stride_tricks.sliding_window_view(x, shape, (2, 3))
    return windows[:, :, :: step[0], :: step[1]].reshape(-1, np.prod(shape))


PATCHES = [
    ("valid", (2, 3), (2, 3), (4, 6)),
    ("valid", (2, 3), (1, 2), (4, 7)),
    ("ignore_borders", (2, 2), (3, 2), (6, 5)),
    ("half", (3, 2), (2, 1), (5, 4)),
    ("full", (2, 3), (1, 2), (3, 5)),
    ("wrap_centered", (3, 5), (1, 2), (4, 6)),
]


@pytest.mark.parametrize(
    ("mode", "shape", "step", "image"), PATCHES, ids=[mode for mode, *_ in PATCHES]
)
def test_patches_are_rows_in_the_order_of_images(mode, shape, step, image):
    x = RNG.normal(size=(2, 2, *image))
    widths = {
        "half": [n // 2 for n in shape],
        "full": [n - 1 for n in shape],
        "wrap_centered": [n // 2 for n in shape],
    }.get(mode, (0, 0))
    how = "wrap" if mode == "wrap_centered" else "constant"
    padded = np.pad(x, [(0, 0), (0, 0), *((w, w) for w in widths)], mode=how)

    def build(x):
        return synk.nn.images2neibs(x, shape, step, mode)

    close(evaluate(build, x), patches(padded, shape, step))
    check_derivatives(build, x)


def test_patches_side_by_side_make_the_images_again():
    x = RNG.normal(size=(2, 3, 4, 6))
    ys = pt.matrix("y")
    back = synk.nn.neibs2images(ys, (2, 3), x.shape)
    close(compiled([ys], back)(patches(x, (2, 3), (2, 3))), x)


def normalised(**options):
    options = {"axes": "spatial"} | options
    return nn.batch_normalization_train(IN, pt.vector(), pt.vector(), **options)


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        ("normalised(axes='channels')", ValueError, "got 'channels'"),
        ("normalised(axes=(0, 4))", ValueError, "below 4"),
        ("normalised(axes=(0, 0))", ValueError, "different"),
        ("normalised(axes=(0, 1))", ValueError, "4 axes, or 2"),
        ("normalised(epsilon=1e-9)", ValueError, "got 1e-09"),
        ("normalised(running_mean=pt.vector())", TypeError, "belong together"),
        ("nn.local_response_normalization(IN, n=4)", ValueError, "odd"),
        ("nn.categorical_crossentropy(pt.matrix(), pt.vector())", TypeError, "be ints"),
        (
            "nn.categorical_crossentropy(pt.matrix(), IN)",
            TypeError,
            r"2 .* or 1 .* got 4",
        ),
        ("nn.images2neibs(IN, (2, 2)).eval({IN: X})", ValueError, "do not fill"),
        ("nn.images2neibs(IN, (2, 3), mode='wrap_centered')", ValueError, "odd size"),
        ("nn.images2neibs(IN, (2, 3), mode='same')", ValueError, "got 'same'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(expression, error, message):
    with pytest.raises(error, match=message):
        eval(expression, globals())


# -- the proof understands networks of images, and ranks give the serial numbers

IN, LABELS, WIDE = pt.tensor4("x"), pt.lvector("y"), pt.tensor4("wide")
FILTERS = pytensor.shared(RNG.normal(size=(3, 2, 3, 3)) / 4, "filters")
WEIGHTS = pytensor.shared(RNG.normal(size=(27, 4)) / 4, "weights")


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 2, 6, 6)), rng.integers(0, 4, n)


def check_ranks(variables, outputs, modes):
    """Compare ranks' outputs, reduced in these modes, with those of plain PyTensor."""
    f = synk.function(variables, outputs, mode=PY, strict=True)
    assert f.output_modes == modes
    plain = pytensor.function(variables, outputs, mode=PY)
    for n in (1, 5):
        values = images(n)[: len(variables)]
        for got, right in zip(f(*values), plain(*values), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_a_network_of_images_is_understood(mode, two_ranks):
    hidden = pt.tanh(nn.conv2d(IN, FILTERS, border_mode="half"))
    pooled = nn.pool_2d(hidden, (2, 2), ignore_border=True, mode=mode)
    classes = nn.softmax(pooled.flatten(2) @ WEIGHTS)
    cost = nn.categorical_crossentropy(classes, LABELS).mean()
    gradients = pytensor.grad(cost, [FILTERS, WEIGHTS])
    outputs = [cost, classes, *gradients, *synk.grad(cost, [FILTERS, WEIGHTS])]
    check_ranks([IN, LABELS], outputs, ["avg", "gather", "avg", "avg", None, None])


def test_patches_and_transposed_convolutions_are_understood(two_ranks):
    patches = nn.images2neibs(IN, (3, 3), mode="valid")
    found = nn.conv2d(IN, FILTERS)
    wider = nn.conv2d_transpose(found, FILTERS, output_shape=(None, 2, 6, 6))
    outputs = [
        patches,
        nn.neibs2images(patches, (3, 3), IN.shape),
        nn.conv2d(IN, FILTERS, 1, subsample=(2, 2), filter_dilation=(2, 2)),
        pytensor.grad((patches**2).sum(), IN),
        wider,
        pytensor.grad(wider.sum(), FILTERS),
    ]
    check_ranks([IN], outputs, ["gather"] * 5 + ["sum"])


COUPLED = {
    "channels": nn.conv2d(IN.dimshuffle(1, 0, 2, 3), FILTERS),
    "filters": nn.conv2d(pt.ones((1, 2, 6, 6)), IN),
    "pixels": nn.pool_2d(IN.dimshuffle(1, 2, 3, 0), (2, 2), True),
    "rows": nn.batch_normalization_train(IN, np.ones((1, 2, 6, 6)), 0 * IN[:1])[0],
}


@pytest.mark.parametrize("what", COUPLED)
def test_what_couples_images_is_computed_from_all_and_refused_of_a_rank(
    what, two_ranks
):
    with pytest.raises(synk.SplitError):
        synk.function([IN], COUPLED[what], strict=True, local=True)
    with pytest.warns(synk.SplitWarning, match="needs all rows at once"):
        f = synk.function([IN], COUPLED[what], mode=PY)
    x, _ = images(2)  # as many as the filters have channels
    right = pytensor.function([IN], COUPLED[what], mode=PY)(x)
    np.testing.assert_allclose(f(x), right, rtol=1e-10, atol=1e-12)
