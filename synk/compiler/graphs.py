"""Sending graphs: pickled, with a number in the place of every shared variable."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle
from pytensor.compile import SharedVariable

from .registry import Numbers


class _GraphPickler(cloudpickle.Pickler):
    # cloudpickle sends lambdas, local classes and what is defined in __main__ by value;
    # the ranks were forked before such a definition may have been made.
    def __init__(self, file: io.BytesIO, numbers: Numbers) -> None:
        super().__init__(file)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers[obj] if isinstance(obj, SharedVariable) else None


class _GraphUnpickler(pickle.Unpickler):
    def __init__(
        self, file: io.BytesIO, variables: Mapping[int, SharedVariable]
    ) -> None:
        super().__init__(file)
        self._variables = variables

    def persistent_load(self, pid: Any) -> SharedVariable:
        return self._variables[pid]


def dump_graph(graph: Any, numbers: Numbers) -> bytes:
    """Pickle anything that contains graphs; their shared variables have numbers."""
    file = io.BytesIO()
    _GraphPickler(file, numbers).dump(graph)
    return file.getvalue()


def load_graph(data: bytes, variables: Mapping[int, SharedVariable]) -> Any:
    """Undo `dump_graph` with a rank's own variables."""
    return _GraphUnpickler(io.BytesIO(data), variables).load()
