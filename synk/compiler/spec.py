"""A function in the passes of the compiler: as asked for, as placed, as ranks run it.

::

    arguments.make_spec      Asked           what the script asks for, checked
    settling                 PlacedSpec      with the reductions that this needs
    settling                 FunctionSpec    with the ops that combine ranks' values

Each is frozen, and what the one before is with more. Graphs only, no processes.
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
from .own_ops.sharding import said_in
from .placement.nodes import CallVariables
from .placement.row_draws import PlacedDraw
from .placement.streams import CommonStream
from .proof import Finding
from .sizes import Filled

# Stands for an op until it is settled: None is an op of its own.
UNNAMED: Any = "unnamed"

Taker = Literal["op", "output", "update"]
Updates = list[tuple[SharedVariable, Variable]]


class Need(NamedTuple):
    """What needs the value of all rows, of which each rank had a part."""

    taker: Taker
    # What the first Op that needs it computes, in the user's graph; or the output
    # itself; or the shared variable whose new value it is.
    variable: Variable
    # Whether all ranks that have rows had it already, so that it is for the others.
    is_alike: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A function as the script asks for it, checked; nothing is placed yet.

    Givens are substituted already, and each sliceable shared variable is replaced by a
    stand-in, an input that receives the variable's selected rows at every call.
    """

    arguments: list[Variable]  # what a call is given, in its order
    inputs: list[Variable]  # what is scattered of these, or the rows that `cut` makes
    bcast_inputs: list[Variable]  # what each rank gets whole, and shapes of what is cut
    cut: CutRows | None  # the slices of data that are scattered inputs, if any are
    # As the user wrote them, without what is placed in between; with `UNNAMED` where
    # the script names no op, until they are settled.
    plain_outputs: list[Variable]
    output_ops: list[OutputOp]
    plain_updates: Updates
    update_ops: list[OutputOp]
    sliceable: list[SharedVariable]
    stand_ins: list[Variable]
    returns: str  # "none", "one" or "list"
    mode: Any = None
    name: str | None = None
    made: str = ""  # where the script has made it, as messages have it behind the name
    options: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None  # of products of float32; None for what JAX is set to
    pad: bool = False  # whether calls of fewer rows are padded, if that keeps numbers
    # The first of the sliceable variables, if they were scattered: of these each rank
    # has as many rows as of the inputs.
    parts: list[SharedVariable] = field(default_factory=list)
    # Whether the sliceable variables have as many rows on a rank as it weighs: what the
    # function computes rests on it, and each call checks it.
    are_paired: bool = False
    is_local: bool = False  # every rank runs the graph as it is: nothing is placed
    is_strict: bool = False  # what is not shown to be as in the serial run is an error
    keeps_statistics: bool = False  # what meets rows again stays that of a rank's own
    has_any_bits: bool = False  # it is an error if bits depend on the number of ranks
    has_own_streams: bool = False  # each rank draws for its rows from one of its own
    are_compiled: bool = False  # by numba or JAX: some draws take fewer numbers there

    @property
    def label(self) -> str:
        """What the function is called in messages."""
        if self.name:
            return f"function {self.name!r}"
        inputs = ", ".join(map(str, self.arguments))
        return f"a function of {inputs or 'nothing'}"

    @property
    def counted(self) -> list[Variable]:
        """What has as many rows on a rank as the rank weighs."""
        paired = len(self.stand_ins) if self.are_paired else len(self.parts)
        return [*self.inputs, *self.stand_ins[:paired]]

    @property
    def others(self) -> list[Variable]:
        """Further stand-ins, with rows of other numbers."""
        return [] if self.are_paired else self.stand_ins[len(self.parts) :]

    @property
    def row_inputs(self) -> list[Variable]:
        """The inputs that hold rows of this rank alone."""
        return [*self.inputs, *self.stand_ins]

    @property
    def all_inputs(self) -> list[Variable]:
        """The inputs, scattered ones first, and the stand-ins."""
        return [*self.inputs, *self.bcast_inputs, *self.stand_ins]

    @property
    def plain_graph(self) -> list[Variable]:
        """All that the user has written: the outputs, and new values of updates."""
        return [*self.plain_outputs, *(new for _, new in self.plain_updates)]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedSpec(Asked):
    """A function whose graph has the reductions that the serial numbers need."""

    outputs: list[Variable]
    updates: Updates  # the script's, and those of streams that all ranks have alike
    left_outputs: list[int]  # those that are left as the user has written them
    left_updates: list[int]
    # What parts take that a rank is told of a call besides its arguments; and those of
    # them that there are.
    call: CallVariables = field(default_factory=CallVariables.new)
    call_variables: list[Variable] = field(default_factory=list)
    # What is known of placed values, and no rule can tell.
    asserted: dict[Variable, Value] = field(default_factory=dict)
    # Of a rank's own rows, which they meet again as they are.
    own_statistics: list[Variable] = field(default_factory=list)
    # Why each collective was placed; those that the user has written are not here.
    needs: dict[Variable, Need] = field(default_factory=dict)
    # What every rank computes from all rows.
    repeated: list[Apply] = field(default_factory=list)
    # The random streams that all ranks have alike, and what is drawn for rows of them.
    streams: list[CommonStream] = field(default_factory=list)
    row_draws: list[PlacedDraw] = field(default_factory=list)
    # What of the graph that is, an entry for each row; None if not all that is drawn
    # can be before anything is computed of rows.
    apart: list[Variable] | None = None

    @classmethod
    def as_written(cls, asked: Asked) -> PlacedSpec:
        """Return a function in which nothing is placed yet."""

        def left(ops: list[OutputOp]) -> list[int]:
            return [i for i, op in enumerate(ops) if asked.is_local or op != UNNAMED]

        return cls(
            **vars(asked),
            outputs=asked.plain_outputs,
            updates=asked.plain_updates,
            left_outputs=left(asked.output_ops),
            left_updates=left(asked.update_ops),
        )

    def left(self) -> list[Variable]:
        """Return what is computed as the user has written it."""
        news = [self.updates[i][1] for i in self.left_updates]
        return [*(self.outputs[i] for i in self.left_outputs), *news]

    def with_left(self, made: Iterable[Variable]) -> PlacedSpec:
        """Return the function with other graphs for what is left as it is written."""
        outputs, updates, left = list(self.outputs), list(self.updates), iter(made)
        for i in self.left_outputs:
            outputs[i] = next(left)
        for i in self.left_updates:
            updates[i] = updates[i][0], next(left)
        return replace(self, outputs=outputs, updates=updates)

    @property
    def graph(self) -> list[Variable]:
        """All that a call computes: the outputs, and the new values of updates."""
        return [*self.outputs, *(new for _, new in self.updates)]

    @property
    def draws_first(self) -> bool:
        """Whether it draws, and can before anything is computed of rows."""
        return bool(self.streams) and self.apart is not None

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
        """Return what of a graph follows from this rank's rows; see `row_values_of`."""
        return self.row_values_of(io_toposort([], list(graph)))

    def row_values_of(self, nodes: Iterable[Apply]) -> set[Variable]:
        """Return what of nodes, in their order, follows from a rank's own rows.

        Or from where they are among all. What was reduced over all ranks does not.
        """
        found = {*self.row_inputs, self.call.first}
        for node in nodes:
            if not found.isdisjoint(node.inputs) and not is_collective(node):
                found.update(node.outputs)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionSpec(PlacedSpec):
    """A function as every rank is told it, with how the ranks' values combine."""

    findings: list[Finding]  # what was shown of each output
    wire_ops: list[OutputOp]  # the master's for outputs; None for what stages reduce
    # What is updated by values of all rows, where those of a rank's were written.
    made_whole: list[SharedVariable]
    own_updates: list[int]  # by what follows from a rank's own rows or random streams
    row_updates: list[int]  # of sliceable variables by rows: each rank keeps its own
    not_in_slices: list[str]  # why the slices' values of updates do not come to one
    # What of the outputs, and of what is reduced, combines values over rows, and how;
    # None of what is the same of any rows.
    sums: list[tuple[Variable, ReduceOp | None]]
    refused: str | None  # why several ranks cannot compute what the serial run does
    filled: list[Filled] = field(default_factory=list)  # see `sizes`
    # On another rank, what users' Ops were registered as: it pads by that.
    own_ops: list[tuple[Any, Any]] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the master needs: that would go to all ranks."""
        lists = (
            *("arguments", "plain_outputs", "plain_updates", "left_outputs"),
            *("left_updates", "repeated", "row_draws", "filled"),
        )
        state = self.__dict__ | {name: [] for name in lists}
        if self.pad:
            state["own_ops"] = said_in(self.graph)
        return state | {"needs": {}, "asserted": {}, "cut": None}
