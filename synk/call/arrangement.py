"""From the arguments of a call to the values and rows that a variant takes.

A function takes its arguments in the script's order; its variants take scattered inputs
first. If the arguments choose the rows, as the number of a batch does
(`compiler/cut_rows.py`), the scattered inputs are *sources* instead: the shared
variables or arguments whose rows are chosen. The value of a shared variable that is a
source moves to shared memory, which all ranks read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.traversal import ancestors

from ..compiler.spec import FunctionSpec
from ..engines.plain_functions import unwatched
from ..memory.partition import Selection, count, select
from ..ranks.session import SESSION
from ..variables.data import Data
from .arguments import check_arguments

_known: weakref.WeakKeyDictionary[Any, SharedRows] = weakref.WeakKeyDictionary()
"""The `SharedRows` of each shared variable, by the variable's container."""


class SharedRows:
    """A shared variable whose array is also that of a `Data`, in shared memory.

    If ``set_value`` has put another array there, `current` copies it to the `Data`.
    """

    def __init__(self, variable: SharedVariable) -> None:
        self._storage = variable.container.storage
        kind: Any = variable.type
        self._data = Data(kind.dtype, kind.ndim, name=variable.name)
        self._array: np.ndarray | None = None
        self._times_written = 0

    @staticmethod
    def of(variable: SharedVariable) -> SharedRows:
        """Return the `SharedRows` of a variable."""
        if variable.container not in _known:
            _known[variable.container] = SharedRows(variable)
        return _known[variable.container]

    def current(self, times_written: int) -> Data:
        """Return the `Data`, with the value that the variable has now.

        `times_written` is a count of `LedgerEntry`: if it has changed, a plain function
        has written to the array.
        """
        value = self._storage[0]
        if value is not self._array:
            self._data.set_value(np.asarray(value))
            # If the script itself writes to the array, synk does not notice.
            self._array = self._storage[0] = self._data._held()
        elif times_written != self._times_written:
            _ = self._data.data  # marks the values of the `Data` as changed
        self._times_written = times_written
        return self._data


class Arrangement:
    """Brings a call's arguments into the order and form that a variant takes."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec, self._cut = spec, spec.cut
        self._place = {var: i for i, var in enumerate(spec.arguments)}
        given = spec.bcast_inputs if spec.cut else [*spec.inputs, *spec.bcast_inputs]
        self._order = [self._place[var] for var in given if var in self._place]
        # Positions of the arguments that only choose rows.
        self.choosing: list[int] = []
        self._shaped: list[int] = []
        if (cut := spec.cut) is not None:
            self.choosing = [self._place[var] for var in cut.choosing]
            self._shaped = [cut.sources.index(var) for var in cut.shapes.values()]
        self._copies: dict[int, Data] = {}

    def as_given(self, values: Sequence[Any]) -> list[Any]:
        """Return values in the script's order; not if arguments choose the rows."""
        assert self._cut is None
        return [values[self._order.index(i)] for i in range(len(values))]

    def with_choosing(self, batch: Any, others: Sequence[Any]) -> list[Any]:
        """Return a call's arguments: `batch` chooses rows, `others` are the rest."""
        chosen = batch if isinstance(batch, tuple) else (batch,)
        if len(chosen) != len(self.choosing):
            names = ", ".join(str(self._spec.arguments[i]) for i in self.choosing)
            raise ValueError(f"a batch is a value for {names}, got {batch!r}")
        left, by_place = iter(others), dict(zip(self.choosing, chosen, strict=True))
        return [
            by_place[i] if i in by_place else next(left) for i in self._place.values()
        ]

    def rows(self, batch: Any, fixed: Sequence[Any]) -> Any:
        """Return the rows that one call of a run selects, or None: see `arranged`."""
        arranged = self.arranged(self.with_choosing(batch, fixed))
        return arranged and arranged[1]

    def is_of_one_set(self, values: Sequence[Any]) -> bool:
        """Return whether a call selects the same rows of all scattered inputs."""
        return not any(map(_is_batch, values[: len(self._spec.inputs)]))

    def arranged(
        self, values: Sequence[Any], batch: Any = None
    ) -> tuple[list[Any], Any] | None:
        """Return the values in the variant's order, and the batch of the call.

        None if the arguments choose more rows of one source than of another, or if
        the ranks hold other values of a source than the master.
        """
        whole = [values[i] for i in self._order]
        if self._cut is None:
            return whole, batch
        if batch is not None:
            raise ValueError("batch was given, and the arguments choose the rows")
        sources = self._sources(values)
        if sources is None:
            return None
        arrays = [_held(source) for source in sources]
        chosen = self._chosen(values, arrays)
        main = max(range(len(arrays)), key=lambda i: arrays[i].nbytes)
        total = count(chosen[main])
        if any(count(each) != total for each in chosen):
            return None
        if self._cut.lengths - {total}:  # the plain function raises a good error
            return None
        choice_of, rows = self._cut.choice_of, list(sources)
        for i, array in enumerate(arrays):
            alike = choice_of[i] == choice_of[main]
            if not alike or len(array) != len(arrays[main]):
                # Other rows than those of the largest source: copy them, in order.
                some = array[chosen[i]]
                if i not in self._copies:
                    self._copies[i] = Data(some.dtype, some.ndim, minibatch=True)
                self._copies[i].set_value(some)
                rows[i] = self._copies[i]
        shapes = [np.array(arrays[i].shape) for i in self._shaped]
        return [*rows, *whole, *shapes], chosen[main]

    def of_rows(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the values in the variant's order, of sources the chosen rows only."""
        arranged = self.arranged(values)
        if arranged is None or self._cut is None:
            return arranged and arranged[0]
        (found, chosen), n = arranged, len(self._spec.inputs)
        rows = [
            _held(each)[slice(None) if _is_batch(each) else chosen]
            for each in found[:n]
        ]
        return [*rows, *found[n:]]

    def _sources(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the sources, `Data` or arrays; None if ranks hold other values."""
        assert self._cut is not None
        found: list[Any] = []
        for var in self._cut.sources:
            if not isinstance(var, SharedVariable):
                value = values[self._place[var]]
                (array,) = check_arguments([var], [value], self._spec.options)
                found.append(value if isinstance(value, Data) else array)
                continue
            times_written = 0
            if SESSION.state == "running":
                (entry,) = SESSION.ledger.entries([var])
                if not entry.is_set and entry.holding.kind != "replicated":
                    return None
                times_written = entry.times_written
            found.append(SharedRows.of(var).current(times_written))
        return found

    def _chosen(
        self, values: Sequence[Any], sources: Sequence[np.ndarray]
    ) -> list[Selection]:
        """Return the rows that the arguments choose of each source."""
        assert self._cut is not None
        compute, given = self._choices
        by = [values[self._place[var]] for var in given]
        computed = iter(compute(*check_arguments(given, by, self._spec.options)))
        batches: list[Any] = []
        for choice in self._cut.choices:
            start, stop, numbers = (
                None if var is None else next(computed) for var in choice
            )
            ends = (None if end is None else int(end) for end in (start, stop))
            batches.append(slice(*ends) if numbers is None else np.asarray(numbers))
        pairs = zip(self._cut.choice_of, sources, strict=True)
        return [select(batches[choice], len(source)) for choice, source in pairs]

    @cached_property
    def _choices(self) -> tuple[Callable[..., Any], list[Any]]:
        """A function that computes all choices of rows, and the arguments it takes."""
        assert self._cut is not None
        wanted = [var for choice in self._cut.choices for var in choice.variables]
        used = set(ancestors(wanted))
        given = [var for var in self._spec.arguments if var in used]
        # Mostly a few additions: not worth a compilation.
        make = partial(pytensor.function, mode="FAST_COMPILE", trust_input=True)
        return unwatched(make(given, wanted)), given


def _held(source: Any) -> np.ndarray:
    """Return the array of a source, for reading only; see `Data` for lending."""
    return source._held() if isinstance(source, Data) else source


def _is_batch(value: Any) -> bool:
    return isinstance(value, Data) and value.minibatch
