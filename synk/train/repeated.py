"""Trainings that all begin alike, on one pool of ranks: folds and sweeps."""

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
        The rows that it was trained on, and those held back.
    history : History
    """

    train: np.ndarray
    validation: np.ndarray
    history: History


class CrossValidation:
    """What a cross-validation has found.

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
        """The numbers of each fold's last epoch, by name: one for each fold."""
        last = [fold.history.epochs[-1] for fold in self.folds]
        return {name: np.array([of[name] for of in last]) for name in last[0]}

    @property
    def mean(self) -> dict[str, float]:
        """Their means."""
        return {name: float(np.mean(of)) for name, of in self.values.items()}

    @property
    def std(self) -> dict[str, float]:
        """Their standard deviations, as numpy's: of k folds, not k - 1."""
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

    All trainings begin with the present values of what the step reads and updates, by
    the same compiled step, on rows that are chosen where they lie. In the end all
    variables have these values again.

    Parameters
    ----------
    trainer : Trainer
        For each fold one like it is made: of its step, parameters, rule and seed.
    *data, **named : Data or array_like
        The inputs of the step, as for `Trainer.fit`: all rows. With `Data` nothing is
        copied for a fold.
    batch_size, epochs : int
        As for `Trainer.fit`.
    validation : callable or (function, arguments...)
        Called after each epoch with the numbers of the rows held back; a function with
        the arguments, and these as ``batch=``. What it returns is as in `Trainer.fit`.
    folds : int or iterable of (train, validation)
        How many, of rows that the trainer's seed chooses; or for each the rows to train
        on and those held back, as a splitter of scikit-learn's gives them.
    callbacks : callable, optional
        Returns new callbacks for a fold, as for `Trainer.fit`.
    progress : bool
        Whether to show a progress bar of folds, if tqdm is installed.
    groups : int, optional
        Train for so many folds at once, each by a group of the ranks, in processes that
        are forked from this one: what `validation` and callbacks change of the script's
        is changed there. By default as many as :func:`synk.fork` was asked for: one
        fold after the other by all ranks without its ``groups=``. The numbers are
        the same as far as they do not depend on the number of ranks (see "The same
        numbers again" in the docs), as those of a training rule do.

    Returns
    -------
    CrossValidation

    Raises
    ------
    StateError
        If not forked; if there can be no groups, as on several machines, on GPUs, in a
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
        _from_one_start(trainer) as anew,
        progress_bar(progress, len(chosen), "fold") as bar,
    ):

        def on_rows(rows: np.ndarray) -> Callable[[], Any]:
            if callable(validation):
                return partial(validation, rows)
            function, *args = validation
            return partial(function, *args, batch=rows)

        def history_of(fold: int) -> History:
            train, held_back = chosen[fold]
            return anew().fit(
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
        Train with so many settings at once, each by a group of the ranks, as folds are;
        what `run` returns is pickled then. See `cross_validate`.

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
    with _from_one_start(trainer) as anew:

        def run_with(number: int) -> Any:
            made = anew()
            for variable, value in chosen[number].items():
                assign(variable, value)
            return run(made)

        found = side_by_side(groups, run_with, len(chosen))
        return list(zip(chosen, found, strict=True))


# -- the start


@contextlib.contextmanager
def _from_one_start(trainer: Trainer) -> Iterator[Callable[[], Trainer]]:
    """Give what returns trainers like one, each at the start, in a ``with`` block.

    All that the step reads or updates has the values from before the block then, on all
    ranks, and has them again after the block. By a rule the trainers have the same
    workers again and again, so that a rule is compiled once.
    """
    SESSION.enter()
    step = trainer.step
    made: list[Trainer] = []
    updated = step.updated
    holdings = [SESSION.ledger.of(var) for var in updated]
    held = files.take_values(updated)
    # Of others, as a rate, the value itself: nothing writes to it in place.
    others = [var for var in step.get_shared() if var not in updated]
    values = [host.get_value(var) for var in others]

    def restore() -> None:
        for var, value in zip(others, values, strict=True):
            if not _is_still(host.get_value(var), value):
                host.set_value(var, value)
        if SESSION.state == "running":
            SESSION.enter()
            what = "it was given its starting value"
            files.give_values(updated, held, holdings, what)
        else:  # ranks were lost, or the session is over
            files.give_in_script(updated, held)

    def anew() -> Trainer:
        restore()
        made.append(trainer._anew(made.pop() if made else None))
        return made[-1]

    try:
        yield anew
    finally:
        restore()
        if made:
            trainer._take_over(made.pop())


def _is_still(present: object, value: object) -> bool:
    """Tell whether a value is what it was; an engine may have brought it elsewhere."""
    if present is value or not isinstance(value, np.ndarray):
        return present is value
    return np.array_equal(present, value)  # type: ignore[arg-type]
