"""`scan` and its relatives: outputs and updates, as Theano returns them.

PyTensor is about to return outputs only; here, updates of shared variables come second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.scan import scan as _scan
from pytensor.scan import scan_checkpoints as _scan_checkpoints
from pytensor.scan import until

from ..pytensor_versions import ordered_updates, quiet

__all__ = ["foldl", "foldr", "map", "reduce", "scan", "scan_checkpoints", "until"]


def _run(loop: Callable, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    for name in [name for name, value in kwargs.items() if value is None]:
        del kwargs[name]
    with quiet():
        outputs, updates = loop(*args, **kwargs)
    return outputs, ordered_updates()(updates)


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
    """Loop over sequences; ``pytensor.scan``.

    Parameters
    ----------
    fn : callable
        One step: takes slices of the sequences, earlier outputs, and non_sequences.
    sequences, outputs_info, non_sequences, n_steps, truncate_gradient, go_backwards,
    mode, name, profile, allow_gc, strict, return_list
        As in PyTensor.

    Returns
    -------
    outputs : TensorVariable or list of TensorVariable
    updates : OrderedUpdates
        For `function`: of shared variables that a step changes, of random streams.
    """
    return _run(
        _scan,
        fn,
        sequences=sequences,
        outputs_info=outputs_info,
        non_sequences=non_sequences,
        n_steps=n_steps,
        truncate_gradient=truncate_gradient,
        go_backwards=go_backwards,
        mode=mode,
        name=name,
        profile=profile,
        allow_gc=allow_gc,
        strict=strict,
        return_list=return_list,
    )


def map(
    fn: Callable,
    sequences: Any,
    non_sequences: Any = None,
    truncate_gradient: int = -1,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Apply `fn` to every element of sequences; outputs and updates."""
    return scan(
        fn,
        sequences,
        None,
        non_sequences,
        truncate_gradient=truncate_gradient,
        go_backwards=go_backwards,
        mode=mode,
        name=name,
    )


def reduce(
    fn: Callable,
    sequences: Any,
    outputs_info: Any,
    non_sequences: Any = None,
    go_backwards: bool = False,
    mode: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Loop over sequences and keep the last outputs; outputs and updates."""
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
    return reduce(fn, sequences, outputs_info, non_sequences, mode=mode, name=name)


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


def scan_checkpoints(
    fn: Callable,
    sequences: Any = None,
    outputs_info: Any = None,
    non_sequences: Any = None,
    name: str = "checkpointscan_fn",
    n_steps: Any = None,
    save_every_N: int = 10,
    padding: bool = True,
) -> tuple[Any, Any]:
    """`scan` that keeps every `save_every_N`-th step and computes the others again."""
    return _run(
        _scan_checkpoints,
        fn,
        sequences=[] if sequences is None else sequences,
        outputs_info=outputs_info,
        non_sequences=[] if non_sequences is None else non_sequences,
        name=name,
        n_steps=n_steps,
        save_every_N=save_every_N,
        padding=padding,
    )
