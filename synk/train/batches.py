"""The batches of an epoch, and the loop of steps over them.

A *source* of rows gives an epoch in parts (`files.order.Part`). It is made of arrays,
is `synk.files.Rows`, or is an object of the script's with a method `parts` like theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..call.function import Function
from ..call.run_master import RunTimes
from ..call.uses import takes_own_rows
from ..files import Rows, on_nodes
from ..files.on_nodes import Epoch
from ..files.order import Part
from ..memory.partition import count, select
from ..ranks.session import SESSION
from ..reduce_ops import REDUCE_OPS, combine


class Arrays:
    """A source of arrays, or of those rows of theirs that `rows` selects.

    An epoch has one part. `rows` is like the argument `batch` of a call.
    """

    def __init__(self, data: Sequence, rows: Any = None) -> None:
        self._data = tuple(data)
        chosen = select(rows, len(data[0]))
        if isinstance(chosen, slice):
            chosen = np.arange(chosen.start, chosen.stop)
        self.rows = chosen

    def parts(
        self, epoch: int, batch_size: int, *, seed: int, shuffle: bool
    ) -> Iterator[Part]:
        """Return an epoch's batches: every row once; the last batch may be smaller.

        The order follows from seed and epoch alone.
        """
        order = self.rows
        if shuffle:
            order = np.random.default_rng([seed, epoch]).permutation(order)
        starts = range(0, len(order), batch_size)
        return iter([Part([order[i : i + batch_size] for i in starts], self._data)])


def has_parts(data: Sequence) -> bool:
    """Return whether the first input is a source, with a method `parts`."""
    return bool(data) and callable(getattr(data[0], "parts", None))


def source_of(step: Function, data: Sequence, rows: Any = None) -> Any:
    """Return the source of a step's inputs with rows; `rows` selects rows of arrays."""
    if not step.has_rows:
        raise ValueError(f"{step!r} has no scattered input, so there are no batches")
    if not data:
        raise TypeError(f"data for {step!r} is missing: fit(X, Y, ..., batch_size=...)")
    if not has_parts(data):
        return Arrays(data, rows)
    if rows is not None:
        raise TypeError(f"rows= chooses from arrays, and {data[0]!r} gives its own")
    return data[0]


def rows_of(step: Function, data: Sequence, rows: Any = None) -> np.ndarray:
    """Return the numbers of the rows that `rows` selects of arrays."""
    source = source_of(step, data, rows)
    if not isinstance(source, Arrays):
        raise TypeError(f"rows are chosen from arrays, and {data[0]!r} gives its own")
    return source.rows


def parts_of(
    source: Any,
    step: Function,
    epoch: Epoch,
    num_slices: int = 1,
    output_subset: Any = None,
    **_: Any,
) -> Iterator[Part]:
    """Return the parts of an epoch; the other arguments are those of ``step.run``.

    On several nodes each reads only its own ranks' rows of files, if the step allows.
    """
    if (
        isinstance(source, Rows)
        and SESSION.nodes > 1
        and takes_own_rows(step, num_slices, output_subset)
        and on_nodes.can_read(source)
    ):
        return on_nodes.parts(source, epoch)
    number, seed, shuffle, batch_size = epoch
    return source.parts(number, batch_size, seed=seed, shuffle=shuffle)


def _sizes_of(part: Part) -> list[int]:
    """Return the number of rows of each batch."""
    return [
        batch.size
        if isinstance(batch, np.ndarray) and batch.dtype.kind == "i"
        else count(select(batch, len(part.inputs[0])))
        for batch in part.batches
    ]


class EpochSteps(NamedTuple):
    """The results of an epoch's steps."""

    losses: np.ndarray
    sizes: list[int]  # rows of each step
    ran: RunTimes
    reading: float  # seconds that the master waited for parts


def make_steps(
    parts: Iterator[Part], step: Function, run: Callable[..., Any]
) -> EpochSteps:
    """Make the steps of an epoch: call `run` with each part's batches and inputs.

    `parts` is closed in the end, if it has a method `close`.
    """
    losses: list[np.ndarray] = []
    sizes: list[int] = []
    ran, reading = RunTimes(), 0.0
    try:
        while True:
            start = perf_counter()
            part = next(parts, None)
            reading += perf_counter() - start
            if part is None:
                break
            outputs = run(part.batches, *part.inputs)
            first = outputs[0] if isinstance(outputs, list) else outputs
            losses.append(np.asarray(first, float))
            ran.include(step.ran)
            sizes += _sizes_of(part)
    finally:
        if (close := getattr(parts, "close", None)) is not None:
            close()
    return EpochSteps(np.concatenate([np.empty(0), *losses]), sizes, ran, reading)


# -- validation


def validated(validation: Callable | Sequence, batch_size: int) -> dict[str, float]:
    """Return a validation's results by name; a source goes through in batches."""
    function: Any
    args: list[Any]
    function, *args = [validation] if callable(validation) else validation
    if has_parts(args):
        found = _over_parts(function, args[0], args[1:], batch_size)
    else:
        found = function(*args)
    if isinstance(found, Mapping):
        return {f"val_{name}": float(value) for name, value in found.items()}
    values = found if isinstance(found, list) else [found]
    names = ["val_loss", *[f"val_{i}" for i in range(1, len(values))]]
    return {n: float(value) for n, value in zip(names, values, strict=True)}


def _over_parts(
    function: Function, source: Any, others: Sequence, batch_size: int
) -> list[Any]:
    """Return a function's outputs for all rows of `source`, combined over batches."""
    if not isinstance(function, Function):
        raise TypeError(f"batches are for what synk.function returns, not {function!r}")
    ops = [op for op in function.output_modes if op in REDUCE_OPS]
    if len(ops) != len(function.output_modes) or not ops:
        raise ValueError(
            f"outputs of {function!r} cannot be combined over batches: they are"
            f" {function.output_modes}"
        )
    values: list[list] = [[] for _ in ops]
    sizes: list[int] = []
    for part in parts_of(source, function, Epoch(0, 0, False, batch_size)):
        found = function.run(part.batches, *part.inputs, *others)
        of_outputs = found if isinstance(found, list) else [found]
        for all_values, more in zip(values, of_outputs, strict=True):
            all_values.extend(more)
        sizes += _sizes_of(part)
    pairs = zip(ops, values, strict=True)
    return [combine(op, of_op, sizes) for op, of_op in pairs]
