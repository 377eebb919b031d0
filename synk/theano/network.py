"""Where `theano.tensor.nnet` and `.signal` meet the network Ops of `synk.nn`.

Nothing of `synk.nn` is imported before a name of it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["network_op"]


def network_op(name: str, needed_by: str) -> Any:
    """Return ``synk.nn.<name>``.

    Parameters
    ----------
    name : str
        The function there.
    needed_by : str
        The name in Theano, for the message.

    Raises
    ------
    NotImplementedError
        If there is no such function.
    """
    try:
        found = getattr(importlib.import_module("synk.nn"), name, None)
    except ModuleNotFoundError as error:
        if error.name != "synk.nn":
            raise
        found = None
    if found is None:
        raise NotImplementedError(
            f"{needed_by} needs synk.nn.{name}, which this version of synk has not"
        )
    return found
