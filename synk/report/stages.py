"""The stages of a function as `facts`: what each computes and reduces, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import DenseTensorType

from ..compiler.gathering import besides_shapes, repetition
from ..compiler.rules.base import name, op_name
from ..compiler.rules.randomness import is_by_place
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Stage, costs_nothing
from ..programs.programs import Programs
from ..user_frames import made_in
from . import facts

Shape = tuple[int, ...]

_NEAR = 50
"""The most variables that `_line_of` searches for a line."""


def stage_facts(spec: FunctionSpec, programs: Programs) -> list[facts.StageFacts]:
    """Return the facts of all stages of an ordinary call."""
    cut = programs.cut("step", tuple(range(len(spec.outputs))))
    repeated = set(repetition(spec).nodes) if spec.repeated else set()
    sizes = Sizes(spec, programs)
    return [_stage(stage, spec, sizes, repeated) for stage in cut.stages]


def _stage(
    stage: Stage, spec: FunctionSpec, sizes: Sizes, repeated: set[Apply]
) -> facts.StageFacts:
    reduces = []
    by_dtype: dict[str, list[int | None]] = {}
    for var in stage.reduced:
        found = _reduced(var, spec, sizes, is_read=var in stage.of_inputs)
        reduces.append(found)
        if var not in stage.of_inputs:
            by_dtype.setdefault(found.dtype, []).append(found.bytes)
    made = {*stage.merged.computes, *(new for _, new in stage.merged.updates)}
    nodes = _computed(stage.merged.receives, list(made))
    computes = "on every rank" if stage.common else "nothing"
    lines = [made_in(node.outputs[0]) for node in nodes]
    outputs = zip(spec.findings, spec.outputs, strict=True)
    return facts.StageFacts(
        "on rows" if stage.rows else computes,
        list(dict.fromkeys(line for line in lines if line is not None)),
        list(dict.fromkeys(_op(node) for node in nodes if node in repeated)),
        [finding.what for finding, var in outputs if var in made],
        [str(shared) for shared, new in spec.updates if new in made],
        reduces,
        {dtype: in_all(each) for dtype, each in by_dtype.items()},
    )


def in_all(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of sizes; None if one is None, as unknown."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _computed(receives: list[Variable], wants: list[Variable]) -> list[Apply]:
    """Return the nodes that compute `wants` from `receives`.

    Views, shapes, and values that follow from constants and shapes are left out.
    """
    nodes, shapes = besides_shapes(receives, wants)
    found, numbers = [], set(shapes)
    for node in nodes:
        if all(var in numbers or isinstance(var, Constant) for var in node.inputs):
            numbers.update(node.outputs)
        elif not costs_nothing(node):
            found.append(node)
    return found


def _op(node: Apply) -> str:
    """Return the name of a node's Op, without parameters, and of its first output."""
    (var, *_) = node.outputs
    return op_name(node.op).split("{")[0] + (f" ({var.name})" if var.name else "")


def _reduced(
    var: Variable, spec: FunctionSpec, sizes: Sizes, is_read: bool
) -> facts.Reduced:
    node = var.owner
    assert node is not None
    (given,) = node.inputs
    size, dtype = sizes.of(var), var.type.dtype
    what = f"gradient of {node.op.gradient}" if node.op.gradient else name(given)
    why, why_made = _why(var, spec)
    made = made_in(var) or made_in(given)
    op = "read" if is_read else node.op.op
    return facts.Reduced(what, op, dtype, size, made, why, why_made)


def _why(var: Variable, spec: FunctionSpec) -> tuple[str, str | None]:
    """Return why a value is reduced, and the user's line that needs it, or None."""
    need = spec.needs.get(var)
    if need is None:
        if var in spec.outputs and var not in spec.plain_outputs:
            return "along with the others", None
        assert var.owner is not None
        op = var.owner.op
        is_grads = op.gradient is not None and not op.of_gather
        return ("for synk.grad" if is_grads else "as written"), None
    needs = need.variable
    if need.taker == "update":
        needed_by = f"the new value of {needs}"
    elif need.taker == "output":
        needed_by = spec.findings[spec.plain_outputs.index(needs)].what
    else:
        needed_by = name(needs) if needs.owner is None else _op(needs.owner)
    if need.is_alike:
        needed_by += ", on ranks without rows"
    return f"for {needed_by}", _line_of(needs) if need.taker == "op" else None


def _line_of(var: Variable) -> str | None:
    """Return the user's line that made a variable, or the nearest one above it.

    PyTensor may not know the line of an Op of a gradient, but an input from the forward
    graph has a line.
    """
    todo, seen = [var], {var}
    for near in todo:  # `todo` grows in the loop
        if (made := made_in(near)) is not None or len(todo) > _NEAR:
            return made
        inputs = [] if near.owner is None else near.owner.inputs
        todo += [given for given in inputs if given.owner and given not in seen]
        seen.update(inputs)
    return None


def repeated_facts(
    spec: FunctionSpec,
    programs: Programs,
    stages: list[facts.StageFacts],
    calls: facts.Calls | None,
) -> facts.Repeated | None:
    """Return the facts about work that every rank repeats; None if there is none."""
    if not spec.repeated:
        return None
    found = repetition(spec)
    by = [facts.Origin(_op(node), made_in(node.outputs[0])) for node in spec.repeated]
    nbytes = in_all(map(Sizes(spec, programs).of, found.gathered))
    took = _time_alike(stages, calls)
    return facts.Repeated(by, len(found.nodes), found.of, nbytes, took)


def draw_facts(spec: FunctionSpec, programs: Programs) -> list[facts.DrawFacts]:
    """Return the facts of random numbers that are drawn for rows."""
    found = []
    for node, skips, _ in spec.row_draws:
        by_place = programs.engine.PER_SHAPE and is_by_place(node)
        of = "own rows" if skips or by_place else "all rows"
        found.append(facts.DrawFacts(node.op.name, made_in(node.outputs[1]), of))  # type: ignore[attr-defined]
    return list(dict.fromkeys(found))


def _time_alike(
    stages: list[facts.StageFacts], calls: facts.Calls | None
) -> float | None:
    """Return the milliseconds of computing alike on all ranks, if they measure gathers.

    None if times are unknown, or a stage after a gather computes on rows as well.
    """
    if calls is None or not calls.all_ranks_known or len(calls.ranks) < 2:
        return None
    is_after = False
    for stage in stages:
        if is_after and stage.computes == "on rows":
            return None
        is_after |= any(value.op in ("gather", "read") for value in stage.reduces)
    return max(row.common for row in calls.ranks)


def own_facts(spec: FunctionSpec) -> list[facts.Origin]:
    """Return the statistics that stay a rank's own, without broadcasts of them."""
    found: dict[Variable, None] = {}
    for var in spec.own_statistics:
        while var.owner is not None and isinstance(var.owner.op, DimShuffle):
            (var,) = var.owner.inputs
        found[var] = None
    return [facts.Origin(name(var), made_in(var)) for var in found]


# -- bytes of reduced values


class Sizes:
    """The bytes of a function's reduced values.

    `programs` of the master has the shapes of past calls. Before the first call, a
    shared variable's shape is that of its gradient, and of values in its update.
    """

    def __init__(self, spec: FunctionSpec, programs: Programs) -> None:
        self._spec, self._seen = spec, programs.shapes

    def of(self, var: Variable) -> int | None:
        """Return the bytes of a reduced value; None if unknown."""
        shape = self._shape(var)
        if shape is None:
            return None
        return var.type.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))

    def _shape(self, var: Variable) -> Shape | None:
        shape = self._seen.get(var, var.type.shape)
        if None not in shape:
            return shape
        assert var.owner is not None
        shared = self._by_name.get(var.owner.op.gradient)
        if shared is not None:
            return shared.get_value(borrow=True).shape
        return self._in_updates.get(var)

    @cached_property
    def _by_name(self) -> dict[str, SharedVariable]:
        """Shared variables by name, of names that are unique."""
        variables = self._spec.shared_variables()
        count = Counter(map(str, variables))
        return {str(var): var for var in variables if count[str(var)] == 1}

    @cached_property
    def _in_updates(self) -> dict[Variable, Shape]:
        shapes = [_shapes(*update) for update in self._spec.updates]
        return {var: shape for found in shapes for var, shape in found.items()}


def _shapes(shared: SharedVariable, new: Variable) -> dict[Variable, Shape]:
    """Return the shapes of values in a shared variable's update, from its own shape.

    An input of an elementwise Op that is not broadcast has the shape of the output.
    """
    if not isinstance(shared.type, DenseTensorType):
        return {}
    found = {new: shared.get_value(borrow=True).shape}
    todo = [new]
    while todo:
        made = todo.pop()
        node = made.owner
        if node is None or not isinstance(node.op, (Elemwise, DimShuffle)):
            continue
        given, shape = list(node.inputs), found[made]
        if isinstance(node.op, DimShuffle):  # axes that it drops are of length 1
            lengths = dict(zip(node.op.new_order, shape, strict=True))
            shape = tuple(lengths.get(axis, 1) for axis in range(node.op.input_ndim))
        else:
            kind = made.type.broadcastable
            given = [var for var in given if var.type.broadcastable == kind]
        new_ones = [var for var in given if var not in found]
        found |= dict.fromkeys(new_ones, shape)
        todo += new_ones
    return found if found.get(shared) == found[new] else {}
