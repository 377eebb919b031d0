"""One rank's computation in a call, stage by stage.

For each stage the rank runs the part on its rows and reduces values with the other
ranks; the next stage receives the results. Values are stored by their variable in the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pytensor.graph.basic import Variable

from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage, contributed, op_of
from ..engines import host
from ..memory.partition import Selection
from ..reduce_ops import ReduceOp
from ..reduce_tree import BlockCut, Subtrees, TreeOutput
from ..times.timing import COMMON, UNCOUNTED, Times
from ..workers.recorder import COMPUTING, STAGE, STORING
from .padding import UNPADDED, PaddedSize
from .programs import CallKind, Programs, Subset
from .transaction import Transaction


class Reducer(Protocol):
    """The transport that combines the ranks' values of a stage."""

    def reduce(
        self,
        key: tuple,
        values: list[np.ndarray] | None,
        ops: list[ReduceOp],
        weights: Sequence[int],
        times: Times,
    ) -> list[np.ndarray]:
        """Return the combined values; `values` is None on a rank without rows.

        `key` identifies the buffer, the same on all ranks; `weights` are ranks' rows.
        """


@dataclass(slots=True)
class Task:
    """The description of one rank's computation in one call."""

    programs: Programs
    kind: CallKind
    subset: Subset
    sources: list[Any]
    """For each row input, the array that its rows are taken from."""
    selections: Sequence[Selection]
    """For each row input, which rows."""
    constants: Sequence[Any]
    """The broadcast inputs."""
    reducer: Reducer
    weights: Sequence[int]
    """The rows of each rank."""
    rank: int = 0
    num_slices: int = 1
    tree: BlockCut | None = None
    """The blocks of all ranks; None if parts run on all rows of the rank at once."""
    padded_size: PaddedSize = UNPADDED
    """The size of padded selections. Slices are padded one by one, not here."""
    taken: list[np.ndarray] | None = None
    """The rows, if they were loaded before; not for slices."""
    all_rows: Callable[[int, Any], np.ndarray] | None = None
    """``all_rows(i, source)`` returns all ranks' rows of input i. If None, ranks gather
    rows of inputs as they gather other values."""
    transaction: Transaction | None = None
    """Stores the updates. On one rank, compiled code may make updates in place."""
    kept: tuple | None = None
    """The key of these rows, if terms of them are to be kept."""
    times: Times = UNCOUNTED


class RankCall:
    """One rank's computation in one call: runs parts, and holds their values."""

    def __init__(self, task: Task, kind: CallKind) -> None:
        self.task, self.kind = task, kind
        self.programs, self.subset, self.times = task.programs, task.subset, task.times
        self.spec: FunctionSpec = task.programs.spec
        self.cut: Cut = task.programs.cut(kind, task.subset)
        self.is_idle = kind == "idle"
        self.parts = 0  # the number of slices; 0 without slices
        self.rows: list[np.ndarray] = []
        self.rank, self.weights = task.rank, task.weights
        self.values: dict[Variable, np.ndarray] = {}
        self.padded_size = UNPADDED
        # Values with one entry for each block; subtrees that ranks reduce; outputs in
        # trees that the master merges.
        self.by_block: dict[Variable, np.ndarray] = {}
        self.subtrees: Subtrees | None = None
        self.in_trees: dict[Variable, TreeOutput] = {}
        self._news: list[tuple[Part, list[Any]]] = []

    def run_part(self, piece: Part, padded: bool = False) -> None:
        """Run a part and store its values."""
        if piece:
            results = self.outputs_of(piece, padded)
            if piece.news:
                n = len(piece.wants)
                self._news.append((piece, results[n:]))
                del results[n:]
            self.values.update(zip(piece.wants, results, strict=True))

    def outputs_of(self, piece: Part, padded: bool) -> list[np.ndarray]:
        """Run a part on `rows` and return its results."""
        program, given = self.programs.program(piece, padded), self.arguments(piece)
        if padded:  # padded code also takes the number of real rows
            n = len(given) - len(piece.receives)
            given.insert(n, np.asarray(self.padded_size.real))
        return program(*given)

    def arguments(self, piece: Part) -> list[np.ndarray]:
        """Return the arguments of a part's code: rows, broadcast inputs, values."""
        n = len(self.spec.inputs)
        return [
            *self.rows[:n],
            *self.task.constants,
            *self.rows[n:],
            *self._call_values(),
            *[
                self.by_block[var] if var in self.by_block else self.values[var]
                for var in piece.receives
            ],
        ]

    def _call_values(self) -> list[np.ndarray]:
        """Return values for `spec.call_variables`: numbers of rows, and the like."""
        if not self.spec.call_variables:
            return []
        call, total = self.spec.call, sum(self.weights)
        values = {
            call.total: np.asarray(total),
            call.first: np.asarray(self.first_row),
            call.as_long: np.empty((total, 0), np.int8),
        }
        for i, var in call.none_of.items():
            values[var] = np.empty((0, *self.rows[i].shape[1:]), np.int8)
        return [values[var] for var in self.spec.call_variables]

    @property
    def first_row(self) -> int:
        """The number of the call's rows before those in `rows`."""
        return sum(self.weights[: self.rank])

    def reduce(self, stage: Stage, level: int) -> None:
        """Combine this rank's values of a stage with the other ranks'."""
        if not stage.reduced:
            return
        self.times.spent(COMMON if self.is_idle else stage.phase, level)
        inputs = self.inputs_read(stage)
        for var, i in inputs.items():
            assert self.task.all_rows is not None
            dtype = self.spec.inputs[i].type.dtype  # type: ignore[attr-defined]
            rows = np.asarray(self.task.all_rows(i, self.task.sources[i]), dtype)
            # Numba would compile again for a strided or read-only array.
            self.values[var] = rows if rows.flags.carray else rows.copy()
        reduced = [var for var in stage.reduced if var not in inputs]
        if self.task.tree is not None:
            reduced = self._reduce_in_tree(stage, reduced, level)
        if reduced:
            self._reduce_values(reduced, level)
        if self.times.is_fresh:
            for var in stage.reduced:
                self.programs.shapes[var] = self.values[var].shape

    def inputs_read(self, stage: Stage) -> dict[Variable, int]:
        """Return the gathers of inputs' rows, which ranks read from shared memory."""
        return {} if self.task.all_rows is None else stage.of_inputs

    def _reduce_in_tree(
        self, stage: Stage, reduced: list[Variable], level: int
    ) -> list[Variable]:
        """Combine the values that are reduced in a tree; return the other ones."""
        in_tree = self.programs.blocks.tree_reductions(stage, self.cut)
        if not in_tree:
            return reduced
        reducer: Any = self.task.reducer  # never a GPU's: only numba has blocks
        key = *self._key, level, "tree"
        results = reducer.reduce_tree(key, self.subtrees, self.task.tree, self.times)
        self._note_met(level)
        self.values.update((var, results[place]) for var, place in in_tree.items())
        return [var for var in reduced if var not in in_tree]

    @property
    def _key(self) -> tuple:
        """The key of the ranks' buffers for this kind of call."""
        in_tree = self.task.tree is not None  # then the buffer holds other values only
        return self.programs.number, self.kind == "slice", in_tree, self.subset

    def _note_met(self, level: int) -> None:
        """Note that ranks have met at this level, so that their last call stays."""
        if self.task.transaction is not None:
            self.task.transaction.note_met()
            self.task.transaction.phase[0] = COMPUTING + STAGE * (level + 1)

    def _reduce_values(self, reduced: list[Variable], level: int) -> None:
        """Combine values with the other ranks', not in a tree."""
        given = None if self.is_idle else list(map(self._contribution, reduced))
        key, ops = (*self._key, level), list(map(_wire_op, reduced))
        results = self.task.reducer.reduce(key, given, ops, self.weights, self.times)
        self._note_met(level)
        self.values.update(zip(reduced, results, strict=True))

    def _contribution(self, reduced: Variable) -> Any:
        """Return this rank's value for a reduction.

        To gather or stack, ranks sum arrays with their own entries among zeros.
        """
        var, op, tree = contributed(reduced), op_of(reduced), self.task.tree
        if op != "gather" and op != "stack":
            return self.value("reduce", var)
        is_by_block = op == "stack" and var in self.by_block
        own = self.by_block[var] if is_by_block else self.value("reduce", var)
        own, ranks = np.asarray(self.real(var, own)), len(self.weights)
        if op == "gather":
            total, before = sum(self.weights), sum(self.weights[: self.rank])
            if not total:
                return own  # no rank has rows
            each = len(own) // self.weights[self.rank]
            return _among_zeros(own, each * before, each * total)
        if tree is not None:  # one entry for each block
            return _among_zeros(own, tree.first(self.rank), tree.first(ranks))
        # One entry for each slice, or for the rank.
        parts, own = self.parts or 1, own if self.parts else own[None]
        return _among_zeros(own, parts * self.rank, parts * ranks)

    def value(self, role: str, var: Variable) -> np.ndarray:
        """Return a value; `role` is its use: "reduce", "output" or "update"."""
        return self.values[var]

    def real(self, var: Variable, value: Any) -> Any:
        """Return a value without the entries of padding."""
        if not self.padded_size:
            return value
        assert self.programs.padding is not None
        return self.programs.padding.cut(var, value, self.padded_size)

    def finish(self) -> list[Any]:
        """Store the updates; return the outputs, as `TreeOutput` if in a tree."""
        self.store()
        as_output, wanted = self.programs.engine.as_output, self.cut.outputs
        outputs = [
            self.in_trees[var]
            if var in self.in_trees
            else as_output(self.value("output", var))
            for var in wanted
        ]
        if self.padded_size:
            outputs = list(map(self.real, wanted, outputs))
        stages = self.cut.stages
        self.times.end(stages[-1].phase, len(stages) - 1)
        return outputs

    def store(self) -> None:
        """Store the new values of the shared variables, by the transaction."""
        transaction, cut = self.task.transaction, self.cut
        if not cut.stored and not self._news:
            return
        assert transaction is not None
        transaction.phase[0] = STORING
        for piece, values in self._news:
            transaction.store_all(piece.storages, values)
        is_padded = bool(self.padded_size)
        for i in cut.stored:
            shared, new = cut.updates[i]
            if self.is_idle and new in cut.on_rows:
                if i in self.spec.row_updates:  # this rank's part has no rows
                    none = np.array(host.get_value(shared)[:0])
                    none = transaction.with_other_rows(shared, none)
                    transaction.store(self.programs.engine, shared, none)
                continue
            if i in cut.written:
                self._write(transaction, i)
                continue
            value = self.value("update", new)
            if is_padded:
                value = self.real(new, value)
            if i in cut.copied and isinstance(value, np.ndarray):
                value = value.copy()
            if i in self.spec.row_updates:
                value = transaction.with_other_rows(shared, value)
            transaction.store(self.programs.engine, shared, value)

    def _write(self, transaction: Transaction, i: int) -> None:
        """Make update i by writing to some elements of the variable, in place."""
        made, (shared, _) = self.cut.written[i], self.cut.updates[i]
        values = [self.values[var] for var in made.takes]
        write = self.programs.writer(self.kind, self.subset, i)
        transaction.write(shared, made.index(values), lambda: write(*values))


def _among_zeros(own: np.ndarray, first: int, total: int) -> np.ndarray:
    """Return an array of `total` entries: `own` from `first` on, and zeros."""
    out = np.zeros((total, *own.shape[1:]), own.dtype)
    out[first : first + len(own)] = own
    return out


def _wire_op(reduced: Any) -> ReduceOp:
    """Return the transport's op: a gather or stack is a sum, of bools a "max"."""
    op = op_of(reduced)
    if op != "gather" and op != "stack":
        return op
    return "max" if reduced.type.dtype == "bool" else "sum"
