"""What callbacks set: variables that a step reads, and does not update by itself.

A learning rate is one. Its value is as much a part of what training goes on with as the
parameters, if somebody has changed it while the trainer trained. One that nobody has
changed is the script's: a file that held it would undo what the script sets before it
goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..call.function import Function
from ..engines import host
from ..errors import CheckpointError
from ..ranks.session import SESSION

LARGEST = 1 << 20
"""Bytes of a value that is looked at: a rate, a mask; data are larger."""


class SetSince:
    """Which variables are set from a moment on.

    Parameters
    ----------
    step : Function
        What reads them.
    """

    def __init__(self, step: Function) -> None:
        self._step = step
        self._before: dict[SharedVariable, np.ndarray] | None = None
        self._from_file: set[SharedVariable] = set()

    def begin(self) -> None:
        """Take the present values for those that the script has set."""
        if self._before is None:
            self._before = {var: np.array(v) for var, v in self._present().items()}

    def told(self, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Return what a file is to say of those that were set, and put their values in.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            Those of the file.
        """
        found = []
        before = self._before or {}
        for i, (var, value) in enumerate(self._present().items()):
            is_set = var in before and not _equal(before[var], value)
            if is_set or var in self._from_file:
                name = f"set {i}"
                arrays[name] = np.array(value)
                found.append({"name": var.name, "number": i, "array": name})
        return found

    def values_of(
        self, path: Path, told: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any]
    ) -> dict[SharedVariable, np.ndarray]:
        """Return the values that a file has, by variable; nothing is set yet.

        Raises
        ------
        CheckpointError
            If the step has no such variable.
        """
        found = {}
        variables = list(self._present())
        for of in told:
            same = [var for var in variables if var.name == of["name"]]
            at = variables[of["number"]] if of["number"] < len(variables) else None
            var = same[0] if len(same) == 1 and of["name"] is not None else at
            if var is None or var.name != of["name"]:
                raise CheckpointError(
                    f"{path} has a value of {of['name']!r}, which was set while the"
                    f" trainer trained, and {self._step!r} reads no such variable"
                )
            value = np.array(arrays[of["array"]])
            found[var] = var.type.filter(value, strict=True)
        return found

    def give(self, values: Mapping[SharedVariable, np.ndarray]) -> None:
        """Set variables to what a file has; files to come have them as well."""
        self._from_file.update(values)
        for var, value in values.items():
            host.set_value(var, value)

    def _present(self) -> dict[SharedVariable, np.ndarray]:
        """Return the values that the step only reads, and that all ranks have."""
        found = {}
        updated = set(self._step.updated)
        for var in self._step.get_shared():
            if var not in updated and SESSION.ledger.of(var).kind == "replicated":
                value = host.get_value(var)
                if isinstance(value, np.ndarray) and value.nbytes <= LARGEST:
                    found[var] = value
        return found


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
