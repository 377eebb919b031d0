"""Files from which training goes on: all that a `Trainer` has, on all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import host
from ..errors import CheckpointError
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..variables.checkpoint_files import read_arrays, write_arrays
from ..variables.checkpoints import as_bytes, as_generators
from ..variables.lists import changing, stage_values, store
from ..variables.of_one_rank import worker_get_values

_META = "trainer"
_ROOM = 1 << 24
"""Bytes to be expected of the numbers of all epochs."""


def write(
    path: Path, told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays, and what is told besides, to a file."""
    names = {name: array.nbytes for name, array in arrays.items()}
    text = json.dumps({**told, "arrays": names})
    write_arrays(path, {_META: np.frombuffer(text.encode(), np.uint8), **arrays})


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what `write` has written.

    Raises
    ------
    CheckpointError
        If it is not a file of that, or damaged.
    """
    told = json.loads(read_arrays(path, {_META: _ROOM})[_META].tobytes())
    return told, read_arrays(path, told.pop("arrays"))


def values_by_rank(variables: Sequence[SharedVariable]) -> dict[str, np.ndarray]:
    """Return the values of variables on each rank, by names for a file."""
    numbers = master_replicate_variables(variables)
    by_rank = SESSION.run(worker_get_values, numbers, None)
    found = {}
    for rank, values in enumerate(by_rank):
        for i, (var, value) in enumerate(zip(variables, values, strict=True)):
            value = SESSION.context.array(value)
            if isinstance(value, np.random.Generator):
                value = as_bytes(var, [value])
            found[_name(rank, i)] = np.array(value)  # ranks write there again
    return found


def set_by_rank(
    variables: Sequence[SharedVariable],
    arrays: Mapping[str, np.ndarray],
    holdings: Sequence[Holding],
) -> None:
    """Give variables the values that `values_by_rank` has returned."""
    numbers = master_replicate_variables(variables, are_read=False)
    for rank in range(SESSION.size):
        values = [
            _value(var, arrays[_name(rank, i)]) for i, var in enumerate(variables)
        ]
        staged = stage_values(values, values)
        with changing(variables, Holding("own", "Trainer.load")) as launch:
            mine = launch.number, rank, numbers, values
            theirs = launch.number, rank, numbers, staged
            SESSION.run(worker_set_own, *theirs, mine=mine)
    for var, holding in zip(variables, holdings, strict=True):
        SESSION.ledger.note([var], holding)


def worker_set_own(
    context: Any, launch: int, rank: int, numbers: list, values: list
) -> None:
    """Copy values into this rank's variables, if it is the one that is meant."""
    if context.rank == rank:
        store(context, launch, numbers, map(context.array, values))


def _name(rank: int, i: int) -> str:
    return f"rank {rank} variable {i}"


def _value(var: SharedVariable, array: np.ndarray) -> Any:
    if isinstance(host.get_value(var), np.random.Generator):
        return as_generators(array)[0]
    return var.type.filter(np.array(array), strict=True)


def fitting(path: Path, what: str, found: Any, expected: Any) -> None:
    """Raise unless a file is of what is to go on."""
    if found != expected:
        raise CheckpointError(
            f"{path} is of {what} {found}, and this trainer has {expected}"
        )
