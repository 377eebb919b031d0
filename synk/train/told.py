"""What is told in a trainer's file besides arrays: trees of values, as JSON.

Callbacks and histories are made of these. JSON holds lists, dicts by strings, and
numbers, floats to the bit. Whatever else occurs is a dict of one key that says what it
is: so arrays, which lie in the file by themselves, under names. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..variables.checkpoints import as_bytes, as_generators

_PLAIN = (str, bool, int, float, type(None))
_TAGS = ("<array>", "<scalar>", "<generator>", "<bytes>", "<tuple>", "<set>", "<dict>")


def as_json(value: Any, arrays: dict[str, np.ndarray], name: str, what: str) -> Any:
    """Return a value as JSON has it, and put its arrays to those of a file.

    Parameters
    ----------
    value : object
        A tree of dicts, lists, tuples and sets, of numbers, strings, bytes, arrays and
        random generators.
    arrays : dict of str to numpy.ndarray
        Those of the file; more are added.
    name : str
        What their names begin with.
    what : str
        What the value is, for messages.

    Raises
    ------
    TypeError
        If there is anything else in it.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        told = {
            key: as_json(of, arrays, name, f"{what}[{key!r}]")
            for key, of in value.items()
        }
        if all(type(key) is str and key not in _TAGS for key in told):
            return told
        return {
            "<dict>": [[as_json(k, arrays, name, what), of] for k, of in told.items()]
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
    """Return a value as an array, and what it was."""
    if isinstance(value, np.random.Generator):
        return "<generator>", as_bytes(what, [value])
    if isinstance(value, bytes):
        return "<bytes>", np.frombuffer(value, np.uint8)
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return "<scalar>", np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return "<array>", value
    raise TypeError(
        f"{what} cannot be written to a file: it is {_short(value)}, and what a file"
        " holds is numbers, strings, arrays, random generators, and lists, tuples, sets"
        " and dicts of these"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def from_json(told: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value of which `as_json` has made this.

    Parameters
    ----------
    told : object
        What JSON holds.
    arrays : mapping of str to numpy.ndarray
        Those of the file.
    """
    if isinstance(told, list):
        return [from_json(of, arrays) for of in told]
    if not isinstance(told, dict):
        return told
    if len(told) != 1 or next(iter(told)) not in _TAGS:
        return {key: from_json(of, arrays) for key, of in told.items()}
    ((tag, content),) = told.items()
    if tag == "<dict>":
        return {from_json(k, arrays): from_json(v, arrays) for k, v in content}
    if tag in ("<tuple>", "<set>"):
        found = (from_json(of, arrays) for of in content)
        return tuple(found) if tag == "<tuple>" else set(found)
    array = arrays[content]
    if tag == "<generator>":
        return as_generators(array)[0]
    if tag == "<bytes>":
        return array.tobytes()
    return array[()] if tag == "<scalar>" else np.array(array)
