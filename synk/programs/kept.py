"""What follows from the rows of a call alone, kept for the next with the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pytensor.graph.basic import Variable

from ..compiler.stages import Part

Key: TypeAlias = tuple
"""Whose rows they are: states of data and which rows of these."""


class KeptTerms:
    """The terms of the last rows, on one rank."""

    def __init__(self) -> None:
        self._key: Any = None
        self._values: dict[Variable, Any] = {}

    @property
    def nbytes(self) -> int:
        """The bytes that are kept now."""
        return sum(value.nbytes for value in self._values.values())

    def of(
        self, part: Part, key: Key | None, compute: Callable[[], list]
    ) -> dict[Variable, Any]:
        """Return the values of a part, computed if they are not those that are kept.

        Parameters
        ----------
        part : Part
        key : tuple or None
            None if there is nothing to know these rows by: what they give is not kept.
        compute : callable
            Returns them, in the order that the part wants them in.
        """
        if key is None:
            return dict(zip(part.wants, compute(), strict=True))
        if (id(part), key) == self._key:
            return self._values
        self._key, self._values = None, {}
        values = dict(zip(part.wants, compute(), strict=True))
        # In this order: an interrupt in between must not leave a key without values.
        self._values = values
        self._key = id(part), key
        return values
