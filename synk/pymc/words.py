"""What messages call variables of a density, and which lines of the script they show.

A graph of a density has Ops that the script has written, and Ops that PyMC has made of
its distributions, in the call of ``pm.sample``. Of the latter that line says nothing:
then the term's own line is shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from ..compiler.rules.base import op_name
from ..user_frames import is_users, made_in


def shown(var: Variable) -> str:
    """Return what a message calls a variable: its name or its Op, and its line."""
    made = _made(var)
    if var.name and var.owner is None:
        return f"the data {var.name!r}"
    if var.name:
        return f"{var.name!r}{made}"
    if var.owner is not None:
        return f"{op_name(var.owner.op)}{made}"
    value: Any = None
    if isinstance(var, Constant):
        value = var.data
    elif isinstance(var, SharedVariable):
        value = var.get_value(borrow=True)
    shape = "" if value is None else f" of shape {np.shape(value)}"
    return f"data{shape}"


def _made(var: Variable) -> str:
    line = line_of(var)
    return "" if line is None else f" (made in {line})"


def line_of(var: Variable) -> str | None:
    """Return the line of the script that wrote a variable, None if PyMC has made it."""
    made = made_in(var)
    return None if made is None or made.startswith(tuple(_present())) else made


def _present() -> list[str]:
    """Return the lines of the script that are being run, as `made_in` has them."""
    found = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path):
            name = "a cell" if "ipykernel_" in path else path.rpartition("/")[2]
            found.append(f"{name}:{frame.f_lineno}:")
        frame = frame.f_back
    return found


def without_present_lines(text: str) -> str:
    """Return a message without the lines that are being run, as of ``pm.sample``."""
    for line in _present():
        text = re.sub(rf" \(made in {re.escape(line)} `[^`]*`\)", "", text)
    return text


_KNOWN = ("pytensor", "pymc", "pymc_extras", "synk", "blackjax")
"""Packages whose Ops are shown what they compute with."""


def hidden_in(graph: Sequence[Variable]) -> list[str]:
    """Return the Ops of the script's, or of a library's, that a graph has.

    Data may lie in them, where nobody sees it.
    """
    found: dict[str, None] = {}
    for var in ancestors(list(graph)):
        if var.owner is None:
            continue
        kind = type(var.owner.op)
        if kind.__module__.partition(".")[0] not in _KNOWN or kind is FromFunctionOp:
            text = str(var.owner.op)
            name = kind.__name__ if text.startswith("<") else text
            found[f"{name}{_made(var)}"] = None
    return list(found)
