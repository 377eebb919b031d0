"""`In`, an input with its own value, and functions with ``f[s]`` and ``f.value``.

PyTensor has dropped ``f[s]``, ``f.value``, ``f.fn``, and inputs that keep a value from
call to call, or return to a default. Here such an input has a *state*: a private shared
variable of the function.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.compile import Function, SharedVariable
from pytensor.compile import In as _In
from pytensor.graph import Variable
from pytensor.link.basic import Container
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import DenseTensorType

_NOT_GIVEN = object()


class In(_In):
    """An input of `function` with options: PyTensor's `In`, with a value.

    `value` is the input's value if a call gives none. It may be a `Container`, such as
    ``f.container[s]``, or a shared variable, which functions can share. `update` is the
    input's next value, which each call computes, after setting a value that is given.
    If `implicit`, calls must not give a value; by default that is so if `value` is
    shared.
    """

    def __init__(
        self,
        variable: Any,
        name: str | None = None,
        value: Any = None,
        update: Any = None,
        mutable: bool | None = None,
        *,
        implicit: bool | None = None,
        **options: Any,
    ) -> None:
        mutable = update is not None if mutable is None else mutable
        super().__init__(variable, name=name, mutable=mutable, **options)
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
    variable: Any, default: Any = None, name: str | None = None, **options: Any
) -> In:
    """Return an `In`; this is its oldest name in Theano."""
    return In(variable, name, default, **options)


@dataclass(frozen=True)
class Slot:
    """An argument of a function's calls: a plain input, or one with a state."""

    variable: Any
    name: str | None
    required: bool = True  # whether calls must give it
    implicit: bool = False  # whether calls must not give it
    state: SharedVariable | None = None  # holds its value; None for plain inputs
    default: Any = None  # the value that its state gets after each call; None: it stays
    given: Any = None  # the `In`, if the input is one

    @classmethod
    def of(cls, given: Any, allow_downcast: bool | None) -> Slot:
        """Return the slot of an input, as it is given to `function`."""
        if not isinstance(given, _In):
            return cls(given, getattr(given, "name", None))
        slot = cls(given.variable, given.name, given=given)
        value = getattr(given, "value", None)
        has_update = getattr(given, "update", None) is not None
        if value is None and not has_update:
            return slot
        state, default = value, None
        if not isinstance(value, SharedVariable):
            state = slot._new_state(value, allow_downcast)
            if not has_update and not isinstance(value, Container):
                default = state.get_value()
        slot = replace(slot, required=value is None, implicit=bool(given.implicit))
        return replace(slot, state=state, default=default)

    def _new_state(self, value: Any, allow_downcast: bool | None) -> SharedVariable:
        kind, nothing = self.variable.type, None
        is_tensor = isinstance(kind, DenseTensorType)
        make: Any = TensorSharedVariable if is_tensor else SharedVariable
        if isinstance(value, Container):
            return make(kind, nothing, nothing, container=value, name=self.name)
        options = {"strict": self.given.strict, "allow_downcast": allow_downcast}
        if self.given.allow_downcast is not None:
            options["allow_downcast"] = self.given.allow_downcast
        if value is not None:
            first = copy.deepcopy(kind.filter(value, **options))
        elif is_tensor:  # any value, as calls must give one before it is read
            first = np.zeros([length or 0 for length in kind.shape], kind.dtype)
        else:
            raise TypeError(f"an input of type {kind} with an update needs a value")
        return make(kind, first, name=self.name, **options)


class _Containers(dict):
    """Containers of values, by a variable, a name, or the index of an input."""

    def __init__(self) -> None:
        super().__init__()
        self._ambiguous: set[str] = set()

    def add(self, container: Any, name: str | None, *keys: Any) -> None:
        """Enter a container by some keys, and by its name unless that is taken."""
        self.update(dict.fromkeys(keys, container))
        if name is not None and self.setdefault(name, container) is not container:
            self._ambiguous.add(name)

    def __getitem__(self, item: Any) -> Any:
        if item in self._ambiguous:
            raise TypeError(f"two inputs have the name {item!r}: pass the variable")
        return super().__getitem__(item)

    def __missing__(self, item: Any) -> Any:
        names = ", ".join(key for key in self if isinstance(key, str))
        raise TypeError(f"Unknown input or state: {item}; there are {names}")


class _LookedInto:
    """A function whose values can be read and set: ``f[s]``, ``f.value[s]``."""

    __slots__ = ()

    @property
    def container(self) -> _Containers:
        """The containers of values: ``f.container[s]``."""
        raise NotImplementedError

    @property
    def value(self) -> Any:
        """The values: ``f.value[s]`` is ``f[s]``."""
        return self

    def __contains__(self, item: Any) -> bool:
        return item in self.container

    def __getitem__(self, item: Any) -> Any:
        return self.container[item].value

    def __setitem__(self, item: Any, value: Any) -> None:
        self.container[item].value = value


class Compiled(Function, _LookedInto):
    """The class that a compiled function of PyTensor gets, for ``f[s]`` and the like.

    PyTensor's class is the first base, so that an object's class can be changed to this
    one. It also keeps its own ``f[s]`` in 2.38, by which calls set arguments.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; return the outputs numbered in `output_subset`, or all.

        The call makes all updates in either case.
        """
        subset = kwargs.pop("output_subset", None) if kwargs else None
        results = super().__call__(*args, **kwargs)
        if subset is None:
            return results
        listed = results if isinstance(results, list) else [results]
        return [listed[place] for place in subset]

    @property
    def container(self) -> _Containers:
        """The containers of all inputs and shared variables."""
        found = _Containers()
        pairs = zip(self.maker.inputs, self.input_storage, strict=True)
        for place, (given, container) in enumerate(pairs):
            found.add(container, given.name, given.variable, place)
        return found

    @property
    def fn(self) -> Any:
        """PyTensor's `vm`, which runs the compiled graph."""
        return self.vm

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        """Return a copy; see PyTensor's."""
        return as_theanos(super().copy(*args, **kwargs))

    def __reduce__(self) -> Any:
        reduce: Any = copyreg.dispatch_table[Function]  # type: ignore[index]
        make, args = reduce(self)[:2]
        return _made_again, (make, args)


def _made_again(make: Callable, args: tuple) -> Any:
    made = make(*args)
    return as_theanos(made) if isinstance(made, Function) else made


def as_theanos(function: Function) -> Any:
    """Change the class of a PyTensor function to `Compiled`; return the function."""
    if type(function) is Function:
        function.__class__ = Compiled  # type: ignore[assignment]
    return function


def plain(made: Any) -> Any:
    """Return PyTensor's function in a `Filled`, or in a list of them; others as is."""
    if isinstance(made, list | tuple):
        return [plain(one) for one in made]
    return made._compiled if isinstance(made, Filled) else made


class Filled(_LookedInto):
    """A compiled function with inputs that have states, or with named outputs.

    `compiled` takes the inputs without states, in their order; `slots` has all inputs.
    With `names`, calls return a dict of outputs.
    """

    def __init__(
        self, compiled: Any, slots: Sequence[Slot], names: list[str] | None
    ) -> None:
        self._compiled, self._slots, self._names = compiled, list(slots), names

    def __reduce__(self) -> Any:
        return Filled, (self._compiled, self._slots, self._names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Set the states that are given, call the function, and restore defaults."""
        subset, names = kwargs.get("output_subset"), self._names
        if names is not None and subset is not None:
            chosen: list = [names[s] if isinstance(s, int) else s for s in subset]
            kwargs["output_subset"] = [names.index(name) for name in chosen]
            names = chosen
        given = self._arguments(args, kwargs)
        values = [value for slot, value in given if slot.state is None]
        try:
            for slot, value in given:
                if slot.state is not None and value is not _NOT_GIVEN:
                    slot.state.container.value = value
            results = self._compiled(*values, **kwargs)
        finally:
            for slot in self._slots:
                if slot.state is not None and slot.default is not None:
                    slot.state.container.value = slot.default
        return results if names is None else dict(zip(names, results, strict=True))

    def _arguments(self, args: tuple, kwargs: dict[str, Any]) -> list[tuple[Slot, Any]]:
        """Return pairs (slot, value) of a call; leave other keywords in `kwargs`.

        A value that the call does not give is `_NOT_GIVEN`.
        """
        if len(args) > len(self._slots):
            raise TypeError(f"{len(args)} arguments for {len(self._slots)} inputs")
        found = []
        for place, slot in enumerate(self._slots):
            value = args[place] if place < len(args) else _NOT_GIVEN
            if slot.name is not None and slot.name in kwargs:
                if value is not _NOT_GIVEN:
                    raise TypeError(f"multiple values for the input {slot.name}")
                value = kwargs.pop(slot.name)
            what = slot.name or slot.variable
            if value is _NOT_GIVEN and slot.required:
                raise TypeError(f"the input {what} has no value")
            if value is not _NOT_GIVEN and slot.implicit:
                raise TypeError(f"the input {what} is implicit: calls do not give it")
            found.append((slot, value))
        return found

    @cached_property
    def container(self) -> _Containers:
        """The containers of all inputs and shared variables."""
        inside, found = self._compiled.container, _Containers()
        for place, slot in enumerate(self._slots):
            state = slot.variable if slot.state is None else slot.state
            # PyTensor's function lacks a state that the graph does not use.
            held = inside.get(state)
            if held is None and slot.state is not None:
                held = slot.state.container
            found.add(held, slot.name, slot.variable, state, place)
        for variable, container in inside.items():
            if isinstance(variable, Variable):
                found.add(container, variable.name, variable)
        return found

    def copy(
        self, share_memory: bool = False, swap: dict | None = None, **options: Any
    ) -> Filled:
        """Return a copy with its own states; see PyTensor's `Function.copy`."""
        swap, slots = dict(swap or {}), []
        for slot in self._slots:
            if slot.state is not None and slot.state not in swap and not slot.implicit:
                value = copy.deepcopy(self[slot.variable])
                own = type(slot.state)(slot.state.type, value, False, name=slot.name)
                swap[slot.state] = own
            slots.append(replace(slot, state=swap.get(slot.state, slot.state)))
        made = self._compiled.copy(share_memory=share_memory, swap=swap, **options)
        return Filled(made, slots, self._names)

    def __copy__(self) -> Filled:
        return self.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._compiled, name)
