"""A function as every rank is told it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort

from ..ops import is_collective
from ..reduce_ops import OutputOp, ReduceOp
from .domain import Value
from .groups import Filled
from .own_ops.registry import said_in
from .placement.call_variables import CallVariables
from .placement.needs import Need
from .placement.streams import CommonStream
from .proof import Finding


@dataclass
class FunctionSpec:
    """A function as every rank is told it; graphs only, no processes.

    Givens are substituted already, and each sliceable shared variable is replaced by a
    stand-in, an input that receives the variable's selected rows at every call.
    """

    inputs: list[Variable]
    bcast_inputs: list[Variable]
    outputs: list[Variable]
    output_ops: list[OutputOp]
    updates: list[tuple[SharedVariable, Variable]]
    update_ops: list[OutputOp]
    sliceable: list[SharedVariable]
    stand_ins: list[Variable]
    returns: str  # "none", "one" or "list"
    wire_ops: list[OutputOp] = field(default_factory=list)
    """How the master combines outputs; None for those that stages have reduced."""
    findings: list[Finding] = field(default_factory=list)
    """What was shown of each output."""
    mode: Any = None
    name: str | None = None
    made: str = ""
    """Where the script has made it, as messages have it behind the name."""
    options: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None
    """Of products of float32; None for what JAX is set to."""
    pad: bool = False
    """Whether calls of fewer rows are padded, where that keeps their numbers."""
    plain_outputs: list[Variable] = field(default_factory=list)
    """The outputs as the user wrote them, without what was placed in between."""
    plain_updates: list[tuple[SharedVariable, Variable]] = field(default_factory=list)
    """Likewise."""
    call: CallVariables = field(default_factory=CallVariables.new)
    """What parts take that a rank is told of a call besides its arguments."""
    parts: list[SharedVariable] = field(default_factory=list)
    """The first of the sliceable variables, if they were scattered: of these each rank
    has as many rows as of the inputs."""
    are_paired: bool = False
    """Whether the sliceable variables have as many rows on a rank as it weighs: what
    the function computes rests on it, and each call checks it."""
    made_whole: list[SharedVariable] = field(default_factory=list)
    """What is updated by values of all rows, where those of a rank's were written."""
    call_variables: list[Variable] = field(default_factory=list)
    """Those of them that there are."""
    left_outputs: list[int] = field(default_factory=list)
    """The outputs that are left as the user has written them."""
    left_updates: list[int] = field(default_factory=list)
    """Likewise."""
    own_updates: list[int] = field(default_factory=list)
    """Updates by what follows from a rank's own rows or random streams."""
    row_updates: list[int] = field(default_factory=list)
    """Updates of sliceable variables by rows: each rank keeps its own."""
    not_in_slices: list[str] = field(default_factory=list)
    """Of updates whose slices' values do not come together to one, why that is."""
    is_local: bool = False
    is_strict: bool = False
    refused: str | None = None
    """Why several ranks cannot compute what the serial run does, if they cannot."""
    asserted: dict[Variable, Value] = field(default_factory=dict)
    """What is known of placed values, and no rule can tell."""
    sums: list[tuple[Variable, ReduceOp]] = field(default_factory=list)
    """What of the outputs, and of what is reduced, is a sum or an average over rows."""
    own_statistics: list[Variable] = field(default_factory=list)
    """Of a rank's own rows, which they meet again as they are."""
    needs: dict[Variable, Need] = field(default_factory=dict)
    """Why each collective was placed; those that the user has written are not here."""
    repeated: list[Apply] = field(default_factory=list)
    """What every rank computes from all rows."""
    filled: list[Filled] = field(default_factory=list)
    """What is asked of the arguments of each call; see `groups`."""
    streams: list[CommonStream] = field(default_factory=list)
    """The random streams that all ranks have alike."""
    own_ops: list[tuple[Any, Any]] = field(default_factory=list)
    """On another rank, what users' Ops were registered as: it pads by that."""

    @property
    def label(self) -> str:
        """What the function is called in messages."""
        if self.name:
            return f"function {self.name!r}"
        inputs = ", ".join(map(str, [*self.inputs, *self.bcast_inputs]))
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
        """Everything that a compiled function is called with, in order."""
        return [
            *self.inputs,
            *self.bcast_inputs,
            *self.stand_ins,
            *self.call_variables,
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the master needs: that would go to all ranks."""
        left_out: dict[str, list] = {
            "plain_outputs": [],
            "plain_updates": [],
            "left_outputs": [],
            "left_updates": [],
            "repeated": [],
            "filled": [],
        }
        if self.pad:
            graph = [*self.outputs, *(new for _, new in self.updates)]
            left_out["own_ops"] = said_in(graph)
        return self.__dict__ | left_out | {"needs": {}, "asserted": {}}

    def shared_variables(self) -> list[SharedVariable]:
        """Return every shared variable that the function reads or writes."""
        graph = [*self.outputs, *(new for _, new in self.updates)]
        found = dict.fromkeys(var for var, _ in self.updates)
        found.update(dict.fromkeys(self.sliceable))
        found.update(dict.fromkeys(stream.source for stream in self.streams))
        for var in ancestors(graph):
            if isinstance(var, SharedVariable):
                found[var] = None
        return list(found)

    def row_values(self, graph: Iterable[Variable]) -> set[Variable]:
        """Return what of a graph is a function of this rank's rows.

        What was reduced over all ranks is not.
        """
        return self.row_values_of(io_toposort([], list(graph)))

    def row_values_of(self, nodes: Iterable[Apply]) -> set[Variable]:
        """Return the same of nodes, in the order in which they are computed."""
        found = set(self.row_inputs)
        for node in nodes:
            if not found.isdisjoint(node.inputs) and not is_collective(node):
                found.update(node.outputs)
        return found
