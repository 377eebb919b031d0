"""Arguments of collectives (shared variables and values): checked, sent, stored."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.tensor.type import DenseTensorType

from ..engines import HOST, host
from ..memory.partition import Selection, count, cuts, part_lengths, select
from ..ranks.context import RankContext
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables, staged
from ..ranks.session import SESSION
from ..ranks.streams import value_for_rank
from ..ranks.to_nodes import CODECS, Codec, Encoder
from ..ranks.undoing import Launch
from ..reduce_ops import REDUCE_OPS, ReduceOp, check_dtype, check_op
from .array_like import convert
from .data import Data

Vars: TypeAlias = SharedVariable | Sequence[SharedVariable]


def as_given(vars: Vars, results: list) -> Any:
    """Return `results` if `vars` is a list, else the only one."""
    return results[0] if isinstance(vars, SharedVariable) else results


def check_variables(vars: Vars) -> list[SharedVariable]:
    """Return the variables of a collective as a list; raise if it cannot be called."""
    SESSION.enter()
    variables = [vars] if isinstance(vars, SharedVariable) else list(vars)
    for var in variables:
        if not isinstance(var, SharedVariable):
            raise TypeError(f"collectives work on shared variables, got {var!r}")
    if len(set(variables)) < len(variables):
        raise ValueError("a variable is listed twice")
    return variables


def list_values(values: Any, vars: Vars, variables: list) -> list:
    """Return `values` as a list, one for each variable; raise ValueError if not."""
    values = [values] if isinstance(vars, SharedVariable) else list(values)
    if len(values) != len(variables):
        raise ValueError(f"got {len(values)} values for {len(variables)} variables")
    return values


def check_values(values: Any, vars: Vars, variables: list) -> tuple[list, list]:
    """Return the values as a list, and converted to the variables' types."""
    given = list_values(values, vars, variables)
    pairs = zip(variables, given, strict=True)
    return given, [_filter(var, var.type, value) for var, value in pairs]


def _filter(var: SharedVariable, kind: Any, value: Any) -> Any:
    if isinstance(value, Data):
        value = value._held()  # nobody writes to it here
    return convert(f"shared variable {var.name or ''}".rstrip(), kind, value, None)


def check_rows_to_scatter(
    variables: Sequence[SharedVariable], given: Sequence, batch: Any
) -> tuple[list[np.ndarray], Selection, list[int]]:
    """Return converted values to scatter, the selected rows, and the parts' bounds."""
    checked = []
    for var, value in zip(variables, given, strict=True):
        if not isinstance(var.type, DenseTensorType) or not var.type.ndim:
            raise ValueError(f"{var} ({var.type}) has no rows to scatter")
        # A fixed length in the type is that of a rank's part, not of the whole.
        whole = var.type.clone(shape=(None, *var.type.shape[1:]))
        checked.append(_filter(var, whole, value))
    lengths = {str(var): len(v) for var, v in zip(variables, checked, strict=True)}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"values to scatter have different lengths: {lengths}")
    selection = select(batch, len(checked[0]))
    bounds = cuts(count(selection), SESSION.size)
    parts = part_lengths(bounds)
    for var in variables:
        if any(var.type.shape[0] not in (None, rows) for rows in parts):
            raise ValueError(
                f"{var} ({var.type}) has a fixed length, and the ranks' parts of"
                f" {bounds[-1]} rows are {parts}"
            )
    return checked, selection, bounds


def stage_values(given: Sequence, checked: Sequence) -> list:
    """Return windows of values for the ranks; arrays not in `Data` are copied once."""
    if SESSION.size == 1:
        return list(checked)
    pairs = zip(given, checked, strict=True)
    return staged(
        [value._window() if isinstance(value, Data) else own for value, own in pairs]
    )


def changing(variables: Sequence[SharedVariable], holding: Holding) -> Launch:
    """Return a launch that changes variables on all ranks or on none.

    If it succeeds, the ledger notes `holding` for them.
    """
    ledger = SESSION.ledger
    known = [entry for entry in ledger.entries(variables) if not entry.is_set]

    def failed(launch: Launch, error: BaseException) -> None:
        if launch.calls_kept is None:
            lost = Holding("unknown", f"{holding.since} failed: {error}")
            ledger.note(variables, lost)
        for entry in known:  # the new value may be known already
            entry.mark_known()

    return Launch((), 1, failed, lambda _: ledger.note(variables, holding))


def keep(
    context: RankContext, launch: int, engine: Any, values: Mapping[int, Any]
) -> None:
    """Set variables on this rank, by number, so that `launch` can be undone."""
    context.transaction.begin(launch)
    context.transaction.begin_call()
    for number, value in values.items():
        context.transaction.store(engine, context.variables[number], value)
    context.transaction.end_call()


def store(
    context: RankContext, launch: int, numbers: Sequence[int], values: Iterable
) -> None:
    """Set variables on this rank to copies of `values`, undoably as `keep` does."""
    copies = {
        number: _copied(context.variables[number], value)
        for number, value in zip(numbers, values, strict=True)
    }
    keep(context, launch, HOST, copies)


def _copied(var: SharedVariable, value: Any) -> Any:
    """Return a copy of a value, in the variable's dtype: `Data` may have another."""
    copy = host.copy_value(value)
    if not isinstance(copy, np.ndarray) or not isinstance(var.type, DenseTensorType):
        return copy
    return copy.astype(var.type.numpy_dtype, copy=False)


class OfRanks(NamedTuple):
    """Stands for one value in a list: another value for each rank."""

    values: list


def master_store(
    variables: Sequence[SharedVariable],
    holding: Holding,
    given: Sequence,
    checked: Sequence,
    rank: int | None = None,
) -> None:
    """Set variables on `rank`, or with None on all ranks.

    With None, each rank derives a random stream of its own from a generator.
    """
    # If only one rank gets values, the others need what the script has set before.
    numbers = master_replicate_variables(variables, are_read=rank is not None)
    theirs = stage_values(given, checked)
    with changing(variables, holding) as launch:
        work: Any = worker_broadcast if rank is None else worker_store
        common = launch.number, *([] if rank is None else [rank]), numbers
        SESSION.run(work, *common, theirs, mine=(*common, checked))


def worker_broadcast(
    context: RankContext, launch: int, numbers: list, values: list
) -> None:
    """Copy values into this rank's variables."""
    mine = [
        value.values[context.rank]
        if type(value) is OfRanks
        else value_for_rank(context.array(value), context.rank)
        for value in values
    ]
    store(context, launch, numbers, mine)


def worker_store(
    context: RankContext, launch: int, only: int, numbers: list, values: list
) -> None:
    """Copy values into the variables of the rank `only`."""
    if only == context.rank:
        store(context, launch, numbers, map(context.array, values))


def _encode_store(args: tuple, encoder: Encoder) -> tuple:
    """Return the command for nodes: a value for one rank goes to its node alone."""
    launch, only, numbers, values = args
    return launch, only, numbers, [encoder.to_one(only, value) for value in values]


CODECS[worker_store] = Codec(_encode_store, lambda args, here, copies: args)


def check_rank(rank: int) -> int:
    """Return `rank` as an int; raise IndexError if there is no such rank."""
    if not 0 <= operator.index(rank) < SESSION.size:
        SESSION.check_running()  # a signal handler of the script may have closed it
        raise IndexError(f"there is no rank {rank}: ranks are 0 to {SESSION.size - 1}")
    return operator.index(rank)


def check_tensors(variables: list[SharedVariable], rows: bool = False) -> None:
    """Raise unless all variables are tensors, with `rows` of one dimension or more."""
    for var in variables:
        if not isinstance(var.type, DenseTensorType):
            raise TypeError(f"{var.name or var} is a {var.type}, not a tensor")
        if rows and var.type.ndim == 0:
            raise ValueError(f"{var} has no rows: it has no dimensions")


def check_reduction(what: str, variables: list[SharedVariable], op: ReduceOp) -> None:
    """Raise unless `op` can combine the values of all variables."""
    check_op(op, REDUCE_OPS, what)
    check_tensors(variables)
    for var in variables:
        check_dtype(op, var.type.numpy_dtype, f"{what} of {var}")
