"""A graph with other last digits at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.type import DenseTensorType

from ..engines import host
from .rounding import TOLERANCES, shaken


class RoundedSteps:
    """A graph in which each float that an Op returns gets other last digits.

    What PyTensor makes of it to be safe from overflow is kept, so that errors are those
    of what is computed. A graph within it, as a scan's, is one step.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._inputs, self._outputs = list(inputs), outputs
        self._digits = Digits()
        self._compiled: Callable[..., list] | None = None

    def __call__(
        self, arguments: Sequence, unit: float, random: np.random.Generator
    ) -> list:
        """Compute it.

        Parameters
        ----------
        unit : float
            The relative size of rounding errors; 0 for the digits as they are.
        """
        if self._compiled is None:
            self._compiled = self._compile()
        self._digits.unit, self._digits.random = unit, random
        return list(self._compiled(*arguments))

    def _compile(self) -> Callable[..., list]:
        graph: Any = FunctionGraph(
            outputs=list(self._outputs), clone=True, copy_inputs=False
        )
        rewrite_graph(graph, include=("canonicalize", "stabilize"))
        change = ChangeDigits(self._digits)
        for node in graph.toposort():
            for var in node.outputs:
                if isinstance(var.type, DenseTensorType) and var.dtype in TOLERANCES:
                    graph.replace(var, change(var))
        outputs, mode = (
            list(graph.outputs),
            Mode("vm", RewriteDatabaseQuery(include=[])),
        )
        return host.compile_graph(self._inputs, outputs, [], mode, None, {})


class Digits:
    """How last digits are changed at present."""

    def __init__(self) -> None:
        self.unit, self.random = 0.0, np.random.default_rng(0)


class ChangeDigits(Op):
    """Changes the last digits of what is no whole number."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute it."""
        (value,) = inputs
        output_storage[0][0] = shaken(value, self.digits.unit, self.digits.random)
