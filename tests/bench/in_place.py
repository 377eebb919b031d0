"""A gradient into shared memory: copied, or written there by the compiled function.

``python tests/bench/in_place.py`` times one large gradient as PyTensor returns it, with
a copy of it to another place, and as an update of a part of a flat array in place.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.commands.bench_rows import interleave

ROWS, INPUTS, UNITS = 256, 784, 800
TURNS = 61


def main() -> None:
    """Print the medians of interleaved turns."""
    x, delta = pt.matrix("x", dtype="float32"), pt.matrix("delta", dtype="float32")
    gradient = x.T @ delta
    flat = pytensor.shared(np.zeros(2 * INPUTS * UNITS, "float32"), borrow=True)
    written = pt.set_subtensor(flat[: INPUTS * UNITS], gradient.ravel())
    returns = pytensor.function([x, delta], gradient, trust_input=True)
    writes = pytensor.function([x, delta], updates=[(flat, written)], trust_input=True)
    random = np.random.default_rng(0)
    args = [random.normal(size=(ROWS, n)).astype("float32") for n in (INPUTS, UNITS)]
    place = np.zeros((INPUTS, UNITS), "float32")
    cases = {
        "returned": lambda: returns(*args),
        "returned and copied": lambda: np.copyto(place, returns(*args)),
        "written in place": lambda: writes(*args),
    }
    medians = interleave(list(cases.values()), TURNS)
    for name, seconds in zip(cases, medians, strict=True):
        print(f"{name:22}{seconds * 1e3:7.2f} ms")


if __name__ == "__main__":
    main()
