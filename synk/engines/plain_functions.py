"""Plain PyTensor functions of shared variables that synk's functions update, too.

They may update variables themselves, which the ledger must see: compiled code may write
a new value over the old one, in the same array, and then nothing tells of it. And they
may read what synk has computed by JAX, whose arrays the code of other modes does not
know.

PyTensor has no place to be told of calls. So **while a process has ranks**, calls of
`pytensor.compile.Function` go through `_call_and_tell`, which takes some 0.3 us: it
makes numpy's arrays of JAX's before a function reads them, and says of which variables
a function has made updates after it. Without ranks PyTensor is as it was.

Values of a variable that is in a function for JAX are numpy's to the script
(`show_numpys`): which engine makes a call is not the script's affair. What PyTensor
calls the internal type is still there (``return_internal_type=True``).

``maker.inputs`` and ``input_storage``, which belong together one by one, are as in
PyTensor 2.38 to 3.3; ``test_shared_variables_values.py`` tells when that changes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import numpy as np
from pytensor.compile import Function, SharedVariable
from pytensor.link.jax.linker import JAXLinker

_NOTED = "storages_that_synk_is_told_of"
"""An attribute of a function's last input, as a function itself takes none."""

_call = Function.__call__


class _Told:
    """Who is told of values, if a process has ranks; held weakly."""

    def __init__(self) -> None:
        self.changed: Callable[[], Any] = lambda: None
        self.moved: Callable[[], Any] = lambda: None
        # The method of functions before: PyTensor's, or others' that wraps it. And
        # another that was found in the place of `_call_and_tell`: one that wraps this.
        self.call: Callable[..., Any] = _call
        self.over: Callable[..., Any] | None = None


_told = _Told()
_show_numpys: weakref.WeakSet[SharedVariable] = weakref.WeakSet()


def tell(
    changed: Callable[[list[Any]], None],
    moved: Callable[[list[tuple[Any, Any]]], None],
) -> None:
    """Tell two methods of variables' values, and no others, from now on.

    One gets the storage of each variable that a function has updated, the other pairs
    (old, new) of arrays that are equal.
    """
    _told.changed, _told.moved = weakref.WeakMethod(changed), weakref.WeakMethod(moved)
    now = Function.__call__
    if now is not _call_and_tell and now is not _told.over:
        _told.call = now
        Function.__call__ = _call_and_tell  # type: ignore[method-assign]


def tell_no_more(changed: Callable[[list[Any]], None]) -> None:
    """Leave functions as PyTensor has them, if it is this method that is told."""
    if _told.changed() != changed:
        return  # of ranks that are gone; others have come since
    for var in list(_show_numpys):
        with suppress(RuntimeError):  # of a device that has failed
            bring_home([var.container.storage])
    _told.changed = _told.moved = lambda: None
    if Function.__call__ is _call_and_tell:
        Function.__call__ = _told.call  # type: ignore[method-assign]
    else:
        _told.over = Function.__call__


def untold(function: Function) -> Callable[..., Any]:
    """Return what calls a function of which the ledger knows otherwise."""
    call: Any = partial(_call, function)
    call.__wrapped__ = function
    return call


def have_moved(values: list[tuple[Any, Any]]) -> None:
    """Tell that variables have equal values in place of others, (old, new) arrays."""
    if moved := _told.moved():
        moved(values)


@wraps(_call)
def _call_and_tell(self: Function, *args: Any, **kwargs: Any) -> Any:
    updated, read = _storages(self)
    if read and "jax" in sys.modules:
        bring_home(read)
    if not updated:
        return _told.call(self, *args, **kwargs)
    try:
        return _told.call(self, *args, **kwargs)
    finally:  # an error may come when some are made
        changed = _told.changed()
        for storage in updated if changed else ():
            changed(storage)


def _storages(function: Function) -> tuple[list, list]:
    """Return those of variables that a function updates, and that it reads."""
    cells = function.input_storage
    if not cells:
        return [], []
    found = getattr(cells[-1], _NOTED, None)
    if found is None:
        inputs = zip(function.maker.inputs, cells, strict=True)
        shared = [(var, cell.storage) for var, cell in inputs if var.implicit]
        updated = [storage for var, storage in shared if var.update is not None]
        is_for_jax = isinstance(function.maker.mode.linker, JAXLinker)
        found = updated, [] if is_for_jax else [storage for _, storage in shared]
        setattr(cells[-1], _NOTED, found)
    return found


# -- values


def is_foreign(value: Any) -> bool:
    """Tell whether a value is an array of another package's, as JAX's are."""
    return not isinstance(value, (np.ndarray, np.generic)) and hasattr(
        value, "__array__"
    )


def bring_home(storages: Iterable[list[Any]]) -> None:
    """Make arrays of numpy's of what is not."""
    for storage in storages:
        old = storage[0]
        if is_foreign(old):
            new = storage[0] = np.array(old)
            have_moved([(old, new)])


def settle(storages: Iterable[list[Any]]) -> None:
    """Bring values home that were computed in a process that has no ranks."""
    if _told.changed() is None:
        bring_home(storages)


def show_numpys(variables: Iterable[SharedVariable]) -> None:
    """Have ``get_value`` of variables return numpy's arrays, whatever they hold."""
    for var in variables:
        if var not in _show_numpys:
            _show_numpys.add(var)
            var.get_value = _GetNumpys(var)  # type: ignore[method-assign]


class _GetNumpys:
    """The method ``get_value`` of one variable, which it does not keep alive."""

    def __init__(self, variable: SharedVariable) -> None:
        self._variable = weakref.ref(variable)

    def __call__(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        get = self._pytensors()
        if not return_internal_type:
            value = get(borrow=True, return_internal_type=True)
            if is_foreign(value):
                return np.asarray(value) if borrow else np.array(value)
        return get(borrow, return_internal_type)

    def _pytensors(self) -> Callable[..., Any]:
        var = self._variable()
        assert var is not None
        return partial(type(var).get_value, var)

    def __reduce__(self) -> Any:
        # Where the variable is copied or loaded it has PyTensor's method.
        method: Any = self._pytensors()
        return partial, (method.func, *method.args)
