"""Values of shared variables on one rank, and what they look like on each."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pytensor.compile import SharedVariable

from ..also_named import also_named
from ..engines import host
from ..memory.partition import select
from ..ranks.context import RankContext
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..ranks.to_nodes import PARTED
from ..user_frames import entry
from .lists import (
    Vars,
    as_given,
    changing,
    check_rank,
    check_tensors,
    check_value,
    check_variables,
    list_values,
    stage_values,
    store,
)
from .of_nodes import TO_ONE


@entry
@also_named("shared_vars", "vars")
def set_value(rank: int, vars: Vars, values: Any, batch: Any = None) -> None:
    """Set the value on one rank.

    Parameters
    ----------
    rank : int
    vars : shared variable, or list of these
    values : Data or array_like, or list of these
    batch : int, slice, array of int, or array of bool, optional
        Which rows of the values to use, by default all.

    Raises
    ------
    IndexError
        If there is no such rank, or the batch has rows out of range.
    StateError
        If not forked.
    TypeError, ValueError
        If a value does not fit its variable.
    """
    variables = check_variables(vars)
    rank = check_rank(rank)
    given = list_values(values, vars, variables)
    checked = [
        check_value(var, value) for var, value in zip(variables, given, strict=True)
    ]
    if batch is not None:
        given = checked = [
            np.ascontiguousarray(value[select(batch, len(value))]) for value in checked
        ]
    numbers = master_replicate_variables(variables)
    staged = stage_values(given, checked)
    kind: Literal["replicated", "local"] = (
        "replicated" if SESSION.size == 1 else "local"
    )
    with changing(variables, Holding(kind, f"synk.set_value on rank {rank}")) as launch:
        mine = launch.number, rank, numbers, checked
        SESSION.run(worker_set_value, launch.number, rank, numbers, staged, mine=mine)


def worker_set_value(
    context: RankContext, launch: int, rank: int, numbers: list, values: list
) -> None:
    """Copy the values, if this is the rank that is meant."""
    if context.rank == rank:
        store(context, launch, numbers, map(context.array, values))


PARTED[worker_set_value] = TO_ONE


@entry
@also_named("shared_vars", "vars")
def get_value(rank: int, vars: Vars) -> Any:
    """Return the value that a variable has on one rank; a copy.

    Parameters
    ----------
    rank : int
    vars : shared variable, or list of these

    Returns
    -------
    numpy.ndarray, or list of these
        A list if `vars` is one.

    Raises
    ------
    IndexError
        If there is no such rank.
    StateError
        If not forked.
    """
    variables = check_variables(vars)
    rank = check_rank(rank)
    numbers = master_replicate_variables(variables)
    values = SESSION.run(worker_get_values, numbers, rank)[rank]
    copies = [host.copy_value(SESSION.context.array(value)) for value in values]
    return as_given(vars, copies)


def worker_get_values(
    context: RankContext, numbers: list[int], only: int | None
) -> list:
    """Leave this rank's values for the master; what is not an array is pickled."""
    if only not in (None, context.rank):
        return []
    values = {
        number: host.get_value(context.registry.variables[number]) for number in numbers
    }
    if context.rank:
        arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
        values.update(context.leave(arrays))
    return [values[number] for number in numbers]


@entry
@also_named("shared_vars", "vars")
def get_shapes(vars: Vars) -> Any:
    """Return the shape of a variable on each rank.

    Parameters
    ----------
    vars : shared variable, or list of these

    Returns
    -------
    list of tuple of int, or list of such lists
        By rank; a list for each variable if `vars` is a list.

    Raises
    ------
    StateError
        If not forked.
    """
    variables = check_variables(vars)
    check_tensors(variables)
    numbers = master_replicate_variables(variables)
    replies = SESSION.run(worker_get_shapes, numbers)
    return as_given(vars, [list(shapes) for shapes in zip(*replies, strict=True)])


def worker_get_shapes(
    context: RankContext, numbers: list[int]
) -> list[tuple[int, ...]]:
    """Return the shapes of this rank's values."""
    return [
        np.shape(host.get_value(context.registry.variables[number]))
        for number in numbers
    ]


@entry
@also_named("shared_vars", "vars")
def get_lengths(vars: Vars) -> Any:
    """Return the number of rows of a variable on each rank.

    Parameters
    ----------
    vars : shared variable, or list of these

    Returns
    -------
    list of int, or list of such lists
        By rank; a list for each variable if `vars` is a list.

    Raises
    ------
    StateError
        If not forked.
    ValueError
        If a variable has no dimensions.
    """
    check_tensors(check_variables(vars), rows=True)
    shapes = get_shapes(vars)
    if isinstance(vars, SharedVariable):
        return [shape[0] for shape in shapes]
    return [[shape[0] for shape in of_var] for of_var in shapes]
