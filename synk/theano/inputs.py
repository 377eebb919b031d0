"""`In`: an input with a value of its own, and with an update of that value.

PyTensor has given both up. An input whose value stays from call to call is a shared
variable that the function keeps to itself: `Slot` says which of a call's arguments goes
where.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile import In as _In
from pytensor.compile import SharedVariable
from pytensor.link.basic import Container
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import DenseTensorType

__all__ = ["In", "Param", "Slot", "slots_for"]


class In(_In):
    """An input of `function` with options; PyTensor's, with a value.

    Parameters
    ----------
    variable : Variable
        The input.
    name : str, optional
        What calls name it by; the variable's name unless given.
    value : object, optional
        Its value where a call gives none. A `Container`, as ``f.container[s]``, or a
        shared variable: what another function and this one have in common.
    update : Variable, optional
        Its next value, computed by a call. A call that gives a value sets it before.
    mutable, strict, allow_downcast, autoname, borrow, shared
        As in PyTensor.
    implicit : bool, optional
        Whether calls may not give a value; by default if `value` is shared.
    """

    def __init__(
        self,
        variable: Any,
        name: str | None = None,
        value: Any = None,
        update: Any = None,
        mutable: bool | None = None,
        strict: bool = False,
        allow_downcast: bool | None = None,
        autoname: bool = True,
        implicit: bool | None = None,
        borrow: bool | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__(
            variable,
            name=name,
            mutable=update is not None if mutable is None else mutable,
            strict=strict,
            allow_downcast=allow_downcast,
            autoname=autoname,
            borrow=borrow,
            shared=shared,
        )
        if update is not None and not variable.type.in_same_class(update.type):
            raise TypeError(
                f"the update of {variable} has the type {update.type}, not that of"
                f" the input, {variable.type}"
            )
        self.update = update
        self.value = value
        if implicit is None:
            implicit = isinstance(value, Container | SharedVariable)
        self.implicit = implicit
        if self.implicit and value is None:
            raise TypeError(f"the implicit input {variable} needs a value")


def Param(
    variable: Any,
    default: Any = None,
    name: str | None = None,
    mutable: bool = False,
    strict: bool = False,
    allow_downcast: bool | None = None,
    implicit: bool | None = None,
    borrow: bool | None = None,
) -> In:
    """Return an input of `function` with options: `In` under its oldest name.

    Parameters
    ----------
    variable : Variable
        The input.
    default : object, optional
        Its value where a call gives none.
    name, mutable, strict, allow_downcast, implicit, borrow
        As in `In`.
    """
    return In(
        variable,
        name=name,
        value=default,
        mutable=mutable,
        strict=strict,
        allow_downcast=allow_downcast,
        implicit=implicit,
        borrow=borrow,
    )


@dataclass
class Slot:
    """An argument of a call.

    Parameters
    ----------
    variable : Variable
        The input.
    name : str, optional
        What calls name it by.
    required : bool
        Whether a call must give it.
    implicit : bool
        Whether a call may not give it.
    default : object
        Its value where a call gives none; of a state None.
    state : SharedVariable, optional
        What keeps its value from call to call.
    given : In, optional
        What was given for it, if that was not the variable itself.
    """

    variable: Any
    name: str | None
    required: bool = True
    implicit: bool = False
    default: Any = None
    state: SharedVariable | None = None
    given: Any = None

    def filtered(self, value: Any) -> Any:
        """Return a value as the input's type has it."""
        strict = bool(getattr(self.given, "strict", False))
        downcast = getattr(self.given, "allow_downcast", None)
        return self.variable.type.filter(value, strict=strict, allow_downcast=downcast)

    def for_pytensor(self) -> Any:
        """Return what stands for it in ``pytensor.function``."""
        given = self.given
        if given is None:
            return self.variable
        options = {
            name: getattr(given, name)
            for name in ("mutable", "strict", "allow_downcast", "borrow")
        }
        return _In(self.variable, name=self.name, **options)


def slots_for(inputs: Sequence) -> list[Slot]:
    """Return a slot for each input of a function."""
    return [_slot(given) for given in inputs]


def _slot(given: Any) -> Slot:
    if not isinstance(given, _In):
        return Slot(given, getattr(given, "name", None))
    value = getattr(given, "value", None)
    slot = Slot(
        given.variable,
        given.name,
        required=value is None,
        implicit=bool(given.implicit),
        given=given,
    )
    if isinstance(value, SharedVariable):
        slot.state = value
    elif given.update is not None or isinstance(value, Container):
        slot.state = _state(slot, value)
    else:
        slot.default = value
    return slot


def _state(slot: Slot, value: Any) -> SharedVariable:
    kind = slot.variable.type
    make = TensorSharedVariable if isinstance(kind, DenseTensorType) else SharedVariable
    name: Any = slot.name
    if isinstance(value, Container):
        nothing: Any = None
        return make(kind, nothing, nothing, container=value, name=name)
    if value is None:  # a call has to give it before it is read
        state = make(kind, _anything(kind), strict=False, name=name)
    else:
        first = copy.deepcopy(slot.filtered(value))
        state = make(kind, first, strict=False, name=name)
    return state


def _anything(kind: Any) -> Any:
    """Return some value of a type, for a variable that is set before it is read."""
    import numpy as np

    if isinstance(kind, DenseTensorType):
        return np.zeros([length or 0 for length in kind.shape], kind.dtype)
    raise TypeError(f"an input of type {kind} with an update needs a value")
