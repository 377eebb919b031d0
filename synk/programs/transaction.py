"""The changes that a rank has made in a launch, kept so that they can be undone.

A call that fails on any rank leaves every shared variable on every rank as it was.
Compiled code changes only random streams; a call stores new values at its end, and
keeps the former ones. If a rank has failed, the master has all ranks restore these:
see `ranks.undoing`.

On one rank, compiled code may change other variables as well, in place.
`Function.as_theano` copies these before; a call does not.

In a run ranks meet in each call, so they are at most one call apart. So a rank keeps
the changes of its present call, and those of the last call until ranks have met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import Engine, host
from ..engines.plain_functions import make_numpy_without_ranks
from ..memory.partition import Selection, count
from ..workers.recorder import unread_phase

Changes: TypeAlias = list[Callable[[], None]]
"""Functions that undo a call's changes; each can be called again if interrupted."""

Progress: TypeAlias = tuple[int, int, Changes | None, Changes | None]
"""The launch, the number of calls made, the changes of the present and the last call.

The tuple is replaced as a whole, so that an interrupt finds it consistent.
"""


class Transaction:
    """The changes of the launch that a rank is in, or was in last.

    `phase` is a word of shared memory for the present phase; see `workers.recorder`.
    """

    def __init__(self, phase: memoryview | None = None) -> None:
        self.phase = unread_phase() if phase is None else phase
        self._progress: Progress = (-1, 0, None, None)
        # By the id of a storage, or of a list of storages.
        self._stored: dict[int, tuple[list[list[Any]], list[Any]]] = {}
        self._selected: Mapping[SharedVariable, Selection] = {}

    def begin(self, launch: int) -> None:
        """Begin a launch, by its number; changes of the one before stay."""
        self._stored = {}
        self._progress = (launch, 0, None, None)

    def begin_call(
        self,
        overwritten: Iterable[SharedVariable] = (),
        selected: Mapping[SharedVariable, Selection] = MappingProxyType({}),
    ) -> None:
        """Begin a call of the launch.

        `overwritten` are the variables that compiled code itself changes, such as
        random streams. `selected` has the rows that the call uses of sliceable ones.
        """
        self._selected = selected
        changes: Changes = []
        for var in overwritten:
            storage = var.container.storage
            changes.append(partial(_put, (storage,), (storage[0],)))
            changes += _restoring(storage[0])
        launch, made, _, last = self._progress
        self._progress = (launch, made, changes, last)

    def with_other_rows(self, var: SharedVariable, value: Any) -> Any:
        """Return a variable's whole new value, from the new rows that the call used."""
        selected = self._selected.get(var)
        former = host.get_value(var)
        if selected is None or len(value) != count(selected):
            return value
        if isinstance(selected, slice) and count(selected) == len(former):
            return value
        whole = np.array(former)
        whole[selected] = np.asarray(value)
        return whole

    def store(self, engine: Engine, var: SharedVariable, value: Any) -> None:
        """Make `value` itself, without a copy, the value of a variable."""
        changes = self._progress[2]
        assert changes is not None
        storage = var.container.storage
        changes.append(partial(_put, (storage,), (storage[0],)))
        if type(value) is not np.ndarray:
            engine.set_value(var, value)
            value = storage[0]
        self._stored[id(storage)] = [storage], [value]  # first, for an interrupt
        storage[0] = value

    def store_all(self, storages: list[list[Any]], values: list[Any]) -> None:
        """Make values that compiled code has returned those of variables' storages."""
        changes = self._progress[2]
        assert changes is not None
        changes.append(partial(_put, storages, [storage[0] for storage in storages]))
        self._stored[id(storages)] = storages, values
        _put(storages, values)
        make_numpy_without_ranks(storages)

    def write(self, var: SharedVariable, index: Any, write: Callable[[], Any]) -> None:
        """Call `write`, which writes to a variable at `index`, after saving these."""
        changes = self._progress[2]
        assert changes is not None
        storage = var.container.storage
        if not isinstance(storage[0], np.ndarray):
            host.set_value(var, np.array(host.get_value(var)))
        array = storage[0]
        former = np.array(array[index])  # raises if the index is out of range

        def restore() -> None:
            array[index] = former

        changes += [partial(_put, (storage,), (array,)), restore]
        self._stored[id(storage)] = [storage], [array]
        write()

    def note_met(self) -> None:
        """Note that all ranks have made the last call, so that its changes stay."""
        launch, made, present, last = self._progress
        if last is not None:
            self._progress = (launch, made, present, None)

    def end_call(self) -> None:
        """Note the end of the present call; its changes become those of the last."""
        launch, made, present, _ = self._progress
        self._progress = (launch, made + 1, None, present)

    def has_stored(self, storage: list[Any]) -> bool:
        """Return whether a storage still holds the value that the launch stored."""
        return any(
            one is storage and value is storage[0]
            for storages, values in self._stored.values()
            for one, value in zip(storages, values, strict=True)
        )

    def made(self, launch: int) -> int:
        """Return the number of calls of a launch that this rank has made."""
        return self._progress[1] if launch == self._progress[0] else 0

    def undo_to(self, launch: int, calls: int) -> bool:
        """Undo all but the first `calls` calls of a launch; return if it could be."""
        known, made, present, last = self._progress
        if launch != known:
            return True  # this rank has not begun that launch
        if present is not None:
            _undo(present)
            self._progress = (launch, made, None, last)
        if made == calls + 1 and last is not None:
            _undo(last)
            self._progress = (launch, calls, None, None)
            return True
        return made == calls


def insist(undo: Callable[[], object]) -> None:
    """Call `undo`, and again if an interrupt has ended it early."""
    try:
        undo()
    except BaseException:
        undo()
        raise


def _undo(changes: Changes) -> None:
    """Undo changes, the last first; can be called again after an interrupt."""
    for put_back in reversed(changes):
        put_back()


def _put(storages: Sequence[list[Any]], values: Sequence[Any]) -> None:
    for storage, value in zip(storages, values, strict=True):
        storage[0] = value


def _restoring(value: Any) -> Changes:
    """Return a function that restores an object's present contents; none if fixed."""
    if isinstance(value, np.random.Generator):
        generator, state = value.bit_generator, value.bit_generator.state

        def restore() -> None:
            generator.state = state

        return [restore]
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return [partial(np.copyto, value, value.copy())]
    return []
