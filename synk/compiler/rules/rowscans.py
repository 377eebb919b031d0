"""Scans whose steps are the rows: a value for each, and what is summed up on the way.

A step sees one row. For a given row, what it computes from that row and from what is
the same on every rank does not depend on how rows are split: inside of the step, the
row is replicated, and a result that is replicated too is a value for each row. A state
to which every step adds such a value ends with a sum over the rows; likewise for
maxima, minima and products. A state that a step leaves as it is, as the gradient of
such a sum does, is what it was at first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import Elemwise

from ...reduce_ops import ReduceOp
from ..domain import (
    Layout,
    Refused,
    Replicated,
    Sharded,
    Trail,
    Unknown,
    Value,
    align,
    describe,
    is_replicated,
    negated,
    product,
    total,
    unlisted,
)
from ..lengths import ONE, value_of
from ..walk import infer
from .base import is_short, takes_streams
from .index import Bounds
from .reductions import fold

_OPS: dict[type, ReduceOp] = {
    ps.Add: "sum",
    ps.Sub: "sum",
    ps.Mul: "prod",
    ps.ScalarMaximum: "max",
    ps.ScalarMinimum: "min",
}


@dataclass
class _State:
    """What a scan carries from row to row, and what a step makes of it."""

    tap: Variable
    new: Variable
    first: Value
    given: tuple[Variable, Value] | None
    """Of a gradient: what the step adds from outside, and what that is."""


def over_rows(node: Apply, values: list[Value]) -> list[Value]:
    """Return what a scan with a step for each row gives."""
    op, steps = node.op, values[0]
    if not isinstance(steps, Replicated) or not steps.exact:
        raise Refused("takes a number of steps that depends on the rows")
    draws = takes_streams(node)
    if draws or op.info.as_while or op.info.n_mit_sot or op.info.n_untraced_sit_sot:
        raise Refused("goes along the rows, from one to the next")
    check_stacked(node, values)
    inner = op.inner_inputs
    known: dict[Variable, Value] = {}
    layout = _sequences(op, values, known)
    others = zip(op.inner_non_seqs(inner), op.outer_non_seqs(values), strict=True)
    for var, value in others:
        is_alike = isinstance(value, Replicated)
        known[var] = Replicated(value.power) if is_alike else value
    states = _states(op, values)
    for state in states:
        # Until it is shown to stay as it is.
        why = "is carried along the rows, from one to the next"
        known[state.tap] = Unknown("Scan", "a state", why)
        if state.given is not None:
            known[state.given[0]] = state.given[1]
    lasts = _lasts(states, known)
    stacked = op.inner_nitsot_outs(op.inner_outputs)
    found = infer(stacked, known)
    return [*lasts, *(_for_each(found[var], layout) for var in stacked)]


def check_stacked(node: Apply, values: list[Value]) -> None:
    """Raise unless results are stacked for as many rows as there are steps.

    A scan is given both numbers. The gradient's takes that of its results from the
    length of a value that comes in from below. Beside steps for all rows, a rank's own
    number would make buffers too short, and compiled code writes past their end.
    """
    steps, op = values[0], node.op
    for var, value in zip(
        op.outer_nitsot(node.inputs), op.outer_nitsot(values), strict=True
    ):
        if is_replicated(value) and is_replicated(steps):
            continue
        of_rows = [isinstance(v, Replicated) and v.exact for v in (value, steps)]
        if not all(of_rows) and value_of(var) != value_of(node.inputs[0]):
            raise Refused("makes more or fewer steps than it stacks results of")


def _sequences(
    op: Scan, values: list[Value], known: dict[Variable, Value]
) -> Layout | None:
    """Note what a step sees of the sequences; return the rows' layout."""
    rows: list[Value] = []
    for var, value in zip(
        op.inner_seqs(op.inner_inputs), op.outer_seqs(values), strict=True
    ):
        if isinstance(value, Unknown):
            known[var] = value
            continue
        if not isinstance(value, Sharded) or value.axis or value.length != "n":
            raise Refused("takes more along the rows than one row for each step")
        rows.append(value)
        known[var] = Replicated(value.power)
    aligned = align(rows)
    layout = None if aligned is None else aligned.layout
    if layout is not None and layout.blocks != ONE:
        raise Refused("takes more along the rows than one row for each step")
    return layout


class Carried(NamedTuple):
    """What a scan carries from step to step: a buffer, what a step reads and makes."""

    value: Value
    taps: list[Variable]
    news: list[Variable]


def carried(
    op: Scan, inner: list[Variable], outputs: list[Variable], values: list[Value]
) -> list[Carried]:
    """Return what a scan carries, by its step and what its inputs are.

    As PyTensor has them, mit-mot states come first, and those without a trace last.
    """
    maps = op.get_oinp_iinp_iout_oout_mappings()
    found = []
    for out, taken in sorted(maps["inner_inp_from_outer_out"].items()):
        if taken:
            value = values[maps["outer_inp_from_outer_out"][out]]
            news = [outputs[i] for i in maps["inner_out_from_outer_out"][out]]
            found.append(Carried(value, [inner[i] for i in taken], news))
    return found


def _states(op: Scan, values: list[Value]) -> list[_State]:
    info, states = op.info, []
    slices = list(zip(info.mit_mot_in_slices, info.mit_mot_out_slices, strict=True))
    if any(tuple(read) != (0, 1) or tuple(made) != (1,) for read, made in slices):
        raise Refused("goes along the rows, from one to the next")
    for value, taps, news in carried(op, op.inner_inputs, op.inner_outputs, values):
        tap, *others = taps
        given = (others[0], others_of(value)) if others else None
        states.append(_State(tap, news[0], first_of(value), given))
    return states


def _lasts(states: list[_State], known: dict[Variable, Value]) -> list[Value]:
    """Return the states' buffers at the end; note in `known` which never change."""
    kept: dict[Variable, Value] = {}
    while True:
        news = {}
        for state in states:
            if state.tap not in kept and _stays(state, known):
                first = state.first
                news[state.tap] = (
                    Replicated(first.power) if isinstance(first, Replicated) else first
                )
        if not news:
            break
        kept |= news
        known |= news
    lasts: list[Value] = []
    for state in states:
        if state.tap in kept:
            lasts.append(Trail(state.first, state.first, 1, "all"))
            continue
        try:
            last = _summed(state, known)
        except Refused as refused:
            lasts.append(Unknown("Scan", "a state", str(refused)))
        else:
            known_last = not isinstance(last, Unknown)
            lasts.append(Trail(last, None, 1, "last") if known_last else last)
    return lasts


def _stays(state: _State, known: dict[Variable, Value]) -> bool:
    """Tell whether a step adds nothing but zeros to a state."""
    terms = _terms(state.new, state.tap, (ps.Add, ps.Sub))
    if terms is None:
        return False
    found = infer([var for var, _ in terms], known)
    return all(
        isinstance(value, Replicated) and value.power is None
        for value in (found[var] for var, _ in terms)
    )


def _summed(state: _State, known: dict[Variable, Value]) -> Value:
    """Return what a state is in the end to which each step adds something."""
    var = state.new
    kind = type(var.owner.op.scalar_op) if _is_elemwise(var) else None
    op = _OPS.get(kind) if kind else None  # type: ignore[arg-type]
    kinds = [ps.Add, ps.Sub] if op == "sum" else [kind for kind in [kind] if kind]
    terms = _terms(var, state.tap, kinds) if op else None
    # Not bools, nor what wraps around below zero, or in ordinary use.
    adds = var.type.numpy_dtype.kind in "if" and not is_short(var)
    if op is None or terms is None or not adds:
        raise Refused("goes along the rows, from one to the next")
    found = infer([term for term, _ in terms], known)
    values = []
    for term, sign in terms:
        value = found[term]
        if isinstance(value, Unknown):
            return value
        value = unlisted(value)
        if not isinstance(value, Replicated):
            raise Refused(f"adds for each row {describe(value)}")
        values.append(value if sign > 0 else negated(value))
    made = total(values) if op == "sum" else product(values)
    assert isinstance(made, Replicated)
    if op != "sum" and not all(map(is_replicated, values)):
        raise Refused(f"combines {describe(made)} along the rows")
    rows = fold(op, Sharded(0, made.power))
    first = unlisted(state.first)
    if op == "sum":
        return total([first, rows])
    if op == "prod":
        is_one = isinstance(first, Replicated) and first.number == 1
        return rows if is_one else product([first, rows])
    if not is_replicated(first) and first != rows:
        raise Refused(f"combines {describe(first)} with {describe(rows)}")
    return rows


def _terms(
    new: Variable, tap: Variable, kinds: Sequence[type]
) -> list[tuple[Variable, int]] | None:
    """Return what is combined with `tap` to give `new`, with signs.

    None if `tap` does not come into it once, and with a plus.
    """
    if new is tap:
        return []
    if not _is_elemwise(new) or type(new.owner.op.scalar_op) not in kinds:
        return None
    if new.type.dtype != tap.type.dtype:
        return None
    is_sub = isinstance(new.owner.op.scalar_op, ps.Sub)
    found: list[tuple[Variable, int]] = []
    ways = 0
    for i, var in enumerate(new.owner.inputs):
        inner = None if is_sub and i else _terms(var, tap, kinds)
        if inner is None:
            found.append((var, -1 if is_sub and i else 1))
        else:
            found.extend(inner)
            ways += 1
    return found if ways == 1 else None


def _is_elemwise(var: Variable) -> bool:
    return var.owner is not None and isinstance(var.owner.op, Elemwise)


def _for_each(value: Value, layout: Layout | None) -> Value:
    """Return the results of all steps, stacked."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if not isinstance(value, Replicated):
        return Unknown("Scan", "a step", f"gives {describe(value)}")
    return Sharded(0, value.power, "n", layout)


# -- the states of such a scan: which entries of them are known

_TURNED = {"first": "last", "last": "first", "all": "all"}


def taken_of_trail(trail: Trail, bounds: Bounds) -> Value:
    """Return what comes of indexing the steps."""
    if isinstance(bounds, int):
        found = {0: _entry(trail, "first"), -1: _entry(trail, "last")}.get(bounds)
        if found is not None:
            return found
    elif _is_whole(bounds):
        return trail
    elif bounds == (None, None, -1):
        return replace(trail, place=_TURNED[trail.place])
    elif _skips_first(bounds) and trail.offset > 0 and trail.place != "first":
        # What is left has an entry for each row, so the last one is among it.
        return replace(trail, offset=trail.offset - 1)
    raise Refused(f"takes some of {describe(trail)}")


def changed_trail(
    trail: Trail,
    bounds: Bounds,
    other: Value,
    put: Callable[[Sequence[Value]], Value],
) -> Value:
    """Return what comes of setting or increasing entries, where all were alike."""
    is_first = bounds in (0, (None, 1, None), (0, 1, None))
    if trail.place == "all" and (is_first or bounds == -1):
        other = unlisted(other)
        if isinstance(other, Sharded):
            raise Refused(f"puts rows into {describe(trail)}")
        # Where anything may be, it is not added to.
        one = other if trail.one is None else put([trail.one, other])
        return replace(trail, one=one, place="first" if is_first else "last")
    if (
        isinstance(bounds, tuple)
        and _skips_first(bounds)
        and isinstance(other, Trail)
        and 0 < trail.offset == other.offset + 1
        and trail.place == "all"
        and other.place != "first"
        and other.one is not None
        and _are_zeros(trail.rest)
        and _are_zeros(other.rest)
    ):
        assert trail.rest is not None
        return replace(trail, one=put([trail.rest, other.one]), place="last")
    raise Refused(f"changes some of {describe(trail)}")


def _entry(trail: Trail, place: str) -> Value | None:
    return trail.one if trail.place in (place, "all") else None


def _are_zeros(value: Value | None) -> bool:
    return isinstance(value, Replicated) and value.power is None


def _is_whole(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start in (None, 0) and stop is None and step in (None, 1)


def _skips_first(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start == 1 and stop is None and step in (None, 1)


def first_of(value: Value) -> Value:
    """Return what a scan along the rows starts with."""
    if isinstance(value, Trail) and value.offset == 1:
        found = _entry(value, "first")
        if found is not None:
            return found
    raise Refused("starts along the rows with what is not understood")


def others_of(value: Value) -> Replicated:
    """Return what is in the entries after the first."""
    if (
        isinstance(value, Trail)
        and value.place != "last"
        and isinstance(value.rest, Replicated)
    ):
        return value.rest
    raise Refused("takes along the rows what is not understood")
