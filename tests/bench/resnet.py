"""ResNet-50's training step in JAX mode, beside the same written in JAX by hand.

``python tests/bench/resnet.py`` times both in turns, in this process, on its cores or
its GPU. First it compares what both make of a few steps. The step is that of
``demos/resnet50.py`` on one rank; the other one is ``resnet_jax.py``, which is
compiled as a whole and may overwrite its parameters. XLA compiles each for minutes.
``--precision bfloat16`` has both compute in that, each in its own way.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "demos"), str(HERE.parent / "support")]

import synk  # noqa: E402  first: with it come Theano's names

# isort: split
import jax  # noqa: E402
import numpy as np  # noqa: E402
import resnet_jax  # noqa: E402
import theano  # noqa: E402
from beside import interleave  # noqa: E402
from lasagne import layers as L  # noqa: E402
from resnet50 import Graphs, compile_graphs, parse_arguments  # noqa: E402

RATE = np.float32(1e-3)
STEPS = 2
"""That are compared. In float32 rounding errors grow from step to step."""
PRECISIONS = {"float32": 1.0, "tensorfloat32": 1.0, "bfloat16": 20.0}
"""By how much more than in float32 the two may differ."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch", type=int, default=8)
    add("--image-size", type=int, default=64)
    add("--width", type=int, default=64)
    add("--blocks", type=int, nargs="+", default=resnet_jax.BLOCKS)
    add("--classes", type=int, default=1000)
    add("--turns", type=int, default=15)
    add("--precision", choices=PRECISIONS, default="float32")
    return parser.parse_args()


class BySynk:
    """The step of the demo, in a session of one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        shape = f"--image-size {options.image_size} --width {options.width}"
        blocks = " ".join(map(str, options.blocks))
        how = f"--mode JAX --precision {options.precision} --blocks {blocks}"
        args = parse_arguments(f"{shape} {how}".split())
        graphs = Graphs(args, options.classes)
        self.variables = L.get_all_params(graphs.network)
        self._train, _ = compile_graphs(graphs, args)

    def values(self) -> dict[str, np.ndarray]:
        return {var.name: np.array(var.get_value()) for var in self.variables}

    def step(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        return [float(result) for result in self._train(x, y, RATE)]


class ByJAX:
    """The step written by hand, from the same values."""

    def __init__(self, options: argparse.Namespace, values: dict) -> None:
        self.variables = jax.tree.map(jax.numpy.array, values)
        self.velocities = {
            name: jax.numpy.zeros_like(value)
            for name, value in self.variables.items()
            if resnet_jax.is_trained(name)
        }
        short = options.precision == "bfloat16"
        setting = "default" if short else options.precision

        def step(*args: Any) -> tuple:
            with jax.default_matmul_precision(setting):
                dtype = "bfloat16" if short else None
                return resnet_jax.step(*args, blocks=options.blocks, dtype=dtype)

        self._step = jax.jit(step, donate_argnums=(0, 1))

    def values(self) -> dict[str, np.ndarray]:
        return jax.tree.map(np.asarray, self.variables)

    def step(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        self.variables, self.velocities, results = self._step(
            self.variables, self.velocities, x, y, RATE
        )
        return [float(result) for result in results]


def compare(synks: BySynk, jaxs: ByJAX, batch: tuple, precision: str) -> None:
    """Assert that both do the same: losses, and accuracies but for one row."""
    more = PRECISIONS[precision]
    for _ in range(STEPS):
        found, expected = synks.step(*batch), jaxs.step(*batch)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-3 * more)
        of_a_row = 1.01 / len(batch[1])
        np.testing.assert_allclose(found[1:], expected[1:], atol=of_a_row)
    expected = jaxs.values()
    for name, value in synks.values().items():
        np.testing.assert_allclose(
            value, expected[name], rtol=1e-2 * more, atol=1e-3 * more, err_msg=name
        )


def main() -> None:
    """Print the medians of interleaved turns, and their ratio."""
    options = parse()
    theano.config.floatX = "float32"
    random = np.random.default_rng(0)
    shape = options.batch, 3, options.image_size, options.image_size
    x = random.integers(0, 256, shape, dtype="uint8")
    y = random.integers(0, options.classes, options.batch, dtype="int32")
    with synk.session(1):
        synks = BySynk(options)
        jaxs = ByJAX(options, synks.values())
        compare(synks, jaxs, (x, y), options.precision)
        times = interleave(
            [lambda: synks.step(x, y), lambda: jaxs.step(x, y)], options.turns
        )
    for name, seconds in zip(("synk", "JAX"), times, strict=True):
        print(f"{name:5}{seconds * 1e3:9.1f} ms a step of {options.batch} images")
    print(f"ratio{times[0] / times[1]:9.3f}")


if __name__ == "__main__":
    main()
