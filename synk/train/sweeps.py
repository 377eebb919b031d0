"""Sweeps: trainings that begin alike, with other values of some variables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from pytensor.compile import SharedVariable

from ..call.function import Function
from ..callbacks.rates import assign
from ..ranks.groups import side_by_side
from ..user_frames import entry
from .starts import from_one_start
from .trainer import Trainer

Setting: TypeAlias = Mapping[SharedVariable, Any]


@entry
def sweep(
    trainer: Trainer,
    settings: Mapping[SharedVariable, Iterable] | Iterable[Setting],
    run: Callable[[Trainer], Any],
    *,
    groups: int | None = None,
) -> list[tuple[dict[SharedVariable, Any], Any]]:
    """Train with each of some values of shared variables, such as a learning rate.

    All trainings begin with the present values of what the step reads and updates, but
    for those that are swept over; nothing is compiled again. In the end all variables
    have these values again.

    Parameters
    ----------
    trainer : Trainer
        For each setting one like it is made: of its step, parameters, rule and seed.
    settings : mapping of shared variable to values, or iterable of mappings
        Of a mapping each combination of values; or one setting after the other, each a
        mapping of shared variables to a value.
    run : callable
        Called with the trainer of a setting: to ``fit`` it, or `cross_validate`.
    groups : int, optional
        Train with so many settings at once, each by a group of the ranks; what `run`
        returns is pickled then. See `cross_validate`.

    Returns
    -------
    list of (dict, object)
        For each setting that, by variable, and what `run` has returned.

    Raises
    ------
    StateError
        If not forked, or if there can be no groups.
    TypeError, ValueError
        If what is to be swept over is no shared variable, or the step does not read it.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    >>> rate = pytensor.shared(0.5, "rate")
    >>> loss = ((x - w) ** 2).mean()
    >>> updates = synk.updates.sgd(synk.grad(loss, [w]), [w], learning_rate=rate)
    >>> trainer = synk.Trainer(synk.function([x], loss, updates=updates), [w])
    >>> with synk.session(2):
    ...     X = synk.data(np.ones(6))
    ...     for setting, history in synk.sweep(
    ...         trainer,
    ...         {rate: [0.5, 0.25]},
    ...         lambda trainer: trainer.fit(X, batch_size=6, epochs=3, progress=False),
    ...     ):
    ...         print(setting, history["loss"])
    {rate: 0.5} [1.0, 0.0, 0.0]
    {rate: 0.25} [1.0, 0.25, 0.0625]
    """
    every = _combinations(settings) if isinstance(settings, Mapping) else settings
    chosen = [dict(setting) for setting in every]
    for variable in dict.fromkeys(itertools.chain(*chosen)):
        _check(trainer.step, variable)
    with from_one_start(trainer) as anew:

        def run_with(number: int) -> Any:
            made = anew()
            for variable, value in chosen[number].items():
                assign(variable, value)
            return run(made)

        found = side_by_side(groups, run_with, len(chosen))
        return list(zip(chosen, found, strict=True))


def _combinations(values: Mapping[SharedVariable, Iterable]) -> list[Setting]:
    return [
        dict(zip(values, some, strict=True))
        for some in itertools.product(*values.values())
    ]


def _check(step: Function, variable: Any) -> None:
    """Raise unless a step has another value of what is swept over when that is set."""
    if not isinstance(variable, SharedVariable):
        raise TypeError(
            f"a sweep is over shared variables, and {variable!r} is none: numbers in a"
            " graph are compiled in. Make the step with pytensor.shared(...) there"
        )
    if variable not in step.get_shared():
        raise ValueError(f"{step!r} does not read {variable}: it would change nothing")
