"""An optimiser at the centre: a rule of `synk.updates`, as a pure function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from .. import updates
from .rule import Start, State


class Optimiser:
    """A rule of `synk.updates` or of that form, on one vector of parameters.

    Parameters
    ----------
    rule : str or callable
        Its name there, or what is called as these are. It must compute element by
        element: no norm of a whole gradient.
    **options
        Its arguments, such as ``learning_rate=0.1``.

    Raises
    ------
    ValueError
        If there is no such rule.
    """

    def __init__(self, rule: str | Callable, **options: Any) -> None:
        if isinstance(rule, str) and rule not in updates.__all__:
            known = ", ".join(updates.__all__)
            raise ValueError(
                f"there is no optimiser {rule!r}: synk.updates has {known}"
            )
        self._rule: Callable = getattr(updates, rule) if isinstance(rule, str) else rule
        self._options = options

    def takes(self, name: str) -> bool:
        """Tell whether it has an argument of a name."""
        return name in inspect.signature(self._rule).parameters

    def start(self, w: np.ndarray) -> Start:
        """Return what it keeps, before the first step on parameters `w`."""
        _, kept, _ = self._graphs(w.dtype)
        start = {}
        for name, var in kept.items():
            value = np.asarray(var.get_value())
            start[name] = np.broadcast_to(value[0], w.shape) if value.ndim else value
        return {name: np.array(value) for name, value in start.items()}

    def move(self, c: Any, gradient: Any, state: State) -> tuple[Any, State]:
        """Return the parameters after a step along a gradient, and what is kept."""
        param, kept, new = self._graphs(c.dtype, gradient)
        given = {param: c, **{var: state[name] for name, var in kept.items()}}
        found = graph_replace([new[param], *[new[var] for var in kept.values()]], given)
        moved, *rest = (
            pt.cast(value, of.dtype) for value, of in zip(found, given, strict=True)
        )
        return moved, dict(zip(kept, rest, strict=True))

    def _graphs(self, dtype: Any, gradient: Any = None) -> tuple[Any, dict, dict]:
        """Return the rule's parameter, its other variables by name, and its updates."""
        param = pytensor.shared(np.zeros(2, dtype), name="c")
        new = self._rule(
            [param if gradient is None else gradient], [param], **self._options
        )
        kept = {f"{i}": var for i, var in enumerate(new) if var is not param}
        return param, kept, new

    def __repr__(self) -> str:
        name = getattr(self._rule, "__name__", self._rule)
        told = "".join(f", {key}={value!r}" for key, value in self._options.items())
        return f"{name}{told}"
