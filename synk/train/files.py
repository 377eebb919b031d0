"""The file of a `Trainer`: variables' values on all ranks, and other state as JSON.

States of callbacks and histories are trees of values. JSON holds lists, dicts with
strings as keys, and numbers, floats to the bit. Any other value becomes a dict with one
key, its kind (`_TAGS`); an array is stored in the file under a name. Nothing is
pickled.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..call.function import Function
from ..engines import host
from ..errors import CheckpointError
from ..ranks.ledger import Holding, Kind
from ..ranks.session import SESSION
from ..variables.checkpoint_files import read_arrays, write_arrays
from ..variables.checkpoints import as_bytes, as_generators
from ..variables.lists import master_store
from ..variables.one_rank import values_by_rank

_META = "trainer"
_ROOM = 1 << 24
"""Expected bytes of the header, which has the numbers of all epochs."""

_LARGEST_SET = 1 << 20
"""The most bytes of a value in `SetVariables`, such as a rate or a mask; not data."""


def write(
    path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays and a header, made by `as_json`, to a file."""
    names = {name: array.nbytes for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": names})
    write_arrays(path, {_META: np.frombuffer(text.encode(), np.uint8), **arrays})


def read(path: Path) -> dict[str, Any]:
    """Return the header and arrays of a file; CheckpointError if it is damaged."""
    header = json.loads(read_arrays(path, {_META: _ROOM})[_META].tobytes())
    return from_json(header, read_arrays(path, header.pop("arrays")))


def check_same(path: Path, what: str, found: Any, expected: Any) -> None:
    """Raise CheckpointError unless the file's value of `what` is this trainer's."""
    if found != expected:
        raise CheckpointError(
            f"{path} was saved with {what} {found}, and this trainer has {expected}"
        )


# -- variables that a step updates, on all ranks


def copy_values(variables: Sequence[SharedVariable]) -> list[Any]:
    """Return copies of the values of variables, for `restore_values`.

    A replicated variable has one value; a local one, or a random stream, a list of
    values by rank.
    """
    by_rank = zip(*values_by_rank(variables), strict=True)
    found = []
    for var, of_ranks in zip(variables, by_rank, strict=True):
        # Copies: the next command overwrites the ranks' memory.
        values = [_copied(SESSION.context.array(each)) for each in of_ranks]
        is_stream = isinstance(values[0], np.random.Generator)
        is_one = SESSION.ledger.of(var).kind == "replicated" and not is_stream
        found.append(values[0] if is_one else values)
    return found


def restore_values(
    variables: Sequence[SharedVariable],
    values: Sequence[Any],
    holdings: Sequence[Holding],
    what: str,
) -> None:
    """Set variables on all ranks to values of `copy_values`, of as many ranks.

    The ledger then notes `holdings`; `what` names the cause, for messages.
    """
    pairs = list(zip(variables, values, strict=True))
    for rank in (None, *range(SESSION.size)):
        some = [
            pair for pair in pairs if isinstance(pair[1], list) == (rank is not None)
        ]
        if some:
            given = [_value(var, of if rank is None else of[rank]) for var, of in some]
            kind: Kind = "replicated" if rank is None else "local"
            those = [var for var, _ in some]
            master_store(those, Holding(kind, what), given, given, rank)
    for var, holding in zip(variables, holdings, strict=True):
        SESSION.ledger.note([var], holding)


def restore_in_script(
    variables: Sequence[SharedVariable], values: Sequence[Any]
) -> None:
    """Set the script's variables to rank 0's values, as if the script had set them.

    Ranks, of any number, get the values with the next call that needs them, and derive
    their own random streams.
    """
    for var, value in zip(variables, values, strict=True):
        own = value[0] if isinstance(value, list) else value
        host.set_value(var, _value(var, own))


def _value(var: SharedVariable, value: Any) -> Any:
    """Return a copy of a value; raise unless the variable's type accepts it."""
    return var.type.filter(_copied(value), strict=True)


def _copied(value: Any) -> Any:
    is_stream = isinstance(value, np.random.Generator)
    return copy.deepcopy(value) if is_stream else np.array(value)


# -- variables that a step only reads


class SetVariables:
    """The variables that were set since training began, as a callback sets a rate.

    The step reads them, and does not update them. A file has them, as training goes on
    with their values. It has no variable that nobody has set: loading would undo what
    the script sets before it loads.
    """

    def __init__(self, step: Function) -> None:
        self._step = step
        self._before: dict[SharedVariable, np.ndarray] | None = None
        self._from_file: set[SharedVariable] = set()

    def begin(self) -> None:
        """Note the present values, at the first fit, as those before training."""
        if self._before is None:
            self._before = {var: np.array(v) for var, v in self._present().items()}

    def changed(self) -> list[dict[str, Any]]:
        """Return the variables that were set, as entries of a file."""
        found = []
        before = self._before or {}
        for i, (var, value) in enumerate(self._present().items()):
            was, now = ((v.shape, v.tobytes()) for v in (before.get(var, value), value))
            if was != now or var in self._from_file:
                found.append({"name": var.name, "number": i, "value": value})
        return found

    def values_of(
        self, path: Path, entries: Sequence[Mapping[str, Any]]
    ) -> dict[SharedVariable, np.ndarray]:
        """Return the values in a file's entries, by variable; nothing is set yet."""
        found = {}
        variables = list(self._present())
        for of in entries:
            same = [var for var in variables if var.name == of["name"]]
            at = variables[of["number"]] if of["number"] < len(variables) else None
            var = same[0] if len(same) == 1 and of["name"] is not None else at
            if var is None or var.name != of["name"]:
                raise CheckpointError(
                    f"{path} has a value of {of['name']!r}, which was set while the"
                    f" trainer trained, and {self._step!r} reads no such variable"
                )
            found[var] = var.type.filter(of["value"], strict=True)
        return found

    def restore(self, values: Mapping[SharedVariable, np.ndarray]) -> None:
        """Set variables to a file's values; later files will have them, too."""
        self._from_file.update(values)
        for var, value in values.items():
            host.set_value(var, value)

    def _present(self) -> dict[SharedVariable, np.ndarray]:
        """Return the values of replicated variables that the step only reads."""
        found = {}
        updated = set(self._step.updated)
        for var in self._step.get_shared():
            if var not in updated and SESSION.ledger.of(var).kind == "replicated":
                value = host.get_value(var)
                if isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_SET:
                    found[var] = value
        return found


# -- trees of values

_PLAIN = (str, bool, int, float, type(None))
_TAGS = ("<array>", "<scalar>", "<generator>", "<tuple>", "<set>", "<dict>")


def as_json(value: Any, arrays: dict[str, np.ndarray], name: str, what: str) -> Any:
    """Return a tree of values in JSON's types, and add its arrays to `arrays`.

    The arrays' names begin with `name`; messages call the value `what`.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        by_key = {
            key: as_json(of, arrays, name, f"{what}[{key!r}]")
            for key, of in value.items()
        }
        if all(type(key) is str and key not in _TAGS for key in by_key):
            return by_key
        return {
            "<dict>": [[as_json(k, arrays, name, what), of] for k, of in by_key.items()]
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        found = [
            as_json(of, arrays, name, f"{what}[{i}]") for i, of in enumerate(value)
        ]
        if isinstance(value, list):
            return found
        return {"<tuple>" if isinstance(value, tuple) else "<set>": found}
    tag, array = _as_array(value, what)
    place = f"{name} {len(arrays)}"
    arrays[place] = array
    return {tag: place}


def _as_array(value: Any, what: str) -> tuple[str, np.ndarray]:
    """Return the tag of a value's kind, and the value as an array."""
    if isinstance(value, np.random.Generator):
        return "<generator>", as_bytes(what, [value])
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return "<scalar>", np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return "<array>", value
    text = repr(value)
    short = text if len(text) < 60 else text[:57] + "..."
    raise TypeError(
        f"{what} cannot be written to a file: it is {short} ({type(value).__name__}),"
        " and what a file holds is numbers, strings, arrays, random generators, and"
        " lists, tuples, sets and dicts of these"
    )


def from_json(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value that `as_json` has converted; a frozenset becomes a set."""
    if isinstance(tree, list):
        return [from_json(of, arrays) for of in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1 or next(iter(tree)) not in _TAGS:
        return {key: from_json(of, arrays) for key, of in tree.items()}
    ((tag, content),) = tree.items()
    if tag == "<dict>":
        return {from_json(k, arrays): from_json(v, arrays) for k, v in content}
    if tag in ("<tuple>", "<set>"):
        found = (from_json(of, arrays) for of in content)
        return tuple(found) if tag == "<tuple>" else set(found)
    array = arrays[content]
    if tag == "<generator>":
        return as_generators(array)[0]
    return array[()] if tag == "<scalar>" else np.array(array)
