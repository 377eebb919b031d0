"""Statistics of a rank's own rows, where these are meant: nothing waits for others.

A statistic is what rows come together to, as the mean of a batch. Where it is to stay
the rank's own, an operation that would need it whole takes it as it is. What comes out
is read as if it were alike on all ranks: with rows, a value for each row; without, one
more statistic, of which the ranks' mean is the function's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable

from ...ops import Local, is_collective
from ..domain import Listed, Partial, Replicated, Sharded, Unknown, Value
from ..walk import apply_rule, infer
from .nodes import Nodes


class OwnStatistics:
    """The statistics of one graph that stay a rank's own.

    With `every`, all sums that meet rows again are meant, and not only what is marked
    by :func:`synk.ops.local`. `met` has those that have met rows, placed.
    """

    def __init__(self, whole: Nodes, every: bool) -> None:
        self._whole = whole
        self._every = every
        self._meeting: set[Variable] = set()
        self._own: set[Variable] = set()
        self._marked: set[Variable] = set()
        self._after: set[Variable] = set()
        self.met: list[Variable] = []

    def look_at(self, graph: Sequence[Variable]) -> None:
        """Find what meets rows again in a graph that is about to be placed."""
        if self._every:
            self._meeting |= meeting_rows(graph, self._whole.values)

    def note(self, old: Variable, placed: Variable) -> None:
        """Take what has been placed for a variable of the user's graph."""
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

    def taken(self, made: Apply, node: Apply) -> bool:
        """Take a node with statistics of the rank's own as it is, if that is meant.

        `made` is the node of placed variables, whose outputs are unknown.
        """
        whole = self._whole
        marked = [var for var in made.inputs if var in self._marked]
        own = marked + [var for var in made.inputs if var in self._own]
        given = [whole.value(var) for var in made.inputs]
        # The number of rows is that of all, but for n - 1 that meets rows: elsewhere,
        # as in a running average, a rank with one row would divide by 0.
        is_own_count = _shifted_count(made, given) is not None and (
            marked or not self._meeting.isdisjoint(node.outputs)
        )
        if not is_own_count:
            own = [var for var in own if not counts_rows(whole.value(var))]
        if not own:
            return False
        found = _read(made, given, [var in own for var in made.inputs])
        if found is None:
            return False
        # What follows from what is the rank's own is so, too: a mixture would be no
        # number of the serial run's, nor of a rank's. What meets rows elsewhere and
        # comes to an output here is of all rows.
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
    """Return what of a graph meets rows further on, other than rows themselves."""
    values = infer(graph, known, rule=_read_as_own)
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


def _read_as_own(node: Apply, given: list[Value]) -> list[Value]:
    """Return what a node computes if every statistic were a rank's own."""
    found = apply_rule(node, given)
    if not any(isinstance(value, Unknown) for value in found):
        return found
    read = _read(node, given, [True] * len(given))
    return found if read is None else list(map(_statistic, read))


def _read(
    node: Apply, given: Sequence[Value], own: Sequence[bool]
) -> list[Value] | None:
    """Return what a node computes if its own statistics are read as alike everywhere.

    With the powers of the number of rows that they have; else, in what is not linear in
    them, without.
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
    """Tell whether a value is one that ranks may have of their own.

    Not so maxima: they come with sums of exponentials, which need the same in all.
    """
    return counts_rows(value) or (isinstance(value, Partial) and value.op == "sum")


def counts_rows(value: Value) -> bool:
    """Tell whether a value follows from the number of a rank's rows alone."""
    if isinstance(value, Listed):
        return any(map(counts_rows, value.entries))
    return isinstance(value, Replicated) and bool(value.power)


def _shifted_count(node: Apply, given: Sequence[Value]) -> list[Value] | None:
    """Return what n - 1 is read as, a multiple of n; None of anything else."""
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
    """Return what a rank's own number is to all of them: a part of their mean."""
    if isinstance(value, Listed):
        return Listed(tuple(map(_statistic, value.entries)))
    if not isinstance(value, Replicated):
        return value
    return Partial("sum", None if value.power is None else value.power - 1)
