"""Gradients and updates: in place, or into new arrays.

``python tests/bench/updates.py`` times one large gradient as PyTensor returns it, with
a copy of it to another place, and as an update of a part of a flat array in place.

And what follows a gradient in a step with momentum, for parameters of some sizes:
PyTensor's own updates, which it writes over the old values, and new values that are
stored afterwards while the old ones are kept, as ranks do to undo calls that fail.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.commands.bench_rows import interleave
from synk.workers.allocator import keep_memory

ROWS, INPUTS, UNITS = 256, 784, 800
ELEMENTS = 10_000, 100_000, 1_000_000, 10_000_000
TURNS = 31


def main() -> None:
    """Print the medians of interleaved turns."""
    gradients()
    updates()


def gradients() -> None:
    """Print what one takes, and what it takes to have it in another place."""
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
    medians = interleave(list(cases.values()), 2 * TURNS)
    for name, seconds in zip(cases, medians, strict=True):
        print(f"{name:22}{seconds * 1e3:7.2f} ms")


def updates() -> None:
    """Print what updates take in both ways."""
    keep_memory()  # as ranks do
    for elements in ELEMENTS:
        zeros = np.zeros(elements, "float32")
        w, v = pytensor.shared(zeros, "w"), pytensor.shared(zeros, "v")
        g = pt.vector("g", dtype="float32")
        velocity = np.float32(0.9) * v - np.float32(0.1) * g
        both = [(v, velocity), (w, w + velocity)]
        in_place = pytensor.function([g], updates=both, trust_input=True)
        anew = pytensor.function([g], [new for _, new in both], trust_input=True)
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
