"""Checkpoints: the values of shared variables in a file, and back on every rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.tensor.type import DenseTensorType

from ..engines import host
from ..errors import CheckpointError
from ..ranks.ledger import Holding
from ..ranks.session import SESSION
from ..user_frames import entry
from .checkpoint_files import format_of, read_arrays, write_arrays
from .lists import OfRanks, master_store
from .one_rank import values_by_rank


@entry
def save(path: str | os.PathLike[str], vars: Any) -> None:
    """Write the values of shared variables to a file.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.npz`` or ``.safetensors``, the format. The latter needs the package
        safetensors. An old file is replaced in one step, or left as it was if anything
        goes wrong.
    vars : shared variable, list of these, or dict of str to shared variable
        Tensors and random generators. The file stores a variable under its name, or
        its key in a dict; one without a name under its place in the list, which then
        must have the same length and order for :func:`load`. Names must differ.

    Raises
    ------
    ImportError
        If the package safetensors is needed and not installed.
    OSError
        If the file cannot be written.
    StateError
        In a worker.
    TypeError, ValueError
        If the extension is another one, two variables have one name, or a variable
        cannot be stored: a sparse matrix, a generator of another class than numpy's,
        or complex numbers in ``.safetensors``.

    Notes
    -----
    If ranks have different values, rank 0's is saved; for a random generator, the state
    on every rank. Saving works before `synk.fork`, too.

    Update rules keep state of their own: ``synk.save(path, list(updates))`` saves it
    with the parameters, and :attr:`Function.updated` is the same list.
    """
    _check_state()
    path = Path(path)
    format_of(path)
    by_key = _by_key(vars)
    streams = _streams([var for var in by_key.values() if _is_generator(var)])
    arrays = {
        key: as_bytes(var, streams[var])
        if var in streams
        else np.asarray(host.get_value(var), order="C")
        for key, var in by_key.items()
    }
    write_arrays(path, arrays)


@entry
def load(path: str | os.PathLike[str], vars: Any) -> None:
    """Set shared variables, on all ranks, to the values in a file.

    Parameters
    ----------
    path : str or path-like
        A file that :func:`save` has written, or another program in one of its formats.
    vars : shared variable, list of these, or dict of str to shared variable
        As for :func:`save`. The file may hold values of other variables as well.

    Raises
    ------
    CheckpointError
        If the file is damaged, lacks a variable, or has a value of another dtype or
        number of dimensions, or of a shape that the variable's type excludes. All of
        the file is checked before any variable is set.
    ImportError
        If the package safetensors is needed and not installed.
    OSError
        If the file cannot be read.
    StateError
        In a worker.
    TypeError, ValueError
        As for :func:`save`.

    Notes
    -----
    A file that was cut short is always noticed, and so are changed bytes in a file that
    :func:`save` has written. The format ``.safetensors`` has no checksums of its own,
    so changed values in another program's file are not noticed.

    If there are as many ranks as at :func:`save`, each rank's random generator gets its
    saved state. On another number of ranks, all streams are derived from rank 0's.
    """
    _check_state()
    path = Path(path)
    by_key = _by_key(vars)
    variables = list(by_key.values())
    arrays = read_arrays(path, {key: _nbytes(var) for key, var in by_key.items()})
    values = [_value(path, key, var, arrays[key]) for key, var in by_key.items()]
    if SESSION.state == "running":
        of_ranks = [_of_ranks(value, SESSION.size) for value in values]
        holding = Holding("replicated", f"synk.load of {path.name}")
        master_store(variables, holding, of_ranks, of_ranks)
    else:
        for var, value in zip(variables, values, strict=True):
            host.set_value(var, value[0] if isinstance(value, list) else value)


def _of_ranks(value: Any, size: int) -> Any:
    """Return an array as it is; of generators, all if they are `size`, or the first."""
    if not isinstance(value, list):
        return value
    return OfRanks(value) if len(value) == size else value[0]


def _check_state() -> None:
    """Raise in a worker, and if a session cannot be used, as a broken one."""
    if SESSION.state not in ("unforked", "closed", "child"):
        SESSION.enter()


# -- names ---------------------------------------------------------------------------


def _by_key(vars: Any) -> dict[str, SharedVariable]:
    """Return the variables by the names of their values in a file."""
    if isinstance(vars, SharedVariable):
        vars = [vars]
    if isinstance(vars, Mapping):
        if any(isinstance(name, SharedVariable) for name in vars):
            raise TypeError("got a dict of updates: pass its variables, list(updates)")
        names, variables = list(vars), list(vars.values())
    elif isinstance(vars, (set, frozenset)):
        raise TypeError("variables must be in a list or a dict: a set has no order")
    else:
        variables = list(vars)
        names = [
            getattr(var, "name", None) or f"unnamed {i} of {len(variables)}"
            for i, var in enumerate(variables)
        ]
    for name, var in zip(names, variables, strict=True):
        _check_variable(name, var)
    if len(set(variables)) < len(variables):
        raise ValueError("a variable is listed twice")
    keys = [
        f"{name}:bit_generators" if _is_generator(var) else name
        for name, var in zip(names, variables, strict=True)
    ]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(
            f"several variables are named {', '.join(twice)}: a file tells them apart"
            " by their names; name them, or pass a dict of names"
        )
    return dict(zip(keys, variables, strict=True))


def _check_variable(name: Any, var: Any) -> None:
    if not isinstance(var, SharedVariable):
        raise TypeError(f"a checkpoint is of shared variables, got {var!r}")
    if not isinstance(name, str):
        raise TypeError(f"names must be of type str, got {name!r}")
    if not name or "\0" in name or name == "__metadata__":
        raise ValueError(f"a variable in a file cannot have the name {name!r}")
    if not isinstance(var.type, DenseTensorType) and not _is_generator(var):
        raise TypeError(
            f"{name} is a {var.type}: only dense tensors and random generators can be"
            " in a checkpoint"
        )


def _is_generator(var: SharedVariable) -> bool:
    return isinstance(host.get_value(var), np.random.Generator)


# -- values --------------------------------------------------------------------------


def _value(path: Path, key: str, var: SharedVariable, array: np.ndarray) -> Any:
    """Return a variable's value from a file: an array, or a list of generators."""
    try:
        if _is_generator(var):
            return as_generators(array)
        return var.type.filter(array, strict=True)
    except Exception as error:
        raise CheckpointError(
            f"{path}: {key}, {array.dtype} of shape {array.shape}, is no value for"
            f" {var} ({var.type}): {error}"
        ) from error


BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""Numpy's classes of bit generators."""


def _streams(variables: list[SharedVariable]) -> dict[SharedVariable, Sequence]:
    """Return the generators of all ranks, by variable."""
    if not variables:
        return {}
    if SESSION.state == "running":
        by_rank = values_by_rank(variables)
    else:
        by_rank = [[host.get_value(var) for var in variables]]
    return dict(zip(variables, zip(*by_rank, strict=True), strict=True))


def as_bytes(var: Any, generators: Sequence) -> np.ndarray:
    """Return the states of `generators`, one for each rank, as JSON in an array."""
    for generator in generators:
        kind = type(generator.bit_generator)
        if kind not in [getattr(np.random, name) for name in BIT_GENERATORS]:
            raise TypeError(
                f"{var} draws from {kind.__name__}: only the state of"
                f" {', '.join(BIT_GENERATORS)} can be in a checkpoint"
            )
    states = [generator.bit_generator.state for generator in generators]
    text = json.dumps(states, default=lambda part: part.tolist())
    return np.frombuffer(text.encode(), np.uint8)


_ROOM = 1 << 20
"""Expected bytes of a generator's states on all ranks."""


def _nbytes(var: SharedVariable) -> int:
    """Return the bytes to expect for a variable, without a copy from its device."""
    value = var.get_value(borrow=True, return_internal_type=True)
    return getattr(value, "nbytes", _ROOM)


_PLACES = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}
"""By class: the field of a state with the index of the next number, and its limit.

numpy does not check the index, and would read memory beyond the state's numbers.
"""


def as_generators(array: np.ndarray) -> list[np.random.Generator]:
    """Return generators in the states that `as_bytes` has stored."""
    generators = []
    for state in json.loads(array.tobytes()):
        kind = state["bit_generator"]
        if kind not in BIT_GENERATORS:
            raise ValueError(f"there is no generator {kind}")
        if kind in _PLACES:
            field, count = _PLACES[kind]
            place = {**state, **state["state"]}[field]
            if type(place) is not int or not 0 <= place <= count:
                raise ValueError(f"{field} of {kind} is {place!r}")
        bit_generator = getattr(np.random, kind)()
        bit_generator.state = state
        generators.append(np.random.Generator(bit_generator))
    if not generators:
        raise ValueError("no state of any rank")
    return generators
