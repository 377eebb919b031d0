"""A step of gradient descent with momentum: in place, or into new arrays.

``python tests/bench/updates.py`` times what follows a gradient, for parameters of some
sizes: PyTensor's own updates, which it writes over the old values, and new values that
are stored afterwards while the old ones are kept, as ranks do to undo calls that fail.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.commands.bench_rows import interleave
from synk.workers.allocator import keep_memory

ELEMENTS = 10_000, 100_000, 1_000_000, 10_000_000
TURNS = 31


def main() -> None:
    """Print the medians of interleaved turns."""
    keep_memory()  # as ranks do
    for elements in ELEMENTS:
        zeros = np.zeros(elements, "float32")
        w, v = pytensor.shared(zeros, "w"), pytensor.shared(zeros, "v")
        g = pt.vector("g", dtype="float32")
        velocity = np.float32(0.9) * v - np.float32(0.1) * g
        updates = [(v, velocity), (w, w + velocity)]
        in_place = pytensor.function([g], updates=updates, trust_input=True)
        anew = pytensor.function([g], [new for _, new in updates], trust_input=True)
        gradient = np.ones(elements, "float32")
        former: list[np.ndarray] = []

        def store(anew=anew, variables=(v, w), gradient=gradient, former=former):
            former.clear()
            for var, value in zip(variables, anew(gradient), strict=True):
                former.append(var.container.storage[0])
                var.container.storage[0] = value

        def write(in_place=in_place, gradient=gradient):
            in_place(gradient)

        written, stored = interleave([write, store], TURNS)
        print(
            f"{elements:>12,} elements: {written * 1e6:9.1f} us in place,"
            f" {stored * 1e6:9.1f} us stored, {stored / written:5.2f}"
        )


if __name__ == "__main__":
    main()
