"""What steps a training rule can do with."""

from __future__ import annotations

from ..call.function import Function
from ..rules.gossip import Gossip
from ..rules.rule import Rule


def check_local(step: Function, rule: Rule) -> None:
    """Raise unless ranks can make a step by themselves."""
    if not step.is_local:
        raise ValueError(
            f"{step!r} is exact training, and {rule!r} is for steps that each rank"
            " makes by itself: make it with local=True, and gradients by pytensor.grad"
        )
    if step.reduces:
        raise ValueError(
            f"{step!r} reduces values of all ranks, which {rule!r} is in place of: take"
            " gradients by pytensor.grad and not by synk.grad, and no all_reduce"
        )


def check_of_nodes(step: Function, rule: Rule | None) -> None:
    """Raise unless the ranks of a machine can make a step together, by a rule."""
    if rule is None:
        raise ValueError("workers='nodes' is for a rule: exact training has no workers")
    if step.is_local:
        raise ValueError(
            f"{step!r} is made by each rank for itself, and with workers='nodes' all"
            " ranks of a machine make it together: make it without local=True, and"
            " gradients by pytensor.grad or synk.grad, as for exact training"
        )
    if rule.order == "free" or isinstance(rule, Gossip):
        raise ValueError(f"{rule!r} is for ranks of one machine, and not for nodes")
