"""What is measured after an epoch, on rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..call.function import Function
from ..reduce_ops import REDUCE_OPS, combine
from .batches import Epoch, Source, has_parts, parts_of, sizes_of


def validated(validation: Callable | Sequence, batch_size: int) -> dict[str, float]:
    """Return what a validation has found, by name.

    Parameters
    ----------
    validation : callable or (function, arguments...)
    batch_size : int
        For arguments that come in batches.
    """
    function: Any
    args: list[Any]
    function, *args = [validation] if callable(validation) else validation
    if has_parts(args):
        found = over_parts(function, args[0], args[1:], batch_size)
    else:
        found = function(*args)
    if isinstance(found, Mapping):
        return {f"val_{name}": float(value) for name, value in found.items()}
    values = found if isinstance(found, list) else [found]
    names = ["val_loss", *[f"val_{i}" for i in range(1, len(values))]]
    return {n: float(value) for n, value in zip(names, values, strict=True)}


def over_parts(
    function: Function, source: Source, others: Sequence, batch_size: int
) -> Any:
    """Return what a function returns for all rows of a source, batch by batch.

    Parameters
    ----------
    function : Function
        Its outputs are combined over batches as they are over ranks.
    source : Source
    others : sequence
        The inputs without rows.
    batch_size : int

    Raises
    ------
    TypeError
        If it is no synk function.
    ValueError
        If its outputs cannot be combined.
    """
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
        sizes += sizes_of(part)
    combined = [
        combine(op, of_op, sizes) for op, of_op in zip(ops, values, strict=True)
    ]
    return combined if len(combined) > 1 else combined[0]
