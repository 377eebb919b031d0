"""Numba mode: a compiled loop that runs a function on blocks of rows.

A call of numba's code from Python takes 10 to 35 us, depending on the arguments and
outputs: as long as computing a thousand rows. So the loop is compiled as well. It calls
the machine code that numba has made for PyTensor's graph.

That code is ``function.vm.jit_fn`` from PyTensor 2.38 to 3.3, a dispatcher of numba
that takes the arguments, then the values of the shared variables that the graph reads.
If PyTensor keeps the code on disk, the loop is kept beside it, by a key made of the
code's key (``pytensor.link.numba.cache``). ``test_engine_numba.py`` fails if any of
that changes.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from ..compiled import copy_block, make_once
from ..errors import ORDINARY
from ..reduce_tree import depth, push

ERRORS = (*ORDINARY, NumbaError)
"""The errors of a loop if the loop, or an Op in it, does not compile."""

_VERSION = 6
"""A part of the cache key; raise it when code changes that is in a compiled loop."""

_DIFFER = "blocks of rows give outputs of different shapes"

Way: TypeAlias = (
    Literal["sum tree", "avg tree", "prod tree", "sum", "prod", "min", "max"]
    | Literal["rows", "stack"]
    | None
)
"""How blocks' values of an output are combined: in a tree (see `reduce_tree`), by an
exact op in any order ("sum" to "max"), concatenated ("rows"), stacked along a new first
axis ("stack"), or, for None, not at all, as all blocks have the same value."""


def is_tree(way: Way) -> bool:
    """Return whether values are combined in a tree."""
    return way is not None and way.endswith("tree")


CutBy: TypeAlias = Literal["rows", "blocks"] | None
"""A block's part of an argument: its rows, the entry of its number, or all of it."""


class Looped(NamedTuple):
    """The results of a loop over blocks."""

    entries: np.ndarray
    """The outputs combined in a tree, side by side: float64, (subtrees, elements)."""
    shapes: list[tuple[int, ...]]
    """The shapes of these outputs."""
    others: list[np.ndarray]
    """The other outputs, combined over all blocks."""


class Loop:
    """A compiled loop over blocks of rows, with the shared variables that it reads.

    Parameters
    ----------
    compiled : numba's function of `_source`
    shared : containers of variables, whose values follow the arguments
    trees : the number of outputs combined in a tree, which come first
    """

    def __init__(self, compiled: Any, shared: list[Any], trees: int) -> None:
        self._compiled, self._shared, self._trees = compiled, shared, trees

    def __call__(self, size: int, first: int, rows: int, *args: np.ndarray) -> Looped:
        """Run on `rows` rows in blocks of `size`; `first` is the first one's number."""
        values = [cell.storage[0] for cell in self._shared]
        room = depth(-(-rows // size))
        entries, *made = self._compiled(size, first, room, *args, *values)
        shapes, others = made[: self._trees], made[self._trees :]
        return Looped(entries, shapes, list(map(np.asarray, others)))


def loop_over_blocks(
    program: Callable[..., list[np.ndarray]],
    cuts: Sequence[CutBy],
    dtypes: Sequence[str],
    takes: Sequence[tuple[int, Way]],
) -> Loop | None:
    """Return a loop that runs a program of `host.compile_graph` on blocks of rows.

    Returns None if the program is not numba's, or an output cannot be combined so.

    Parameters
    ----------
    program : the compiled function
    cuts : how each argument is cut into blocks; at least one is cut by rows
    dtypes : of all outputs of the program
    takes : the outputs to return: their numbers, and how blocks' values are combined
    """
    function = inspect.unwrap(program)
    step = getattr(getattr(function, "vm", None), "jit_fn", None)
    if not isinstance(step, Dispatcher) or not all(
        _can_be(way, dtypes[i]) for i, way in takes
    ):
        return None
    shared: list[Any] = function.input_storage[len(cuts) :]  # type: ignore[attr-defined]
    every = [*cuts, *[None] * len(shared)]
    compiled = _compiled(step, _source(every, len(dtypes), takes))
    return Loop(compiled, shared, sum(is_tree(way) for _, way in takes))


def _can_be(way: Way, dtype: str) -> bool:
    kind = np.dtype(dtype).kind
    if is_tree(way):
        return dtype in ("float32", "float64")
    if way in ("sum", "prod"):
        return kind in "iu"
    return way in ("rows", "stack", None) or kind in "iuf"


def _source(
    cuts: Sequence[CutBy], outputs: int, takes: Sequence[tuple[int, Way]]
) -> str:
    """Return the loop's source, a function ``loop(size, first, room, x0, x1, ...)``."""
    given = ", ".join(f"x{i}" for i in range(len(cuts)))
    parts = {"rows": "[start:stop]", "blocks": "[number, ...]", None: ""}
    taken = ", ".join(f"x{i}{parts[by]}" for i, by in enumerate(cuts))
    step = f"{''.join(f'y{i}, ' for i in range(outputs))}= step({taken})"
    begin, each, width = ["products = zeros((0, 2), int64)"], [], "0"
    shapes, others = [], []
    for k, (i, way) in enumerate(takes):
        if is_tree(way):
            begin += [f"at{k}, shape{k} = {width}, y{i}.shape"]
            width = f"at{k} + y{i}.size"
            if way == "prod tree":
                begin += [f"products = with_range(products, at{k}, {width})"]
            weight = "stop - start" if way == "avg tree" else "1"
            each += [
                f"if y{i}.shape != shape{k}:",
                "    raise ValueError(DIFFER)",
                f"fill(entries[top], at{k}, y{i}, float({weight}))",
            ]
            shapes.append(f"shape{k}")
            continue
        others.append(f"y{i}" if way is None else f"all{k}")
        if way == "rows":
            begin.append(f"all{k} = room_for(y{i}, rows)")
            each.append(f"put(all{k}[start:stop], y{i}, y{i}.shape)")
        elif way == "stack":
            begin.append(f"all{k} = room_for_all(y{i}, (rows + size - 1) // size)")
            each.append(f"put(all{k}[number : number + 1], y{i}, (1, *y{i}.shape))")
        elif way is not None:
            begin.append(f"all{k} = y{i}.copy()")
            each += ["if start:", f"    {_UFUNCS[way]}(all{k}, y{i}, all{k})"]
    lines = [
        f"def loop(size, first, room, {given}):",
        f"    rows = len(x{list(cuts).index('rows')})",
        "    start, stop, top, number = 0, min(size, rows), 0, 0",
        f"    {step}",
        *[f"    {line}" for line in begin],
        f"    entries = empty((room, {width}))",
        "    levels = zeros(room, int64)",
        "    while True:",
        *[f"        {line}" for line in each],
        "        top = push(entries, levels, top, first + number, products)",
        "        number, start = number + 1, stop",
        "        if start >= rows:",
        "            break",
        "        stop = min(start + size, rows)",
        f"        {step}",
        f"    return ({', '.join(['entries[:top]', *shapes, *others])},)",
    ]
    return "\n".join(lines)


def _compiled(step: Dispatcher, source: str) -> Any:
    """Return numba's function of the source of a loop; its first call compiles it."""
    # Importing this also loads PyTensor's code for numba, as a call of `step` does.
    from pytensor.link.numba import cache

    names: dict[str, Any] = {"step": step, "__name__": __name__, **_NAMES}
    of_step = cache.CACHED_SRC_FUNCTIONS.get(step.py_func)
    if of_step is not None and step.stats.cache_path is not None:
        key = hashlib.sha256(repr((_VERSION, of_step, source)).encode()).hexdigest()
        loop = cache.compile_numba_function_src(source, "loop", names, cache_key=key)
        return make_once(njit(loop), f"loop-{key}")
    exec(source, names)
    return njit(names["loop"])


@njit
def _fill(entry, at, value, weight):
    """Write a block's value times its weight to an entry, from element `at` on."""
    place, flat = entry[at : at + value.size], value.ravel()
    for i in range(flat.size):
        place[i] = flat[i] * weight


@njit
def _with_range(ranges, start, stop):
    """Append the range of elements from `start` to `stop`."""
    return np.append(ranges, np.array([[start, stop]]), axis=0)


@njit
def _room_for(value, rows):
    """Return an empty array of `rows` rows like those of `value`."""
    return np.empty((rows, *value.shape[1:]), value.dtype)


@njit
def _room_for_all(value, blocks):
    """Return an empty array for `blocks` values like `value`."""
    return np.empty((blocks, *value.shape), value.dtype)


@njit
def _put(place, value, shape):
    """Write a block's value, which is to have a shape there, to its place."""
    if place.shape != shape:
        raise ValueError(_DIFFER)
    copy_block(place.ravel(), value.ravel())


_UFUNCS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}
"""numpy's ufunc that combines two blocks' values; NaN wins, as in numpy."""

_NAMES = {
    "DIFFER": _DIFFER,
    "empty": np.empty,
    "fill": _fill,
    "int64": np.int64,
    "push": push,
    "put": _put,
    "room_for": _room_for,
    "room_for_all": _room_for_all,
    **{name: getattr(np, name) for name in _UFUNCS.values()},
    "with_range": _with_range,
    "zeros": np.zeros,
}
