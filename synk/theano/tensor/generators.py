"""The generators of random streams: NumPy's, which can be seeded as Theano's were.

numbers = u.rng.get_value(borrow=True)
numbers.seed(89234)
u.rng.set_value(numbers, borrow=True)
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytensor

__all__ = ["Seedable", "generator_variable"]

_Variable: Any = type(pytensor.shared(np.random.default_rng(0)))
"""PyTensor's class of generators in shared variables."""


class Seedable(np.random.Generator):
    """A generator of NumPy's with `seed`, `get_state` and `set_state`."""

    def seed(self, seed: Any = None) -> None:
        """Start anew from `seed`, in place; from the system's entropy without one."""
        fresh = type(self.bit_generator)(seed)
        self.bit_generator.state = fresh.state

    def get_state(self) -> Any:
        """Return the state, for `set_state`."""
        return copy.deepcopy(self.bit_generator.state)

    def set_state(self, state: Any) -> None:
        """Go on from a state that `get_state` returned."""
        self.bit_generator.state = state


class GeneratorVariable(_Variable):
    """A generator in a shared variable, whose value is `Seedable`."""

    def get_value(
        self, borrow: bool = False, return_internal_type: bool = False
    ) -> Any:
        """Return the generator; with `borrow`, what is done to it is done to ours."""
        value = super().get_value(borrow=borrow)
        return Seedable(value.bit_generator)

    def set_value(self, new_value: Any, borrow: bool = False) -> None:
        """Take a generator, or a copy of it."""
        if isinstance(new_value, Seedable):
            new_value = np.random.Generator(new_value.bit_generator)
        super().set_value(new_value, borrow=borrow)


def generator_variable(seed: np.random.SeedSequence) -> Any:
    """Return a new generator in a shared variable."""
    plain = pytensor.shared(np.random.default_rng(seed), borrow=True)
    return GeneratorVariable(
        plain.type, plain.get_value(borrow=True), strict=False, name=None
    )
