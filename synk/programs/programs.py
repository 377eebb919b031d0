"""What a rank runs for one function: the parts of its stages, compiled when needed.

``step``
    An ordinary call: every stage as one compiled graph.
``alone``
    The same on one rank: the whole graph, as plain PyTensor would compile it.
``slice``
    A call with `num_slices`: the rows part of every stage runs for one slice after the
    other, each from the original values of the shared variables; what it computes is
    accumulated, and variables are updated once, at the end.
``idle``
    A rank without rows runs the common parts only: a step counter goes on there, the
    update by a reduced gradient is made, and a gradient of nothing (NaN) has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from ..compiler.sizes import sizes_from_inputs
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage, cut, whole
from ..engines import Engine, engine_for
from ..engines.precision import check_engine
from ..memory.partition import Selection, count, cuts, part
from ..memory.takers import Takers
from ..reduce_ops import Accumulator, result_dtype, shares
from ..times.timing import COMMON, COMPUTE, ROWS, UNCOUNTED, Times
from .padding import AS_IT_IS, CannotPad, PaddedProgram, Padding, Room, widened
from .shapes_met import ShapesMet

Subset = tuple[int, ...]
"""Positions of the outputs asked for, ascending."""


class Reducer(Protocol):
    """What a stage needs of the transport."""

    def reduce(
        self,
        key: tuple,
        values: list[np.ndarray] | None,
        ops: list[str],
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray]:
        """Combine the ranks' values; a rank without rows has None."""


class Programs:
    """The compiled parts of one function on one rank.

    Parameters
    ----------
    number : int
        The function's number, which its flat buffers go by.
    spec : FunctionSpec
    """

    def __init__(self, number: int, spec: FunctionSpec) -> None:
        self.number = number
        self.spec = spec
        self.engine: Engine = engine_for(spec.mode)
        check_engine(spec.precision, self.engine)
        self.label = f"function {spec.name!r}" if spec.name else "a function"
        self.row_updates: list[int] = []
        self.other_updates: list[int] = []
        self.times = Times(spec.name or f"function {number}")
        self.shapes: dict[Variable, tuple[int, ...]] = {}
        """Of the values that stages reduced, when they did so first."""
        self._cuts: dict[tuple[str, Subset], Cut] = {}
        # By the identity of a part, and whether it is padded.
        self._compiled: dict[tuple[int, bool], Callable] = {}
        self.padding: Padding | None = None
        if spec.pad and self.engine.NEEDS_SIZES:
            self.padding = Padding(spec)
        self.is_padded = self.padding is not None and self.padding.reason is None
        self.shapes_met = ShapesMet()
        self.takers = Takers(len(spec.row_inputs), len(spec.bcast_inputs))

    def takes_part(self, subset: Subset) -> bool:
        """Tell whether a rank without rows has anything to do."""
        stages = self.cut("idle", subset).stages
        return any(stage.common or stage.reduced for stage in stages)

    def number_updates(self, numbers: list[int]) -> None:
        """Take note of the numbers that the registry has for the updated variables."""
        on_rows = self.cut("step", ()).on_rows
        pairs = [
            (n, new) for n, (_, new) in zip(numbers, self.spec.updates, strict=True)
        ]
        self.row_updates = [number for number, new in pairs if new in on_rows]
        self.other_updates = [number for number, new in pairs if new not in on_rows]

    def cut(self, kind: str, subset: Subset) -> Cut:
        """Return the stages for one kind of call."""
        key = ("step" if kind == "idle" else kind, subset)
        if key not in self._cuts:
            if kind == "alone":
                # Where nothing is reduced this is a step, and compiled once for both.
                made = self.cut("step", subset)
                if any(stage.reduced for stage in made.stages):
                    made = whole(self.spec, subset)
            else:
                made = cut(self.spec, subset, in_slices=kind == "slice")
            self._cuts[key] = made
        return self._cuts[key]

    def shapes_compiled(self) -> int | None:
        """Return for how many shapes code was made, if it is made for each."""
        seen: dict[int, int] = {}
        for (piece, _), program in self._compiled.items():
            shapes = getattr(program, "shapes", None)
            if shapes is not None:
                seen[piece] = seen.get(piece, 0) + len(shapes)
        return max(seen.values(), default=None)

    def compile(self, kind: str, subset: Subset) -> None:
        """Compile what one kind of call needs, where that has not been done."""
        for stage in self.cut(kind, subset).stages:
            for piece in _PARTS[kind](stage):
                has_rows = stage.phase == COMPUTE and piece is not stage.common
                self._prepare(piece, self.is_padded and has_rows)
        self.times.is_fresh = True

    def _prepare(self, piece: Part, padded: bool) -> None:
        try:
            self._program(piece, padded)
        except CannotPad as error:
            # PyTensor rewrites graphs within a graph where they stand, so that they
            # may be others by now than when they were examined.
            assert self.padding is not None
            self.padding.reason, self.is_padded = str(error), False
            self._program(piece)

    def _program(self, piece: Part, padded: bool = False) -> Callable:
        program = self._compiled.get((id(piece), padded))
        if program is None:
            made = self._compile_padded(piece) if padded else self._compile(piece)
            program = self._compiled[id(piece), padded] = made
        return program

    def _compile(self, piece: Part) -> Callable:
        spec = self.spec
        stand_ins = {var: var.type(name=var.name) for var in piece.receives}
        known: dict[Variable, Variable] = {}
        if self.engine.NEEDS_SIZES:
            known = sizes_from_inputs(piece.receives)
        news = [spec.updates[i][1] for i in piece.updates]
        graphs = clone_replace([*piece.wants, *news], {**stand_ins, **known})
        n = len(piece.wants)
        targets = [spec.updates[i][0] for i in piece.updates]
        return self._compiled_graph(
            list(stand_ins.values()),
            graphs[:n],
            list(zip(targets, graphs[n:], strict=True)),
        )

    def _compile_padded(self, piece: Part) -> PaddedProgram:
        assert self.padding is not None
        news = [self.spec.updates[i] for i in piece.updates]
        known = sizes_from_inputs(piece.receives)
        made = self.padding.rewritten(piece, known, [new for _, new in news])
        outputs, updates, stores = made.graph[: len(piece.wants)], [], []
        for (shared, _), new, state in zip(
            news, made.graph[len(piece.wants) :], made.of_updates, strict=True
        ):
            if state is None:
                updates.append((shared, new))
            else:
                outputs.append(new)
                stores.append((shared, state))
        program = self._compiled_graph(made.receives, outputs, updates)
        return PaddedProgram(program, stores, self.engine.set_value)

    def _compiled_graph(
        self,
        receives: list[Variable],
        outputs: list[Variable],
        updates: list[tuple[SharedVariable, Variable]],
    ) -> Callable:
        spec = self.spec
        return self.engine.compile_graph(
            [*spec.all_inputs, *receives],
            outputs,
            updates,
            spec.mode,
            spec.name,
            spec.options,
            spec.precision,
        )

    # -- running

    def run(
        self,
        num_slices: int,
        subset: Subset,
        sources: Sequence[np.ndarray],
        selections: Sequence[Selection],
        constants: Sequence[np.ndarray],
        reducer: Reducer,
        weights: Sequence[float],
        taken: list[np.ndarray] | None = None,
        times: Times = UNCOUNTED,
        room: Room = AS_IT_IS,
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
        reducer : Reducer
        weights : sequence of float
            The rows of each rank.
        taken : list of numpy.ndarray, optional
            The rows, if they have been taken already; in one go only.
        times : Times, optional
            Where to count the time that it takes.
        room : Room, optional
            If the selections are padded. Slices are padded here.
        """
        if num_slices > 1:
            sliced = _SlicedCall(
                self, "slice", subset, constants, reducer, weights, times
            )
            return sliced.run(num_slices, sources, selections)
        kind = kind_of_call(num_slices, len(weights))
        call = _Call(self, kind, subset, constants, reducer, weights, times)
        call.room = room
        call.rows = self.take(sources, selections) if taken is None else taken
        if sources:
            times.spent(ROWS)
        for level, stage in enumerate(call.cut.stages):
            call.run_part(stage.both, padded=bool(room) and stage.phase == COMPUTE)
            call.reduce(stage, level)
        return call.finish()

    def idle(
        self,
        subset: Subset,
        constants: Sequence[np.ndarray],
        reducer: Reducer,
        weights: Sequence[float],
        times: Times,
    ) -> None:
        """Take part in a call without rows."""
        call = _Call(self, "idle", subset, constants, reducer, weights, times)
        # No row enters the common parts: the arrays only have to be of the right type.
        call.rows = [
            np.empty((0,) * var.type.ndim, var.type.dtype)
            for var in self.spec.row_inputs
        ]
        for level, stage in enumerate(call.cut.stages):
            call.run_part(stage.common)
            call.reduce(stage, level)
        call.store_deferred()
        times.end(COMMON, level)

    def padded(self, selections: list[Selection]) -> tuple[list[Selection], Room]:
        """Return selections of rows as they are padded, if they are."""
        if not self.is_padded:
            return selections, AS_IT_IS
        assert self.padding is not None
        room = self.padding.room(selections)
        return widened(selections, room), room

    def take(self, sources, selections) -> list[np.ndarray]:
        """Take rows for every row input."""
        return self.takers.take(sources, selections)


def kind_of_call(num_slices: int, size: int) -> str:
    """Return what a rank that has rows runs; see above."""
    if num_slices > 1:
        return "slice"
    return "alone" if size == 1 else "step"


_PARTS: dict[str, Callable[[Stage], list[Part]]] = {
    "alone": lambda stage: [stage.both] if stage.both else [],
    "step": lambda stage: [stage.both] if stage.both else [],
    "slice": lambda stage: [piece for piece in (stage.common, stage.rows) if piece],
    "idle": lambda stage: [stage.common] if stage.common else [],
}


class _Call:
    """One rank's part in one call: the values that travel between parts."""

    def __init__(
        self, programs, kind, subset, constants, reducer, weights, times
    ) -> None:
        self.programs: Programs = programs
        self.spec: FunctionSpec = programs.spec
        self.cut: Cut = programs.cut(kind, subset)
        self.subset: Subset = subset
        self.is_idle = kind == "idle"
        self.rows: list[np.ndarray] = []
        self.kind = kind
        self._constants = constants
        self._reducer = reducer
        self._weights = weights
        self.times: Times = times
        self.values: dict[Variable, np.ndarray] = {}
        self.room = AS_IT_IS

    def run_part(self, piece: Part, padded: bool = False) -> None:
        """Run a part and keep what it computes."""
        if piece:
            results = self.outputs_of(piece, padded)
            self.values.update(zip(piece.wants, results, strict=True))

    def outputs_of(self, piece: Part, padded: bool) -> list[np.ndarray]:
        """Run a part on the rows taken."""
        n = len(self.spec.inputs)
        received = [self.values[var] for var in piece.receives]
        program = self.programs._program(piece, padded)
        if padded:
            given = [*self.rows[:n], *self._constants, *self.rows[n:]]
            return program(self.room, given, received)
        return program(*self.rows[:n], *self._constants, *self.rows[n:], *received)

    def reduce(self, stage: Stage, level: int) -> None:
        """Combine what the stage computed with the other ranks' values."""
        if not stage.reduced:
            return
        self.times.spent(COMMON if self.is_idle else stage.phase, level)
        given = None
        if not self.is_idle:
            given = [self.value("reduce", var) for var in stage.contributed]
        key = (self.programs.number, self.kind == "slice", self.subset, level)
        results = self._reducer.reduce(key, given, stage.ops, self._weights, self.times)
        self.values.update(zip(stage.reduced, results, strict=True))
        if self.times.is_fresh:
            for var, result in zip(stage.reduced, results, strict=True):
                self.programs.shapes[var] = result.shape

    def value(self, role: str, var: Variable) -> np.ndarray:
        """Return a value of this call: to "reduce", for an "output" or an "update"."""
        return self.values[var]

    def real(self, var: Variable, value: Any) -> Any:
        """Return what a value is without the entries of copies."""
        if not self.room:
            return value
        assert self.programs.padding is not None
        return self.programs.padding.cut(var, value, self.room)

    def finish(self) -> list[np.ndarray]:
        """Store what is left to store, and return the outputs."""
        self.store_deferred()
        as_output = self.programs.engine.as_output
        outputs = [
            self.real(var, as_output(self.value("output", var)))
            for var in self.cut.outputs
        ]
        stages = self.cut.stages
        self.times.end(stages[-1].phase, len(stages) - 1)
        return outputs

    def store_deferred(self) -> None:
        """Store the updates that had to wait for the last stage."""
        engine = self.programs.engine
        for i in self.cut.deferred:
            shared, new = self.spec.updates[i]
            if not (self.is_idle and new in self.cut.on_rows):
                engine.set_value(shared, self.real(new, self.value("update", new)))


class _SlicedCall(_Call):
    """A call whose rows parts run for one slice after the other."""

    def run(self, num_slices, sources, selections) -> list[np.ndarray]:
        """Run all stages and return the outputs."""
        # More slices than rows would be empty ones.
        num_slices = min(num_slices, max(map(count, selections)) or 1)
        bounds = [cuts(count(rows), num_slices) for rows in selections]
        sizes = [[ends[i + 1] - ends[i] for ends in bounds] for i in range(num_slices)]
        present = [i for i in range(num_slices) if any(sizes[i])] or [0]
        self._shares = shares([sizes[i][0] for i in present])
        self._pieces = [
            [
                part(rows, ends[i], ends[i + 1])
                for rows, ends in zip(selections, bounds, strict=True)
            ]
            for i in present
        ]
        self._handed: list[dict] = [{} for _ in present]  # by slice
        self._totals: dict[tuple[str, Variable], Any] = {}
        for level, stage in enumerate(self.cut.stages):
            self.rows = self.programs.take(sources, self._pieces[0])
            self.times.spent(ROWS)
            if stage.common:
                self.run_part(stage.common)
                self.times.spent(COMMON, level)
            if stage.rows:
                self._run_slices(stage, level, sources)
            self.reduce(stage, level)
        return self.finish()

    def _run_slices(
        self, stage: Stage, level: int, sources: Sequence[np.ndarray]
    ) -> None:
        totals = {role: _Total(op) for role, op in self._roles(stage).items()}
        common = self.values
        for handed, piece, share in zip(
            self._handed, self._pieces, self._shares, strict=True
        ):
            piece, self.room = self.programs.padded(piece)
            self.rows = self.programs.take(sources, piece)
            self.times.spent(ROWS)
            self.values = {**common, **handed}
            results = self.outputs_of(stage.rows, bool(self.room))
            handed.update(zip(stage.rows.wants, results, strict=True))
            for (_, var), total in totals.items():
                total.add(self.real(var, handed[var]), share)
            self.times.spent(COMPUTE, level)
        self.values, self.room = common, AS_IT_IS
        for (role, var), total in totals.items():
            self._totals[role, var] = total.result(is_output=role == "output")

    def value(self, role: str, var: Variable) -> np.ndarray:
        total = self._totals.get((role, var))
        return self.values[var] if total is None else total

    def _roles(self, stage: Stage) -> dict[tuple[str, Variable], str | None]:
        """Return what the rows part computes, what for, and how slices combine it."""
        roles: dict[tuple[str, Variable], str | None] = {}
        for var, op in zip(stage.contributed, stage.ops, strict=True):
            roles["reduce", var] = op
        for i in self.subset:
            roles["output", self.spec.outputs[i]] = self.spec.wire_ops[i]
        for i in self.cut.deferred:
            roles["update", self.spec.updates[i][1]] = self.spec.update_ops[i]
        wants = set(stage.rows.wants)
        return {role: op for role, op in roles.items() if role[1] in wants}


class _Total:
    """One value, accumulated over the slices by its op."""

    def __init__(self, op: str | None) -> None:
        self._op = op
        self._value: Any = None

    def add(self, value: np.ndarray, share: float) -> None:
        """Take the value of one more slice."""
        if self._op is None:
            self._value = value  # as it is: in the end, that of the last slice
        elif self._op == "gather":
            self._value = [*(self._value or []), np.atleast_1d(value)]
        elif share or self._op != "avg":  # nothing times NaN is NaN
            if self._value is None:
                self._value = Accumulator(self._op, value.dtype)
            self._value.add(value, share)

    def result(self, is_output: bool) -> np.ndarray:
        """Return the value of all slices."""
        if self._op is None:
            return self._value
        if self._op == "gather":
            return np.concatenate(self._value)
        # An average of integers is rounded only where a variable must hold it.
        dtype = self._value.dtype
        return self._value.result(result_dtype(self._op, dtype) if is_output else None)
