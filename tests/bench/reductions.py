"""All-reduces of float32: what every implementation of them is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .options import Options, Place
from .timing import Question, timed


class Reduction(NamedTuple):
    """A sum over the ranks of so many bytes.

    Attributes
    ----------
    fill : callable
        Sets all of this rank's values to a number.
    call : callable
        Sums the ranks' values.
    result : callable
        Returns the sums, as they are on this rank.
    """

    fill: Callable[[float], object]
    call: Callable[[], object]
    result: Callable[[], np.ndarray]


def questions(
    options: Options,
    place: Place,
    variants: dict[str, Callable[[int], Reduction]],
    together: Callable[[], object],
) -> dict[str, Question]:
    """Return the questions of an implementation whose ranks the driver asks."""
    found: dict[str, Question] = {}
    for name, variant in variants.items():
        for nbytes in options.nbytes:
            reduction = variant(nbytes)

            def check(_: int, reduction=reduction) -> list[float]:
                reduction.fill(place.rank + 1)
                together()
                reduction.call()
                return extremes(reduction.result())

            def time(number: int, reduction=reduction) -> float:
                reduction.fill(0)  # sums of zeros stay small
                return timed(reduction.call, together)(number)

            found[f"check {name} {nbytes}"] = check
            found[f"time {name} {nbytes}"] = time
    return found


def extremes(values: np.ndarray) -> list[float]:
    """Return the least and the largest value."""
    return [float(values.min()), float(values.max())]
