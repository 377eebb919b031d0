"""Why a collective was placed: what of the user's graph takes its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytensor.graph.basic import Apply, Variable

Taker = Literal["op", "output", "update"]


@dataclass(frozen=True)
class Need:
    """What needs the value of all rows, of which each rank had a part.

    Attributes
    ----------
    taker : {"op", "output", "update"}
    variable : Variable
        What the first Op that needs it computes, in the user's graph; or the output
        itself; or the shared variable whose new value it is.
    is_alike : bool
        Whether all ranks that have rows had it already, so that it is for the others.
    """

    taker: Taker
    variable: Variable
    is_alike: bool = False


def needs(
    collectives: Mapping[Variable, bool],
    users: Mapping[Variable, Variable],
    nodes: Iterable[Apply],
    outputs: Sequence[tuple[Variable, Variable]],
    updates: Sequence[tuple[Variable, Variable]],
) -> dict[Variable, Need]:
    """Return for each collective what needs it.

    Parameters
    ----------
    collectives : mapping of Variable to bool
        The results of those that were placed, and whether all ranks that have rows had
        the value before.
    users : mapping of Variable to Variable
        Of placed variables those of the user's graph that they stand for. What is made
        between a collective and these, such as factors of n / N, is not the user's.
    nodes : iterable of Apply
        The placed graph, in the order in which it is computed.
    outputs : sequence of (Variable, Variable)
        As placed, and as the user has them.
    updates : sequence of (Variable, Variable)
        New values as placed, and the shared variables.
    """
    found: dict[Variable, Need] = {}
    # Of a variable the collectives that lead to it, with none of `users` between.
    leading: dict[Variable, dict[Variable, None]] = {}

    def note(given: Variable, taker: Taker, variable: Variable) -> None:
        for var in leading.get(given, ()):
            found.setdefault(var, Need(taker, variable, collectives[var]))

    for node in nodes:
        user = next((users[var] for var in node.outputs if var in users), None)
        if user is not None:
            for given in node.inputs:
                if given in leading:
                    note(given, "op", user)
        here = {var: None for var in node.outputs if var in collectives}
        if user is None:
            for given in node.inputs:
                here |= leading.get(given, {})
        if here:
            leading.update((var, here) for var in node.outputs)
    for var, output in outputs:
        note(var, "output", output)
    for var, shared in updates:
        note(var, "update", shared)
    return found
