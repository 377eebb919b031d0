"""The shared variables and functions that a rank knows, by number.

The master gives each shared variable a number when a function or a collective first
uses it. A rank keeps one replica for each number, so that functions that share a
variable in the master share it there too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, MutableMapping
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import host
from ..programs.programs import Programs
from .streams import value_for_rank


class Registry:
    """Shared variables and functions of one rank.

    The master's variables are the user's, and go when the user drops them.
    """

    def __init__(self, rank: int) -> None:
        self.variables: MutableMapping[int, SharedVariable]
        self.variables = {} if rank else WeakValueDictionary()
        self.functions: dict[int, Programs] = {}

    def forget_function(self, number: int) -> None:
        """Drop a function that the master no longer has."""
        self.functions.pop(number, None)

    def forget_variable(self, number: int) -> None:
        """Drop a replica whose original is gone."""
        self.variables.pop(number, None)


class Blueprint:
    """What a rank needs to make a replica of a shared variable.

    The replica gets the original's class and type, static shape included, so that a
    graph that was built on the original accepts it. Of a variable that shares its value
    with one that the ranks have, `alias`, the replica shares the value of that replica:
    a copy of an average, say, whose default update keeps the average up to date.

    Parameters
    ----------
    variable : SharedVariable
    alias : int, optional
    parts : list of numpy.ndarray, optional
        A value for each rank, where they have not all the master's.
    """

    def __init__(
        self,
        variable: SharedVariable,
        alias: int | None = None,
        parts: list[np.ndarray] | None = None,
    ) -> None:
        self.alias = alias
        self._class = type(variable)
        self._type = variable.type
        self._name = variable.name
        self._parts = parts
        self._value = host.get_value(variable) if parts is None else None

    def build(self, rank: int, known: Mapping[int, SharedVariable]) -> SharedVariable:
        """Return the replica for `rank`; a random stream gets seeds of its own."""
        if self.alias is not None:
            return known[self.alias].clone(name=self._name)
        if self._parts is None:
            value = value_for_rank(self._value, rank)
        else:
            value = self._parts[rank]
        return self._class(type=self._type, value=value, strict=False, name=self._name)


class Numbers:
    """The master's numbers of shared variables; they live as long as the variables."""

    # Of all sessions: what is said of a variable that a former session numbered, its
    # end for one, must not be taken for another's.
    _next = itertools.count()

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[SharedVariable, int] = WeakKeyDictionary()

    def __contains__(self, variable: SharedVariable) -> bool:
        return variable in self._numbers

    def __getitem__(self, variable: SharedVariable) -> int:
        return self._numbers[variable]

    def by_value(self) -> dict[int, int]:
        """Return, by the id of its container, the number of a variable that has it."""
        return {id(var.container): n for var, n in self._numbers.items()}

    def add(self, variable: SharedVariable) -> int:
        """Give a variable its number."""
        number = self._numbers[variable] = next(self._next)
        return number

    def drop(self, variable: SharedVariable) -> None:
        """Take back the number of a variable, if it has one."""
        self._numbers.pop(variable, None)
