"""Plain PyTensor functions that read or update shared variables of synk's functions.

A plain function may update a variable in place, in the same array, which the ledger
cannot see by comparing objects. And it may read a variable that holds an array of JAX,
which the code of other modes cannot read.

PyTensor has no hook for calls. So **while a process has ranks**, calls of
`pytensor.compile.Function` go through `_watched_call`, which takes some 0.3 us. Before
the call it converts arrays of JAX that the function reads to numpy. After the call it
reports the variables that the function has updated. Without ranks it is not installed.

A variable that a function for JAX reads still shows numpy arrays to the script
(`show_as_numpy`), as the script need not know which engine computes. The array of JAX
is what PyTensor calls the internal type (``return_internal_type=True``).

This relies on ``maker.inputs`` and ``input_storage`` having the same order, as in
PyTensor 2.38 to 3.3; ``test_shared_variables_values.py`` fails if that changes.
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
"""An attribute that caches `_storages`, on a function's last input container."""

_call = Function.__call__


class _Hook:
    """The ledger, as a weak reference, and the replaced ``__call__``."""

    def __init__(self) -> None:
        self.ledger: Callable[[], Any] = lambda: None
        # `call`: the `__call__` that `_watched_call` replaces, PyTensor's or a wrapper.
        # `over`: another package's `__call__` that wraps `_watched_call`, if any.
        self.call: Callable[..., Any] = _call
        self.over: Callable[..., Any] | None = None


_hook = _Hook()
_show_numpys: weakref.WeakSet[SharedVariable] = weakref.WeakSet()


def watch(ledger: Any) -> None:
    """Tell a ledger of variables' new values from now on, in place of any before.

    Its `set_in_place` gets the storage of each variable that a plain function has
    updated. Its `moved` gets pairs (old, new) of equal arrays: a variable now holds
    `new`.
    """
    _hook.ledger = weakref.ref(ledger)
    now = Function.__call__
    if now is not _watched_call and now is not _hook.over:
        _hook.call = now
        Function.__call__ = _watched_call  # type: ignore[method-assign]


def stop_watching(ledger: Any) -> None:
    """Undo `watch`, if `ledger` is what it was last called with."""
    if _hook.ledger() is not ledger:
        return  # a later session watches
    for var in list(_show_numpys):
        with suppress(RuntimeError):  # a device has failed
            make_numpy([var.container.storage])
    _hook.ledger = lambda: None
    if Function.__call__ is _watched_call:
        Function.__call__ = _hook.call  # type: ignore[method-assign]
    else:
        _hook.over = Function.__call__


def unwatched(function: Function) -> Callable[..., Any]:
    """Return a callable like `function` that does not report its updates."""
    call: Any = partial(_call, function)
    call.__wrapped__ = function
    return call


def report_replaced(values: list[tuple[Any, Any]]) -> None:
    """Report pairs (old, new) of equal arrays: variables now hold the new ones."""
    ledger = _hook.ledger()
    if ledger is not None:
        ledger.moved(values)


@wraps(_call)
def _watched_call(self: Function, *args: Any, **kwargs: Any) -> Any:
    updated, read = _storages(self)
    if read and "jax" in sys.modules:
        make_numpy(read)
    if not updated:
        return _hook.call(self, *args, **kwargs)
    try:
        return _hook.call(self, *args, **kwargs)
    finally:  # a call that raises may have made some updates
        ledger = _hook.ledger()
        for storage in () if ledger is None else updated:
            ledger.set_in_place(storage)


def _storages(function: Function) -> tuple[list, list]:
    """Return the storages of variables that a function updates, and that it reads.

    A function for JAX has no storages to read: it takes arrays of JAX.
    """
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
    """Return whether a value is an array of another package, such as JAX."""
    return not isinstance(value, (np.ndarray, np.generic)) and hasattr(
        value, "__array__"
    )


def make_numpy(storages: Iterable[list[Any]]) -> None:
    """Convert the values in `storages` to numpy arrays, and report that."""
    for storage in storages:
        old = storage[0]
        if is_foreign(old):
            new = storage[0] = np.array(old)
            report_replaced([(old, new)])


def make_numpy_without_ranks(storages: Iterable[list[Any]]) -> None:
    """Convert values to numpy arrays, if the process has no ranks."""
    if _hook.ledger() is None:
        make_numpy(storages)


def show_as_numpy(variables: Iterable[SharedVariable]) -> None:
    """Make ``get_value`` of variables return numpy arrays, even if they hold JAX's."""
    for var in variables:
        if var not in _show_numpys:
            _show_numpys.add(var)
            var.get_value = _GetNumpys(var)  # type: ignore[method-assign]


class _GetNumpys:
    """The method ``get_value`` of one variable, with a weak reference to it."""

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
        # A copied or unpickled variable has PyTensor's method again.
        method: Any = self._pytensors()
        return partial, (method.func, *method.args)
