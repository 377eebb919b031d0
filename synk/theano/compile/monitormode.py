"""`theano.compile.monitormode`: a mode that shows each node to a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..forwarding import forward
from ..pytensor_versions import MONITORMODE, first_of

__all__ = ["MonitorMode", "detect_nan"]

_MonitorMode: Any = first_of(MONITORMODE, "MonitorMode")


def _with_graph(function: Callable | None) -> Callable | None:
    """Return what takes (graph, number, node, thunk), as PyTensor calls it."""
    if function is None:
        return None
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return function  # it takes four
    return lambda _, *of_node: function(*of_node)


class MonitorMode(_MonitorMode):
    """PyTensor's mode, whose functions may take three arguments, as in Theano.

    Parameters
    ----------
    pre_func, post_func : callable, optional
        Called before and after each node with its number, the node and its thunk,
        which has `inputs` and `outputs`; or, as in PyTensor, with the graph first.
    *args, **kwargs
        As in PyTensor.
    """

    def __init__(
        self,
        pre_func: Callable | None = None,
        post_func: Callable | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        functions = _with_graph(pre_func), _with_graph(post_func)
        super().__init__(*functions, *args, **kwargs)


def detect_nan(i: int, node: Any, fn: Any) -> None:
    """Print a node that has computed NaN, its inputs and its outputs."""
    for output in fn.outputs:
        value = output[0]
        if isinstance(value, np.random.Generator) or not np.isnan(value).any():
            continue
        print("*** NaN detected ***")
        print(f"{i}: {node}")
        print(f"Inputs : {[cell[0] for cell in fn.inputs]}")
        print(f"Outputs: {[cell[0] for cell in fn.outputs]}")
        return


__getattr__, __dir__ = forward(__name__, *MONITORMODE)
