"""Values of data: constants, shared variables, and what follows from these alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from ..errors import SplitError

DRAWN = "the model's data are drawn at random in each call, as by pm.Minibatch"


class Sources:
    """The values of some variables that follow from data alone.

    Shared variables, such as ``pm.Data`` makes, may get other values; constants stay.

    Parameters
    ----------
    variables : sequence of Variable

    Raises
    ------
    SplitError
        If they are drawn at random.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._computed = [
            var
            for var in dict.fromkeys(variables)
            if not isinstance(var, (Constant, SharedVariable))
        ]
        self._plain = [var for var in variables if var not in set(self._computed)]
        self.shared = [
            var
            for var in dict.fromkeys(ancestors(list(variables)))
            if isinstance(var, SharedVariable)
        ]
        if any(isinstance(var.type, RandomType) for var in self.shared):
            raise SplitError(DRAWN)
        self._function = None
        if self._computed:
            self._function = pytensor.function(
                [], self._computed, mode="FAST_COMPILE", on_unused_input="ignore"
            )
        self._held: list[Any] = []
        self.values: dict[Variable, np.ndarray] = {}
        self.read()

    def read(self) -> None:
        """Take the values as they are now."""
        self._held = [var.get_value(borrow=True) for var in self.shared]
        values = {
            var: var.get_value(borrow=True)
            if isinstance(var, SharedVariable)
            else var.data  # type: ignore[attr-defined]
            for var in self._plain
        }
        if self._function is not None:
            values |= dict(zip(self._computed, self._function(), strict=True))
        self.values = values

    @property
    def are_changed(self) -> bool:
        """Whether a shared variable has got another value, as by ``pm.set_data``."""
        return any(
            var.get_value(borrow=True) is not held
            for var, held in zip(self.shared, self._held, strict=True)
        )
