"""demos/resnet50.py: the network is ResNet-50, and ranks train it as one does."""

import os
from pathlib import Path

import numpy as np
import pytensor
import pytest
import theano
from children import in_a_child
from lasagne import layers as L
from places import DEMOS
from pytensor.compile.mode import Mode

import synk

SMALL = ("--image-size", "16", "--width", "4", "--blocks", "1", "--classes", "5")
MODE = Mode("py", optimizer=None)
"""Ops run in Python, in the graph as it is: rewriting it takes longer than training."""

SOON = "--xla_backend_optimization_level=0"  # what XLA compiles is run a few times

pytestmark = pytest.mark.usefixtures("graphs_in_python")


@pytest.fixture
def demo(import_from):
    """Import a demo by its name; numbers are float64."""
    import_from(DEMOS)
    with pytensor.config.change_flags(floatX="float64"):
        yield __import__


def graphs_of(demo, *options, classes=5):
    resnet50 = demo("resnet50")
    args = resnet50.parse_arguments([*SMALL, *options])
    if "--mode" not in options:
        args.mode = MODE
    return args, resnet50.Graphs(args, classes)


# -- the network ---------------------------------------------------------------------


def test_it_has_the_layers_and_parameters_of_resnet_50(demo):
    resnet, x = demo("resnet"), theano.tensor.tensor4("x")
    network = resnet.build(x)
    resnet.check(network)
    layers = L.get_all_layers(network)
    convolutions = [layer for layer in layers if isinstance(layer, L.Conv2DLayer)]
    assert len(convolutions) == 53
    assert sum(isinstance(layer, L.DenseLayer) for layer in layers) == 1
    # Of torchvision's resnet50: sum(p.numel() for p in model.parameters()).
    assert resnet.count(network) == 25_557_032
    assert sum(layer.W.get_value().size for layer in convolutions) == 23_454_912
    lengths = [layer.output_shape[2] for layer in convolutions]
    found = [lengths.count(length) for length in (112, 56, 28, 14, 7)]
    assert found == [1, 11, 13, 19, 9]
    with pytest.raises(AssertionError):
        resnet.check(resnet.build(x, blocks=(3, 4, 6, 2)))


@in_a_child
def test_it_computes_what_a_reference_in_jax_does(demo):
    """With blocks of all kinds: of both strides, with and without a shortcut."""
    os.environ["XLA_FLAGS"] = SOON
    import jax
    import resnet_jax

    size, blocks, rate = ("--image-size", "32", "--width", "8"), (2, 1), 0.1
    _, graphs = graphs_of(demo, *size, "--blocks", *map(str, blocks))
    random, variables = np.random.default_rng(1), L.get_all_params(graphs.network)
    for var in variables:  # some gradients of a new network are zero
        if not var.name.endswith(".W"):
            value = var.get_value()
            var.set_value(value + random.uniform(0.1, 0.5, value.shape))
    x = random.integers(0, 256, (2, 3, 32, 32), dtype="uint8")
    y, values = np.int32([3, 1]), {var.name: var.get_value() for var in variables}

    jax.config.update("jax_enable_x64", True)

    @jax.jit  # as a whole: one operation after the other takes XLA far longer
    def reference(values):
        evaluated = resnet_jax.Pass(values, training=False).logits(x, blocks)
        return evaluated, resnet_jax.gradients(values, x, y, blocks)

    evaluated, of_step = jax.tree.map(np.asarray, reference(values))
    loss, logits, gradients, averages = of_step
    velocities = jax.tree.map(np.zeros_like, gradients)
    moved, _ = resnet_jax.move(values, velocities, gradients, rate)
    expected = {"loss": loss, "logits": logits, "evaluated": evaluated}
    expected |= {f"slope of {name}": value for name, value in gradients.items()}

    names = [var.name for var in L.get_all_params(graphs.network, trainable=True)]
    outputs = {"loss": graphs.results[0], "logits": graphs.logits}
    outputs["evaluated"] = L.get_output(graphs.network, deterministic=True)
    slopes = zip(names, graphs.gradients, strict=True)
    outputs |= {f"slope of {name}": gradient for name, gradient in slopes}
    inputs, updates = [graphs.x, graphs.y, graphs.rate], graphs.updates
    f = theano.function(inputs, [*outputs.values()], updates=updates, mode="JAX")
    found = dict(zip(outputs, f(x, y, rate), strict=True))
    found |= {var.name: var.get_value() for var in variables}
    expected |= moved | averages
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        scale = np.abs(right).max()
        assert scale > 0
        np.testing.assert_allclose(found[name], right, atol=1e-8 * scale, rtol=0)


def test_objectives_are_those_of_logits_known(demo):
    logits, y = theano.tensor.matrix("logits"), theano.tensor.ivector("y")
    f = theano.function([logits, y], demo("resnet").objectives(logits, y), mode=MODE)
    rows = np.log(np.tile([1.0, 2, 3, 4, 5, 6], (4, 1)))
    loss, top1, top5 = f(rows, np.array([5, 1, 0, 4], "int32"))
    assert loss == pytest.approx(-np.log([6 / 21, 2 / 21, 1 / 21, 5 / 21]).mean())
    assert (top1, top5) == (0.25, 0.75)
    rows[:] = np.nan
    _, *tops = f(rows, np.array([5, 1, 0, 4], "int32"))
    assert tops == [0, 0]


# -- training ------------------------------------------------------------------------


def batch_of(rows: int):
    random = np.random.default_rng(rows)
    images = random.integers(0, 256, (rows, 3, 16, 16), dtype="uint8")
    return images, random.integers(0, 5, rows, dtype="int32")


BATCHES = [batch_of(rows) for rows in (5, 7, 4)]


def trained(demo, *options):
    """Return the results of steps, and all values afterwards."""
    args, graphs = graphs_of(demo, *options)
    train, measure = demo("resnet50").compile_graphs(graphs, args)
    results = [train(*batch, 0.05) for batch in BATCHES]
    return np.array(results), measure(*batch_of(9)), list(graphs.updates)


def test_with_statistics_of_all_rows_ranks_make_the_steps_of_the_serial_run(demo):
    """Without them running averages are still the same on all ranks."""
    expected, right, variables = trained(demo, "--serial")
    values = [var.get_value() for var in variables]
    with synk.session(2):
        results, measured, variables = trained(demo, "--sync-bn", "--slices", "2")
        on_all = [synk.get_value(rank, variables) for rank in range(2)]
        by_own, _, variables = trained(demo)
        on_ranks = [synk.get_value(rank, variables) for rank in range(2)]
    np.testing.assert_allclose(results, expected, rtol=1e-9)
    np.testing.assert_allclose(measured, right, rtol=1e-9)
    for of_rank in on_all:
        for got, value in zip(of_rank, values, strict=True):
            np.testing.assert_allclose(got, value, atol=1e-9 * np.abs(value).max())
    for mine, other in zip(*on_ranks, strict=True):
        np.testing.assert_array_equal(mine, other)
    # Each rank normalised by its own rows: not the serial run.
    assert np.abs(by_own - expected).max() > 1e-3


@pytest.mark.parametrize("statistics", ["exact", "local"])
def test_running_averages_of_a_layer(demo, statistics):
    """Of all rows, or the means of what the ranks normalise by."""
    x = theano.tensor.tensor4("x")
    layer = demo("resnet").BatchNormLayer(L.InputLayer((None, 2, 3, 3), x))
    output = L.get_output(layer)  # with it come the updates
    how = {"updates": layer.updates, "statistics": statistics, "mode": MODE}
    f = synk.function([x], output, **how)
    rows = np.random.default_rng(0).normal(3, 2, (5, 2, 3, 3))
    with synk.session(2):
        got = f(rows)
        averages = [synk.get_value(r, [layer.mean, layer.variance]) for r in (0, 1)]
    axes = (0, 2, 3)
    own = [part.var(axes) for part in (rows[:3], rows[3:])]
    variance = {"exact": rows.var(axes), "local": 3 / 5 * own[0] + 2 / 5 * own[1]}
    right = 0.9 + 0.1 * variance[statistics] * 45 / 44
    for of_rank in averages:
        np.testing.assert_allclose(of_rank, [0.1 * rows.mean(axes), right], rtol=1e-12)
    for part in [got] if statistics == "exact" else [got[:3], got[3:]]:
        np.testing.assert_allclose(part.mean(axes), 0, atol=1e-12)
        np.testing.assert_allclose(part.var(axes), 1, rtol=1e-4)


def fitted(demo, folder: Path, *options: str) -> dict[str, np.ndarray]:
    """Train, and return what is in the checkpoint but for the speed."""
    resnet50 = demo("resnet50")
    files = "--checkpoint", str(folder / "last.npz"), "--plot", str(folder / "all.png")
    args, graphs = graphs_of(demo, "--rows", "16", "--batch", "6", *files, *options)
    history = resnet50.fit(args, resnet50.open_images(args), graphs)
    with np.load(folder / "last.npz") as file:
        values = dict(file)
    np.testing.assert_array_equal(values["history"], history)
    assert (folder / "all.png").read_bytes().startswith(b"\x89PNG")
    values["history"] = history[:, :-1]
    return values


def test_a_resumed_run_has_the_numbers_of_one_that_never_stopped(demo, tmp_path):
    with synk.session(2):
        whole = fitted(demo, tmp_path, "--epochs", "2", "--warm-up", "3")
        first = fitted(demo, tmp_path, "--epochs", "1", "--warm-up", "3")
        rest = fitted(demo, tmp_path, "--epochs", "2", "--warm-up", "3", "--resume")
    assert whole["history"].shape == (2, 6)
    assert first["history"].shape == (1, 6)
    assert whole.keys() == rest.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, rest[name], err_msg=name)


# -- precision -----------------------------------------------------------------------


@in_a_child
def test_in_float16_it_trains_as_in_float32_with_a_loss_scale(demo):
    os.environ["XLA_FLAGS"], found = SOON, {}
    with pytensor.config.change_flags(floatX="float32"), synk.session(1):
        for precision in ("float32", "float16"):
            mode = ["--mode", "JAX"] if precision == "float16" else []
            args, graphs = graphs_of(demo, "--precision", precision, *mode)
            train, _ = demo("resnet50").compile_graphs(graphs, args)
            found[precision] = [train(*BATCHES[0], np.float32(0.05)) for _ in range(3)]
        values = {var.name: var for var in graphs.updates}
        assert float(values["loss_scale"].get_value()) == 2.0**15
        assert int(values["loss_scale:good_steps"].get_value()) == 3
        assert all(np.isfinite(var.get_value()).all() for var in graphs.updates)
    losses = {name: np.array(results)[:, 0] for name, results in found.items()}
    # More than other orders of sums in float32 do.
    assert np.abs(losses["float16"] / losses["float32"] - 1).max() > 1e-5
    np.testing.assert_allclose(losses["float16"], losses["float32"], rtol=0.02)
