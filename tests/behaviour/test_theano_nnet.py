"""`theano.tensor.nnet` against numpy and torch-like closed forms."""

import numpy as np
import pytest
import theano
import theano.tensor as T

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODE = "FAST_COMPILE"
X = np.random.default_rng(0).normal(scale=3, size=(4, 5))
LABELS = np.array([0, 4, 2, 2])


def value(graph):
    """Return what a graph without inputs computes to."""
    return theano.function([], graph, mode=MODE)()


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


P = softmax(X)
CLOSED_FORMS = {
    "sigmoid": 1 / (1 + np.exp(-X)),
    "hard_sigmoid": np.clip(0.2 * X + 0.5, 0, 1),
    "softplus": np.log1p(np.exp(X)),
    "softsign": X / (1 + np.abs(X)),
    "relu": np.maximum(X, 0),
    "elu": np.where(X > 0, X, np.expm1(X)),
    "selu": 1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X)),
    "softmax": P,
    "softmax_graph": P,
    "logsoftmax": np.log(P),
    "prepend_1_to_each_row": np.hstack([np.ones((4, 1)), X]),
    "prepend_0_to_each_row": np.hstack([np.zeros((4, 1)), X]),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_a_function_has_its_closed_form(name):
    result = value(getattr(T.nnet, name)(T.constant(X)))
    np.testing.assert_allclose(result, CLOSED_FORMS[name], rtol=1e-12, atol=1e-15)


def test_relu_of_arrays_is_an_array():
    # 0.5 * (x + abs(x)) in Theano: tests of Lasagne compare with NumPy by it.
    assert isinstance(T.nnet.relu(X), np.ndarray)
    np.testing.assert_array_equal(T.nnet.relu(X), np.maximum(X, 0))
    assert T.nnet.relu(-2.0) == 0
    assert isinstance(T.nnet.relu(X, 0.1), theano.Variable)


def test_slopes():
    np.testing.assert_allclose(value(T.nnet.relu(X, 0.1)), np.maximum(X, 0.1 * X))
    expected = np.where(X > 0, X, 2 * np.expm1(X))
    np.testing.assert_allclose(value(T.nnet.elu(X, 2)), expected)


def test_the_gradient_of_elu_stays_finite():
    x = T.vector()
    gradient = theano.function([x], T.grad(T.nnet.elu(x).sum(), x), mode=MODE)
    np.testing.assert_allclose(gradient([1e4, -1e4]), [1, 0])


def test_ultra_fast_sigmoid_is_near_the_sigmoid():
    x = np.linspace(-8, 8, 1001)
    error = value(T.nnet.ultra_fast_sigmoid(x)) - 1 / (1 + np.exp(-x))
    assert 1e-3 < np.abs(error).max() < 0.03


def test_softmax_of_a_vector_is_a_row():
    assert value(T.nnet.softmax(X[0])).shape == (1, 5)
    with pytest.raises(ValueError, match="scalar"):
        T.nnet.softmax(T.scalar())
    np.testing.assert_allclose(
        value(T.nnet.softmax_with_bias(X, X[0])), softmax(X + X[0])
    )


def test_categorical_crossentropy_of_columns_and_distributions():
    expected = -np.log(P[np.arange(4), LABELS])
    by_columns = T.nnet.categorical_crossentropy(P, LABELS)
    np.testing.assert_allclose(value(by_columns), expected)
    by_rows = T.nnet.categorical_crossentropy(P, np.eye(5)[LABELS])
    np.testing.assert_allclose(value(by_rows), expected)
    with pytest.raises(TypeError, match="integers, got float64"):
        T.nnet.categorical_crossentropy(P, LABELS.astype(float))
    with pytest.raises(TypeError, match="3 dimensions"):
        T.nnet.categorical_crossentropy(P, np.zeros((2, 2, 2)))


def test_crossentropies_with_softmax():
    b = X[0]
    p = softmax(X + b)
    expected = -np.log(p[np.arange(4), LABELS])
    results = T.nnet.crossentropy_softmax_max_and_argmax_1hot_with_bias(X, b, LABELS)
    for got, known in zip(
        value(list(results)), [expected, p, p.max(1), p.argmax(1)], strict=True
    ):
        np.testing.assert_allclose(got, known)
    loss, _ = T.nnet.crossentropy_softmax_1hot(X + b, LABELS)
    np.testing.assert_allclose(value(loss), expected)


def test_binary_crossentropies():
    p, t = 1 / (1 + np.exp(-X)), (X > 1).astype(float)
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    np.testing.assert_allclose(value(T.nnet.binary_crossentropy(p, t)), expected)
    by_logits = T.nnet.sigmoid_binary_crossentropy
    np.testing.assert_allclose(value(by_logits(X, t)), expected)
    assert value(by_logits(np.array([800.0]), np.array([0.0]))) == [800.0]


def test_confusion_matrix():
    pred = np.array([0, 4, 2, 0])
    matrix, order = value(T.nnet.confusion_matrix(LABELS, pred))
    assert order.tolist() == [0, 2, 4]
    assert matrix.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_h_softmax_is_a_distribution_and_gives_its_targets():
    rng = np.random.default_rng(1)
    w1, b1 = rng.normal(size=(5, 3)), rng.normal(size=3)
    w2, b2 = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 2))
    classes = softmax(X @ w1 + b1)
    inner = softmax(np.einsum("bf,cfo->bco", X, w2) + b2)
    joint = (classes[:, :, None] * inner).reshape(4, 6)
    args = X, 4, 6, 3, 2, w1, b1, w2, b2
    np.testing.assert_allclose(value(T.nnet.h_softmax(*args)), joint)
    chosen = value(T.nnet.h_softmax(*args, LABELS))
    np.testing.assert_allclose(chosen, joint[np.arange(4), LABELS])


def test_convolutions_and_pooling_are_those_of_synk_nn():
    from theano.tensor.nnet.conv import conv2d as first_conv2d
    from theano.tensor.nnet.conv3d2d import conv3d
    from theano.tensor.signal import downsample, pool
    from theano.tensor.signal.conv import conv2d as plain_conv2d

    rng = np.random.default_rng(2)
    images, filters = rng.normal(size=(2, 3, 6, 6)), rng.normal(size=(4, 3, 3, 3))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    expected = np.einsum("bcijrs,fcrs->bfij", windows, filters[:, :, ::-1, ::-1])
    x = T.tensor4()
    for conv in (
        T.nnet.conv2d(x, filters, image_shape=(2, 3, 6, 6), filter_shape=(4, 3, 3, 3)),
        first_conv2d(x, filters, image_shape=(2, 3, 6, 6), unroll_batch=2),
    ):
        result = theano.function([x], conv, mode=MODE)(images)
        np.testing.assert_allclose(result, expected)
    one = plain_conv2d(images[0, 0], filters[0, 0])
    single = np.einsum("ijrs,rs->ij", windows[0, 0], filters[0, 0, ::-1, ::-1])
    np.testing.assert_allclose(value(one), single)
    volume = conv3d(images[:, None], filters[:, None])
    np.testing.assert_allclose(value(volume), expected[:, None])
    largest = images.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5))
    for pooled in (
        pool.pool_2d(images, (2, 2), ignore_border=True),
        pool.pool_2d(images, ds=(2, 2), st=(2, 2), ignore_border=True),
        downsample.max_pool_2d(images, (2, 2), ignore_border=True),
    ):
        np.testing.assert_allclose(value(pooled), largest)
    same = value(pool.max_pool_2d_same_size(images, (2, 2)))
    np.testing.assert_allclose(same[same != 0].sum(), largest.sum())
    assert same.shape == images.shape
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.conv2d(images, filters, unshared=True)


def test_bilinear_upsampling_interpolates_between_the_points():
    x = np.arange(12.0).reshape(1, 1, 3, 4) ** 2
    for ratio in 2, 3:
        result = value(T.nnet.bilinear_upsampling(x, ratio))
        assert result.shape == (1, 1, 3 * ratio, 4 * ratio)
        start = (ratio - 1) // 2
        at_points = result[:, :, start::ratio, start::ratio]
        np.testing.assert_allclose(at_points, x)
    tent = value(T.nnet.abstract_conv.bilinear_kernel_1D(3, normalize=False))
    assert tent.tolist() == [1, 2, 3, 2, 1]


def test_a_missing_network_op_is_named(monkeypatch):
    import synk.nn

    monkeypatch.delattr(synk.nn, "pool_3d", raising=False)
    with pytest.raises(NotImplementedError, match=r"synk\.nn\.pool_3d"):
        T.signal.pool.pool_3d(T.tensor5(), (2, 2, 2))
