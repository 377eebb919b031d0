"""The arguments of `synk.function`, checked and brought into the form of `Asked`."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor import config
from pytensor.compile import SharedVariable, UnusedInputError
from pytensor.compile.io import In, Out
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.graph.utils import MissingInputError
from pytensor.link.basic import JITLinker
from pytensor.tensor.type import DenseTensorType

from ..errors import SplitError
from ..reduce_ops import OPS, REDUCE_OPS, OutputOp, check_dtype, check_op
from ..user_frames import callers_level
from .cut_rows import cut_rows
from .settling import check_tensor, settle
from .sizes import filled_sizes
from .spec import UNNAMED, Asked, FunctionSpec

_CHOICES = {
    "statistics": ("exact", "local"),
    "bits": (None, "any"),
    "streams": ("serial", "own"),
}


@dataclass(frozen=True, kw_only=True)
class FunctionArguments:
    """The arguments of `synk.function`, as the script has given them; see there."""

    inputs: Sequence[Variable]
    outputs: Any = None
    bcast_inputs: Sequence[Variable] | None = None
    updates: Any = None
    givens: Any = None
    sliceable_shareds: Sequence[SharedVariable] | None = None
    mode: Any = None
    name: str | None = None
    strict: bool = False
    precision: str | None = None
    pad: bool = False
    local: bool = False
    statistics: str = "exact"
    bits: str | None = None
    streams: str = "serial"
    made: str = ""  # the script's line of the call, see `user_frames.callers_place`
    options: dict[str, Any] = field(default_factory=dict)


def as_now(given: Any) -> Any:
    """Return a copy of a list or dict, which the script may change later."""
    return copy.copy(given) if isinstance(given, (list, dict)) else given


def pairs_now(given: Any) -> Any:
    """Return a copy of updates or givens, which may be iterators, too."""
    return list(given) if isinstance(given, Iterator) else as_now(given)


def make_spec(
    given: FunctionArguments,
    parts: Sequence[SharedVariable] = (),
    careful: bool = False,
    may_cut: bool = True,
) -> FunctionSpec:
    """Check the arguments of `synk.function`, and return the settled function.

    `parts` are shared variables that are scattered: each rank computes with its own
    rows of them, as many as of the inputs. `careful` is for calls whose rows do not
    fill the groups of a reshape: see `sizes`. With `may_cut`, slices of data that
    arguments choose may become scattered inputs: see `cut_rows`.
    """
    options = given.options
    unknown = options.keys() - inspect.signature(pytensor.function).parameters.keys()
    if unknown:
        raise TypeError(f"synk.function has no argument {', '.join(sorted(unknown))!r}")
    get_mode(given.mode)  # raises if PyTensor does not know the mode
    if not isinstance(given.pad, bool):
        raise TypeError(f"pad must be True or False, got {given.pad!r}")
    for name, allowed in _CHOICES.items():
        value = getattr(given, name)
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    asked = asked_of(given, parts)
    if may_cut and (cut := _cut(asked)):
        # Only if no rank needs all rows then; else nothing is gained.
        with contextlib.suppress(SplitError):
            spec = _settled(replace(cut, is_strict=True), careful)
            return replace(spec, is_strict=given.strict)
    return _settled(asked, careful)


def _settled(asked: Asked, careful: bool) -> FunctionSpec:
    with filled_sizes(asked.all_inputs, careful) as filled:
        spec = settle(asked)
    return spec if asked.is_local else replace(spec, filled=filled)


def chooses_rows(asked: Asked) -> bool:
    """Return whether arguments choose slices of data that could be scattered."""
    return _cut(replace(asked, bcast_inputs=asked.all_inputs, inputs=[])) is not None


def _cut(asked: Asked) -> Asked | None:
    """Return a function with slices of data as scattered inputs.

    None if it has no such slices, or has other rows.
    """
    if asked.is_local or asked.stand_ins:
        return None
    if any(var.type.numpy_dtype.kind not in "iu" for var in asked.inputs):  # type: ignore[attr-defined]
        return None
    found = cut_rows(asked.plain_outputs, asked.plain_updates, asked.arguments)
    if found is None or not {*asked.inputs} <= {*found.choosing}:
        return None
    whole = [var for var in asked.bcast_inputs if var not in found.choosing]
    return replace(
        asked,
        inputs=found.rows,
        bcast_inputs=[*whole, *found.shapes],
        cut=found,
        plain_outputs=found.outputs,
        plain_updates=found.updates,
    )


def asked_of(given: FunctionArguments, parts: Sequence[SharedVariable] = ()) -> Asked:
    """Return a function with checked arguments and substituted givens."""
    options = given.options
    inputs = _check_inputs(given.inputs, "inputs")
    bcast_inputs: list[Variable] = []
    if given.bcast_inputs is not None:
        bcast_inputs = _check_inputs(given.bcast_inputs, "bcast_inputs")
    sliceable = [*parts, *_check_sliceable(given.sliceable_shareds or [])]
    arguments = [*inputs, *bcast_inputs]
    _check_distinct(arguments)
    # Inputs without axes have no rows: every rank gets them.
    inputs = [var for var in arguments if var in inputs and var.type.ndim]
    bcast_inputs = [var for var in arguments if var not in inputs]
    for var in inputs:
        _check_rows(var, "input")
    outputs, output_ops, returns = _split_outputs(given.outputs)
    updates, update_ops = _split_updates(given.updates)
    # Inputs may be computed from other variables. As in PyTensor, a new root takes the
    # place of each, and the graph above it is cut off.
    computed: dict[Variable, Variable] = {
        var: var.type(name=var.name) for var in arguments if var.owner is not None
    }
    fitting = {old: _fit(old, new) for old, new in dict(given.givens or {}).items()}
    # Givens are not substituted in one another's replacements.
    news = clone_replace(list(fitting.values()), computed)
    givens = dict(zip(fitting, news, strict=True)) | computed
    kept = options.get("no_default_updates")
    outputs, updates = _complete(outputs, updates, givens, kept)
    update_ops += [UNNAMED] * (len(updates) - len(update_ops))
    stand_ins = [var.type(name=var.name) for var in sliceable]
    replaced = dict[Variable, Variable](zip(sliceable, stand_ins, strict=True))
    outputs, updates = _substitute(outputs, updates, replaced)
    ours = ("no_default_updates", "on_unused_input")
    asked = Asked(
        arguments=[computed.get(var, var) for var in arguments],
        cut=None,
        inputs=[computed.get(var, var) for var in inputs],
        bcast_inputs=[computed.get(var, var) for var in bcast_inputs],
        plain_outputs=outputs,
        output_ops=output_ops,
        plain_updates=updates,
        update_ops=update_ops,
        sliceable=sliceable,
        stand_ins=stand_ins,
        returns=returns,
        mode=given.mode,
        name=given.name,
        made=given.made,
        options={key: value for key, value in options.items() if key not in ours},
        precision=given.precision,
        pad=given.pad,
        parts=list(parts),
        is_local=given.local,
        is_strict=given.strict,
        keeps_statistics=given.statistics == "local",
        has_any_bits=given.bits == "any",
        has_own_streams=given.streams == "own",
        are_compiled=isinstance(get_mode(given.mode).linker, JITLinker),
    )
    _check_roots(asked, options.get("on_unused_input"))
    return asked


def _check_inputs(variables: Sequence[Variable], what: str) -> list[Variable]:
    if not isinstance(variables, (list, tuple)):
        raise TypeError(f"{what} must be a list of variables, got {variables!r}")
    variables = [_plain_input(var, what) for var in variables]
    for var in variables:
        if isinstance(var, SharedVariable):
            raise TypeError(
                f"{what}: {var} is a shared variable, which needs no passing;"
                " see sliceable_shareds to use some of its rows"
            )
        _check_tensor_input(var, what)
    return variables


def _check_distinct(variables: Sequence[Variable]) -> None:
    for i, var in enumerate(variables):
        if var in variables[:i]:
            raise ValueError(f"input {var} is given twice")


def _check_rows(var: Variable, what: str) -> None:
    if var.type.ndim == 0:
        raise ValueError(
            f"{what} {var} has no dimensions to scatter along; is it for bcast_inputs?"
        )
    if var.type.shape[0] is not None:
        raise ValueError(
            f"{what} {var} has a fixed first dimension of {var.type.shape[0]}, so its"
            " rows cannot be split between ranks; make it with shape=(None, ...)"
        )


def _check_sliceable(variables: Sequence[SharedVariable]) -> list[SharedVariable]:
    for var in variables:
        if not isinstance(var, SharedVariable) or not isinstance(
            var.type, DenseTensorType
        ):
            raise TypeError(
                f"sliceable_shareds must be shared tensor variables, got {var!r}"
            )
        _check_rows(var, "sliceable shared variable")
    _check_distinct(variables)
    return list(variables)


def _split_outputs(outputs: Any) -> tuple[list[Variable], list[OutputOp], str]:
    if outputs is None:
        return [], [], "none"
    outputs = _plain_outputs(outputs)
    if isinstance(outputs, tuple) and all(
        isinstance(output, (Variable, tuple)) for output in outputs
    ):
        outputs = list(outputs)  # not a variable and its op
    returns = "list" if isinstance(outputs, list) else "one"
    pairs = outputs if returns == "list" else [outputs]
    variables: list[Variable] = []
    ops: list[Any] = []  # or `UNNAMED`
    for pair in pairs:
        var: Any = pair
        op: Any = UNNAMED
        if isinstance(pair, tuple) and len(pair) == 2:
            var, op = pair
        if not isinstance(var, Variable):
            raise TypeError(
                "outputs must be variables, (variable, op) pairs or a list of these,"
                f" got {pair!r}"
            )
        if op != UNNAMED:
            check_op(op, OPS, f"output {var}")
            if op is not None:
                check_tensor(var, op)
        variables.append(var)
        ops.append(op)
    return variables, ops, returns


def _split_updates(updates: Any) -> tuple[list, list[OutputOp]]:
    if updates is None:
        return [], []
    triples: Iterable = updates.items() if hasattr(updates, "items") else updates
    if isinstance(updates, Variable):
        raise TypeError(f"updates must be a dict or a list of pairs, got {updates}")
    pairs: list[tuple[SharedVariable, Variable]] = []
    ops: list[Any] = []  # or `UNNAMED`
    seen: set[SharedVariable] = set()
    for triple in triples:
        if not isinstance(triple, (tuple, list)) or len(triple) not in (2, 3):
            raise ValueError(
                f"an update is (shared, new) or (shared, new, op), got {triple!r}"
            )
        var, new, *rest = triple
        if not isinstance(var, SharedVariable):
            raise TypeError(f"only shared variables can be updated, got {var!r}")
        if var in seen:
            raise ValueError(f"shared variable {var} has two updates")
        op: Any = rest[0] if rest else UNNAMED
        if op != UNNAMED:
            what, is_tensor = f"update of {var}", isinstance(var.type, DenseTensorType)
            has_rows = is_tensor and var.type.ndim > 0
            check_op(op, OPS if has_rows else (*REDUCE_OPS, None), what)
            if is_tensor:
                check_dtype(op, var.type.numpy_dtype, what)
        seen.add(var)
        pairs.append((var, var.type.filter_variable(new, allow_convert=True)))
        ops.append(op)
    return pairs, ops


def _fit(old: Variable, new: Any) -> Variable:
    """Return a given's replacement in the type of `old`, by a cast if it is safe."""
    mine, theirs = old.type, getattr(new, "type", None)
    if (
        isinstance(mine, DenseTensorType)
        and isinstance(theirs, DenseTensorType)
        and np.can_cast(theirs.numpy_dtype, mine.numpy_dtype, "safe")
    ):
        new = pt.cast(new, mine.dtype)
    return mine.filter_variable(new, allow_convert=True)


def _substitute(
    outputs: list, updates: list, replace: dict[Variable, Variable]
) -> tuple[list, list]:
    """Return outputs and updates with variables replaced, still as one graph."""
    if not replace:
        return outputs, updates
    expressions = [*outputs, *(new for _, new in updates)]
    replaced = clone_replace(expressions, replace)
    outputs, news = replaced[: len(outputs)], replaced[len(outputs) :]
    return outputs, [(var, new) for (var, _), new in zip(updates, news, strict=True)]


def _complete(
    outputs: list, updates: list, givens: dict[Variable, Variable], excluded: Any
) -> tuple[list, list]:
    """Substitute givens, and add the default updates of shared variables.

    PyTensor does so for the shared variables that the graph has *after* the
    substitution, such as random streams. A default update may bring in new variables,
    so this repeats until it does not. All expressions are substituted at once, as a
    draw and the next state of its stream are outputs of one node.
    """
    skip = {var for var, _ in updates}
    if excluded and excluded is not True:
        skip.update(excluded)
    defaults: list[tuple[SharedVariable, Variable]] = []
    while True:
        new_outputs, new_updates = _substitute(outputs, [*updates, *defaults], givens)
        graph = ancestors([*new_outputs, *(new for _, new in new_updates)])
        found = [
            (var, new)
            for var in graph
            if isinstance(var, SharedVariable) and var not in skip
            if (new := var.default_update) is not None
        ]
        if excluded is True or not found:
            return new_outputs, new_updates
        defaults += found
        skip.update(var for var, _ in found)


def _check_roots(asked: Asked, action: str | None) -> None:
    """Raise for a forgotten input, and warn of or raise for unused ones.

    PyTensor does so when it compiles, which in synk is only at the first call.
    """
    given = asked.all_inputs
    used = dict.fromkeys(ancestors(asked.plain_graph))
    for var in used:
        is_root = var.owner is None and not isinstance(var, (Constant, SharedVariable))
        if is_root and var not in given:
            raise MissingInputError(
                f"the graph needs a value for {var}, which is not among inputs,"
                " bcast_inputs and givens",
                variable=var,
            )
    action = action or config.on_unused_input
    for var in given:
        if action == "ignore" or var in used:
            continue
        text = (
            f"synk.function was given {var}, which no output and no update uses;"
            " pass on_unused_input='ignore' if that is meant"
        )
        if action == "raise":
            raise UnusedInputError(text)
        warnings.warn(text, stacklevel=callers_level())


_REFUSED = {
    "value": "keep the value in a shared variable, or give it in each call",
    "update": "write a shared variable, and updates=[(shared, new)]",
    "strict": "convert arrays before the call, with x.astype",
    "allow_downcast": "pass allow_input_downcast=True to synk.function",
}


def _plain_input(var: Any, what: str) -> Any:
    """Return the variable of an `In`; raise if its options or name matter."""
    if not isinstance(var, In):
        return var
    for option, advice in _REFUSED.items():
        given = getattr(var, option, None)
        # By identity: a value may be an array, or 0, which equals False.
        if not (given is None or given is False):
            raise TypeError(
                f"{what}: pass the variable itself in place of {var}, whose {option}="
                f" synk.function does not take; {advice}"
            )
    if var.name != var.variable.name:
        raise TypeError(
            f"{what}: pass the variable itself in place of {var}, with this name as"
            " its own: x.name = ..."
        )
    return var.variable


def _check_tensor_input(var: Any, what: str) -> None:
    """Raise unless an input is a tensor; the message advises what to write."""
    if isinstance(var, Variable) and isinstance(var.type, DenseTensorType):
        return
    kind = type(getattr(var, "type", None)).__name__
    advice = next((advice for of, advice in _ADVICE.items() if kind.startswith(of)), "")
    raise TypeError(f"{what} must be tensor variables, got {var!r}{advice}")


_ADVICE = {
    "Sparse": (
        "; keep a sparse matrix in a shared variable, pytensor.shared(matrix),"
        " which is whole on each rank, or pass its rows as a dense matrix"
    ),
    "TypedListType": "; pass the arrays of a list as inputs of their own",
    "Random": "; keep a generator in a shared variable, pytensor.shared(rng)",
}


def _plain_outputs(outputs: Any) -> Any:
    """Return outputs with the variable in place of each `Out`."""
    if isinstance(outputs, dict):
        raise TypeError(
            "outputs must be a variable or a list, got a dict; write"
            " list(outputs.values()), and dict(zip(outputs, f(...))) at the call"
        )
    if isinstance(outputs, (list, tuple)):
        plain = map(_plain_outputs, outputs)
        return list(plain) if isinstance(outputs, list) else tuple(plain)
    return outputs.variable if isinstance(outputs, Out) else outputs
