"""Repeated training from the same start: cross-validation and sweeps."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable

from ..callbacks import Callback
from ..callbacks.rates import assign
from ..engines import host
from ..memory.partition import cuts
from ..ranks.groups import side_by_side
from ..ranks.session import SESSION
from ..user_frames import entry
from . import files
from .batches import rows_of
from .callback_list import progress_bar
from .history import History
from .trainer import Trainer

Setting: TypeAlias = Mapping[SharedVariable, Any]


class Fold(NamedTuple):
    """One training of a cross-validation.

    Attributes
    ----------
    train, validation : numpy.ndarray of int64
        The numbers of the rows trained on, and of those held back.
    history : History
    """

    train: np.ndarray
    validation: np.ndarray
    history: History


class CrossValidation:
    """The result of a cross-validation.

    Attributes
    ----------
    folds : list of Fold
        Each with the fields ``train`` and ``validation``, arrays of row numbers, and
        ``history``.
    """

    def __init__(self, folds: Sequence[Fold]) -> None:
        self.folds = list(folds)

    @property
    def values(self) -> dict[str, np.ndarray]:
        """The numbers of the folds' last epochs: by name, an array by fold."""
        last = [fold.history.epochs[-1] for fold in self.folds]
        return {name: np.array([of[name] for of in last]) for name in last[0]}

    @property
    def mean(self) -> dict[str, float]:
        """The means of `values` over the folds, by name."""
        return {name: float(np.mean(of)) for name, of in self.values.items()}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviations of `values`, as numpy's: divided by k, not k - 1."""
        return {name: float(np.std(of)) for name, of in self.values.items()}

    def __repr__(self) -> str:
        mean, std = self.mean, self.std
        found = [
            f"{name} {mean[name]:.4g} +- {std[name]:.2g}"
            for name in mean
            if name.startswith("val_")
        ]
        return f"<synk.CrossValidation of {len(self.folds)} folds: {', '.join(found)}>"


@entry
def cross_validate(
    trainer: Trainer,
    *data: Any,
    batch_size: int,
    validation: Callable | Sequence,
    folds: int | Iterable[tuple[Any, Any]] = 5,
    epochs: int = 1,
    callbacks: Callable[[], Sequence[Callable | Callback]] | None = None,
    progress: bool = True,
    groups: int | None = None,
    **named: Any,
) -> CrossValidation:
    """Train anew for each fold of the data, and validate on the rows held back.

    Each training begins with the present values of the variables that the step reads
    and updates; in the end these have their values again. The step is compiled once,
    and a fold's rows are selected in place.

    Parameters
    ----------
    trainer : Trainer
        Its step, parameters, rule and seed are those of a new trainer for each fold.
    *data, **named : Data or array_like
        The inputs of the step, as for `Trainer.fit`: all rows. With `Data` nothing is
        copied for a fold.
    batch_size, epochs : int
        As for `Trainer.fit`.
    validation : callable or (function, arguments...)
        A callable is called after each epoch with the numbers of the rows held back; a
        function with its arguments, and these numbers as ``batch=``. Returns the same
        as in `Trainer.fit`.
    folds : int or iterable of (train, validation)
        The number of folds, of rows chosen by the trainer's seed; or for each fold the
        rows to train on and those held back, as a splitter of scikit-learn yields them.
    callbacks : callable, optional
        Returns new callbacks for a fold, as for `Trainer.fit`.
    progress : bool
        Whether to show a progress bar of folds, if tqdm is installed.
    groups : int, optional
        The number of folds to train at once, each by a group of the ranks, led by a
        process forked from this one: changes that `validation` and callbacks make to
        the script's objects stay there. By default the ``groups=`` of
        :func:`synk.fork`; without it, all ranks train one fold after the other. The
        results are the same, if they do not depend on the number of ranks (see "The
        same numbers again" in the docs), as those of a training rule do.

    Returns
    -------
    CrossValidation

    Raises
    ------
    StateError
        If not forked; if groups are not possible, as on several machines, on GPUs, in a
        process that has computed by JAX, and in one that leads a group.
    TypeError, ValueError, IndexError
        If an argument does not fit; if a fold has no rows to train or validate on.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    >>> loss = ((x - w) ** 2).mean()
    >>> updates = synk.updates.sgd(synk.grad(loss, [w]), [w], learning_rate=0.5)
    >>> trainer = synk.Trainer(synk.function([x], loss, updates=updates), [w])
    >>> error = synk.function([x], abs(x - w).mean())
    >>> with synk.session(2):
    ...     X = synk.data(np.arange(6.0))
    ...     found = synk.cross_validate(
    ...         trainer, X, batch_size=6, validation=(error, X), folds=3, progress=False
    ...     )
    >>> found
    <synk.CrossValidation of 3 folds: val_loss 1.917 +- 0.31>
    """
    every = rows_of(trainer.step, data)
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs!r}")
    if isinstance(folds, (int, np.integer)):
        folds = _split(len(every), int(folds), trainer.seed)
    chosen = [
        tuple(rows_of(trainer.step, data, rows) for rows in pair) for pair in folds
    ]
    for k, (train, held_back) in enumerate(chosen):
        if not len(train) or not len(held_back):
            what = "to train on" if not len(train) else "to validate on"
            raise ValueError(f"fold {k} has no rows {what}")
    found: list[Fold] = []
    with (
        _restarting(trainer) as new_trainer,
        progress_bar(progress, len(chosen), "fold") as bar,
    ):

        def on_rows(rows: np.ndarray) -> Callable[[], Any]:
            if callable(validation):
                return partial(validation, rows)
            function, *args = validation
            return partial(function, *args, batch=rows)

        def history_of(fold: int) -> History:
            train, held_back = chosen[fold]
            return new_trainer().fit(
                *data,
                batch_size=batch_size,
                epochs=epochs,
                validation=on_rows(held_back),
                callbacks=() if callbacks is None else callbacks(),
                progress=False,
                rows=train,
                **named,
            )

        made = side_by_side(groups, history_of, len(chosen))
        for (train, held_back), history in zip(chosen, made, strict=True):
            found.append(Fold(train, held_back, history))
            bar(history.epochs[-1])
    return CrossValidation(found)


def _split(rows: int, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return folds of about equal size; each row is held back in one of them."""
    if not 2 <= folds <= rows:
        raise ValueError(f"{rows} rows can be cut into 2 to {rows} folds, not {folds}")
    order = np.random.default_rng([seed, *b"folds"]).permutation(rows)
    bounds = cuts(rows, folds)
    found = []
    for start, stop in itertools.pairwise(bounds):
        train = np.concatenate([order[:start], order[stop:]])
        found.append((np.sort(train), np.sort(order[start:stop])))
    return found


@entry
def sweep(
    trainer: Trainer,
    settings: Mapping[SharedVariable, Iterable] | Iterable[Setting],
    run: Callable[[Trainer], Any],
    *,
    groups: int | None = None,
) -> list[tuple[dict[SharedVariable, Any], Any]]:
    """Train with several values of shared variables, such as a learning rate.

    Each training begins with the present values of the variables that the step reads
    and updates, except those swept over; in the end all have their values again. The
    step is compiled once.

    Parameters
    ----------
    trainer : Trainer
        Its step, parameters, rule and seed are those of a new trainer for each setting.
    settings : mapping of shared variable to values, or iterable of mappings
        A mapping stands for all combinations of its values; an iterable has one setting
        after the other, each a mapping of shared variables to a value.
    run : callable
        Called with the trainer of a setting: to ``fit`` it, or `cross_validate`.
    groups : int, optional
        The number of settings to train at once, each by a group of the ranks, as for
        `cross_validate`; results of `run` are then pickled.

    Returns
    -------
    list of (dict, object)
        For each setting: its values by variable, and the result of `run`.

    Raises
    ------
    StateError
        If not forked, or if groups are not possible.
    TypeError, ValueError
        If a key of a setting is not a shared variable, or the step does not read it.

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
    every: Iterable = settings
    if isinstance(settings, Mapping):
        products = itertools.product(*settings.values())
        every = [zip(settings, values, strict=True) for values in products]
    chosen = [dict(setting) for setting in every]
    read = set(trainer.step.get_shared())
    for variable in dict.fromkeys(itertools.chain(*chosen)):
        if not isinstance(variable, SharedVariable):
            raise TypeError(
                f"a sweep is over shared variables, and {variable!r} is none: numbers"
                " in a graph are compiled in. Make the step with pytensor.shared(...)"
                " there"
            )
        if variable not in read:
            raise ValueError(
                f"{trainer.step!r} does not read {variable}: it would change nothing"
            )
    with _restarting(trainer) as new_trainer:

        def run_with(number: int) -> Any:
            made = new_trainer()
            for variable, value in chosen[number].items():
                assign(variable, value)
            return run(made)

        found = side_by_side(groups, run_with, len(chosen))
        return list(zip(chosen, found, strict=True))


# -- the start


@contextlib.contextmanager
def _restarting(trainer: Trainer) -> Iterator[Callable[[], Trainer]]:
    """Yield a function that returns a new trainer like `trainer`, at the start.

    The function restores all variables that the step reads or updates, on all ranks, to
    their values from before the ``with`` block; so does the end of the block.
    """
    SESSION.enter()
    step = trainer.step
    updated = step.updated
    holdings = [SESSION.ledger.of(var) for var in updated]
    held = files.copy_values(updated)
    # Values that the step only reads, such as a rate, are not copied: nothing writes
    # to them in place.
    others = [var for var in step.get_shared() if var not in updated]
    values = [host.get_value(var) for var in others]

    def restore() -> None:
        for var, value in zip(others, values, strict=True):
            if not _is_same(host.get_value(var), value):
                host.set_value(var, value)
        if SESSION.state == "running":
            SESSION.enter()
            what = "it was given its starting value"
            files.restore_values(updated, held, holdings, what)
        else:  # ranks were lost, or the session is over
            files.restore_in_script(updated, held)

    def new_trainer() -> Trainer:
        restore()
        return trainer._new_like_this()

    try:
        yield new_trainer
    finally:
        restore()


def _is_same(present: object, value: object) -> bool:
    """Return whether a value is the same; an engine may have moved it to a device."""
    if present is value or not isinstance(value, np.ndarray):
        return present is value
    return np.array_equal(present, value)  # type: ignore[arg-type]
