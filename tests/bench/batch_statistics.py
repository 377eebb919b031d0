"""What statistics of all rows cost: ResNet-50's step by these, and by a rank's own.

``python tests/bench/batch_statistics.py`` makes the training function of
``demos/resnet50.py`` in both ways, for small images, and times their steps in turns.
XLA compiles each for a minute.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "demos")]

import synk  # noqa: E402  first: with it come Theano's names

# isort: split
import numpy as np  # noqa: E402
from resnet50 import Graphs, compile_graphs, parse_arguments  # noqa: E402

from synk.commands.bench_rows import interleave  # noqa: E402

OPTIONS = {"local": [], "exact": ["--sync-bn"]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--batch", type=int, default=32)
    add("--image-size", type=int, default=32)
    add("--width", type=int, default=16)
    add("--turns", type=int, default=15)
    return parser.parse_args()


class Way:
    """A training step, and what it took to get there."""

    def __init__(self, name: str, args: argparse.Namespace, batch: tuple) -> None:
        size = ["--image-size", str(args.image_size), "--width", str(args.width)]
        given = parse_arguments([*size, "--mode", "JAX", *OPTIONS[name]])
        graphs = Graphs(given, 10)
        start = time.perf_counter()
        self.step, _ = compile_graphs(graphs, given)
        made = time.perf_counter()
        self.step(*batch)
        self.name, self.making = name, made - start
        self.first_call = time.perf_counter() - made
        stages = self.step.explain().to_dict()["stages"]
        self.meetings = sum(bool(stage["reduces"]) for stage in stages)


def main() -> None:
    args = parse()
    rng = np.random.default_rng(0)
    shape = args.batch, 3, args.image_size, args.image_size
    images = rng.integers(0, 256, shape, dtype="uint8")
    batch = images, rng.integers(0, 10, args.batch, dtype="int32"), 1e-3
    with synk.session(args.ranks):
        ways = [Way(name, args, batch) for name in OPTIONS]
        seconds = interleave([partial(way.step, *batch) for way in ways], args.turns)
    print(f"{args.ranks} ranks, {args.batch} images of {args.image_size} pixels")
    for way, step in zip(ways, seconds, strict=True):
        print(
            f"{way.name:6} made in {way.making:.1f} s, first call {way.first_call:.0f}"
            f" s, {way.meetings} meetings, {1e3 * step:.0f} ms a step"
        )


if __name__ == "__main__":
    main()
