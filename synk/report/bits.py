"""Whether the bits of outputs and updates depend on the number of ranks.

Values that are combined in a tree over blocks of rows have the same bits on any number
of ranks (`reduce_tree`), and so have values that do not depend on rows.
"""

from __future__ import annotations

from pytensor.graph.traversal import io_toposort

from ..choice.engine import draws_among_rows
from ..choice.plan import Plan
from ..compiler.spec import FunctionSpec
from ..errors import SplitError
from .facts import Bits

ANY = Bits("any ranks", None)


def bits_of(
    spec: FunctionSpec, plan: Plan
) -> tuple[list[Bits | None], list[Bits | None]]:
    """Return what the bits of outputs, and those of updates, depend on.

    `plan` is that of the last call; before the first call, all are None.
    """
    every = [*spec.outputs, *[new for _, new in spec.updates]]
    found: list[Bits | None] = [None] * len(every)
    if str(plan):
        why = _why_these(spec, plan)
        found = [ANY] * len(every)
        if why is not None:
            # Values computed from rows: each rank computes all of its rows in one go.
            cut = set(spec.row_inputs)
            for node in io_toposort([], every):
                if not cut.isdisjoint(node.inputs):
                    cut.update(node.outputs)
            found = [Bits("these ranks", why) if var in cut else ANY for var in every]
    return found[: len(spec.outputs)], found[len(spec.outputs) :]


def check_bits(spec: FunctionSpec, plan: Plan) -> None:
    """Raise SplitError if the bits of an output or update depend on the ranks.

    Before the first call nothing is known, and nothing raised.
    """
    outputs, updates = bits_of(spec, plan)
    named = [finding.label for finding in spec.findings]
    named += [f"the new value of {shared}" for shared, _ in spec.updates]
    for name, bits in zip(named, [*outputs, *updates], strict=True):
        if bits is not None and bits.why is not None:
            raise SplitError(
                f"bits='any' was asked for, and those of {name} depend on the number of"
                f" ranks, as {bits.why}"
            )


def _why_these(spec: FunctionSpec, plan: Plan) -> str | None:
    """Return why values are not combined by blocks of rows; None if they are."""
    if spec.is_local:
        return "each rank computes on rows of its own"
    if spec.sliceable:
        return "the rows of a shared variable are where they were scattered"
    if spec.own_statistics:
        return "statistics are those of each rank"
    if draws_among_rows(spec):
        if spec.has_own_streams:
            return "each rank draws for its rows from a stream of its own"
        return "random numbers are drawn by what is computed of rows"
    if plan.in_one_go:
        return plan.in_one_go
    return None if plan.block else "rows are gone through in one go"
