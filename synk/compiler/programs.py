"""What a rank runs for one function: compiled variants of its graph, made when needed.

``step``
    All outputs asked for, and all updates: an ordinary call.
``slice``
    The same outputs, and the new values of updates as further outputs; nothing is
    updated but random streams. For `num_slices`: every slice starts from the original
    values, the results are accumulated, and updated once.
``idle``
    Only the updates that do not depend on rows, for a rank that has none: a step
    counter goes on there, and a gradient of nothing (NaN) does not reach its
    parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pytensor.tensor.type import TensorType

from ..comm.ops import Accumulator, result_dtype, shares
from ..engines import host
from ..memory.partition import Selection, count, cuts, part
from ..memory.rows import RowTaker
from .spec import FunctionSpec

Subset = tuple[int, ...]
"""Positions of the outputs asked for, ascending."""


class Programs:
    """The compiled variants of one function on one rank.

    Parameters
    ----------
    spec : FunctionSpec
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self.spec = spec
        self.label = f"function {spec.name!r}" if spec.name else "a function"
        self.compiled: dict[tuple[str, Subset], Callable] = {}
        self.row_updates: list[int] = []
        self.other_updates: list[int] = []
        self._takers = [RowTaker() for _ in spec.row_inputs]
        self._from_rows = [spec.depends_on_rows(new) for _, new in spec.updates]
        self._idle = [
            update
            for update, rows in zip(spec.updates, self._from_rows, strict=True)
            if not rows
        ]
        # What is not a tensor, a random stream mostly, cannot be accumulated.
        tensors = [isinstance(var.type, TensorType) for var, _ in spec.updates]
        self._accumulated = [i for i, tensor in enumerate(tensors) if tensor]
        self._sequential = [i for i, tensor in enumerate(tensors) if not tensor]

    def number_updates(self, numbers: list[int]) -> None:
        """Take note of the numbers that the registry has for the updated variables."""
        pairs = list(zip(numbers, self._from_rows, strict=True))
        self.row_updates = [number for number, rows in pairs if rows]
        self.other_updates = [number for number, rows in pairs if not rows]

    @property
    def has_idle(self) -> bool:
        """Whether a rank without rows has anything to do."""
        return bool(self._idle)

    def compile(self, kind: str, subset: Subset) -> Callable:
        """Return a variant, compiled the first time it is asked for."""
        key = (kind, subset)
        program = self.compiled.get(key)
        if program is None:
            program = self.compiled[key] = self._compile(kind, subset)
        return program

    def _compile(self, kind: str, subset: Subset) -> Callable:
        spec = self.spec
        outputs = [spec.outputs[i] for i in subset]
        updates = spec.updates
        if kind == "idle":
            outputs, updates = [], self._idle
        elif kind == "slice":
            outputs += [spec.updates[i][1] for i in self._accumulated]
            updates = [spec.updates[i] for i in self._sequential]
        return host.compile_graph(
            spec.all_inputs, outputs, updates, spec.mode, spec.name, spec.options
        )

    # -- running

    def run(
        self,
        num_slices: int,
        subset: Subset,
        sources: Sequence[np.ndarray],
        selections: Sequence[Selection],
        constants: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Compute outputs and make updates, in one go or in slices.

        Parameters
        ----------
        num_slices : int
        subset : tuple of int
        sources : sequence of numpy.ndarray
            For each row input, the array that its rows are taken from.
        selections : sequence of Selection
            For each row input, which rows.
        constants : sequence of numpy.ndarray
            The broadcast inputs.
        """
        if num_slices > 1:
            return self._run_slices(num_slices, subset, sources, selections, constants)
        program = self.compile("step", subset)
        if not sources:
            return program(*constants)
        rows = self._take(sources, selections)
        n = len(self.spec.inputs)
        return program(*rows[:n], *constants, *rows[n:])

    def idle(self, constants: Sequence[np.ndarray]) -> None:
        """Make the updates that a rank without rows takes part in."""
        # The inputs are not used: their arrays only have to be of the right type.
        empty = [
            np.empty((0,) * var.type.ndim, var.type.dtype)
            for var in self.spec.row_inputs
        ]
        n = len(self.spec.inputs)
        self.compile("idle", ())(*empty[:n], *constants, *empty[n:])

    def _run_slices(
        self,
        num_slices: int,
        subset: Subset,
        sources: Sequence[np.ndarray],
        selections: Sequence[Selection],
        constants: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        program = self.compile("slice", subset)
        n = len(self.spec.inputs)
        bounds = [cuts(count(rows), num_slices) for rows in selections]
        sizes = [[cut[i + 1] - cut[i] for cut in bounds] for i in range(num_slices)]
        present = [i for i in range(num_slices) if any(sizes[i])] or [0]
        weights = shares([sizes[i][0] for i in present])
        results = _Slices(self.spec, subset, self._accumulated)
        for i, share in zip(present, weights, strict=True):
            pieces = [
                part(rows, cut[i], cut[i + 1])
                for rows, cut in zip(selections, bounds, strict=True)
            ]
            rows = self._take(sources, pieces)
            results.add(program(*rows[:n], *constants, *rows[n:]), share)
        outputs, news = results.finish()
        for i, value in zip(self._accumulated, news, strict=True):
            host.set_value(self.spec.updates[i][0], value)
        return outputs

    def _take(self, sources, selections) -> list[np.ndarray]:
        return [
            taker.take(source, selection)
            for taker, source, selection in zip(
                self._takers, sources, selections, strict=True
            )
        ]


class _Slices:
    """Accumulates the outputs and new values of slices, each by its op."""

    def __init__(self, spec: FunctionSpec, subset: Subset, updates: list[int]) -> None:
        self._ops = [spec.output_ops[i] for i in subset]
        self._ops += [spec.update_ops[i] for i in updates]
        self._n_outputs = len(subset)
        self._values: list = [None] * len(self._ops)

    def add(self, values: Sequence[np.ndarray], share: float) -> None:
        for i, (op, value) in enumerate(zip(self._ops, values, strict=True)):
            if op is None:
                self._values[i] = (
                    value  # its own value, as it is: that of the last slice
                )
            elif op == "avg" and not share:
                continue  # nothing times NaN is NaN
            elif op == "gather":
                self._values[i] = (self._values[i] or []) + [np.atleast_1d(value)]
            else:
                if self._values[i] is None:
                    self._values[i] = Accumulator(op, value.dtype)
                self._values[i].add(value, share)

    def finish(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        values = [
            self._finish(i, op, value)
            for i, (op, value) in enumerate(zip(self._ops, self._values, strict=True))
        ]
        return values[: self._n_outputs], values[self._n_outputs :]

    def _finish(self, i: int, op: str | None, value):
        if op is None:
            return value
        if op == "gather":
            return np.concatenate(value)
        # An average of integers is rounded only where a variable must hold it.
        is_output = i < self._n_outputs
        return value.result(result_dtype(op, value.dtype) if is_output else None)
