"""What a rank has changed in a launch, kept so that it can be undone.

A call that fails on any rank leaves every shared variable on every rank as it was.
Compiled code changes none but random streams: a call stores its new values when it has
come to its end, and keeps the former ones. Where the master finds that a rank has
failed, all put back what they have changed: see `ranks.undoing`.

On one rank compiled code may change others, too, in place. `Function.as_theano` copies
those before; a call does not.

In a run of many calls, ranks are at most one call apart: they meet in each. So the
changes of the present call are kept, and those of the last one until ranks have met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
"""What puts back what a call has changed; an interrupted one can be called again."""

Progress: TypeAlias = tuple[int, int, Changes | None, Changes | None]
"""A launch, how many of its calls are made, and the changes of this call and the last.

It is replaced as a whole, so that an interrupt finds it whole.
"""


class Transaction:
    """The launch that a rank is in, or was in last.

    Its `phase` is a word for the phase of its calls; see `workers.recorder`.
    """

    def __init__(self, phase: memoryview | None = None) -> None:
        self.phase = unread_phase() if phase is None else phase
        self._progress: Progress = (-1, 0, None, None)
        # By the identity of a storage, or of a list of some.
        self._stored: dict[int, tuple[list[list[Any]], list[Any]]] = {}
        self._selected: Mapping[SharedVariable, Selection] = {}

    def begin(self, launch: int) -> None:
        """Begin a launch: what the one before has made stays."""
        self._stored = {}
        self._progress = (launch, 0, None, None)

    def begin_call(
        self,
        overwritten: Iterable[SharedVariable] = (),
        selected: Mapping[SharedVariable, Selection] = MappingProxyType({}),
    ) -> None:
        """Begin a call of the launch.

        Some variables are overwritten by its compiled code itself, maybe in place: the
        random streams that it leads on. Of sliceable ones it uses the selected rows.
        """
        self._selected = selected
        changes: Changes = []
        for var in overwritten:
            storage = var.container.storage
            restore = _restoring(storage[0])
            changes.append(partial(_put_back, storage, storage[0], restore))
        launch, made, _, last = self._progress
        self._progress = (launch, made, changes, last)

    def with_other_rows(self, var: SharedVariable, value: Any) -> Any:
        """Return new rows of a variable, and the others that the call did not use."""
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
        """Make `value` itself the value of a variable, in a call."""
        changes = self._progress[2]
        assert changes is not None
        storage = var.container.storage
        changes.append(partial(_put_back, storage, storage[0]))
        if type(value) is not np.ndarray:
            engine.set_value(var, value)
            value = storage[0]
        self._stored[id(storage)] = [storage], [value]  # before an interrupt may come
        storage[0] = value

    def store_all(self, storages: list[list[Any]], values: list[Any]) -> None:
        """Make what compiled code has returned the values of some variables."""
        changes = self._progress[2]
        assert changes is not None
        changes.append(partial(_put, storages, [storage[0] for storage in storages]))
        self._stored[id(storages)] = storages, values
        _put(storages, values)
        make_numpy_without_ranks(storages)

    def write(self, var: SharedVariable, index: Any, write: Callable[[], Any]) -> None:
        """Have the elements of an index written, in a variable's array or in a copy."""
        changes = self._progress[2]
        assert changes is not None
        storage = var.container.storage
        if not isinstance(storage[0], np.ndarray):
            host.set_value(var, np.array(host.get_value(var)))
        array = storage[0]
        former = np.array(array[index])  # an error, if there are no such elements

        def restore() -> None:
            array[index] = former

        changes.append(partial(_put_back, storage, array, restore))
        self._stored[id(storage)] = [storage], [array]
        write()

    def have_met(self) -> None:
        """Take note that all ranks have made the last call: it stays."""
        launch, made, present, last = self._progress
        if last is not None:
            self._progress = (launch, made, present, None)

    def end_call(self) -> None:
        """Take note that the present call is made."""
        launch, made, present, _ = self._progress
        self._progress = (launch, made + 1, None, present)

    def has_stored(self, storage: list[Any]) -> bool:
        """Tell whether a variable holds what the launch has stored there."""
        return any(
            one is storage and value is storage[0]
            for storages, values in self._stored.values()
            for one, value in zip(storages, values, strict=True)
        )

    def made(self, launch: int) -> int:
        """Return how many calls of a launch this rank has made."""
        return self._progress[1] if launch == self._progress[0] else 0

    def undo_to(self, launch: int, calls: int) -> bool:
        """Undo what came after so many calls of a launch; return if that could be."""
        known, made, present, last = self._progress
        if launch != known:
            return True  # this rank has not heard of it
        if present is not None:
            _undo(present)
            self._progress = (launch, made, None, last)
        if made == calls + 1 and last is not None:
            _undo(last)
            self._progress = (launch, calls, None, None)
            return True
        return made == calls


def insist(undo: Callable[[], object]) -> None:
    """Call what undoes something; once more, if an interrupt has cut it short."""
    try:
        undo()
    except BaseException:
        undo()
        raise


def _undo(changes: Changes) -> None:
    """Put back what there was; after an interrupt it can be done once more."""
    for put_back in reversed(changes):
        put_back()


def _put(storages: list[list[Any]], values: list[Any]) -> None:
    for storage, value in zip(storages, values, strict=True):
        storage[0] = value


def _put_back(
    storage: list[Any], value: Any, restore: Callable[[], None] | None = None
) -> None:
    """Have a storage hold what it held; `restore` gives that its value in place."""
    if restore is not None:
        restore()
    storage[0] = value


def _restoring(value: Any) -> Callable[[], None] | None:
    """Return what gives an object the value that it has now, if it can have another."""
    if isinstance(value, np.random.Generator):
        generator, state = value.bit_generator, value.bit_generator.state

        def restore() -> None:
            generator.state = state

        return restore
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return partial(np.copyto, value, value.copy())
    return None
