"""What the values of parts of a rank's rows come to, of slices or of blocks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..reduce_ops import Accumulator, ReduceOp, result_dtype


class Total:
    """One value, accumulated over parts of a rank's rows by its op."""

    def __init__(self, op: Any) -> None:
        self._op: ReduceOp | Literal["gather", "stack"] | None = op
        self._value: Any = None

    def add(self, value: np.ndarray, share: float) -> None:
        """Take the value of one more part."""
        if self._op is None:
            self._value = value  # as it is: in the end, that of the last part
        elif self._op == "gather" or self._op == "stack":
            self._value = [*(self._value or []), value]
        elif share or self._op != "avg":  # nothing times NaN is NaN
            if self._value is None:
                self._value = Accumulator(self._op, value.dtype)
            self._value.add(value, share)

    def result(self, is_output: bool = False) -> np.ndarray:
        """Return the value of all parts."""
        if self._op is None:
            return self._value
        if self._op == "gather":
            return np.concatenate(list(map(np.atleast_1d, self._value)))
        if self._op == "stack":
            return np.stack(self._value)
        # An average of integers is rounded only where a variable must hold it.
        dtype = self._value.dtype
        return self._value.result(result_dtype(self._op, dtype) if is_output else None)
