"""What `pytensor.function` takes as input or output, as a variable; or what to write.

``In(x)`` and ``Out(y)`` say of a variable how it is to be treated. Ranks never write to
what they are given, and return what is the caller's: `borrow` and `mutable` allow
more than is done. Other options would mean something, and are refused.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.io import In, Out
from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

_REFUSED = {
    "value": "keep the value in a shared variable, or give it in each call",
    "update": "write a shared variable, and updates=[(shared, new)]",
    "strict": "convert arrays before the call, with x.astype",
    "allow_downcast": "pass allow_input_downcast=True to synk.function",
}


def plain_input(var: Any, what: str) -> Any:
    """Return the variable of an input; one that `In` gives another name is refused."""
    if not isinstance(var, In):
        return var
    for option, advice in _REFUSED.items():
        given = getattr(var, option, None)
        # By identity: a value may be an array, or 0, which equals False.
        if not (given is None or given is False):
            raise TypeError(
                f"{what}: pass the variable itself in place of {var}, whose {option}="
                f" synk.function does not take; {advice}"
            )
    if var.name != var.variable.name:
        raise TypeError(
            f"{what}: pass the variable itself in place of {var}, with this name as"
            " its own: x.name = ..."
        )
    return var.variable


def check_tensor_input(var: Any, what: str) -> None:
    """Raise unless an input is a tensor; say what to write in place of another."""
    if isinstance(var, Variable) and isinstance(var.type, DenseTensorType):
        return
    kind = type(getattr(var, "type", None)).__name__
    advice = ""
    if kind.startswith("Sparse"):
        advice = (
            "; keep a sparse matrix in a shared variable, pytensor.shared(matrix),"
            " which is whole on each rank, or pass its rows as a dense matrix"
        )
    elif kind == "TypedListType":
        advice = "; pass the arrays of a list as inputs of their own"
    elif kind.startswith("Random"):
        advice = "; keep a generator in a shared variable, pytensor.shared(rng)"
    raise TypeError(f"{what} must be tensor variables, got {var!r}{advice}")


def plain_outputs(outputs: Any) -> Any:
    """Return outputs with the variable in place of each `Out`."""
    if isinstance(outputs, dict):
        raise TypeError(
            "outputs must be a variable or a list, got a dict; write"
            " list(outputs.values()), and dict(zip(outputs, f(...))) at the call"
        )
    if isinstance(outputs, (list, tuple)):
        plain = map(plain_outputs, outputs)
        return list(plain) if isinstance(outputs, list) else tuple(plain)
    return outputs.variable if isinstance(outputs, Out) else outputs
