"""The specification of a function after each pass of the compiler.

::

    arguments.make_spec      Asked           the checked arguments of `synk.function`
    settling                 PlacedSpec      adds the collectives that were placed
    settling                 FunctionSpec    adds the ops that combine ranks' values

Each class is frozen and extends the one before. They hold graphs, no processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort

from ..ops import is_collective
from ..reduce_ops import OutputOp, ReduceOp
from .cut_rows import CutRows
from .domain import Value
from .own_ops.sharding import registered_in
from .placement.nodes import CallVariables
from .placement.row_draws import PlacedDraw
from .placement.streams import CommonStream
from .proof import Finding
from .sizes import Filled

# The op of an output or update for which the script names none, until `settle` chooses
# one. (None is an op too: it takes rank 0's value.)
UNNAMED: Any = "unnamed"

Taker = Literal["op", "output", "update"]
Updates = list[tuple[SharedVariable, Variable]]


class Need(NamedTuple):
    """Why a collective was placed: what in the user's graph takes its result."""

    taker: Taker
    # Of "op": what the first such Op computes, in the user's graph. Of "output": the
    # output. Of "update": the shared variable.
    variable: Variable
    # Whether every rank with rows had the value already, so that the collective only
    # brings it to ranks without rows.
    is_alike: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A function as the script asks for it, checked; no collective is placed yet.

    Givens are substituted already. Each sliceable shared variable is replaced by a
    *stand-in*, an input that receives the variable's selected rows at every call.
    """

    arguments: list[Variable]  # the inputs of a call, in the script's order
    # The scattered inputs, or in their place the slices of data that `cut` takes.
    inputs: list[Variable]
    bcast_inputs: list[Variable]  # inputs that ranks get whole; shapes of data in `cut`
    cut: CutRows | None  # how scattered inputs are slices of data; None if none are
    # The user's own graph, without placed collectives. Its ops are `UNNAMED` where the
    # script names none.
    plain_outputs: list[Variable]
    output_ops: list[OutputOp]
    plain_updates: Updates
    update_ops: list[OutputOp]
    sliceable: list[SharedVariable]
    stand_ins: list[Variable]
    returns: str  # "none", "one" or "list"
    mode: Any = None
    name: str | None = None
    made: str = ""  # the script's line that made it, as messages append it to the name
    options: dict[str, Any] = field(default_factory=dict)
    # The precision of products of float32 in JAX; None: as JAX is configured.
    precision: str | None = None
    pad: bool = False  # whether calls with fewer rows may be padded
    # The leading sliceable variables that are scattered: a rank has as many of their
    # rows as of the inputs' rows.
    parts: list[SharedVariable] = field(default_factory=list)
    # Whether the graph is placed as if the sliceable variables had as many rows on each
    # rank as the inputs. Each call then checks that they do.
    are_paired: bool = False
    is_local: bool = False  # whether ranks run the user's graph, with nothing placed
    is_strict: bool = False  # raise where the serial run's result cannot be proven
    # Whether sums over rows that are combined with rows again stay each rank's own.
    keeps_statistics: bool = False
    has_any_bits: bool = False  # raise if bits depend on the number of ranks
    has_own_streams: bool = False  # each rank draws for its rows from its own stream
    # Whether numba or JAX compiles the function: some draws take fewer numbers there.
    are_compiled: bool = False

    @property
    def label(self) -> str:
        """The function's name in messages."""
        if self.name:
            return f"function {self.name!r}"
        inputs = ", ".join(map(str, self.arguments))
        return f"a function of {inputs or 'nothing'}"

    @property
    def counted(self) -> list[Variable]:
        """The inputs and stand-ins whose number of rows is the rank's weight."""
        paired = len(self.stand_ins) if self.are_paired else len(self.parts)
        return [*self.inputs, *self.stand_ins[:paired]]

    @property
    def uncounted(self) -> list[Variable]:
        """The stand-ins that may have another number of rows than `counted`."""
        return [] if self.are_paired else self.stand_ins[len(self.parts) :]

    @property
    def row_inputs(self) -> list[Variable]:
        """The scattered inputs and the stand-ins: those that hold a rank's own rows."""
        return [*self.inputs, *self.stand_ins]

    @property
    def all_inputs(self) -> list[Variable]:
        """The inputs, scattered ones first, and the stand-ins."""
        return [*self.inputs, *self.bcast_inputs, *self.stand_ins]

    @property
    def plain_graph(self) -> list[Variable]:
        """The user's own graph: the outputs, then the new values of updates."""
        return [*self.plain_outputs, *(new for _, new in self.plain_updates)]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedSpec(Asked):
    """A function with the collectives that the serial run's numbers need."""

    outputs: list[Variable]
    updates: Updates  # the script's, then those of common random streams
    unplaced_outputs: list[int]  # indices of outputs whose graph stays as it is written
    unplaced_updates: list[int]  # likewise of updates
    # The variables that the master fills in for each call, such as the number of all
    # rows; and in `call_variables` those of them that the graph uses.
    call: CallVariables = field(default_factory=CallVariables)
    call_variables: list[Variable] = field(default_factory=list)
    # Placed variables whose `Value` follows from how they were made, not from a rule.
    asserted: dict[Variable, Value] = field(default_factory=dict)
    # Sums over a rank's own rows that are combined with rows again, unreduced.
    own_statistics: list[Variable] = field(default_factory=list)
    # For the result of each placed collective, why it was placed.
    needs: dict[Variable, Need] = field(default_factory=dict)
    # The user's nodes that every rank computes from all ranks' rows.
    repeated: list[Apply] = field(default_factory=list)
    # The random streams that all ranks share, and the draws for rows from them.
    streams: list[CommonStream] = field(default_factory=list)
    row_draws: list[PlacedDraw] = field(default_factory=list)
    # The drawn variables with an entry for each row, if all draws can be made before
    # anything is computed from rows; else None.
    early_draws: list[Variable] | None = None

    @classmethod
    def as_written(cls, asked: Asked) -> PlacedSpec:
        """Return the function `asked` for, with nothing placed yet."""

        def named(ops: list[OutputOp]) -> list[int]:
            return [i for i, op in enumerate(ops) if asked.is_local or op != UNNAMED]

        return cls(
            **vars(asked),
            outputs=asked.plain_outputs,
            updates=asked.plain_updates,
            unplaced_outputs=named(asked.output_ops),
            unplaced_updates=named(asked.update_ops),
        )

    def unplaced(self) -> list[Variable]:
        """Return the outputs and new values whose graph stays as it is written."""
        news = [self.updates[i][1] for i in self.unplaced_updates]
        return [*(self.outputs[i] for i in self.unplaced_outputs), *news]

    def with_unplaced(self, made: Iterable[Variable]) -> PlacedSpec:
        """Return the function with `made` in place of the variables of `unplaced`."""
        outputs, updates, left = list(self.outputs), list(self.updates), iter(made)
        for i in self.unplaced_outputs:
            outputs[i] = next(left)
        for i in self.unplaced_updates:
            updates[i] = updates[i][0], next(left)
        return replace(self, outputs=outputs, updates=updates)

    @property
    def graph(self) -> list[Variable]:
        """All that a call computes: the outputs, then the new values of updates."""
        return [*self.outputs, *(new for _, new in self.updates)]

    @property
    def draws_first(self) -> bool:
        """Whether it draws, and can do so before anything is computed from rows."""
        return bool(self.streams) and self.early_draws is not None

    @property
    def all_inputs(self) -> list[Variable]:
        """Everything that a compiled function is called with, in order."""
        return [*super().all_inputs, *self.call_variables]

    def shared_variables(self) -> list[SharedVariable]:
        """Return every shared variable that the function reads or writes."""
        found = dict.fromkeys(var for var, _ in self.updates)
        found.update(dict.fromkeys(self.sliceable))
        found.update(dict.fromkeys(stream.source for stream in self.streams))
        for var in ancestors(self.graph):
            if isinstance(var, SharedVariable):
                found[var] = None
        return list(found)

    def row_values(self, graph: Iterable[Variable]) -> set[Variable]:
        """Return the variables of a graph that depend on this rank's own rows."""
        return self.row_values_of(io_toposort([], list(graph)))

    def row_values_of(self, nodes: Iterable[Apply]) -> set[Variable]:
        """Return the variables that depend on a rank's own rows, or on their place.

        `nodes` are in the order of computation. Results of collectives, and what
        follows from them alone, do not depend on a rank's own rows.
        """
        found = {*self.row_inputs, self.call.first}
        for node in nodes:
            if not found.isdisjoint(node.inputs) and not is_collective(node):
                found.update(node.outputs)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionSpec(PlacedSpec):
    """A settled function, as every rank gets it: with the ops that combine values."""

    findings: list[Finding]  # what the proof shows of each output
    # How the master combines the ranks' outputs; None where stages have reduced them.
    wire_ops: list[OutputOp]
    # Variables whose written update depends on a rank's rows, and the placed one not.
    made_whole: list[SharedVariable]
    own_updates: list[int]  # of updates that depend on a rank's own rows or stream
    row_updates: list[int]  # of updates of which each rank keeps its own rows
    not_in_slices: list[str]  # why slices' values of updates cannot be combined
    # Outputs, new values and reduced values that blocks of rows can be combined for, by
    # which op; None where every block has the same value.
    sums: list[tuple[Variable, ReduceOp | None]]
    # How blocks' values of variables on rows are put together for a later part: one
    # after the other, or along a new axis if all have one shape. No others can be.
    passed_on: dict[Variable, Literal["gather", "stack"]]
    refused: str | None  # why several ranks cannot compute the serial result, if so
    filled: list[Filled] = field(default_factory=list)  # see `sizes`
    # Only after unpickling on a rank: users' registered Ops, which padding asks for.
    own_ops: list[tuple[Any, Any]] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what only the master needs; it goes to all ranks."""
        lists = (
            *("arguments", "plain_outputs", "plain_updates", "unplaced_outputs"),
            *("unplaced_updates", "repeated", "row_draws", "filled"),
        )
        state = self.__dict__ | {name: [] for name in lists}
        if self.pad:
            state["own_ops"] = registered_in(self.graph)
        return state | {"needs": {}, "asserted": {}, "cut": None}
