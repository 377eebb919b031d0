"""Collectives on shared variables: every rank has a value of its own of each one.

`all_reduce` and `reduce` keep the variables they are called with in shared memory: the
first call gives a variable a *home* there (see `comm.shm`), a place for every rank's
value. A function that updates the variable in place leaves its value in the home, and the
next reduction copies nothing.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.tensor.type import TensorType

from .comm.ops import REDUCE_OPS, check_dtype, check_op
from .compiler.streams import value_for_rank
from .data import Data
from .engines import host
from .homes import NewHome, check_shapes
from .memory.partition import count, cuts, part, select
from .replication import master_replicate_variables
from .session import SESSION, Session

Vars = SharedVariable | Sequence[SharedVariable]


# -- one value for all, or a part for each -----------------------------------------------


def broadcast(vars: Vars, values: Any = None) -> None:
    """Give every rank the same value.

    Parameters
    ----------
    vars : shared variable, or list of these
    values : Data or array_like, or list of these, optional
        By default the master's present values. A random generator is given to each rank
        as a stream of its own, derived from it.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError
        If a value does not fit its variable.
    """
    variables, numbers = _prepare(vars)
    if values is None:
        checked = [host.get_value(var) for var in variables]
        given = checked
    else:
        given = _listed(values, vars, variables)
        checked = [_check(var, value) for var, value in zip(variables, given, strict=True)]
    SESSION.run(
        worker_broadcast, numbers, _stage(given, checked), mine=(numbers, checked)
    )


def worker_broadcast(session: Session, numbers: list[int], values: list) -> None:
    """Copy the values into this rank's variables."""
    for number, value in zip(numbers, values, strict=True):
        _store(session, number, value_for_rank(session.array(value), session.rank))


def scatter(vars: Vars, values: Any, batch: Any = None) -> None:
    """Give every rank a part of the rows of each value.

    Parameters
    ----------
    vars : shared variable, or list of these
    values : Data or array_like, or list of these
        All of one length, cut as the inputs of a function are.
    batch : int, slice, array of int, or array of bool, optional
        Which rows to use, by default all.

    Raises
    ------
    StateError
        If not forked.
    TypeError, ValueError, IndexError
        If a value does not fit its variable, lengths differ or the batch is wrong.
    """
    variables, numbers = _prepare(vars)
    given = _listed(values, vars, variables)
    checked = [_check(var, value) for var, value in zip(variables, given, strict=True)]
    lengths = {str(var): np.shape(v)[:1] for var, v in zip(variables, checked, strict=True)}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise ValueError(f"values to scatter need rows, and one length: {lengths}")
    selection = select(batch, len(checked[0]))
    bounds = cuts(count(selection), SESSION.size)
    SESSION.run(
        worker_scatter,
        numbers,
        _stage(given, checked),
        selection,
        bounds,
        mine=(numbers, checked, selection, bounds),
    )


def worker_scatter(
    session: Session, numbers: list[int], values: list, selection: Any, bounds: list[int]
) -> None:
    """Copy this rank's part of the rows into its variables."""
    mine = part(selection, bounds[session.rank], bounds[session.rank + 1])
    for number, value in zip(numbers, values, strict=True):
        _store(session, number, session.array(value)[mine])


# -- reading and writing one rank ---------------------------------------------------------


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
    variables, numbers = _prepare(vars)
    rank = _check_rank(rank)
    given = _listed(values, vars, variables)
    checked = [_check(var, value) for var, value in zip(variables, given, strict=True)]
    if batch is not None:
        given = checked = [
            np.ascontiguousarray(value[select(batch, len(value))]) for value in checked
        ]
    SESSION.run(
        worker_set_value,
        rank,
        numbers,
        _stage(given, checked),
        mine=(rank, numbers, checked),
    )


def worker_set_value(session: Session, rank: int, numbers: list, values: list) -> None:
    """Copy the values, if this is the rank that is meant."""
    if session.rank == rank:
        for number, value in zip(numbers, values, strict=True):
            _store(session, number, session.array(value))


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
    _, numbers = _prepare(vars)
    rank = _check_rank(rank)
    values = SESSION.run(worker_get_values, numbers, rank)[rank]
    copies = [_copy(SESSION.array(value)) for value in values]
    return _as_given(vars, copies)


def worker_get_values(session: Session, numbers: list[int], only: int | None) -> list:
    """Leave this rank's values for the master; what is not an array is pickled."""
    if only not in (None, session.rank):
        return []
    values = {number: host.get_value(session.registry.variables[number]) for number in numbers}
    if session.rank:
        arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
        values.update(session.leave(arrays))
    return [values[number] for number in numbers]


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
    variables, numbers = _prepare(vars)
    _check_tensors(variables)
    replies = SESSION.run(worker_get_shapes, numbers)
    return _as_given(vars, [list(shapes) for shapes in zip(*replies, strict=True)])


def worker_get_shapes(session: Session, numbers: list[int]) -> list[tuple[int, ...]]:
    """Return the shapes of this rank's values."""
    return [
        np.shape(host.get_value(session.registry.variables[number])) for number in numbers
    ]


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
    for var in _as_list(vars):
        if isinstance(var, SharedVariable) and getattr(var.type, "ndim", 1) == 0:
            raise ValueError(f"{var} has no rows: it has no dimensions")
    shapes = get_shapes(vars)
    if isinstance(vars, SharedVariable):
        return [shape[0] for shape in shapes]
    return [[shape[0] for shape in of_var] for of_var in shapes]


# -- collecting the values of all ranks -----------------------------------------------------


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
    variables, numbers = _prepare(vars)
    _check_tensors(variables)
    if nd_up not in (0, 1):
        raise ValueError(f"nd_up must be 0 or 1, got {nd_up!r}")
    by_rank = SESSION.run(worker_get_values, numbers, None)
    results = []
    for var, values in zip(variables, zip(*by_rank, strict=True), strict=True):
        arrays = [SESSION.array(value) for value in values]
        if nd_up:
            check_shapes("stack", var, [a.shape for a in arrays], "; try nd_up=0")
            results.append(np.stack(arrays))
        else:
            results.append(_concatenate("gather", var, arrays))
    return _as_given(vars, results)


def all_gather(vars: Vars) -> Any:
    """Give every rank the values of all ranks, concatenated along their first axis.

    Parameters
    ----------
    vars : shared variable, or list of these
        Lengths may differ between ranks.

    Returns
    -------
    numpy.ndarray, or list of these
        The new value, as every rank has it in its variable; a copy.

    Raises
    ------
    ShapeMismatch
        If shapes differ in more than the length; it says which rank has which.
    StateError
        If not forked.
    ValueError
        If a variable has no dimensions.
    """
    results = gather(vars, nd_up=0)
    broadcast(vars, results)
    return results


# -- reductions -----------------------------------------------------------------------------


def all_reduce(vars: Vars, op: str = "avg") -> None:
    """Combine the values of all ranks, and give every rank the result.

    Parameters
    ----------
    vars : shared variable, or list of these
        A list is reduced in one go, which is faster than one variable after the other.
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" weighs a rank by the rows that its value was computed from, where the last
        to write it was a function's update that depends on scattered rows: so gradients
        of a mean average to the gradient over all rows, however uneven the parts. All
        ranks count alike otherwise. Integers are rounded to the nearest.

    Raises
    ------
    ShapeMismatch
        If shapes differ between ranks; it says which rank has which.
    StateError
        If not forked.
    TypeError, ValueError
        If the op is unknown or has no meaning for a dtype.
    """
    variables, numbers = _prepare(vars)
    _check_reduction("all_reduce", variables, op)
    if SESSION.size > 1:
        new_home = SESSION.homes.house(numbers, variables)
        SESSION.run(worker_reduce, numbers, op, new_home, True)


def reduce(vars: Vars, op: str = "avg", in_place: bool = True) -> Any:
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
    variables, numbers = _prepare(vars)
    _check_reduction("reduce", variables, op)
    if SESSION.size == 1:
        return _as_given(vars, [_copy(host.get_value(var)) for var in variables])
    # The result comes to lie in rank 0's slots, which are its variables' values.
    kept = None if in_place else [_copy(host.get_value(var)) for var in variables]
    new_home = SESSION.homes.house(numbers, variables)
    SESSION.run(worker_reduce, numbers, op, new_home, False)
    results = [_copy(host.get_value(var)) for var in variables]
    if kept is not None:
        for var, value in zip(variables, kept, strict=True):
            host.get_value(var)[...] = value
    return _as_given(vars, results)


def worker_reduce(
    session: Session, numbers: list[int], op: str, new_home: NewHome | None, to_all: bool
) -> None:
    """Move this rank's values into their homes, and reduce a part of all ranks'."""
    homes = session.homes
    homes.attach(new_home, session)
    variables = [session.registry.variables[number] for number in numbers]
    misfits = homes.enter(numbers, variables)
    weights = homes.agree(session, op, numbers, misfits)
    for run in homes.runs(numbers, weights):
        session.comm.reduce(op, *run, targets=session.size if to_all else 1)
    session.comm.barrier()
    if to_all or session.rank == 0:
        for number in numbers:
            session.registry.rows.pop(number, None)


# -- helpers -----------------------------------------------------------------------------------


def _as_list(vars: Vars) -> list[SharedVariable]:
    return [vars] if isinstance(vars, SharedVariable) else list(vars)


def _as_given(vars: Vars, results: list) -> Any:
    """Return one result for one variable, and a list for a list."""
    return results[0] if isinstance(vars, SharedVariable) else results


def _prepare(vars: Vars) -> tuple[list[SharedVariable], list[int]]:
    """Check the variables, and make sure that every rank has them."""
    SESSION.check_running()
    variables = _as_list(vars)
    for var in variables:
        if not isinstance(var, SharedVariable):
            raise TypeError(f"collectives work on shared variables, got {var!r}")
    if len(set(variables)) < len(variables):
        raise ValueError("a variable is listed twice")
    return variables, master_replicate_variables(variables)


def _listed(values: Any, vars: Vars, variables: list) -> list:
    """Return as many values as there are variables."""
    values = [values] if isinstance(vars, SharedVariable) else list(values)
    if len(values) != len(variables):
        raise ValueError(f"got {len(values)} values for {len(variables)} variables")
    return values


def _check(var: SharedVariable, value: Any) -> Any:
    """Return a value as the variable's type takes it; of `Data`, the array itself."""
    if isinstance(value, Data):
        value = value.data
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    try:
        return var.type.filter(value, strict=False, allow_downcast=None)
    except (TypeError, ValueError) as error:
        raise TypeError(f"shared variable {var} ({var.type}): {error}") from error


def _stage(given: Sequence, checked: Sequence) -> list:
    """Describe values to the ranks: Data where it lies, other arrays copied once."""
    if SESSION.size == 1:
        return list(checked)
    staged: dict[int, np.ndarray] = {
        i: value
        for i, value in enumerate(checked)
        if isinstance(value, np.ndarray) and not isinstance(given[i], Data)
    }
    places = map(tuple, SESSION.stage.put(list(staged.values())))
    windows = dict(zip(staged, places, strict=True))
    return [
        tuple(value._window()) if isinstance(value, Data) else windows.get(i, checked[i])
        for i, value in enumerate(given)
    ]


def _store(session: Session, number: int, value: Any) -> None:
    """Make a copy of `value` the value of a variable on this rank."""
    session.registry.rows.pop(number, None)
    host.set_value(session.registry.variables[number], _copy(value))


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    return copy.deepcopy(value)


def _check_rank(rank: int) -> int:
    if not 0 <= operator.index(rank) < SESSION.size:
        raise IndexError(f"there is no rank {rank}: ranks are 0 to {SESSION.size - 1}")
    return operator.index(rank)


def _check_tensors(variables: list[SharedVariable]) -> None:
    for var in variables:
        if not isinstance(var.type, TensorType):
            raise TypeError(f"{var} is a {var.type}, not a tensor")


def _check_reduction(what: str, variables: list[SharedVariable], op: str) -> None:
    check_op(op, REDUCE_OPS, what)
    _check_tensors(variables)
    for var in variables:
        check_dtype(op, var.type.numpy_dtype, f"{what} of {var}")


def _concatenate(what: str, var: SharedVariable, arrays: list) -> np.ndarray:
    if var.type.ndim == 0:
        raise ValueError(f"{var} has no dimensions to {what} along; use nd_up=1")
    trailing = [array.shape[1:] for array in arrays]
    if any(shape != trailing[0] for shape in trailing):
        check_shapes(what, var, [array.shape for array in arrays])
    return np.concatenate(arrays)
