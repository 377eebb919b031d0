"""Plain PyTensor functions of shared variables that synk's functions update, too.

They may update variables themselves, which the ledger must see. Mostly a variable's new
value is a new object. But compiled code may write it over the old one, in the same
array, and then nothing tells that there is another value. So PyTensor's functions,
instances of `pytensor.compile.Function`, are told here to say when they have made
updates. That takes some 0.3 us of a call.

And they may read what synk has computed by JAX, whose arrays the code of other modes
does not know. Those become numpy's first, where a function is not for JAX itself.

``maker.inputs`` and ``input_storage``, which belong together one by one, are as in
PyTensor 2.38 to 3.3; ``test_shared_variables_values.py`` tells when that changes.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from pytensor.compile import Function

from .plain_values import is_foreign

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NOTED = "storages_that_synk_is_told_of"
"""An attribute of a function's last input, as a function itself takes none."""

_told: list[tuple[weakref.WeakMethod, weakref.WeakMethod]] = []
_NOTHING: tuple[list, list] = [], []
_is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)

_make, _call = Function.__init__, Function.__call__


def tell(
    changed: Callable[[list[Any]], None],
    moved: Callable[[list[tuple[Any, Any]]], None],
) -> None:
    """Tell methods of variables' values; they are held weakly, and the only ones.

    Parameters
    ----------
    changed : callable
        Is called with the storage of each variable that a function has updated.
    moved : callable
        Is called with pairs (old, new) of arrays that are equal.
    """
    _told[:] = [(weakref.WeakMethod(changed), weakref.WeakMethod(moved))]


def as_ours(make: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call `make`, which makes a function whose updates the ledger knows of otherwise.

    That it does is said in a copy of the context, which ends with the call: so an
    interrupt finds nothing that it could leave behind.
    """
    context = copy_context()
    context.run(_is_ours.set, True)
    return context.run(make, *args, **kwargs)


def untold(function: Function) -> Callable[..., Any]:
    """Return what calls a function that was made so, without a detour."""
    call: Any = partial(_call, function)
    call.__wrapped__ = function
    return call


def _note(function: Function) -> None:
    inputs = zip(function.maker.inputs, function.input_storage, strict=True)
    shared = [(var, cell.storage) for var, cell in inputs if var.implicit]
    updated = [storage for var, storage in shared if var.update is not None]
    linker = type(function.maker.mode.linker).__module__
    is_for_jax = linker.startswith("pytensor.link.jax")
    read = [] if is_for_jax else [storage for _, storage in shared]
    if updated or read:
        setattr(function.input_storage[-1], _NOTED, (updated, read))


def _bring_home(storages: list[list[Any]]) -> None:
    """Make arrays of numpy's of what is not."""
    for storage in storages:
        old = storage[0]
        if is_foreign(old):
            new = storage[0] = np.array(old)
            have_moved([(old, new)])


def have_moved(values: list[tuple[Any, Any]]) -> None:
    """Tell that variables have equal values in place of others, (old, new) arrays."""
    for _, moved in _told:
        told: Any = moved()
        if told:
            told(values)


@wraps(_make)
def _make_and_note(self: Function, *args: Any, **kwargs: Any) -> None:
    _make(self, *args, **kwargs)
    if not _is_ours.get():
        _note(self)


@wraps(_call)
def _call_and_tell(self: Function, *args: Any, **kwargs: Any) -> Any:
    cells = self.input_storage
    updated, read = getattr(cells[-1], _NOTED, _NOTHING) if cells else _NOTHING
    if read and "jax" in sys.modules:
        _bring_home(read)
    if not updated:
        return _call(self, *args, **kwargs)
    try:
        return _call(self, *args, **kwargs)
    finally:  # an error may come when some are made
        for changed, _ in _told:
            told: Any = changed()
            for storage in updated if told else ():
                told(storage)


for _made in gc.get_objects():  # those that were there before synk
    if type(_made) is Function:
        _note(_made)
Function.__init__ = _make_and_note  # type: ignore[method-assign]
Function.__call__ = _call_and_tell  # type: ignore[method-assign]
