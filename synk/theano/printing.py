"""`theano.printing`: PyTensor's, with Theano's keywords."""

from __future__ import annotations

from typing import Any

import pytensor.printing as _pt
from pytensor.printing import (
    Print,
    pp,
    pprint,
)

from .compiled import plain
from .forwarding import forward

__all__ = [
    "Print",
    "debugprint",
    "pp",
    "pprint",
    "pydotprint",
]


def debugprint(
    obj: Any,
    depth: int = -1,
    print_type: bool = False,
    file: Any = None,
    ids: str = "CHAR",
    stop_on_name: bool = False,
    done: dict | None = None,
    print_storage: bool = False,
    **kwargs: Any,
) -> Any:
    """Print a graph as text.

    Parameters
    ----------
    obj : Variable, Apply, compiled function, or list of these
        The graph.
    ids : {"CHAR", "int", "id", ""}
        How variables are marked; PyTensor's `id_type`.
    file : file, "str" or None
        Where to; "str" returns the text.
    depth, print_type, stop_on_name, done, print_storage, **kwargs
        As in PyTensor.
    """
    return _pt.debugprint(
        plain(obj),
        depth=depth,
        print_type=print_type,
        file=file,
        id_type=kwargs.pop("id_type", ids),
        stop_on_name=stop_on_name,
        done=done,
        print_storage=print_storage,
        **kwargs,
    )


def pydotprint(fct: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw a graph; see PyTensor's."""
    return _pt.pydotprint(plain(fct), *args, **kwargs)


__getattr__, __dir__ = forward(__name__, "pytensor.printing")
