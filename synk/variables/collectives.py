"""Collectives on shared variables, of which every rank has a value of its own.

`all_reduce` keeps the variables' values in shared memory from then on, see
`ranks.variable_buffers`. Values on GPUs stay there: see `device_collectives`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np
from pytensor.tensor.type import DenseTensorType

from ..also_named import also_named
from ..cluster.message import Cuts, Here, OfEach
from ..engines import HOST, JAX, host, jax
from ..errors import SplitError
from ..memory.partition import part, part_lengths
from ..ranks.context import RankContext
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..ranks.to_nodes import CODECS, Codec, Encoder
from ..reduce_ops import ReduceOp, check_shapes
from ..user_frames import entry
from . import device_collectives as devices
from . import lists
from .lists import Vars
from .one_rank import values_by_rank

Weights: TypeAlias = dict[int, tuple[int, ...]]
"""By a variable's number: from how many rows each rank's value was computed."""

# -- one value for all, or a part for each


@entry
@also_named("shared_vars", "vars")
def broadcast(vars: Vars, values: Any = None) -> None:
    """Give every rank the same value.

    Parameters
    ----------
    vars : shared variable, or list of these
    values : Data or array_like, or list of these, optional
        By default the master's present values. From a random generator each rank
        derives a stream of its own.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError
        If a value does not fit its variable.
    """
    variables = lists.check_variables(vars)
    if values is None:
        on_devices = [var for var in variables if devices.lie_on_devices([var])]
        if on_devices:
            numbers = master_replicate_variables(on_devices, are_read=False)
            on_gpus = map(jax.get_value, on_devices)
            kinds = {
                n: (v.dtype.name, v.shape)
                for n, v in zip(numbers, on_gpus, strict=True)
            }
            with lists.changing(on_devices, _BROADCAST) as launch:
                SESSION.run(devices.worker_broadcast, launch.number, kinds)
            variables = [var for var in variables if var not in on_devices]
            if not variables:
                return
        given = checked = [host.get_value(var) for var in variables]
    else:
        given, checked = lists.check_values(values, vars, variables)
    lists.master_store(variables, _BROADCAST, given, checked)


_BROADCAST = Holding("replicated", "synk.broadcast")


@entry
@also_named("shared_vars", "vars")
def scatter(vars: Vars, values: Any, batch: Any = None) -> None:
    """Give every rank a part of the rows of each value.

    Parameters
    ----------
    vars : shared variable, or list of these
    values : Data or array_like, or list of these
        All of the same length; cut between ranks as the inputs of a function are.
    batch : int, slice, array of int, or array of bool, optional
        Which rows to use, by default all.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError, IndexError
        If a value does not fit its variable, lengths differ or the batch is wrong.
    """
    variables = lists.check_variables(vars)
    given = lists.list_values(values, vars, variables)
    checked, selection, bounds = lists.check_rows_to_scatter(variables, given, batch)
    numbers = master_replicate_variables(variables, are_read=False)
    rows = tuple(part_lengths(bounds))
    staged = lists.stage_values(given, checked)
    with lists.changing(variables, Holding("sharded", "synk.scatter", rows)) as launch:
        mine = launch.number, numbers, checked, selection, bounds
        theirs = launch.number, numbers, staged, selection, bounds
        SESSION.run(worker_scatter, *theirs, mine=mine)
    if SESSION.asked.restores and SESSION.size > 1:
        rows_of_all = part(selection, 0, bounds[-1])
        SESSION.ledger.keep(variables, [value[rows_of_all] for value in checked])


def worker_scatter(
    context: RankContext,
    launch: int,
    numbers: list[int],
    values: list,
    selection: Any,
    bounds: list[int],
) -> None:
    """Copy this rank's part of the rows into its variables."""
    mine = part(selection, bounds[context.rank], bounds[context.rank + 1])
    lists.store(
        context, launch, numbers, [context.array(value)[mine] for value in values]
    )


def _encode_scatter(args: tuple, encoder: Encoder) -> tuple:
    """Return the scatter command for nodes, each with its own ranks' rows."""
    launch, numbers, values, selection, bounds = args
    total = bounds[-1]
    sent = []
    for value in values:
        array = encoder.context.array(value)

        def of_node(here: Here, array: np.ndarray = array) -> list[np.ndarray]:
            return [array[part(selection, *here.rows((total, 1)))]]

        kind = OfEach(array.dtype, array.shape[1:], ((total, 1),))
        sent.append(encoder.send(kind, of_node))
    return launch, numbers, sent, None, Cuts(total, len(bounds) - 1)


def _decode_scatter(args: tuple, here: Here, _: object) -> tuple:
    """Return the scatter command for a node's ranks; its slice shifts the bounds."""
    launch, numbers, values, _, bounds = args
    first, stop = here.rows((bounds[-1], 1))
    return launch, numbers, values, slice(-first, stop - first), bounds


CODECS[worker_scatter] = Codec(_encode_scatter, _decode_scatter)


# -- collecting the values of all ranks


@entry
@also_named("shared_vars", "vars")
def gather(vars: Vars, nd_up: int = 1) -> Any:
    """Return the values of all ranks as one array.

    Parameters
    ----------
    vars : shared variable, or list of these
    nd_up : {0, 1}
        With 1 the values are stacked: the result has a new first axis, for the rank.
        With 0 they are concatenated along their first axis; lengths may differ.

    Returns
    -------
    numpy.ndarray, or list of these
        A list if `vars` is one.

    Raises
    ------
    ShapeMismatch
        If the ranks' shapes do not fit together; it says which rank has which.
    StateError
        If not forked.
    """
    variables = lists.check_variables(vars)
    if nd_up not in (0, 1):
        raise ValueError(f"nd_up must be 0 or 1, got {nd_up!r}")
    lists.check_tensors(variables, rows=nd_up == 0)
    by_rank = zip(*values_by_rank(variables), strict=True)
    results = []
    for var, values in zip(variables, by_rank, strict=True):
        arrays = [SESSION.context.array(value) for value in values]
        shapes = [array.shape for array in arrays]
        if nd_up:
            check_shapes("stack", var, shapes, "; try nd_up=0")
        elif len({shape[1:] for shape in shapes}) > 1:
            check_shapes("gather", var, shapes)
        results.append(np.stack(arrays) if nd_up else np.concatenate(arrays))
    return lists.as_given(vars, results)


@entry
@also_named("shared_vars", "vars")
def all_gather(vars: Vars) -> Any:
    """Give every rank the values of all ranks, concatenated along their first axis.

    Parameters
    ----------
    vars : shared variable, or list of these
        Lengths may differ between ranks.

    Returns
    -------
    numpy.ndarray, or list of these
        A copy of the new value, which every rank has in its variable.

    Raises
    ------
    ShapeMismatch
        If shapes differ in more than the length; it says which rank has which.
    StateError
        If not forked.
    ValueError
        If a variable has no dimensions.
    """
    variables = lists.check_variables(vars)
    for var in variables:
        fixed = isinstance(var.type, DenseTensorType) and var.type.shape[:1] != (None,)
        if fixed and var.type.ndim and SESSION.size > 1:
            raise ValueError(f"{var} ({var.type}) has a fixed length: it cannot grow")
    if devices.lie_on_devices(variables):
        lists.check_tensors(variables, rows=True)
        numbers = master_replicate_variables(variables)
        holding = Holding("replicated", "synk.all_gather")
        with lists.changing(variables, holding) as launch:
            copies = SESSION.run(devices.worker_all_gather, launch.number, numbers)[0]
            return lists.as_given(vars, copies)
    results = gather(vars, nd_up=0)
    broadcast(vars, results)
    return results


# -- reductions


@entry
@also_named("shared_vars", "vars")
def all_reduce(vars: Vars, op: ReduceOp = "avg") -> None:
    """Combine the values of all ranks, and give every rank the result.

    Parameters
    ----------
    vars : shared variable, or list of these
        A list is reduced in one go, which is faster than one variable after the other.
    op : {"avg", "sum", "prod", "min", "max"}
        If the last write to a variable was a function's update that depends on
        scattered rows, "avg" weighs each rank's value by the number of its rows, and
        any op leaves out ranks without rows. So gradients of a mean average to the
        gradient over all rows, however uneven the parts. Otherwise all ranks count
        alike. An average of integers is rounded to the nearest.

    Raises
    ------
    ShapeMismatch
        If shapes differ between ranks; it says which rank has which.
    SplitError
        With "sum" and "prod", if a function's update has already reduced the value over
        all ranks' rows.
    StateError
        If not forked.
    TypeError, ValueError
        If the op is unknown or has no meaning for a dtype.
    """
    holding = Holding("replicated", f"synk.all_reduce by {op!r}")
    _reduced("all_reduce", vars, op, holding, to_all=True)


@entry
@also_named("shared_vars", "vars")
def reduce(vars: Vars, op: ReduceOp = "avg", in_place: bool = True) -> Any:
    """Combine the values of all ranks on rank 0.

    Parameters
    ----------
    vars : shared variable, or list of these
    op : {"avg", "sum", "prod", "min", "max"}
        As for :func:`all_reduce`.
    in_place : bool
        If True the results become rank 0's values. If False no variable is changed.

    Returns
    -------
    numpy.ndarray, or list of these
        The results, as copies; a list if `vars` is one.

    Raises
    ------
    ShapeMismatch
        If shapes differ between ranks; it says which rank has which.
    StateError
        If not forked.
    TypeError, ValueError
        If the op is unknown or has no meaning for a dtype.
    """
    holding = Holding("local", f"synk.reduce by {op!r}, on rank 0")
    return _reduced("reduce", vars, op, holding, in_place=in_place)


def _reduced(
    what: str,
    vars: Vars,
    op: ReduceOp,
    holding: Holding,
    *,
    to_all: bool = False,
    in_place: bool = True,
) -> Any:
    """Have all ranks reduce; return rank 0's results, or None with `to_all`."""
    variables = lists.check_variables(vars)
    lists.check_reduction(what, variables, op)
    if SESSION.size == 1 and to_all:
        return None
    if SESSION.size == 1:
        copies = [host.copy_value(host.get_value(var)) for var in variables]
        return lists.as_given(vars, copies)
    numbers = master_replicate_variables(variables)
    held = list(map(SESSION.ledger.of, variables))
    for var, of in zip(variables, held, strict=True):
        if of.made_whole and op in ("sum", "prod"):
            raise SplitError(
                f"{what} of {var} by {op!r} would count it {SESSION.size} times:"
                f" {of.since}, and stores what all ranks' rows give on every rank."
                " Leave the collective out, or make the function with"
                " local=True, if each rank is to have what its own rows give"
            )
    weights: Weights = {
        number: of.rows
        for number, of in zip(numbers, held, strict=True)
        if of.kind == "local" and of.rows is not None
    }
    on_devices = devices.lie_on_devices(variables)
    how = numbers, op, weights, to_all, on_devices
    found: Any
    if in_place:
        with lists.changing(variables, holding) as launch:
            found = SESSION.run(worker_reduce, launch.number, *how)[0]
    else:
        found = SESSION.run(worker_reduce, None, *how)[0]
    if to_all:
        return None
    return lists.as_given(vars, [np.array(value, order="C") for value in found])


def worker_reduce(
    context: RankContext,
    launch: int | None,
    numbers: list[int],
    op: ReduceOp,
    weights: Weights,
    to_all: bool,
    on_devices: bool,
) -> list[Any] | None:
    """Reduce all ranks' values; store the results, without `to_all` on rank 0 alone.

    If `launch` is None, rank 0 only returns them.
    """
    groups = defaultdict(list)
    for number in numbers:
        groups[weights.get(number, (1,) * context.size)].append(number)
    reduce = devices.reduce if on_devices else _reduce_on_host
    engine = JAX if on_devices else HOST
    results: dict[int, Any] = {}
    for of_ranks, some in groups.items():
        found = reduce(context, some, op, of_ranks, to_all)
        results.update(zip(some, found, strict=True))
    if context.rank and not to_all:
        results.clear()
    if on_devices:
        jax.wait(list(results.values()))  # all, before any variable is changed
    if launch is not None:
        lists.keep(context, launch, engine, results)
    return None if context.rank else [results[number] for number in numbers]


def _reduce_on_host(
    context: RankContext,
    numbers: list[int],
    op: ReduceOp,
    weights: tuple[int, ...],
    to_all: bool,
) -> list[np.ndarray]:
    """Reduce values in host memory; `weights`, by rank, apply to all of them."""
    key = tuple(numbers), op
    buffers = context.variable_buffers if to_all else None
    if buffers is not None:
        buffers.clear(key, context.variables)
    variables = [context.variables[number] for number in numbers]
    values, ops = list(map(host.get_value, variables)), [op] * len(numbers)
    if buffers is not None:
        return buffers.reduce(key, values, ops, weights, names=variables)
    found = context.flat_buffers.reduce(key, values, ops, weights, names=variables)
    return [np.array(value) for value in found]
