"""Sending graphs: pickled, with a number in the place of every shared variable.

A graph of 5000 nodes has hundreds of Ops that are equal to one another, each with some
ten kB of C code in it, and for every variable the lines of the script that made it,
again and again. Both are sent once.

What a script defines, cloudpickle sends by value: on a rank it is another class. But
what a script has told numba and JAX of an Op before the fork, ranks know of the class
that they have. So graphs name that one. Likewise of Ops that ``wrap_py`` has made of
functions of the script: these read its global variables, which ranks have too.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import itertools
import pickle
import sys
from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
from pytensor.compile import SharedVariable
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.utils import Scratchpad
from pytensor.tensor.elemwise import CAReduce

from ..signals import without_collection


class VariableNumbers:
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


# -- what ranks were forked with

_forked_classes: dict[type, int] = {}
"""The script's classes of Ops that there were when the zygote was forked, by which
ranks have inherited this; with their numbers."""

_forked_ops: list[FromFunctionOp] = []
"""Likewise, Ops of functions that the script has a global name for."""


def note_classes(are_forked: bool) -> None:
    """Take note of what the ranks will have; before they are forked."""
    # A new interpreter has none of it, and is sent all by value.
    _forked_classes.clear()
    _forked_ops.clear()
    if not are_forked:
        return
    names = vars(sys.modules["__main__"]).values()
    _forked_ops.extend(value for value in names if isinstance(value, FromFunctionOp))
    todo: list[type] = [Op]
    while todo:
        derived: list[type] = todo.pop().__subclasses__()
        for cls in filter(is_by_value, derived):
            _forked_classes.setdefault(cls, len(_forked_classes))
        todo += derived


def is_by_value(cls: type) -> bool:
    """Tell whether cloudpickle sends a class by value."""
    return cls.__module__ == "__main__" or "<locals>" in cls.__qualname__


def _forked_op(number: int) -> FromFunctionOp:
    return _forked_ops[number]


def _forked_class(number: int) -> type:
    return list(_forked_classes)[number]


# -- pickling


class _GraphPickler(cloudpickle.Pickler):
    # cloudpickle sends lambdas, local classes and what is defined in __main__ by value;
    # the ranks were forked before such a definition may have been made.
    def __init__(self, file: io.BytesIO, numbers: VariableNumbers) -> None:
        super().__init__(file)
        self._numbers = numbers
        self._ops: dict[Op, Op] = {}
        self._frames: dict[Hashable, Hashable] = {}
        self._attributes: dict[type, frozenset[str] | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is pickled; not asked of strings, lists and the like."""
        if isinstance(obj, SharedVariable):
            return _shared_variable, (self._numbers[obj],)
        if isinstance(obj, Variable):
            return self._bare(obj)
        if isinstance(obj, type) and issubclass(obj, Op) and obj in _forked_classes:
            return _forked_class, (_forked_classes[obj],)
        if type(obj) is Scratchpad:
            return Scratchpad, (), self._shortened(obj.__dict__)
        if isinstance(obj, Op):
            if not isinstance(obj, HasInnerGraph):
                first = self._ops.setdefault(obj, obj)
                if first is not obj and type(first) is type(obj):
                    return _itself, (first,)
            way = _reduced(obj)
            if way is not None:
                return way
        return super().reducer_override(obj)

    def _bare(self, variable: Variable) -> Any:
        """Return how a variable is pickled: without what a library has hung on it.

        Keras's variables have the layer that made them, with all that this has.
        """
        kind = type(variable)
        if kind not in self._attributes:
            fresh = variable.type.make_variable()
            known = frozenset(vars(fresh)) if type(fresh) is kind else None
            self._attributes[kind] = known
        own = self._attributes[kind]
        if own is None or vars(variable).keys() <= own:
            return super().reducer_override(variable)
        way: Any = variable.__reduce_ex__(4)
        if len(way) < 3:  # a variable of an inner graph, which is its type and number
            return way
        state = {name: way[2][name] for name in way[2] if name in own}
        return (*way[:2], state, *way[3:])

    def _shortened(self, tag: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a tag, with every line of a script as one object."""
        # What compilers have hung on a node is left out.
        if not tag.keys().isdisjoint(_OF_NODES):
            tag = {name: tag[name] for name in tag if name not in _OF_NODES}
        trace = tag.get("trace")
        if not isinstance(trace, list):
            return tag
        one = self._frames.setdefault
        return {
            **tag,
            "trace": [[one(frame, frame) for frame in stack] for stack in trace],
        }


class _GraphUnpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, variables: Mapping[int, SharedVariable]
    ) -> None:
        super().__init__(file)
        self._variables = variables

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _shared_variable.__name__):
            return self._variables.__getitem__
        return super().find_class(module, name)


def _shared_variable(number: int) -> SharedVariable:
    """Stand in a pickle for what finds a variable by its number."""
    raise pickle.UnpicklingError(
        f"shared variable {number} is known to load_graph alone"
    )


def _itself(op: Op) -> Op:
    return op


def dump_graph(graph: Any, numbers: VariableNumbers) -> bytes:
    """Pickle anything that contains graphs; their shared variables have numbers."""
    file = io.BytesIO()
    with without_collection():
        _GraphPickler(file, numbers).dump(graph)
    return file.getvalue()


def load_graph(data: bytes, variables: Mapping[int, SharedVariable]) -> Any:
    """Undo `dump_graph` with a rank's own variables."""
    with without_collection():
        return _GraphUnpickler(io.BytesIO(data), variables).load()


# -- Ops as the script has made them: without what compilers have hung on them
#
# An Op that PyTensor has compiled once may keep what came of it: a ufunc for Python
# mode, or the function of the graph within it. Pickle refuses the one, and would have
# ranks compile the other a second time. They make their own. The attributes are
# PyTensor's, of 2.38 to 3.3; ``test_given`` finds it out if others come.

_REMOVED = ("_ufunc",)
"""What Ops are asked of by ``hasattr``."""

_UNMADE: dict[str, Any] = {
    **dict.fromkeys(("_fn", "_fn_wrapped", "_rop_op_cache")),
    **dict.fromkeys(("_frozen_lop", "_frozen_rop")),
    "_lop_op_cache": {},
}
"""What Ops have until something is made. Gradients of an inner graph, which PyTensor
makes for `grad` or to compare Ops, may hold an Op that applies the one that they are
of: who reads such a cycle meets an Op that is not there yet."""

_OF_NODES = ("ufunc", "gufunc")
"""What a node's tag is given."""


def _reduced(op: Op) -> tuple | None:
    """Return how an Op is pickled, if that is not its own way."""
    # Ops that ``wrap_py`` makes of functions would be named by their module. Ranks may
    # not find them there: a function within another one is not in it, and the script
    # may have been forked before it came to the line. These are sent by value.
    if isinstance(op, FromFunctionOp):
        for number, known in enumerate(_forked_ops):
            if known is op:
                return _forked_op, (number,)
        with contextlib.suppress(Exception):  # PyTensor has not found it
            _, (module, name) = op.__reduce__()
            # A rank that imports the module has it.
            if module != "__main__" and module in sys.modules and name:
                return None
        return copyreg.__newobj__, (type(op),), dict(vars(op))  # type: ignore[attr-defined]
    if not isinstance(op, (CAReduce, HasInnerGraph)):
        return None
    way: Any = op.__reduce_ex__(4)
    if not isinstance(way, tuple) or len(way) < 3 or not isinstance(way[2], dict):
        return None
    state = {name: value for name, value in way[2].items() if name not in _REMOVED}
    state.update({name: _UNMADE[name] for name in _UNMADE if name in state})
    return (*way[:2], state, *way[3:])
