"""What lengths follow from that no product of symbols tells, as those of convolutions.

Of such a length it is enough, often, that it has nothing to do with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytensor.graph.basic import Apply, Variable

from .by_class import entry_for
from .lengths import Length, Symbol

OriginRule = Callable[[Apply, Variable, int], "Sequence[Length] | None"]

_rules: dict[type, OriginRule] = {}


def origin_rule(*ops: type) -> Callable[[OriginRule], OriginRule]:
    """Make a function the rule for what lengths of some Ops' outputs follow from.

    It takes a node, an output and an axis, and returns the lengths that its length is a
    function of, or None if there may be others.
    """

    def register(function: OriginRule) -> OriginRule:
        _rules.update(dict.fromkeys(ops, function))
        return function

    return register


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
        rule = entry_for(var.owner.op, _rules)
        sources = None if rule is None else rule(var.owner, var, which)
        if sources is None:
            return None
        new = {other for length in sources for other, _ in length.symbols} - seen
        seen |= new
        todo += new
    return found
