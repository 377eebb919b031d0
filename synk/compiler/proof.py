"""The ends of the splitting proof: the values of inputs, and the ops of outputs.

`domain` has the equations, `rules` how each Op preserves them, and `walk` goes through
the graph. Here are the values that a function's inputs begin with, and what follows:
ops for outputs and updates that the user has not named, and messages for those that
several ranks cannot compute.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from ..errors import SplitError, SplitWarning
from ..reduce_ops import OutputOp, check_dtype
from ..user_frames import callers_level, made_in
from .domain import (
    Partial,
    Power,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    describe,
    unlisted,
)
from .rules import (  # noqa: F401  to register their rules in the table
    elementwise,
    index,
    inner,
    randomness,
    shapes,
)
from .rules.base import name, op_name


@dataclass(frozen=True)
class Finding:
    """What the proof shows of one value that the ranks combine."""

    what: str  # which value, as in "output 0 (loss)"
    op: OutputOp  # the op that combines the ranks' values
    named: bool  # whether the user has named the op
    kind: str  # as in "a mean over the rows"; "unknown" if nothing could be shown
    reason: str | None  # why nothing was shown, or why no op gives the serial result
    agrees: bool  # whether the op was shown to give the serial result
    made: str | None = None  # the user's line that made the value
    reason_made: str | None = None  # the user's line that made the cause in `reason`

    @property
    def label(self) -> str:
        """`what`, with the line that made the value."""
        if self.made is None:
            return self.what
        if self.what.startswith("output"):
            return f"{self.what[:-1]}, made in {self.made})"
        return f"{self.what} (made in {self.made})"


def rows_of(
    inputs: Sequence[Variable], stand_ins: Sequence[Variable]
) -> dict[Variable, Value]:
    """Return the values of the scattered inputs and the stand-ins.

    n is the number of rows of the inputs; without inputs, that of the first stand-in
    for a sliceable variable. Other stand-ins have the length "?".
    """
    return {
        var: Sharded(0, 0, "n" if i < len(inputs) or i == 0 else "?")
        for i, var in enumerate((*inputs, *stand_ins))
    }


def are_rows(value: Value) -> bool:
    """Return whether a value has entries of the rows along axis 0, in their order."""
    if not isinstance(value, Sharded) or value.power or value.axis:
        return False
    return value.in_order


def ops_of(value: Value) -> Sequence[OutputOp]:
    """Return the ops that give the serial result, the most natural first."""
    if isinstance(value, Sharded) and are_rows(value):
        return ["gather"] if value.is_counted else []
    if isinstance(value, Partial):
        if value.op != "sum":
            return [value.op]
        sums: dict[Power, Sequence] = {None: ["avg", "sum"], 0: ["sum"], -1: ["avg"]}
        return sums.get(value.power, [])
    if isinstance(value, Replicated):
        if value.power is None:
            return [None, "avg", "sum", "min", "max", "prod"]
        if value.power == 0:
            return [None, "avg", "min", "max"]
        return ["sum"] if value.power == 1 else []
    return []


def prove(
    what: str,
    var: Variable,
    value: Value,
    op: OutputOp,
    named: bool,
    made: str | None = None,
) -> Finding:
    """Return the `Finding` on one value: its op, and whether that is the serial result.

    `op` is kept if the user `named` it or if no op is right; else it is replaced by the
    first one that is. `made` is the line that made the value, by default that of `var`.
    """
    with contextlib.suppress(Refused):
        value = unlisted(value)
    ops = [found for found in ops_of(value) if _suits(found, var)]
    if not named and ops:
        op = ops[0]
    kind, made = describe(value), made or made_in(var)
    reason, of_reason = None, made
    if isinstance(value, Unknown):
        reason, of_reason = str(value), value.made
    elif not ops:
        computed = op_name(var.owner.op) if var.owner else "an input"
        reason = f"{computed} ({name(var)}) gives {kind}, which no op combines"
    return Finding(what, op, named, kind, reason, op in ops, made, of_reason)


def _suits(op: OutputOp, var: Variable) -> bool:
    """Return whether an op can combine values of a variable's type and keep it."""
    if op is None or not isinstance(var.type, DenseTensorType):
        return op is None
    dtype = var.type.numpy_dtype
    try:
        check_dtype(op, dtype, "")
    except TypeError:
        return False
    return not (op == "avg" and dtype.kind in "iu")


def warn_or_raise(findings: Iterable[Finding], strict: bool, advice: str) -> None:
    """Warn of each finding that its value may differ; with `strict`, raise instead."""
    for finding in findings:
        text = (
            f"{finding.label} is combined by {finding.op!r}, and may differ from the"
            f" serial result: {_why(finding)}. {advice}"
        )
        warn_user(text, strict)


def warn_user(text: str, strict: bool) -> None:
    """Warn with `SplitWarning` at the script's line, or with `strict` raise."""
    if strict:
        raise SplitError(text)
    warnings.warn(text, SplitWarning, stacklevel=callers_level())


def refusal(finding: Finding) -> str:
    """Return the message that several ranks cannot compute an output, with advice."""
    return f"{finding.label} {_IS_NOT} {_why(finding)}. {_NAME_IT}"


_IS_NOT = "is not what the serial run computes on more than one rank:"
_NAME_IT = "If that is meant, name the op: (variable, op)."


def why_refused(text: str) -> str:
    """Return the reason in a message of `refusal`, without output and advice."""
    why = text.partition(f" {_IS_NOT} ")[2] or text
    return why.replace(f". {_NAME_IT}", "")


def why_not(finding: Finding) -> str:
    """Return the message that an update does not follow from those of slices."""
    return f"{finding.label} does not follow from those of slices: {_why(finding)}"


def _why(finding: Finding) -> str:
    why = finding.reason or f"it is {finding.kind}"
    if finding.reason_made not in (None, finding.made):
        why += f" ({finding.reason_made})"
    return why
