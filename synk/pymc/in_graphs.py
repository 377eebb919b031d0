"""An Op whose log-density ranks compute, for methods that take a graph of it.

``find_MAP``, ``pm.fit`` and others get the graph of a model's log-density, replace
variables in it, differentiate and compile it. In a block of `synk.pymc.parallel` they
get one Op in place of the graph. Its gradient is an output of the Op, so that ranks
compute both in one call. The gradient of that, as for a Hessian, uses PyMC's own graph.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace

from .density import Plain
from .parts import Point, with_gradients
from .terms import are_same, shared_in

disconnected_type = DisconnectedType()


class LogpOfRanks(Op):
    """The log-density at the values of free variables, and its gradient by each.

    `graph` is PyMC's graph of the log-density of the value variables `values`. `make`
    makes the function of the point as a vector, when it is first needed, and `plain`
    that for child processes, which cannot use the ranks.
    """

    def __init__(
        self,
        values: Sequence[Variable],
        graph: Variable,
        make: Callable[[], Plain],
        plain: Callable[[], Plain],
    ) -> None:
        self._values, self._graph = list(values), graph
        self._make, self._make_plain, self._process = make, plain, os.getpid()
        self._function: Plain | None = None
        self._shared = shared_in([graph])
        self._last: tuple[bytes, list[Any], Any] | None = None
        self._lock = threading.Lock()

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to values of the free variables, cast to their types."""
        given = [
            pt.as_tensor_variable(x).astype(var.type.dtype)  # type: ignore[attr-defined]
            for x, var in zip(inputs, self._values, strict=True)
        ]
        logp = pt.scalar(dtype=self._graph.type.dtype)  # type: ignore[attr-defined]
        return Apply(self, given, [logp, *(x.type() for x in given)])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute the outputs by the ranks."""
        parts = [np.ravel(value) for value in inputs]
        point = np.concatenate([np.empty(0), *parts]).astype(pytensor.config.floatX)
        with self._lock:  # some callers have threads
            logp, gradient = self._at(point)
        output_storage[0][0] = np.asarray(logp, node.outputs[0].type.dtype)  # type: ignore[attr-defined]
        at = 0
        for value, storage in zip(inputs, output_storage[1:], strict=True):
            size = np.size(value)
            part = np.reshape(gradient[at : at + size], np.shape(value))
            storage[0] = np.array(part, value.dtype)
            at += size

    def _at(self, point: np.ndarray) -> Any:
        """Return the log-density and its gradient; at the same point, those kept.

        Some callers ask for the value and the gradient in two calls. The kept ones are
        not used if data have been set in between.
        """
        if self._process != os.getpid():
            self._process, self._function = os.getpid(), self._make_plain()
        if self._function is None:
            self._function = self._make()
        held = [var.get_value(borrow=True) for var in self._shared]
        last = self._last
        if last is None or last[0] != point.tobytes() or not are_same(last[1], held):
            self._last = last = point.tobytes(), held, self._function(point)
        return last[2]

    def infer_shape(self, *args: Any) -> list[Sequence]:
        """Return the outputs' shapes; the last argument has the inputs' shapes."""
        return [(), *args[-1]]

    def pullback(
        self, inputs: Sequence, outputs: Sequence, cotangents: Sequence
    ) -> list[Variable]:
        """Return gradients: the Op's outputs; for gradients of these, PyMC's graph."""
        first, *others = cotangents
        found: list[Any] = [disconnected_type() for _ in inputs]
        if not isinstance(first.type, DisconnectedType):
            found = [first * of_input for of_input in outputs[1:]]
        used = [i for i, g in enumerate(others) if not _is_disconnected(g)]
        if not used:
            return found
        plain = self.plain(inputs)
        gradients: Any = pytensor.grad(
            plain, list(inputs), disconnected_inputs="ignore"
        )
        total = pt.add(*[(gradients[i] * others[i]).sum() for i in used], 0.0)
        more: Any = pytensor.grad(total, list(inputs), disconnected_inputs="ignore")
        return [
            second if _is_disconnected(one) else one + second
            for one, second in zip(found, more, strict=True)
        ]

    L_op = pullback  # type: ignore[assignment]  # its name before PyTensor 3

    def plain(self, inputs: Sequence[Variable]) -> Variable:
        """Return PyMC's graph, with `inputs` in place of the model's variables."""
        replaced = dict(zip(self._values, inputs, strict=True))
        made: Any = graph_replace([self._graph], replaced, strict=False)
        return made[0]

    def __str__(self) -> str:
        return "LogpOfRanks"


def plain_of(
    model: Any, values: Sequence[Variable], graph: Variable, mode: Any
) -> Plain:
    """Return a serial function of the point as a vector, compiled by PyMC.

    `graph` is a log-density of `values`. The function returns it and its gradient.
    """
    start = model.initial_point(0)
    shapes = {var: np.shape(start[var.name]) for var in values}
    vector, parts = Point(shapes, pytensor.config.floatX).symbolic()
    made: Any = graph_replace([graph], parts, strict=False)
    given = {"inputs": [vector], "point_fn": False, "on_unused_input": "ignore"}
    outputs = with_gradients(made, list(parts.values()))
    return model.compile_fn(outputs, mode=mode, **given)


def _is_disconnected(gradient: Any) -> bool:
    return isinstance(gradient.type, DisconnectedType)
