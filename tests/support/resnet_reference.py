"""ResNet-50 of the demo beside the references: prints by how much they differ.

A program, since XLA runs in it: ``resnet_reference.py SIZE WIDTH MODE BLOCKS...``. In
the mode "unchanged" Ops run in Python, in the graph as it is. Each line has a name and
an error, relative to an array's largest value. Compared with JAX and, where torch is
installed, with torch.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "demos"), str(HERE)]

import synk  # noqa: E402, F401  first: with it come Theano's names

# isort: split
import jax  # noqa: E402
import numpy as np  # noqa: E402
import resnet50  # noqa: E402
import resnet_jax  # noqa: E402
import theano  # noqa: E402
from lasagne import layers as L  # noqa: E402
from pytensor.compile.mode import Mode  # noqa: E402

RATE, CLASSES = 0.1, 1000
jax.config.update("jax_enable_x64", True)
theano.config.floatX = "float64"


def by_synk(graphs: resnet50.Graphs, mode: str, x, y) -> dict[str, dict]:
    """Return what the demo computes, by its kind; its variables make a step."""
    params = L.get_all_params(graphs.network, trainable=True)
    evaluated = L.get_output(graphs.network, deterministic=True)
    f = theano.function(
        [graphs.x, graphs.y, graphs.rate],
        [graphs.results[0], graphs.logits, evaluated, *graphs.gradients],
        updates=graphs.updates,
        mode=Mode("py", optimizer=None) if mode == "unchanged" else mode,
    )
    loss, logits, evaluated, *gradients = f(x, y, RATE)
    names = [param.name for param in params]
    return {
        "loss": {"": loss},
        "logits": {"": logits},
        "evaluated logits": {"": evaluated},
        "gradients": dict(zip(names, gradients, strict=True)),
        "values after a step": values_of(graphs),
    }


def by_jax(values: dict, x, y, blocks) -> dict[str, dict]:
    """Return the same by JAX."""

    # Compiled as a whole: one operation after the other takes XLA far longer.
    @jax.jit
    def compute(values):
        evaluated = resnet_jax.Pass(values, training=False).logits(x, blocks)
        return evaluated, resnet_jax.gradients(values, x, y, blocks)

    evaluated, (loss, logits, grads, averages) = compute(values)
    # In numpy from here on: XLA would compile each operation for each shape.
    grads = jax.tree.map(np.asarray, grads)
    velocities = jax.tree.map(np.zeros_like, grads)
    moved, _ = resnet_jax.move(values, velocities, grads, RATE)
    return {
        "loss": {"": loss},
        "logits": {"": logits},
        "evaluated logits": {"": evaluated},
        "gradients": grads,
        "values after a step": moved | averages,
    }


def by_torch(values: dict, x, y, blocks) -> dict[str, dict]:
    """Return the same by torch."""
    import resnet_torch

    loss, logits, grads, after = resnet_torch.step(values, x, y, RATE, blocks)
    return {
        "loss": {"": loss},
        "logits": {"": logits},
        "evaluated logits": {"": resnet_torch.evaluated(values, x, blocks)},
        "gradients": grads,
        "values after a step": after,
    }


def values_of(graphs: resnet50.Graphs) -> dict[str, np.ndarray]:
    variables = L.get_all_params(graphs.network)
    return {var.name: np.array(var.get_value()) for var in variables}


def randomise(graphs: resnet50.Graphs) -> None:
    """Set values that leave no gradient zero, as those of a new network do."""
    random = np.random.default_rng(1)
    for var in L.get_all_params(graphs.network):
        value = var.get_value()
        if not var.name.endswith(".W"):
            var.set_value(value + random.uniform(0.1, 0.5, value.shape))


def error(found: dict, expected: dict) -> float:
    """Return the largest error of any array."""
    assert found.keys() == expected.keys()
    errors = []
    for name, right in expected.items():
        right, got = np.asarray(right), np.asarray(found[name])
        assert got.shape == right.shape
        assert np.abs(right).max() > 0
        errors.append(np.abs(got - right).max() / np.abs(right).max())
    assert np.isfinite(errors).all()
    return max(errors)


def main() -> None:
    size, width, mode, *blocks = sys.argv[1:]
    blocks = [int(number) for number in blocks]
    options = ["--image-size", size, "--width", width, "--blocks", *map(str, blocks)]
    graphs = resnet50.Graphs(resnet50.parse_arguments(options), CLASSES)
    randomise(graphs)
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (2, 3, int(size), int(size)), dtype="uint8")
    y = random.integers(0, CLASSES, 2, dtype="int32")
    values = values_of(graphs)
    expected = {"JAX": by_jax(values, x, y, blocks)}
    if importlib.util.find_spec("torch"):
        expected["torch"] = by_torch(values, x, y, blocks)
    found = by_synk(graphs, mode, x, y)
    for name, results in expected.items():
        for kind, arrays in results.items():
            print(f"{name}: {kind}: {error(found[kind], arrays):.1e}")


if __name__ == "__main__":
    main()
