"""Compiled functions with what Theano's had: ``f[s]``, ``f.value``, ``f.fn``.

`Compiled` is PyTensor's function, in a class of its own. `Filled` is one of which not
all arguments are PyTensor's: some have defaults, some keep their values from call to
call; or its outputs have names. PyTensor has given up all of that.
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile import Function, SharedVariable

from .inputs import Slot

__all__ = ["Compiled", "Filled", "as_theanos", "plain"]

_AMBIGUOUS = object()
_NOT_GIVEN = object()


class _Containers:
    """What holds the values of a function's inputs and shared variables.

    Asked for by a variable, a name, or the place of an input.
    """

    def __init__(self, found: dict[Any, Any]) -> None:
        self._found = found

    def __contains__(self, item: Any) -> bool:
        return item in self._found

    def __getitem__(self, item: Any) -> Any:
        try:
            container = self._found[item]
        except KeyError:
            names = [key for key in self._found if isinstance(key, str)]
            raise TypeError(
                f"Unknown input or state: {item}; there are {', '.join(names)}"
            ) from None
        if container is _AMBIGUOUS:
            raise TypeError(f"two inputs have the name {item!r}: pass the variable")
        return container


class _Values:
    """The values in such containers: ``f.value[s]``."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __contains__(self, item: Any) -> bool:
        return item in self._function.container

    def __getitem__(self, item: Any) -> Any:
        return self._function[item]

    def __setitem__(self, item: Any, value: Any) -> None:
        self._function[item] = value


def _add(found: dict, key: Any, container: Any) -> None:
    found[key] = _AMBIGUOUS if found.get(key, container) is not container else container


def _containers(function: Function) -> dict[Any, Any]:
    """Return the containers of a function, by variable, by name and by place."""
    found: dict[Any, Any] = {}
    pairs = zip(function.maker.inputs, function.input_storage, strict=True)
    for place, (given, container) in enumerate(pairs):
        found[place] = found[given.variable] = container
        if given.name is not None:
            _add(found, given.name, container)
    return found


class Compiled(Function):
    """A compiled function, PyTensor's, in which inputs and states can be looked up."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Parameters
        ----------
        *args, **kwargs
            The inputs, in order or by name.
        output_subset : list of int, optional
            Return these outputs only, as a list. All updates are made.
        """
        subset = kwargs.pop("output_subset", None) if kwargs else None
        results = super().__call__(*args, **kwargs)
        if subset is None:
            return results
        listed = results if isinstance(results, list) else [results]
        return [listed[place] for place in subset]

    @property
    def container(self) -> Any:
        """What holds each value: ``f.container[s]``."""
        return _Containers(_containers(self))

    @property
    def value(self) -> Any:
        """The values: ``f.value[s]``, which can be set."""
        return _Values(self)

    @property
    def fn(self) -> Any:
        """What runs the compiled graph: PyTensor's `vm`."""
        return self.vm

    def __contains__(self, item: Any) -> bool:
        return item in self.container

    def __getitem__(self, item: Any) -> Any:
        return self.container[item].value

    def __setitem__(self, item: Any, value: Any) -> None:
        self.container[item].value = value

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
    """Give a function of PyTensor's the class `Compiled`."""
    if type(function) is Function:
        function.__class__ = Compiled  # type: ignore[assignment]
    return function


def plain(made: Any) -> Any:
    """Return the function of PyTensor's in one that is more; all else as it is."""
    if isinstance(made, list | tuple):
        return [plain(one) for one in made]
    return made._compiled if isinstance(made, Filled) else made


class Filled:
    """A compiled function some of whose inputs have values, or outputs with names.

    Parameters
    ----------
    compiled : Compiled
        Takes the inputs that have no state, in their order.
    slots : list of Slot
        All inputs.
    names : list of str, optional
        Of the outputs.
    """

    def __init__(
        self, compiled: Any, slots: Sequence[Slot], names: list[str] | None
    ) -> None:
        self._compiled = compiled
        self._slots = list(slots)
        self._names = names
        self._next: dict[int, Any] = {}  # by place: what was set for the next call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; return its outputs, by name if they have names."""
        subset = kwargs.get("output_subset")
        names: list | None
        if self._names is not None and subset is not None:
            names = [self._names[s] if isinstance(s, int) else s for s in subset]
            kwargs["output_subset"] = [self._names.index(name) for name in names]
        else:
            names = self._names
        results = self._compiled(*self._arguments(args, kwargs), **kwargs)
        self._next.clear()
        return results if names is None else dict(zip(names, results, strict=True))

    def _arguments(self, args: tuple, kwargs: dict[str, Any]) -> list:
        """Return the arguments of the compiled function; set states that are given."""
        if len(args) > len(self._slots):
            raise TypeError(f"{len(args)} arguments for {len(self._slots)} inputs")
        values, states = [], []
        for place, slot in enumerate(self._slots):
            value = args[place] if place < len(args) else _NOT_GIVEN
            if slot.name is not None and slot.name in kwargs:
                if value is not _NOT_GIVEN:
                    raise TypeError(f"multiple values for the input {slot.name}")
                value = kwargs.pop(slot.name)
            what = slot.name or slot.variable
            if value is _NOT_GIVEN:
                if slot.required:
                    raise TypeError(f"the input {what} has no value")
            elif slot.implicit:
                raise TypeError(f"the input {what} is implicit: calls do not give it")
            if slot.state is not None:
                if value is not _NOT_GIVEN:
                    states.append((slot.state, slot.filtered(value)))
                continue
            if value is _NOT_GIVEN:
                value = self._next.get(place, slot.default)
                if slot.given.mutable:
                    value = copy.copy(value)
            values.append(value)
        for state, value in states:
            self._compiled[state] = value
        return values

    @property
    def container(self) -> Any:
        """What holds each state: ``f.container[s]``."""
        found = _containers(self._compiled)
        for state in [slot for slot in self._slots if slot.state is not None]:
            found[state.variable] = found[state.state]
        for place in [place for place in found if isinstance(place, int)]:
            del found[place]  # it is that of another input here
        return _Containers(found)

    @property
    def value(self) -> Any:
        """The values: ``f.value[s]``, which can be set."""
        return _Values(self)

    def _default(self, item: Any) -> int | None:
        """Return the place of an input that has a default, None of any other."""
        for place, slot in enumerate(self._slots):
            has_default = not slot.required and slot.state is None
            if has_default and (item is slot.variable or item in (slot.name, place)):
                return place
        return None

    def _key(self, item: Any) -> Any:
        if isinstance(item, int):
            slot = self._slots[item]
            return slot.variable
        return item

    def __contains__(self, item: Any) -> bool:
        return self._default(item) is not None or self._key(item) in self.container

    def __getitem__(self, item: Any) -> Any:
        place = self._default(item)
        if place is not None:
            return self._next.get(place, self._slots[place].default)
        return self.container[self._key(item)].value

    def __setitem__(self, item: Any, value: Any) -> None:
        place = self._default(item)
        if place is not None:
            self._next[place] = self._slots[place].filtered(value)
        else:
            self.container[self._key(item)].value = value

    def copy(
        self, share_memory: bool = False, swap: dict | None = None, **options: Any
    ) -> Filled:
        """Return a copy with states of its own; see PyTensor's."""
        swap, slots = dict(swap or {}), []
        for slot in self._slots:
            slot = copy.copy(slot)
            if slot.state in swap:
                slot.state = swap[slot.state]
            elif slot.state is not None and not slot.implicit:
                swap[slot.state] = self._own(slot.state)
                slot.state = swap[slot.state]
            slots.append(slot)
        made = self._compiled.copy(share_memory=share_memory, swap=swap, **options)
        return Filled(made, slots, self._names)

    def _own(self, state: SharedVariable) -> SharedVariable:
        value = copy.deepcopy(self._compiled[state])
        return type(state)(state.type, value, strict=False, name=state.name)

    def __copy__(self) -> Filled:
        return self.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._compiled, name)
