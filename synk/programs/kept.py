"""What follows from the rows of a call alone, kept for the next with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pytensor.graph.basic import Variable

from ..compiler.stages import Part

Key: TypeAlias = tuple
"""Whose rows they are: states of data and which rows of these."""

FEW = 1 << 16
"""Bytes that terms may take, of however few rows they are."""


class KeptTerms:
    """The terms of the last rows, on one rank.

    Attributes
    ----------
    are_too_large : bool
        Whether they were found to take more memory than the rows that they are of.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._values: dict[Variable, Any] = {}
        self.are_too_large = False

    @property
    def nbytes(self) -> int:
        """The bytes that are kept now."""
        return sum(value.nbytes for value in self._values.values())

    def of(
        self, part: Part, key: Key, rows: Sequence[Any], compute: Callable[[], list]
    ) -> dict[Variable, Any]:
        """Return the values of a part, computed if they are not those that are kept.

        Parameters
        ----------
        part : Part
        key : tuple
        rows : sequence of array
            What they are computed from.
        compute : callable
            Returns them, in the order that the part wants them in.
        """
        if (id(part), key) == self._key:
            return self._values
        self._key, self._values = None, {}
        values = dict(zip(part.wants, compute(), strict=True))
        size = sum(value.nbytes for value in values.values())
        if size > max(FEW, sum(array.nbytes for array in rows)):
            self.are_too_large = True
            return values
        # In this order: an interrupt in between must not leave a key without values.
        self._values = values
        self._key = id(part), key
        return values
