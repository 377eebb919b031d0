"""The serial run: the plain function of a graph, beside the parallel one.

It is compiled from the whole graph in one piece, without stages and ranks, and without
updates: the new values of shared variables are outputs of it. So it shares no code with
the parallel run beyond PyTensor, and changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from .collectives import get_value
from .comm.flat import ALONE
from .compiler.programs import Programs, Subset
from .compiler.rules.base import name
from .compiler.spec import FunctionSpec
from .engines import host
from .errors import SerialMismatch
from .inputs import check_arguments, gather_rows, take_share
from .memory.rows import RowTaker
from .session import SESSION

TOLERANCES = {
    "float16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-9,
    "complex64": 1e-5,
    "complex128": 1e-9,
}
"""Largest difference, as a part of the largest absolute value of the serial result."""


class Timed(NamedTuple):
    """How long a serial run took."""

    seconds: float
    rows: int
    cores: int


class SerialRun:
    """The serial run of one function.

    Parameters
    ----------
    spec : FunctionSpec
    what : str
        The function, for messages.
    """

    def __init__(self, spec: FunctionSpec, what: str) -> None:
        self.timed: Timed | None = None
        """The last run whose time is known; the first one loads code."""
        self._spec, self._what = spec, what
        self._compiled: dict[Subset, Callable] = {}
        self._warm: set[Any] = set()

    def run(self, values: Sequence[Any], batch: Any, subset: Subset) -> list:
        """Compute outputs and the new values of the updates.

        Parameters
        ----------
        values : sequence
            The arguments, scattered inputs first.
        batch : optional
            As in a call.
        subset : tuple of int
            Which outputs.
        """
        spec = self._spec
        n = len(spec.inputs)
        rows = gather_rows(spec.inputs, values[:n], batch, 1, spec.options)
        constants = check_arguments(spec.bcast_inputs, values[n:], spec.options)
        sources = take_share(SESSION, rows.selection, rows.bounds, rows.sources)
        alone = SESSION.unconfined() if SESSION.state == "running" else None
        with alone or contextlib.nullcontext():
            if subset not in self._compiled:
                self._compiled[subset] = self._compile(subset)
            start = perf_counter()
            taken = [RowTaker().take(*pair) for pair in zip(*sources, strict=True)]
            results = self._compiled[subset](*taken, *constants)
            self.note(subset, perf_counter() - start, rows.total)
        return results

    def run_programs(self, programs: Programs, values: Sequence[Any]) -> list:
        """Run what rank 0 has compiled on all rows; this makes the updates there."""
        spec = self._spec
        values = check_arguments(
            [*spec.inputs, *spec.bcast_inputs], values, spec.options
        )
        n = len(spec.inputs)
        arrays = [*values[:n], *(host.get_value(var) for var in spec.sliceable)]
        rows = [slice(0, len(array)) for array in arrays]
        every = tuple(range(len(spec.outputs)))
        start = perf_counter()
        outputs = programs.run(1, every, arrays, rows, values[n:], ALONE, [1])
        passed = perf_counter() - start
        self.note("programs", passed, len(arrays[0]) if arrays else 0)
        return outputs

    def measure(self, values: Sequence[Any], batch: Any) -> None:
        """Find out how long a serial run takes: the median of three."""
        self._refuse_sliceable("measure=True")
        subset = tuple(range(len(self._spec.outputs)))
        times = []
        for _ in range(4):  # one to load code
            self.run(values, batch, subset)
            if self.timed is not None:
                times.append(self.timed)
        self.timed = sorted(times[-3:])[1]

    def note(self, kind: Any, seconds: float, rows: int) -> None:
        """Take note of the time of a run, unless it is the first of its kind."""
        if kind in self._warm:
            self.timed = Timed(seconds, rows, len(os.sched_getaffinity(0)))
        self._warm.add(kind)

    def _compile(self, subset: Subset) -> Callable:
        spec = self._spec
        wanted = [*(spec.outputs[i] for i in subset), *(new for _, new in spec.updates)]
        inputs = [*spec.inputs, *spec.bcast_inputs]
        return host.compile_graph(
            inputs, wanted, [], spec.mode, spec.name, spec.options
        )

    # -- comparing

    def expect(
        self, check: str, values: Sequence[Any], batch: Any, subset: Subset
    ) -> list:
        """Return what a call should give, from the present values of variables.

        Raises
        ------
        ValueError
            If the call cannot be compared with the serial run.
        """
        self._check(check, subset)
        return self.run(values, batch, subset)

    def _check(self, check: str, subset: Subset) -> None:
        if check != "serial":
            raise ValueError(f"check must be None or 'serial', got {check!r}")
        self._refuse_sliceable("check='serial'")
        drawn = self._draw()
        if drawn is not None:
            raise ValueError(
                f"check='serial': {name(drawn)} is random, and each rank draws numbers"
                " of its own, so the serial run has others; check the function"
                " without it"
            )
        if not self._outputs(subset) and not self._updates():
            raise ValueError(
                f"check='serial': nothing in {self._what} is meant to equal the"
                " serial run: outputs are rank 0's own, and updates depend on the"
                " rows of a rank"
            )

    def _refuse_sliceable(self, asked: str) -> None:
        if self._spec.sliceable:
            raise ValueError(
                f"{asked}: each rank has rows of its own of {self._spec.sliceable[0]},"
                " a sliceable shared variable, so there is no serial run to compare"
                f" {self._what} with"
            )

    def _draw(self) -> Variable | None:
        """Return something random in the graph, if there is any."""
        graph = [*self._spec.outputs, *(new for _, new in self._spec.updates)]
        for var in ancestors(graph):
            if var.owner is not None and isinstance(var.owner.op, RandomVariable):
                return var
            if var.owner is None and isinstance(var.type, RandomType):
                return var
        return None

    def _own(self) -> set[Variable]:
        """Return what each rank computes from its own rows."""
        spec = self._spec
        return spec.row_values([*spec.outputs, *(new for _, new in spec.updates)])

    def _outputs(self, subset: Subset) -> list[int]:
        """Return the outputs that are meant to equal the serial run's."""
        spec, own = self._spec, self._own()
        return [
            i
            for i in subset
            if isinstance(spec.outputs[i].type, DenseTensorType)
            and not (spec.output_ops[i] is None and spec.outputs[i] in own)
        ]

    def _updates(self) -> list[int]:
        """Return the updates that are meant to equal the serial run's, on all ranks."""
        own = self._own()
        return [
            i
            for i, (shared, new) in enumerate(self._spec.updates)
            if isinstance(shared.type, DenseTensorType) and new not in own
        ]

    def compare(self, subset: Subset, results: Sequence, serial: Sequence) -> None:
        """Compare outputs, and the updated variables of all ranks, with a serial run.

        Raises
        ------
        SerialMismatch
            If any differs beyond rounding.
        """
        spec = self._spec
        complaints = []
        by_output = dict(zip(subset, zip(results, serial, strict=False), strict=True))
        for i in self._outputs(subset):
            tolerance = tolerance_of(spec.outputs[i])
            problem = difference(*by_output[i], tolerance)
            if problem:
                what, op = spec.findings[i].what, spec.output_ops[i]
                complaints.append(f"{what}, combined by {op!r}: {problem}")
        updates = self._updates()
        variables = [spec.updates[i][0] for i in updates]
        for rank in range(SESSION.size):
            values = get_value(rank, variables) if variables else []
            for i, value in zip(updates, values, strict=True):
                shared, new = spec.updates[i]
                problem = difference(value, serial[len(subset) + i], tolerance_of(new))
                if problem:
                    complaints.append(f"{_label(shared)} on rank {rank}: {problem}")
        if complaints:
            raise SerialMismatch(
                f"{self._what} differs from the serial run beyond rounding:\n  "
                + "\n  ".join(complaints)
            )


def _label(shared: SharedVariable) -> str:
    return f"the new value of {shared.name or shared}"


def tolerance_of(var: Variable) -> float:
    """Return the tolerance for the coarsest numbers that a value is computed in."""
    computed = [
        TOLERANCES.get(found.type.dtype, 0.0)
        for found in ancestors([var])
        if (found.owner is not None or found is var)
        and isinstance(found.type, DenseTensorType)
    ]
    exact = var.type.dtype not in TOLERANCES
    return 0.0 if exact else max(computed)


def difference(value: Any, serial: Any, tolerance: float) -> str | None:
    """Describe how a value differs from the serial one, or return None.

    Parameters
    ----------
    value, serial : numpy.ndarray
    tolerance : float
        As a part of the largest absolute value of `serial`; 0 for values that must be
        equal.
    """
    value, serial = np.asarray(value), np.asarray(serial)
    if value.shape != serial.shape:
        return f"its shape is {value.shape}, and serially {serial.shape}"
    if value.dtype.kind not in "fc" and serial.dtype.kind not in "fc":
        wrong = np.flatnonzero(value != serial)
        if not wrong.size:
            return None
        first = value.flat[wrong[0]], serial.flat[wrong[0]]
        size = f"{wrong.size} of {value.size} values"
        return f"{size} differ, the first is {first[0]}, and serially {first[1]}"
    if not tolerance:  # an average of integers
        tolerance = TOLERANCES["float64"]
    wide = (
        "clongdouble" if "c" in value.dtype.kind + serial.dtype.kind else "longdouble"
    )
    value, serial = value.astype(wide), serial.astype(wide)
    same = (value == serial) | (np.isnan(value) & np.isnan(serial))
    finite = np.isfinite(value) & np.isfinite(serial)
    odd = np.count_nonzero(~same & ~finite)
    if odd:
        return f"{odd} of {value.size} values are not finite in one of the runs"
    gap = np.max(np.abs(value[finite] - serial[finite]), initial=0)
    scale = np.max(np.abs(serial[finite]), initial=0)
    if gap <= tolerance * scale:
        return None
    relative = gap / scale if scale else np.inf
    return (
        f"the largest difference is {gap:.3g}, {relative:.3g} of the largest value"
        f" {scale:.3g}; the tolerance is {tolerance:g} of it"
    )
