"""`scan` and its relatives: outputs and updates, as Theano returns them.

PyTensor is about to return outputs only; here, updates of shared variables come second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.scan import scan as _scan

from .pytensor_versions import OrderedUpdates, quiet

__all__ = ["foldl", "foldr", "map", "reduce", "scan"]


def scan(
    fn: Callable,
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    n_steps: Any = None,
    truncate_gradient: int = -1,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
    profile: Any = False,
    allow_gc: bool | None = None,
    strict: bool = False,
    return_list: bool = False,
) -> tuple[Any, Any]:
    """Loop over sequences; ``pytensor.scan``, which has the arguments.

    The updates, for `function`, are of shared variables that a step changes, and of
    random streams.
    """
    given = {
        "sequences": sequences,
        "outputs_info": outputs_info,
        "non_sequences": non_sequences,
        "n_steps": n_steps,
        "mode": mode,
        "name": name,
        "allow_gc": allow_gc,
    }
    with quiet():
        outputs, updates = _scan(
            fn,
            **{key: value for key, value in given.items() if value is not None},
            truncate_gradient=truncate_gradient,
            go_backwards=go_backwards,
            profile=profile,
            strict=strict,
            return_list=return_list,
        )
    return outputs, OrderedUpdates(updates)


def map(
    fn: Callable, sequences: Any, non_sequences: Any = None, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """Apply `fn` to every element of sequences.

    Further arguments are `truncate_gradient`, `go_backwards`, `mode`, `name`.
    """
    return scan(fn, sequences, None, non_sequences, None, *args, **kwargs)


def reduce(
    fn: Callable,
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Loop over sequences and keep the last outputs."""
    outputs, updates = scan(
        fn,
        sequences,
        outputs_info,
        non_sequences,
        go_backwards=go_backwards,
        mode=mode,
        name=name,
    )
    if isinstance(outputs, list | tuple):
        return [output[-1] for output in outputs], updates
    return outputs[-1], updates


def foldl(
    fn: Callable,
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """`reduce` from the first element to the last."""
    return reduce(fn, sequences, outputs_info, non_sequences, False, mode, name)


def foldr(
    fn: Callable,
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """`reduce` from the last element to the first."""
    return reduce(fn, sequences, outputs_info, non_sequences, True, mode, name)
