"""Pickling graphs for ranks, with a number in place of every shared variable.

A graph of 5000 nodes has hundreds of equal Ops, each with some ten kB of C code. Each
is sent once.

cloudpickle sends a class that a script defines by value, so a rank gets another class.
But the script may have registered an Op's class with numba or JAX before the fork, and
ranks have inherited that for the class that they were forked with. So a graph refers to
that class by a number. It likewise refers to Ops that ``wrap_py`` has made of functions
of the script, which read the script's global variables.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import pickle
import sys
from collections.abc import Collection, Mapping
from typing import Any

import cloudpickle
from pytensor.compile import SharedVariable
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.utils import Scratchpad
from pytensor.tensor.elemwise import CAReduce

from ..signals import without_collection

# -- classes and Ops that ranks inherit from the script

_forked_classes: dict[type, int] = {}
"""The script's classes of Ops when the zygote was forked, with numbers. Ranks have
inherited this table."""

_forked_ops: list[FromFunctionOp] = []
"""The Ops, made of functions, that were global names of the script at that time."""


def note_classes(are_forked: bool) -> None:
    """Fill the tables of classes and Ops, before the zygote is forked."""
    # A zygote that is a new interpreter (not `are_forked`) inherits nothing, so the
    # tables are empty, and all is sent by value.
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
    """Return whether cloudpickle sends a class by value."""
    return cls.__module__ == "__main__" or "<locals>" in cls.__qualname__


def _forked_op(number: int) -> FromFunctionOp:
    return _forked_ops[number]


def _forked_class(number: int) -> type:
    return list(_forked_classes)[number]


# -- pickling


class _GraphPickler(cloudpickle.Pickler):
    # cloudpickle sends lambdas, local classes and definitions of __main__ by value, as
    # the script may have made them after ranks were forked.
    def __init__(self, file: io.BytesIO, numbers: Mapping[SharedVariable, int]) -> None:
        super().__init__(file)
        self._numbers = numbers
        self._ops: dict[Op, Op] = {}
        self._of_variables: set[int] = set()  # ids of tags
        self._attributes: dict[type, frozenset[str] | None] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object; not called for strings, lists and so on."""
        if isinstance(obj, SharedVariable):
            return _shared_variable, (self._numbers[obj],)
        if isinstance(obj, Variable):
            self._of_variables.add(id(obj.tag))
            return self._bare(obj)
        if isinstance(obj, type) and issubclass(obj, Op) and obj in _forked_classes:
            return _forked_class, (_forked_classes[obj],)
        if type(obj) is Scratchpad:
            tag = vars(obj)
            drop = _OF_NODES
            if id(obj) in self._of_variables:
                drop = [k for k in tag if k != "trace" and type(tag[k]) not in _TOLD]
            return Scratchpad, (), {k: tag[k] for k in tag if k not in drop}
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
        """Return how to pickle a variable, without attributes that a library has added.

        Keras's variables, for example, refer to the layer that made them.
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
        if len(way) < 3:  # an inner graph's variable, pickled by type and number
            return way
        state = {name: way[2][name] for name in way[2] if name in own}
        return (*way[:2], state, *way[3:])


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
    """Stand in a pickle for the look-up of a variable, which `load_graph` does."""
    raise pickle.UnpicklingError(
        f"shared variable {number} is known to load_graph alone"
    )


def _itself(op: Op) -> Op:
    return op


def dump_graph(graph: Any, numbers: Mapping[SharedVariable, int]) -> bytes:
    """Pickle an object that contains graphs, whose shared variables have `numbers`."""
    file = io.BytesIO()
    with without_collection():
        _GraphPickler(file, numbers).dump(graph)
    return file.getvalue()


def load_graph(data: bytes, variables: Mapping[int, SharedVariable]) -> Any:
    """Unpickle data of `dump_graph`, with a rank's own `variables` by number."""
    with without_collection():
        return _GraphUnpickler(io.BytesIO(data), variables).load()


# -- Ops without the attributes that compilers have added
#
# PyTensor keeps in an Op what it has compiled: a ufunc for Python mode, which pickle
# refuses, or the function of an inner graph, which ranks would compile when they
# unpickle it, and once more. Ranks make their own. The attributes are PyTensor's, of
# 2.38 to 3.3; ``test_given`` fails if there are others.

_REMOVED = ("_ufunc",)
"""Attributes to leave out: PyTensor tests for them by ``hasattr``."""

_UNMADE: dict[str, Any] = {
    **dict.fromkeys(("_fn", "_fn_wrapped", "_rop_op_cache")),
    **dict.fromkeys(("_frozen_lop", "_frozen_rop")),
    "_lop_op_cache": {},
}
"""Attributes to reset, with their first values. Gradients of an inner graph, which
PyTensor makes for `grad` or to compare Ops, may hold an Op that applies this very Op.
To unpickle such a cycle would need an Op that is not made yet."""

_OF_NODES: Collection[str] = ("ufunc", "gufunc")
"""Attributes that compilers add to a node's tag."""

_TOLD = (bool, int, float, str)
"""What is sent of a variable's tag, with the user's lines: facts, as that a matrix is
triangular. Libraries keep there what has made the variable: Blocks its bricks, which
have parameters that the graph has not."""


def _reduced(op: Op) -> tuple | None:
    """Return how to pickle an Op; None for the Op's own way."""
    # PyTensor pickles an Op that ``wrap_py`` has made of a function by module and name.
    # Ranks may not find it by that: a function may be local to another, or the script
    # may have been forked before the line that defines it. So it is sent by value.
    if isinstance(op, FromFunctionOp):
        for number, known in enumerate(_forked_ops):
            if known is op:
                return _forked_op, (number,)
        with contextlib.suppress(Exception):  # PyTensor does not find its name
            _, (module, name) = op.__reduce__()
            # A rank that imports the module has the Op.
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
