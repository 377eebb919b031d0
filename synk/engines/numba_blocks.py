"""Numba mode: blocks of rows in one compiled loop, whose outputs are added up.

To call a function of numba's from Python takes 10 to 35 us, by its arguments and its
outputs: as long as it computes on a thousand rows. So the loop is compiled as well. It
calls the code that PyTensor had numba make for the graph, which is there already.

That code is ``function.vm.jit_fn`` from PyTensor 2.38 to 3.3, a dispatcher of numba's
that takes the arguments, then the values of the shared variables that the graph reads.
Where PyTensor keeps it on disk the loop is kept beside it, by a key that follows from
that of the code (``pytensor.link.numba.cache``). ``test_engine_numba.py`` tells
when any of that changes.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from ..errors import ORDINARY
from ..reduce_ops import OutputOp, accumulator

ERRORS = (*ORDINARY, NumbaError)
"""What a loop raises that does not compile, or an Op in it."""

_VERSION = 1
"""Of all code below that a loop calls, or is made of; raised when it changes."""


class Loop:
    """What runs a compiled function for blocks of rows.

    Parameters
    ----------
    compiled : Dispatcher
    shared : list
        The containers of shared variables whose values it takes after its arguments.
    key : str, optional
        Under which its code is kept on disk, if it is.
    """

    def __init__(self, compiled: Any, shared: list[Any], key: str | None) -> None:
        self._compiled, self._shared, self._key = compiled, shared, key

    @property
    def is_on_disk(self) -> bool:
        """Whether code is there from an earlier run: it takes no second to begin."""
        if self._key is None:
            return False
        folder = Path(self._compiled.stats.cache_path)
        return any(folder.glob(f"*{self._key}*.nbi"))

    def __call__(self, size: int, *args: np.ndarray) -> list[np.ndarray]:
        """Run it, with how many rows a block has, and the arguments.

        Of the outputs those that are combined have the dtype of
        `reduce_ops.accumulator`.
        """
        values = [cell.storage[0] for cell in self._shared]
        return list(map(np.asarray, self._compiled(size, *args, *values)))


def loop_over_blocks(
    program: Callable[..., list[np.ndarray]],
    are_rows: Sequence[bool],
    ops: Sequence[OutputOp],
    dtypes: Sequence[str],
) -> Loop | None:
    """Return what runs a compiled function for blocks of rows.

    Parameters
    ----------
    program : callable
        From `host.compile_graph`.
    are_rows : sequence of bool
        For each argument, whether it is cut into blocks along its first dimension. Of
        the first one of them is taken how many rows there are.
    ops : sequence of {"sum", "avg", None}
        How each output is combined over blocks; None if it is the same in each.
    dtypes : sequence of str
        Of the outputs.

    Returns
    -------
    Loop or None
        None if the function is not numba's, or an output is combined in another way.
    """
    function = inspect.unwrap(program)
    step = getattr(getattr(function, "vm", None), "jit_fn", None)
    if not isinstance(step, Dispatcher) or not all(map(_is_added, ops, dtypes)):
        return None
    n = len(are_rows)
    shared: list[Any] = function.input_storage[n:]  # type: ignore[attr-defined]
    cut = [*are_rows, *[False] * len(shared)]
    compiled, key = _compiled(step, cut, ops, dtypes)
    return Loop(compiled, shared, key)


def _is_added(op: OutputOp, dtype: str) -> bool:
    if op == "sum":
        return dtype in ("float32", "float64", "int64", "int32")
    return op is None or (op == "avg" and dtype in ("float32", "float64"))


def _compiled(
    step: Dispatcher,
    cut: Sequence[bool],
    ops: Sequence[OutputOp],
    dtypes: Sequence[str],
) -> tuple[Any, str | None]:
    """Return the loop for a function's arguments, and its key if it is kept on disk.

    Its first call compiles it.
    """
    taken = ", ".join(
        f"x{i}[start:stop]" if cuts else f"x{i}" for i, cuts in enumerate(cut)
    )
    made = "".join(f"y{i}, " for i in range(len(ops)))
    begin, add, results = [], [], []
    names: dict[str, Any] = {"step": step, "begun": _begun, **_ADDING}
    names["__name__"] = __name__
    for i, (op, dtype) in enumerate(zip(ops, dtypes, strict=True)):
        results.append(f"y{i}" if op is None else f"total{i}")
        if op is not None:
            names[f"zero{i}"] = accumulator(op, np.dtype(dtype)).type(0)
            begin.append(f"total{i} = begun(y{i}, zero{i})")
            add.append(f"add_{op}(total{i}, y{i}, (stop - start) / rows)")
    lines = [
        f"def loop(size, {', '.join(f'x{i}' for i in range(len(cut)))}):",
        f"    rows = len(x{cut.index(True)})",
        "    start, stop = 0, min(size, rows)",
        f"    {made}= step({taken})",
        *[f"    {line}" for line in [*begin, *add]],
        "    for start in range(size, rows, size):",
        "        stop = min(start + size, rows)",
        f"        {made}= step({taken})",
        *[f"        {line}" for line in add],
        f"    return ({', '.join(results)},)",
    ]
    # Imports what else PyTensor has for numba, which a call of `step` has done.
    from pytensor.link.numba import cache

    source = "\n".join(lines)
    of_step = cache.CACHED_SRC_FUNCTIONS.get(step.py_func)
    if of_step is not None and step.stats.cache_path is not None:
        about = repr((_VERSION, of_step, source, ops, dtypes))
        key = hashlib.sha256(about.encode()).hexdigest()
        loop = cache.compile_numba_function_src(source, "loop", names, cache_key=key)
        return njit(loop, cache=True), key
    exec(source, names)
    return njit(names["loop"]), None


@njit
def _begun(value, zero):
    """Return zeros of a value's shape, to add it and others to."""
    return np.full(value.shape, zero)


@njit
def _add_sum(total, value, share):
    if total.shape != value.shape:
        raise ValueError("blocks of rows give outputs of different shapes")
    for i in np.ndindex(total.shape):
        total[i] += value[i]


@njit
def _add_avg(total, value, share):
    if total.shape != value.shape:
        raise ValueError("blocks of rows give outputs of different shapes")
    for i in np.ndindex(total.shape):
        total[i] += value[i] * share


_ADDING = {"add_sum": _add_sum, "add_avg": _add_avg}
