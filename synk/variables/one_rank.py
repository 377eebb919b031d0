"""Values of shared variables on one rank; shapes and states on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.tensor.random.type import RandomType

from ..also_named import also_named
from ..engines import host
from ..memory.partition import select
from ..ranks.context import RankContext
from ..ranks.ledger import Holding, Kind
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..user_frames import entry
from . import lists
from .lists import Vars


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
    variables = lists.check_variables(vars)
    rank = lists.check_rank(rank)
    given, checked = lists.check_values(values, vars, variables)
    if batch is not None:
        given = checked = [
            np.ascontiguousarray(value[select(batch, len(value))]) for value in checked
        ]
    kind: Kind = "replicated" if SESSION.size == 1 else "local"
    holding = Holding(kind, f"synk.set_value on rank {rank}")
    lists.master_store(variables, holding, given, checked, rank)


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
    variables = lists.check_variables(vars)
    rank = lists.check_rank(rank)
    values = values_by_rank(variables, rank)[rank]
    copies = [host.copy_value(SESSION.context.array(value)) for value in values]
    return lists.as_given(vars, copies)


def values_by_rank(
    variables: Sequence[SharedVariable], only: int | None = None
) -> list[list]:
    """Return the variables' values on each rank; those of others than `only` are [].

    They are windows, or for random streams generators, until the next command.
    """
    return SESSION.run(worker_get_values, master_replicate_variables(variables), only)


def worker_get_values(
    context: RankContext, numbers: list[int], only: int | None
) -> list:
    """Return this rank's values (a worker's as windows), or [] for another `only`."""
    if only not in (None, context.rank):
        return []
    values = {number: host.get_value(context.variables[number]) for number in numbers}
    if context.rank:
        arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
        values.update(context.publish(arrays))
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
    variables = lists.check_variables(vars)
    lists.check_tensors(variables)
    numbers = master_replicate_variables(variables)
    replies = SESSION.run(worker_get_shapes, numbers)
    return lists.as_given(vars, [list(shapes) for shapes in zip(*replies, strict=True)])


def worker_get_shapes(
    context: RankContext, numbers: list[int]
) -> list[tuple[int, ...]]:
    """Return the shapes of this rank's values."""
    return [np.shape(host.get_value(context.variables[number])) for number in numbers]


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
    lists.check_tensors(lists.check_variables(vars), rows=True)
    shapes = get_shapes(vars)
    if isinstance(vars, SharedVariable):
        return [shape[0] for shape in shapes]
    return [[shape[0] for shape in of_var] for of_var in shapes]


@entry
@also_named("shared_vars", "vars")
def state(vars: Vars) -> Any:
    """Return how the ranks hold a shared variable, and since which event.

    Parameters
    ----------
    vars : shared variable, or list of these

    Returns
    -------
    str, or list of str
        One of "replicated", "local to each rank", "sharded in 3, 2 rows" (after
        :func:`synk.scatter`, by rank) and "unknown" (after a failure that could not be
        undone), and the event that made it so; a list if `vars` is one.

    Raises
    ------
    StateError
        If not forked.

    Examples
    --------
    >>> import pytensor, synk
    >>> rate = pytensor.shared(0.1, "rate")
    >>> with synk.session(2):
    ...     synk.set_value(1, rate, 0.2)
    ...     print(synk.state(rate))
    ...     rate.set_value(0.01)
    ...     print(synk.state(rate))
    local to each rank, since synk.set_value on rank 1
    replicated, since it was set in the script
    """
    held = [
        "a random stream, from which each rank derives its own"
        if isinstance(var.type, RandomType)
        else str(SESSION.ledger.of(var))
        for var in lists.check_variables(vars)
    ]
    return lists.as_given(vars, held)
