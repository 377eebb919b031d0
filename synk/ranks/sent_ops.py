"""Ops as the script has made them: without what compilers have hung on them.

An Op that PyTensor has compiled once may keep what came of it: a ufunc for Python mode,
or the function of the graph within it. Pickle refuses the one, and would have ranks
compile the other a second time. They make their own.

The attributes are PyTensor's own, of 2.38 to 3.3; ``test_sent_ops`` finds it out if
others come.
"""

from __future__ import annotations

import copyreg
import sys
from typing import Any

from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.tensor.elemwise import CAReduce

from .forked_classes import number_of_op, op_of

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

OF_NODES = ("ufunc", "gufunc")
"""What a node's tag is given."""


def reduced(op: Op) -> tuple | None:
    """Return how an Op is pickled, if that is not its own way.

    Ops that ``wrap_py`` makes of functions would be named by their module. Ranks may
    not find them there: a function within another one is not in it, and the script may
    have been forked before it came to the line. These are sent by value.
    """
    if isinstance(op, FromFunctionOp):
        number = number_of_op(op)
        if number is not None:
            return op_of, (number,)
        if _is_found(op):
            return None
        return copyreg.__newobj__, (type(op),), dict(vars(op))  # type: ignore[attr-defined]
    if not isinstance(op, (CAReduce, HasInnerGraph)):
        return None
    return _without_compiled(op.__reduce_ex__(4))


def _without_compiled(way: Any) -> tuple | None:
    if not isinstance(way, tuple) or len(way) < 3 or not isinstance(way[2], dict):
        return None
    state = {name: value for name, value in way[2].items() if name not in _REMOVED}
    state.update({name: _UNMADE[name] for name in _UNMADE if name in state})
    return (*way[:2], state, *way[3:])


def _is_found(op: FromFunctionOp) -> bool:
    """Tell whether a rank that imports the module of a function has its Op."""
    try:
        _, (module, name) = op.__reduce__()
    except Exception:  # PyTensor has not found it
        return False
    return module != "__main__" and module in sys.modules and bool(name)
