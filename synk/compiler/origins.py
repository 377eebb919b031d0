"""What lengths follow from that no product of symbols tells, as those of convolutions.

Of such a length it is enough, often, that it has nothing to do with the rows.
"""

from __future__ import annotations

from .lengths import Symbol
from .table import entry_of, told


def origins(symbol: Symbol) -> set[Symbol] | None:
    """Return the lengths of inputs that one follows from, if they are all known."""
    found: set[Symbol] = set()
    seen, todo = {symbol}, [symbol]
    while todo:
        var, which = todo.pop()
        if not isinstance(which, int):
            return None
        if var.owner is None:
            found.add((var, which))
            continue
        sources = told(entry_of(var.owner.op).origins, var.owner, var, which)
        if sources is None:
            return None
        new = {other for length in sources for other, _ in length.symbols} - seen
        seen |= new
        todo += new
    return found
