"""Statistics that stay each rank's own, as with ``statistics="local"``.

A *statistic* is a sum or mean over rows, such as the mean of a batch. It *meets rows*
where an operation combines it, or what follows from it, with rows. If a statistic is to
stay a rank's own, an operation that would need it whole takes it unreduced, and the
rules read it as equal on all ranks. A result with rows then has a value for each row. A
result without rows is a statistic again; the ranks' mean is the function's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable

from ...ops import Local, is_collective
from ..domain import Listed, Partial, Replicated, Sharded, Unknown, Value, is_sum
from ..walk import apply_rule, infer
from .nodes import Nodes


class OwnStatistics:
    """The statistics of one graph that stay a rank's own.

    With `every`, these are all that meet rows; else those that :func:`synk.ops.local`
    marks. `met` has the placed statistics that have met rows.
    """

    def __init__(self, whole: Nodes, every: bool) -> None:
        self._whole = whole
        self._every = every
        self._meeting: set[Variable] = set()  # of the user's graph: see `meeting_rows`
        self._own: set[Variable] = set()  # placed statistics that stay a rank's own
        self._marked: set[Variable] = set()  # those by `synk.ops.local`
        self._after: set[Variable] = set()  # placed variables that follow from own ones
        self.met: list[Variable] = []

    def find_meeting(self, graph: Sequence[Variable]) -> None:
        """Note what meets rows in a graph that is about to be placed."""
        if self._every:
            self._meeting |= meeting_rows(graph, self._whole.values)

    def note(self, old: Variable, placed: Variable) -> None:
        """Note whether `placed`, for `old` of the user's graph, stays a rank's own."""
        node = placed.owner
        inputs = [] if node is None else node.inputs
        if self._every and not self._after.isdisjoint(inputs):
            self._after.add(placed)
        if node is not None and isinstance(node.op, Local):
            self._marked.add(placed)
        if _is_statistic(self._whole.value(placed)):
            if self._every and (old in self._meeting or placed in self._after):
                self._own.add(placed)
            if not self._marked.isdisjoint(inputs):
                self._marked.add(placed)

    def accept(self, made: Apply, node: Apply) -> bool:
        """Assert values for a node that takes own statistics; return whether it does.

        `node` is the user's, and `made` the node of placed operands, whose outputs are
        unknown to the rules.
        """
        whole = self._whole
        marked = [var for var in made.inputs if var in self._marked]
        own = marked + [var for var in made.inputs if var in self._own]
        given = [whole.value(var) for var in made.inputs]
        # A number of rows is that of all ranks, except in an n - 1 that meets rows.
        # Elsewhere, as in a running average, a rank with one row would divide by 0.
        is_own_count = _shifted_count(made, given) is not None and (
            marked or not self._meeting.isdisjoint(node.outputs)
        )
        if not is_own_count:
            own = [var for var in own if not counts_rows(whole.value(var))]
        if not own:
            return False
        found = _apply_alike(made, given, [var in own for var in made.inputs])
        if found is None:
            return False
        # What follows from an own statistic stays own, as a mixture would be neither
        # the serial run's number nor a rank's. But a statistic that meets rows
        # elsewhere, and not below this node, is reduced here.
        follows = marked or not self._after.isdisjoint(own)
        meets = any(isinstance(value, Sharded) for value in found)
        if not (follows or meets or not self._meeting.isdisjoint(node.outputs)):
            return False
        if self._every:
            self._after.update(made.outputs)
        for var, value in zip(made.outputs, found, strict=True):
            if isinstance(value, Sharded):
                self.met += [var for var in own if var not in self.met]
            elif marked and isinstance(value, Replicated):
                self._marked.add(var)
            value = _statistic(value)
            whole.values[var] = whole.asserted[var] = value
            whole.of_rows.add(var)
        return True


def meeting_rows(
    graph: Sequence[Variable], known: Mapping[Variable, Value]
) -> set[Variable]:
    """Return the variables of a graph, other than sharded ones, that meet rows."""
    values = infer(graph, known, rule=_apply_all_own)
    meeting: set[Variable] = set()
    for var in reversed(list(values)):
        node = var.owner
        if node is None or var in known or is_collective(node):
            continue
        if isinstance(values[var], Sharded) or var in meeting:
            meeting.update(
                given for given in node.inputs if not isinstance(values[given], Sharded)
            )
    return meeting


def _apply_all_own(node: Apply, given: list[Value]) -> list[Value]:
    """Return the values of a node's outputs, with every statistic a rank's own."""
    found = apply_rule(node, given)
    if not any(isinstance(value, Unknown) for value in found):
        return found
    read = _apply_alike(node, given, [True] * len(given))
    return found if read is None else list(map(_statistic, read))


def _apply_alike(
    node: Apply, given: Sequence[Value], own: Sequence[bool]
) -> list[Value] | None:
    """Return the values of a node's outputs, with own statistics read as replicated.

    `own` says which operands are such statistics. They keep their powers of the number
    of rows; if the rule refuses these, as it is not linear, they have none. None if the
    rule refuses both.
    """
    count = _shifted_count(node, given)
    if count is not None:
        return count
    for with_powers in (True, False):
        values = [
            _alike(value, with_powers) if is_own else value
            for value, is_own in zip(given, own, strict=True)
        ]
        found = apply_rule(node, values)
        if not any(isinstance(value, Unknown) for value in found):
            return found
    return None


def _alike(value: Value, with_powers: bool) -> Value:
    if isinstance(value, Listed):
        return Listed(tuple(_alike(entry, with_powers) for entry in value.entries))
    if isinstance(value, Replicated):
        return value if with_powers else Replicated()
    if not isinstance(value, Partial):
        return value
    if value.op != "sum" or not with_powers:
        return Replicated()
    return Replicated(None if value.power is None else value.power + 1)


def _is_statistic(value: Value) -> bool:
    """Return whether a value is a sum over rows, or follows from their number.

    Maxima are not: sums of exponentials, where they occur, need one for all ranks.
    """
    return counts_rows(value) or is_sum(value)


def counts_rows(value: Value) -> bool:
    """Return whether a value is a function of the number of a rank's rows alone."""
    if isinstance(value, Listed):
        return any(map(counts_rows, value.entries))
    return isinstance(value, Replicated) and bool(value.power)


def _shifted_count(node: Apply, given: Sequence[Value]) -> list[Value] | None:
    """Return the values of an n - 1, read as a multiple of n; None of other nodes."""
    op = getattr(node.op, "scalar_op", None)
    are_numbers = all(isinstance(value, (Replicated, Listed)) for value in given)
    if not (isinstance(op, (ps.Add, ps.Sub)) and are_numbers):
        return None
    if not any(map(counts_rows, given)):
        return None
    values = [
        Replicated(None) if getattr(value, "number", None) is not None else value
        for value in given
    ]
    found = apply_rule(node, values)
    return None if any(isinstance(value, Unknown) for value in found) else found


def _statistic(value: Value) -> Value:
    """Return a value with `Replicated` as a part of the ranks' mean."""
    if isinstance(value, Listed):
        return Listed(tuple(map(_statistic, value.entries)))
    if not isinstance(value, Replicated):
        return value
    return Partial("sum", None if value.power is None else value.power - 1)
