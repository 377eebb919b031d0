"""Loops along another axis than the rows': what each step does with copies of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan

from ..domain import Refused
from .walk import Padded, Padder, aligned, rule


@dataclass
class _State:
    """A value that is carried from step to step, and how it is padded within one."""

    taps: list[Variable]
    news: list[Variable]
    padded: Padded | None


@rule(Scan)
def scan(padder: Padder, node: Apply) -> None:
    """A loop over another axis than the rows'."""
    op = node.op
    padder.check_no_sizes(node.inputs)
    if op.info.as_while:
        raise Refused("stops by a condition")
    inner, outputs = _graph(node)
    known: dict[Variable, Padded | None] = {}
    for var, outer in zip(
        op.inner_seqs(inner), op.outer_seqs(node.inputs), strict=True
    ):
        known[var] = _inside(padder.state(outer))
    for var, outer in zip(
        op.inner_non_seqs(inner), op.outer_non_seqs(node.inputs), strict=True
    ):
        known[var] = padder.state(outer)
    states = _states(padder, node, inner, outputs)
    step, stand_ins = _fixpoint(inner, outputs, known, states)
    results = [step.new[var] for var in outputs]
    made = _rebuilt(padder, node, [*stand_ins, step.real], results)
    stacked = [_outside(step.found.get(var)) for var in op.inner_nitsot_outs(outputs)]
    n = op.info.n_untraced_sit_sot
    traced, untraced = states[: len(states) - n], states[len(states) - n :]
    padded = [
        *(_outside(state.padded) for state in traced),
        *stacked,
        *(state.padded for state in untraced),
    ]
    for var, new, state in zip(node.outputs, made, padded, strict=True):
        padder.become([var], [new], state)


def _inside(state: Padded | None) -> Padded | None:
    if state is None:
        return None
    if state.axis == 0:
        raise Refused("goes along the rows")
    return replace(state, axis=state.axis - 1, numbers=False)


def _outside(state: Padded | None) -> Padded | None:
    return None if state is None else replace(state, axis=state.axis + 1)


def _graph(node: Apply) -> tuple[list[Variable], list[Variable]]:
    """Return the inputs and outputs of a step; a copy, where PyTensor has it frozen."""
    graph = node.op.fgraph
    if hasattr(graph, "unfreeze"):  # since PyTensor 3.3
        graph = graph.unfreeze()
    return list(graph.inputs), list(graph.outputs)


def _states(
    padder: Padder, node: Apply, inner: list[Variable], outputs: list[Variable]
) -> list[_State]:
    op, info = node.op, node.op.info
    states: list[_State] = []

    def add(initials, taps, news, n_taps, n_news, is_traced=True) -> None:
        taps, news = iter(taps), iter(news)
        for outer, many, made in zip(initials, n_taps, n_news, strict=True):
            state = padder.state(outer)
            states.append(
                _State(
                    [next(taps) for _ in range(many)],
                    [next(news) for _ in range(made)],
                    _inside(state) if is_traced else state,
                )
            )

    add(
        op.outer_mitmot(node.inputs),
        op.inner_mitmot(inner),
        op.inner_mitmot_outs(outputs),
        map(len, info.mit_mot_in_slices),
        map(len, info.mit_mot_out_slices),
    )
    add(
        op.outer_mitsot(node.inputs),
        op.inner_mitsot(inner),
        op.inner_mitsot_outs(outputs),
        map(len, info.mit_sot_in_slices),
        [1] * info.n_mit_sot,
    )
    ones = [1] * info.n_sit_sot
    taps, news = op.inner_sitsot(inner), op.inner_sitsot_outs(outputs)
    add(op.outer_sitsot(node.inputs), taps, news, ones, ones)
    ones = [1] * info.n_untraced_sit_sot
    taps = op.inner_untraced_sit_sot(inner)
    news = op.inner_untraced_sit_sot_outs(outputs)
    initials = op.outer_untraced_sit_sot(node.inputs)
    add(initials, taps, news, ones, ones, is_traced=False)
    return states


def _fixpoint(
    inner: list[Variable],
    outputs: list[Variable],
    known: dict[Variable, Padded | None],
    states: list[_State],
) -> tuple[Padder, list[Variable]]:
    """Rewrite a step, once what is carried is padded as it was."""
    for _ in range(2 + len(states)):
        for state in states:
            known.update(dict.fromkeys(state.taps, state.padded))
        stand_ins = {var: var.type(name=var.name) for var in inner}
        step = Padder([], pt.lscalar("real_rows"))
        step.new.update(stand_ins)
        step.found.update((var, s) for var, s in known.items() if s is not None)
        step.walk(outputs)
        stays = True
        for state in states:
            found = [step.found.get(var) for var in state.news]
            if any((padded is None) is not (state.padded is None) for padded in found):
                raise Refused("carries rows, and starts with something of fixed length")
            common_power = aligned([state.padded, *found])
            stays = stays and common_power == state.padded
            state.padded = common_power
        if stays:
            return step, list(stand_ins.values())
    raise Refused("carries rows in another order at every step")


def _rebuilt(
    padder: Padder, node: Apply, inputs: list[Variable], outputs: list[Variable]
) -> list[Variable]:
    """Return the outputs of a scan whose steps are told how many rows are real."""
    op = node.op
    made = Scan(
        inputs,
        outputs,
        replace(op.info, n_non_seqs=op.info.n_non_seqs + 1),
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        profile=op.profile,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )
    return made.make_node(*padder.given(node), padder.real).outputs
