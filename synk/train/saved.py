"""All that a `Trainer` goes on with, on all ranks: taken, given back, and in files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import host
from ..errors import CheckpointError
from ..ranks.ledger import Holding, Kind
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..variables.checkpoint_files import read_arrays, write_arrays
from ..variables.checkpoints import as_bytes, as_generators
from ..variables.lists import master_store
from ..variables.one_rank import worker_get_values

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


def take_values(variables: Sequence[SharedVariable]) -> dict[str, np.ndarray]:
    """Return the values of variables, by names for a file.

    Those that are equal on all ranks are there once, and others for each rank. Random
    streams are each rank's own.
    """
    numbers = master_replicate_variables(variables)
    by_rank = SESSION.run(worker_get_values, numbers, None)
    found = {}
    for rank, values in enumerate(by_rank):
        for i, (var, value) in enumerate(zip(variables, values, strict=True)):
            value = SESSION.context.array(value)
            if isinstance(value, np.random.Generator):
                value = as_bytes(var, [value])
            elif SESSION.ledger.of(var).kind == "replicated":
                if rank == 0:
                    found[_name(None, i)] = np.array(value)
                continue
            found[_name(rank, i)] = np.array(value)  # ranks write there again
    return found


def give_values(
    variables: Sequence[SharedVariable],
    arrays: Mapping[str, np.ndarray],
    holdings: Sequence[Holding],
    what: str,
) -> None:
    """Give variables the values that `take_values` has returned.

    Parameters
    ----------
    variables : sequence of SharedVariable
    arrays : mapping
        What has been taken from as many ranks.
    holdings : sequence of Holding
        How the ranks have held the variables.
    what : str
        What does this, for messages.
    """
    for rank in (None, *range(SESSION.size)):
        there = [i for i in range(len(variables)) if _name(rank, i) in arrays]
        if not there:
            continue
        some = [variables[i] for i in there]
        values = [_value(variables[i], arrays[_name(rank, i)]) for i in there]
        kind: Kind = "replicated" if rank is None else "local"
        master_store(some, Holding(kind, what), values, values, rank)
    for var, holding in zip(variables, holdings, strict=True):
        SESSION.ledger.note([var], holding)


def give_in_script(
    variables: Sequence[SharedVariable], arrays: Mapping[str, np.ndarray]
) -> None:
    """Give the script's variables rank 0's values: as if the script had set them.

    The ranks, of any number, get them before they next need them; of a random stream
    each has one that follows from it.
    """
    for i, var in enumerate(variables):
        name = next(n for n in (_name(None, i), _name(0, i)) if n in arrays)
        host.set_value(var, _value(var, arrays[name]))


def with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin so, by what comes after that."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _name(rank: int | None, i: int) -> str:
    return f"variable {i}" if rank is None else f"rank {rank} variable {i}"


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


def check_can_be_on(
    path: Path,
    ranks: int,
    rule: Any,
    variables: Sequence[SharedVariable],
    holdings: Sequence[Holding],
) -> None:
    """Raise unless what so many ranks had can be that of those that there are.

    It can where all ranks have the same, as in exact training: not by a rule.
    """
    if ranks == SESSION.size:
        return
    why = [
        f"{var} was {holding}"
        for var, holding in zip(variables, holdings, strict=True)
        if holding.kind != "replicated"
    ]
    if rule is not None:
        why = [f"by {rule!r} each rank has parameters of its own"]
    if why:
        raise CheckpointError(
            f"{path} is of {ranks} ranks, and there are {SESSION.size}, but only what"
            f" is replicated can be that of another number: {why[0]}"
        )
