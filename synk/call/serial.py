"""The serial run: the plain function of a graph, to compare the parallel run with.

It is compiled from the whole graph, without stages, ranks or updates: the new values of
shared variables are further outputs. So it shares no code with the parallel run beyond
PyTensor, and changes no variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.type import DenseTensorType

from ..comm.flat import ONE_RANK
from ..compiler.placement.streams import own_streams
from ..compiler.rules.base import name
from ..compiler.spec import FunctionSpec
from ..engines import engine_for, host
from ..errors import SerialMismatch
from ..memory.rows import RowTaker
from ..programs import running
from ..programs.one_call import Task
from ..programs.programs import Programs, Subset
from ..programs.transaction import Transaction
from ..ranks.replication import compile_text
from ..ranks.session import SESSION
from ..times.compile_notice import Notice
from ..times.timing import Timed
from ..user_frames import where_made
from ..variables.one_rank import get_value
from ..workers.affinity import allowed_cores
from .arguments import check_arguments, gather
from .rounding import TOLERANCES, Expected


class SerialRun:
    """The serial run of one function; `what` names the function in messages."""

    def __init__(self, spec: FunctionSpec, what: str) -> None:
        self.timed: Timed | None = None
        """The time of the last run; not of the first, which loads code."""
        self.spec, self._what = spec, what
        self._compiled: dict[Subset, Callable] = {}
        self._warm: set[Any] = set()
        self._notice = Notice(lambda: compile_text(spec, 1))
        self._every = tuple(range(len(spec.outputs)))

    def run(
        self, values: Sequence[Any], batch: Any, subset: Subset
    ) -> tuple[list, list]:
        """Compute the outputs of `subset`, and the new values of all updates.

        Return these results, and the arguments of the compiled function: rows,
        broadcast inputs, and the values of `_floats`.
        """
        spec = self.spec
        rows, (_, arrays, constants) = gather(spec, values, batch, 1)
        floats = [host.get_value(var) for var in self._floats]
        alone: Any = contextlib.nullcontext()
        if SESSION.state == "running":
            alone = SESSION.context.confinement.unconfined()
        with alone, self._notice:
            if subset not in self._warm:
                self._notice.begin()
            if subset not in self._compiled:
                how = spec.mode, spec.name, spec.options, spec.precision
                compiled = engine_for(spec.mode).compile_graph
                self._compiled[subset] = compiled(*self._graph(subset), [], *how)
            start = perf_counter()
            pairs = zip(arrays, rows.of_all, strict=True)
            taken = [RowTaker().take(*pair) for pair in pairs]
            results = self._compiled[subset](*taken, *constants, *floats)
            self._note_time(subset, perf_counter() - start, rows.total)
        return results, [*taken, *constants, *floats]

    def _graph(self, subset: Subset) -> tuple[list[Variable], list[Variable]]:
        """Return the inputs, those for `_floats` last, and the outputs to compile."""
        spec = self.spec
        wanted = [
            *(spec.plain_outputs[i] for i in subset),
            *(new for _, new in spec.plain_updates),
        ]
        # Variables of floats become inputs, as `Expected` changes their values.
        floats: dict[Variable, Variable] = {
            var: var.type(name=var.name) for var in self._floats
        }
        inputs = [*spec.inputs, *spec.bcast_inputs, *floats.values()]
        return inputs, clone_replace(wanted, floats)

    @cached_property
    def _floats(self) -> list[SharedVariable]:
        return [
            var
            for var in self.spec.shared_variables()
            if isinstance(var.type, DenseTensorType) and var.type.dtype in TOLERANCES
        ]

    def run_programs(
        self, programs: Programs, values: Sequence[Any], transaction: Transaction
    ) -> list:
        """Run rank 0's compiled parts on all rows; return the outputs.

        Updates go through the transaction. Variables that compiled code updates in
        place are copied before.
        """
        spec, n = self.spec, len(self.spec.inputs)
        variables = [*spec.inputs, *spec.bcast_inputs]
        values = check_arguments(variables, values, spec.options)
        arrays = [*values[:n], *(host.get_value(var) for var in spec.sliceable)]
        rows = [slice(0, len(array)) for array in arrays]
        start = perf_counter()
        with self._notice:
            if "programs" not in self._warm:
                self._notice.begin()
            transaction.begin_call(programs.overwritten("uncut", self._every))
            by_rank = [len(arrays[0]) if arrays else 1]
            rest = arrays, rows, values[n:], ONE_RANK, by_rank
            task = Task(programs, "uncut", self._every, *rest)
            task.transaction = transaction
            outputs = running.run(task)
        passed = perf_counter() - start
        self._note_time("programs", passed, len(arrays[0]) if arrays else 0)
        return outputs

    def measure(self, values: Sequence[Any], batch: Any) -> None:
        """Set `timed` to the median time of three serial runs."""
        self._refuse_sliceable("measure=True")
        times = []
        for _ in range(4):  # one to load code
            self.run(values, batch, self._every)
            if self.timed is not None:
                times.append(self.timed)
        self.timed = sorted(times[-3:])[1]

    def _note_time(self, kind: Any, seconds: float, rows: int) -> None:
        """Note the time of a run, unless it is the first of its kind."""
        if kind in self._warm:
            self.timed = Timed(seconds, rows, len(allowed_cores()))
        self._warm.add(kind)

    # -- comparing

    def expect(
        self, check: str, values: Sequence[Any], batch: Any, subset: Subset
    ) -> Expected:
        """Return the expected results of a call, from the variables' present values.

        Raise ValueError if the call cannot be compared with the serial run.
        """
        if check != "serial":
            known = "None, 'serial' or 'finite'"
            raise ValueError(f"check must be {known}, got {check!r}")
        self._refuse_sliceable("check='serial'")
        drawn = self._own_draw()
        if drawn is not None:
            raise ValueError(
                f"check='serial': {name(drawn)}{where_made(drawn)} is random, and each"
                " rank draws numbers of its own, so the serial run has others; check"
                " the function without it"
            )
        if not self._outputs(subset) and not self._updates():
            raise ValueError(
                f"check='serial': nothing in {self._what} is meant to equal the"
                " serial run: outputs are rank 0's own, and updates depend on the"
                " rows of a rank"
            )
        results, arguments = self.run(values, batch, subset)
        n = len(arguments) - len(self._floats)
        # Copies, as the call may write to the memory of variables.
        arguments[n:] = [np.array(value) for value in arguments[n:]]
        return Expected(self._graph(subset), arguments, self.spec.precision, results)

    @property
    def is_possible(self) -> bool:
        """Whether there is a serial run that computes the same."""
        return not self.spec.sliceable and self._own_draw() is None

    def _refuse_sliceable(self, asked: str) -> None:
        if self.spec.sliceable:
            var = self.spec.sliceable[0]
            which = "a sliceable shared variable"
            if var in self.spec.parts:
                which = "a shared variable that was scattered"
            raise ValueError(
                f"{asked}: each rank has rows of its own of {var}, {which}, so there is"
                f" no serial run to compare {self._what} with"
            )

    def _own_draw(self) -> Variable | None:
        """Return a variable that each rank draws for itself, or None."""
        graph = self.spec.graph
        own = own_streams(graph, self.spec.streams)
        if not own:
            return None
        for node in io_toposort([], graph):
            if not own.isdisjoint(node.inputs):
                return node.outputs[-1]
        return next(iter(own))

    @cached_property
    def _own_values(self) -> set[Variable]:
        """The variables that each rank computes from its own rows."""
        return self.spec.row_values(self.spec.graph)

    def _outputs(self, subset: Subset) -> list[int]:
        """Return the outputs that are meant to equal the serial run's.

        If the user named the op None, an output of rows is rank 0's own value instead.
        """
        spec, found = self.spec, []
        for i in subset:
            of_rank_0 = spec.output_ops[i] is None and spec.findings[i].named
            if isinstance(spec.outputs[i].type, DenseTensorType) and not (
                of_rank_0 and spec.outputs[i] in self._own_values
            ):
                found.append(i)
        return found

    def _updates(self) -> list[int]:
        """Return the updates that are meant to equal the serial run's, on all ranks."""
        return [
            i
            for i, (shared, new) in enumerate(self.spec.updates)
            if isinstance(shared.type, DenseTensorType) and new not in self._own_values
        ]

    def compare(self, subset: Subset, results: Sequence, expected: Expected) -> None:
        """Compare outputs, and the updated variables of all ranks, with a serial run.

        Raise SerialMismatch if any differs beyond rounding.
        """
        spec, complaints = self.spec, []
        for i in self._outputs(subset):
            place = subset.index(i)
            problem = expected.problem(place, results[place])
            if problem:
                what, op = spec.findings[i].label, spec.output_ops[i]
                complaints.append(f"{what}, combined by {op!r}: {problem}")
        updates = self._updates()
        variables = [spec.updates[i][0] for i in updates]
        for rank in range(SESSION.size):
            values = get_value(rank, variables) if variables else []
            for i, value in zip(updates, values, strict=True):
                problem = expected.problem(len(subset) + i, value)
                if problem:
                    label = label_of(spec.updates[i][0])
                    complaints.append(f"{label} on rank {rank}: {problem}")
        if complaints:
            raise SerialMismatch(
                f"{self._what} differs from the serial run beyond rounding:\n  "
                + "\n  ".join(complaints)
            )


def label_of(shared: SharedVariable) -> str:
    """Return the name of a variable's new value in messages."""
    return f"the new value of {shared.name or shared}"
