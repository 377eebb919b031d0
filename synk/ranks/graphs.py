"""Sending graphs: pickled, with a number in the place of every shared variable.

A graph of 5000 nodes has hundreds of Ops that are equal to one another, each with some
ten kB of C code in it, and for every variable the lines of the script that made it,
again and again. Both are sent once.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Mapping
from typing import Any

import cloudpickle
from pytensor.compile import SharedVariable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.utils import Scratchpad

from ..garbage import without_collection
from .forked_classes import class_of, number_of
from .registry import Numbers
from .sent_ops import OF_NODES, reduced


class _GraphPickler(cloudpickle.Pickler):
    # cloudpickle sends lambdas, local classes and what is defined in __main__ by value;
    # the ranks were forked before such a definition may have been made. Ops that they
    # were forked with are theirs.
    def __init__(self, file: io.BytesIO, numbers: Numbers) -> None:
        super().__init__(file)
        self._numbers = numbers
        self._ops: dict[Op, Op] = {}
        self._frames: dict[Hashable, Hashable] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is pickled; not asked of strings, lists and the like."""
        if isinstance(obj, SharedVariable):
            return _shared_variable, (self._numbers[obj],)
        if isinstance(obj, type) and issubclass(obj, Op):
            number = number_of(obj)
            if number is not None:
                return class_of, (number,)
        if type(obj) is Scratchpad:
            return Scratchpad, (), self._shortened(obj.__dict__)
        if isinstance(obj, Op):
            if not isinstance(obj, HasInnerGraph):
                first = self._ops.setdefault(obj, obj)
                if first is not obj and type(first) is type(obj):
                    return _itself, (first,)
            way = reduced(obj)
            if way is not None:
                return way
        return super().reducer_override(obj)

    def _shortened(self, tag: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a tag, with every line of a script as one object.

        What compilers have hung on a node is left out.
        """
        if not tag.keys().isdisjoint(OF_NODES):
            tag = {name: tag[name] for name in tag if name not in OF_NODES}
        trace = tag.get("trace")
        if not isinstance(trace, list):
            return tag
        one = self._frames.setdefault
        return {
            **tag,
            "trace": [[one(frame, frame) for frame in stack] for stack in trace],
        }


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
    """Stand in a pickle for what finds a variable by its number."""
    raise pickle.UnpicklingError(
        f"shared variable {number} is known to load_graph alone"
    )


def _itself(op: Op) -> Op:
    return op


def dump_graph(graph: Any, numbers: Numbers) -> bytes:
    """Pickle anything that contains graphs; their shared variables have numbers."""
    file = io.BytesIO()
    with without_collection():
        _GraphPickler(file, numbers).dump(graph)
    return file.getvalue()


def load_graph(data: bytes, variables: Mapping[int, SharedVariable]) -> Any:
    """Undo `dump_graph` with a rank's own variables."""
    with without_collection():
        return _GraphUnpickler(io.BytesIO(data), variables).load()
