"""Telling mistakes from rounding errors in results that should be equal.

Two ways to compute a result round differently. Mostly what they differ by is small
beside the result, and a tolerance tells that from a mistake.

A result in which large terms cancel has few digits that mean anything, and the gradient
in a minimum has none. Where the tolerance is exceeded, the computation is repeated with
other last digits in what goes into it. It rounds differently then at every step, and
how far its results differ shows how large the errors are (Vignes, "A stochastic
arithmetic for reliable scientific computation", 1993). Whole numbers go into it as they
are, and errors begin where they are divided: so digits are changed at every step, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType

TOLERANCES = {
    "float16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-9,
    "complex64": 1e-5,
    "complex128": 1e-9,
}
"""Largest difference, as a part of the largest absolute value of the serial result.

Of a larger one `Rounding` tells whether rounding errors explain it.
"""

TRIALS = 4
MARGIN = 10
"""Results may differ by so many times the most that any of the trials has changed.

The change of a scalar may be small by chance. That all four are less than a tenth of
another such change has a probability of some 1e-4.
"""


class Rounding:
    """The rounding errors in the results of a computation.

    Parameters
    ----------
    compute : callable
        Takes the arguments and returns a list of arrays.
    arguments : sequence of numpy.ndarray
        They must not change meanwhile.
    results : sequence of numpy.ndarray
        What it has returned for them.
    finer : callable, optional
        Computes the same with products of float32, where `compute` has others.
    steps : callable, optional
        Computes the same with other digits at every step; see `RoundedSteps`.
    """

    def __init__(
        self,
        compute: Callable[..., list],
        arguments: Sequence,
        results: Sequence,
        finer: Callable[..., list] | None = None,
        steps: Callable[[Sequence, float, np.random.Generator], list] | None = None,
    ) -> None:
        self._compute, self._arguments = compute, arguments
        self._results, self._finer, self._steps = results, finer, steps
        self._trials: dict[float, list[list]] = {}
        self._finer_trials: list[tuple[list, list]] = []

    def allowed(self, i: int, unit: float) -> float:
        """Return by how much other ways to compute result `i` may differ from it.

        Parameters
        ----------
        unit : float
            The relative size of rounding errors where it is computed.
        """
        if unit not in self._trials:
            self._trials[unit] = [self._compute(*args) for args in self._shaken(unit)]
        of_result = (trial[i] for trial in self._trials[unit])
        return MARGIN * max(change(trial, self._results[i]) for trial in of_result)

    def allowed_by_steps(self, i: int, unit: float) -> float:
        """Return the same, where the digits of every step differ.

        Parameters
        ----------
        unit : float
            The relative size of rounding errors where it is computed.
        """
        assert self._steps is not None
        random = np.random.default_rng(0)
        try:
            plain = self._steps(self._arguments, 0.0, random)[i]
            trials = [
                self._steps(self._arguments, unit, random)[i] for _ in range(TRIALS)
            ]
        except NotImplementedError:
            return 0.0  # an Op that is there for an engine only
        return MARGIN * max(change(trial, plain) for trial in trials)

    def allowed_by_products(self, i: int, unit: float) -> float:
        """Return the same for result `i` where products are those of a coarser type.

        Their errors are what products of float32 change, in each of the trials: the
        change by other arguments would hide what is wrong in an update, as the old
        value of the variable is one of them.

        Parameters
        ----------
        unit : float
            The relative size of rounding errors of the products.
        """
        assert self._finer is not None
        if not self._finer_trials:
            self._finer_trials = [
                (self._compute(*args), self._finer(*args))
                for args in self._shaken(unit)
            ]
        return MARGIN * max(change(a[i], b[i]) for a, b in self._finer_trials)

    def _shaken(self, unit: float) -> Iterator[list]:
        """Return arguments with other last digits, for each trial."""
        random = np.random.default_rng(0)
        for _ in range(TRIALS):
            yield [shaken(argument, unit, random) for argument in self._arguments]


def shaken(value: Any, unit: float, random: np.random.Generator) -> Any:
    """Return floats changed by up to twice `unit`, and anything else as it is.

    Whole numbers stay as well: they are exact, and may be meant as such.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fc":
        return value
    moves = random.uniform(-2 * unit, 2 * unit, array.shape)
    moved = (array * (1 + moves)).astype(array.dtype)
    is_whole = (array == np.rint(array)) & (np.abs(array) * unit < 1)
    return np.where(is_whole, array, moved)


def change(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays, as far as they are finite."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or other.dtype.kind not in "fc":
        return 0.0
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite].astype("D"), other[finite].astype("D")
    return float(np.max(np.abs(one - other), initial=0))


def coarsest(var: Variable) -> str | None:
    """Return the dtype of the coarsest floats that one is computed in.

    None for a variable that is no float itself, and must be equal.
    """
    if var.type.dtype not in TOLERANCES:
        return None
    computed = [
        found.type.dtype
        for found in ancestors([var])
        if (found.owner is not None or found is var)
        and isinstance(found.type, DenseTensorType)
    ]
    return max(computed, key=lambda dtype: TOLERANCES.get(dtype, 0))


def difference(
    value: Any,
    serial: Any,
    tolerance: float,
    rounding: Callable[[], float] = lambda: 0.0,
) -> str | None:
    """Describe how a value differs from the serial one, or return None.

    Parameters
    ----------
    tolerance : float
        As a part of the largest absolute value of `serial`; 0 for values that must be
        equal.
    rounding : callable, optional
        Returns what difference rounding errors explain; asked where that decides.
    """
    value, serial = np.asarray(value), np.asarray(serial)
    if value.shape != serial.shape:
        return f"its shape is {value.shape}, and serially {serial.shape}"
    if value.dtype.kind not in "fc" and serial.dtype.kind not in "fc":
        wrong = np.flatnonzero(value != serial)
        if not wrong.size:
            return None
        first = value.flat[wrong[0]], serial.flat[wrong[0]]
        size = f"{wrong.size} of {value.size} values"
        return f"{size} differ, the first is {first[0]}, and serially {first[1]}"
    if not tolerance:  # an average of integers
        tolerance = TOLERANCES["float64"]
    wide = (
        "clongdouble" if "c" in value.dtype.kind + serial.dtype.kind else "longdouble"
    )
    value, serial = value.astype(wide), serial.astype(wide)
    same = (value == serial) | (np.isnan(value) & np.isnan(serial))
    finite = np.isfinite(value) & np.isfinite(serial)
    odd = np.count_nonzero(~same & ~finite)
    if odd:
        return f"{odd} of {value.size} values are not finite in one of the runs"
    gap = np.max(np.abs(value[finite] - serial[finite]), initial=0)
    scale = np.max(np.abs(serial[finite]), initial=0)
    if gap <= tolerance * scale:
        return None
    allowed = rounding()
    if gap <= allowed:
        return None
    relative = gap / scale if scale else np.inf
    return (
        f"the largest difference is {gap:.3g}, {relative:.3g} of the largest value"
        f" {scale:.3g}; the tolerance is {tolerance:g} of it, and rounding errors"
        f" explain {allowed:.3g}"
    )
