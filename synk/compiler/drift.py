"""Updates that make a variable different on each rank, where it is taken for equal.

The proof takes shared variables for equal on all ranks. A function whose outputs read a
variable that it updates by what a rank's own rows or random streams give breaks that
with its first call: gradients that nothing reduces, most often.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType

from ..user_frames import made_in
from .domain import OwnStream, Replicated, Value


def drifting(
    outputs: Iterable[Variable],
    updates: Iterable[tuple[SharedVariable, Variable]],
    of_rows: Container[Variable],
    values: Mapping[Variable, Value],
) -> list[SharedVariable]:
    """Return the variables that outputs of the rows read, and that will differ.

    Parameters
    ----------
    outputs : iterable of Variable
        Those whose op was not named.
    updates : iterable of (SharedVariable, Variable)
    of_rows : container of Variable
        What is a function of a rank's own rows, and not reduced.
    values : mapping of Variable to Value
        What is known of the graph.
    """
    read = set(ancestors([var for var in outputs if var in of_rows]))
    return [
        var
        for var, new in updates
        if var in read
        and isinstance(var.type, DenseTensorType)
        and (new in of_rows or _is_drawn(new, values))
    ]


def _is_drawn(new: Variable, values: Mapping[Variable, Value]) -> bool:
    """Tell whether a value follows from draws that each rank makes for itself."""
    return not isinstance(values[new], Replicated) and any(
        isinstance(values.get(var), OwnStream) for var in ancestors([new])
    )


def complaint(var: SharedVariable, new: Variable) -> str:
    """Say of a variable, and its new value, that it will differ, and what to do."""
    made = made_in(new)
    where = "" if made is None else f" ({made})"
    return (
        f"the ranks' values of {var} will differ: each rank updates it{where} by what"
        " its own rows or random streams give, and the outputs are computed from it as"
        " if it were equal on all ranks. Without local=True they are reduced where they"
        " have to be; in a local function use synk.grad for gradients,"
        " synk.ops.all_reduce for other values. If it is meant, name the ops of the"
        " outputs: (variable, op)."
    )
