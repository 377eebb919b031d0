"""A model of data-parallel training on the GPUs of one machine.

``python tests/whole/gpu/scaling.py --images-per-second 938 2470`` predicts, from the
speed of one GPU, that of several: every GPU computes on a batch of its own, and then
gradients are all-reduced, in one flat array and without overlap.

The time of an all-reduce of S bytes by n GPUs is 2 (n - 1) / n * S / B, where B is what
NCCL's benchmarks call bus bandwidth, plus a latency. Gradients are packed into the flat
array before it, and unpacked after it: each reads and writes them once.
"""

import argparse
from collections.abc import Iterator

PARAMETERS = 25_557_032  # of ResNet-50
BUSES = {"NVLink 4": 370e9, "NVLink 3": 200e9, "PCIe 5": 28e9}
"""NCCL's bus bandwidths between 8 GPUs, in bytes a second; see docs/performance.rst."""
MEMORY = 2e12
"""Bytes a second that a GPU reads or writes in its own memory."""
LATENCY, HOST = 50e-6, 300e-6
"""Seconds for the start of an all-reduce, and for a step's work on the host."""


def all_reduce_seconds(nbytes: float, gpus: int, bandwidth: float) -> float:
    """Return how long an all-reduce takes, with packing and unpacking."""
    if gpus == 1:
        return 0.0
    travel = 2 * (gpus - 1) / gpus * nbytes / bandwidth
    return LATENCY + travel + 4 * nbytes / MEMORY


def speedup(compute: float, nbytes: float, gpus: int, bandwidth: float) -> float:
    """Return how many times as fast as one GPU several train; it computes so long."""
    reduce = all_reduce_seconds(nbytes, gpus, bandwidth)
    host = HOST if gpus > 1 else 0.0
    return gpus * compute / (compute + reduce + host)


def table(speeds: list[float], batch: int, gpus: int) -> Iterator[str]:
    """Return lines: the time of an all-reduce on each bus, and the speed-up with it."""
    nbytes = 4 * PARAMETERS
    yield f"{gpus} GPUs, {batch} images each, {nbytes / 1e6:.1f} MB of gradients"
    heads = "".join(f"{f'{speed:g}/s':>10}" for speed in speeds)
    yield f"{'bus':10}{'GB/s':>6}{'reduce':>10}{heads}"
    for name, bandwidth in BUSES.items():
        reduce = all_reduce_seconds(nbytes, gpus, bandwidth)
        gains = (speedup(batch / speed, nbytes, gpus, bandwidth) for speed in speeds)
        shown = "".join(f"{gain:>9.2f}x" for gain in gains)
        yield f"{name:10}{bandwidth / 1e9:>6.0f}{reduce * 1e3:>7.2f} ms{shown}"


def main() -> None:
    """Print a table for each batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--images-per-second", type=float, nargs="+", required=True, metavar="N")
    add("--batch", type=int, nargs="+", default=[64, 256])
    add("--gpus", type=int, default=8)
    options = parser.parse_args()
    for batch in options.batch:
        print(*table(options.images_per_second, batch, options.gpus), sep="\n")


if __name__ == "__main__":
    main()
