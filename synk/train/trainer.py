"""`Trainer`: the loop over epochs and batches, for exact training and by a rule."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..call.function import Function
from ..callbacks import Callback
from ..errors import StateError
from ..exchange.group import Report, Workers
from ..files.part import Part
from ..ranks.ledger import Holding
from ..ranks.session import SESSION
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..user_frames import entry
from . import saved
from .batches import Arrays, Made, Source, has_parts, through
from .history import History
from .training import check_params
from .validation import validated


class Trainer:
    """Trains for epochs: exactly, or with ranks that train by themselves, by a rule.

    Parameters
    ----------
    step : Function
        A training step, whose first output is its loss. For a rule it is made with
        ``local=True``, with gradients of each rank's own rows (`pytensor.grad`), and
        what it updates besides the parameters, as velocities, is each rank's own.
    params : shared variable, or list of these
        What the rule exchanges: of one float dtype.
    rule : synk.rules.Rule, optional
        By default training is exact.
    seed : int
        Of the order of rows.
    shuffle : bool
        Whether rows are taken in another order in each epoch.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit; if a step for a rule is not local, or reduces.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, w = pt.vector("x"), pytensor.shared(0.0, name="w")
    >>> loss = ((x - w) ** 2).mean()
    >>> updates = synk.updates.sgd([pytensor.grad(loss, w)], [w], learning_rate=0.05)
    >>> step = synk.function([x], loss, updates=updates, local=True)
    >>> trainer = synk.Trainer(step, [w], synk.rules.LocalSGD(every=4))
    >>> with synk.session(2):
    ...     _ = trainer.fit(np.arange(8.0), batch_size=4, epochs=60, progress=False)
    >>> len(trainer.history), bool(abs(w.get_value() - 3.5) < 0.2)
    (60, True)
    """

    def __init__(
        self,
        step: Function,
        params: Any,
        rule: Rule | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not isinstance(step, Function):
            raise TypeError(f"a step is what synk.function returns, got {step!r}")
        self._step, self._params = step, check_params(params)
        self._rule, self._seed, self._shuffle = rule, seed, shuffle
        if rule is not None:
            _check_local(step, rule)
        missing = [var for var in self._params if var not in step.updated]
        if missing:
            raise ValueError(f"{step!r} does not update {missing[0]}")
        self._workers: Workers | None = None
        self._is_whole = True  # or an epoch has failed or was interrupted
        self.history = History()
        self.exchanges: list[Exchange] = []

    @entry
    def fit(
        self,
        *data: Any,
        batch_size: int,
        epochs: int = 1,
        validation: Callable[[], Any] | Sequence | None = None,
        callbacks: Sequence[Callable | Callback] = (),
        progress: bool = True,
        **named: Any,
    ) -> History:
        """Train on data.

        Parameters
        ----------
        *data, **named : Data or array_like
            The inputs of the step, as in a call; or :class:`synk.files.Rows`, or what
            else has a method `parts` like theirs, in place of those that have rows.
        batch_size : int
            Rows of one step, of all ranks together: each takes its share of them.
        epochs : int
            How many more.
        validation : callable or (function, arguments...), optional
            Called after each epoch, with the parameters that are to be used afterwards;
            returns a number, or numbers by name. A synk function may have
            :class:`synk.files.Rows` among its arguments, as the first.
        callbacks : sequence of Callback or callable
            What is done between epochs: see ``synk.callbacks``, or functions called
            with the trainer and an epoch's numbers. Training ends, for all ranks, after
            an epoch for which one of them returns True.
        progress : bool
            Whether to show a progress bar of epochs, if tqdm is installed.

        Returns
        -------
        History
            Of this and all earlier calls.

        Raises
        ------
        StateError
            If not forked.

        Notes
        -----
        Afterwards the parameters are, on all ranks, those of the rule's centre, or the
        workers' average for a rule that has none. A next call goes on with the workers
        as they were, unless the script has set parameters meanwhile: then all begin
        with these.
        """
        source = _source(self._step, data)
        with _bar(progress, epochs) as bar:
            for _ in range(epochs):
                epoch = len(self.history)
                for callback in callbacks:
                    if isinstance(callback, Callback):
                        callback.before_epoch(self, epoch)
                parts = source.parts(
                    epoch, batch_size, seed=self._seed, shuffle=self._shuffle
                )
                others = () if isinstance(source, Arrays) else data[1:]
                made, numbers = self._train(parts, others, named)
                if not isinstance(source, Arrays):
                    numbers["reading"] = made.reading
                if validation is not None:
                    numbers |= validated(validation, batch_size)
                self.history.add_epoch(made.losses, made.sizes, **numbers)
                numbers = self.history.epochs[-1]
                bar(numbers)
                # All of them are asked, whoever wants to stop.
                asked = [_after(callback, self, numbers) for callback in callbacks]
                if any(asked):
                    break
        return self.history

    @property
    def centre(self) -> list[np.ndarray]:
        """The centre's values of the parameters, in their order."""
        if self._rule is not None and not self._rule.has_centre:
            raise AttributeError(f"{self._rule!r} has no centre: see average()")
        if self._workers is None:
            raise StateError("there is no centre: nothing was trained by a rule yet")
        return _as_params(self._workers.centre, self._params)

    def average(self) -> list[np.ndarray]:
        """Return the mean of the workers' parameters, as the rule weighs them."""
        if self._workers is None:
            raise StateError("there are no workers: nothing was trained by a rule yet")
        return _as_params(self._workers.average(), self._params)

    # -- files

    @entry
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that training goes on with to a file.

        That is the parameters and what else the step updates, the history, and by a
        rule the centre and what each worker keeps, wherever it is in a round.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz`` or ``.safetensors``. An old file is replaced in one step.

        Raises
        ------
        StateError
            If not forked.
        """
        SESSION.enter()
        variables = self._step.updated
        holdings = [SESSION.ledger.of(var) for var in variables]
        arrays = saved.values_by_rank(variables)
        if self._rule is not None:
            shared, by_rank = self._on_ranks().state()
            arrays |= {f"shared {k}": v for k, v in shared.items()}
            for rank, state in enumerate(by_rank):
                arrays |= {f"rank {rank} {k}": v for k, v in state.items()}
        told = {
            "rule": repr(self._rule),
            "ranks": SESSION.size,
            "seed": self._seed,
            "held": [[held.kind, held.since, held.rows] for held in holdings],
            "history": vars(self.history),
        }
        saved.write(Path(path), told, arrays)

    @entry
    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` has written.

        What follows has the very bits of training that went on, but in the order
        "free", and where an engine is chosen anew.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        CheckpointError
            If the file is damaged, or of another rule, number of ranks or seed.
        StateError
            If not forked.
        """
        SESSION.enter()
        path = Path(path)
        told, arrays = saved.read(path)
        saved.fitting(path, "the rule", told["rule"], repr(self._rule))
        saved.fitting(path, "a number of ranks", told["ranks"], SESSION.size)
        saved.fitting(path, "the seed", told["seed"], self._seed)
        holdings = [
            Holding(kind, since, None if rows is None else tuple(rows))
            for kind, since, rows in told["held"]
        ]
        saved.set_by_rank(self._step.updated, arrays, holdings)
        if self._rule is not None:
            self._workers = workers = Workers(self._rule, self._params)
            by_rank = [
                _with_prefix(arrays, f"rank {rank} ") for rank in range(SESSION.size)
            ]
            workers.restore_state(_with_prefix(arrays, "shared "), by_rank)
            self._is_whole = True
        self.history = History()
        vars(self.history).update(told["history"])

    # -- an epoch

    def _train(
        self, parts: Iterator[Part], others: tuple, named: dict
    ) -> tuple[Made, dict[str, float]]:
        """Make the steps of an epoch, and return what was measured besides."""
        start = perf_counter()
        if self._rule is None:
            run = self._step.run
            made = through(parts, lambda *some: run(*some, *others, **named))
            return made, {"seconds": perf_counter() - start}
        # Before anything is changed: an interrupt may come at any line.
        was_whole, self._is_whole = self._is_whole, False
        workers = self._ready(was_whole)
        as_workers, number = self._step.run_as_workers, workers.number
        made = through(parts, lambda *some: as_workers(number, *some, *others, **named))
        reports = workers.report()
        workers.show()
        self._is_whole = True
        seconds = perf_counter() - start
        self.exchanges = in_order(reports)
        return made, {
            "seconds": seconds,
            "exchange": max(report.times.exchanging for report in reports),
            "wait": max(report.times.waiting for report in reports),
            "staleness": _mean([found.staleness for found in self.exchanges]),
        }

    def _on_ranks(self) -> Workers:
        """Return the workers, which have made some steps or none."""
        if self._workers is None or not self._workers.is_open:
            self._ready(self._is_whole).show()
        assert self._workers is not None
        return self._workers

    def _ready(self, is_whole: bool) -> Workers:
        """Return the workers as they are to go on."""
        workers = self._workers
        assert self._rule is not None
        if workers is None or not workers.is_open:
            if workers is not None and not is_whole:
                workers.restore()  # ranks that died have left it to the centre
            workers = self._workers = Workers(self._rule, self._params)
        elif not is_whole:
            workers.begin_again()
        elif workers.are_set():
            workers.begin(None)
        else:
            workers.hide()
        workers.ready()
        return workers


def _with_prefix(
    arrays: Mapping[str, np.ndarray], prefix: str
) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _after(
    callback: Callable | Callback, trainer: Trainer, numbers: dict[str, float]
) -> bool:
    """Tell whether a callback wants training to end."""
    if isinstance(callback, Callback):
        return bool(callback.after_epoch(trainer, numbers))
    return bool(callback(trainer, numbers))


def in_order(reports: Sequence[Report]) -> list[Exchange]:
    """Return the exchanges of all workers, in the order in which the centre moved."""
    found = [
        (found.fragment, move, found) for report in reports for move, found in report[0]
    ]
    return [exchange for *_, exchange in sorted(found, key=lambda item: item[:2])]


def _check_local(step: Function, rule: Rule) -> None:
    """Raise unless ranks can make a step by themselves."""
    if not step.is_local:
        raise ValueError(
            f"{step!r} is exact training, and {rule!r} is for steps that each rank"
            " makes by itself: make it with local=True, and gradients by pytensor.grad"
        )
    if step.reduces:
        raise ValueError(
            f"{step!r} reduces values of all ranks, which {rule!r} is in place of: take"
            " gradients by pytensor.grad and not by synk.grad, and no all_reduce"
        )


def _source(step: Function, data: Sequence) -> Source:
    if not step.has_rows:
        raise ValueError(f"{step!r} has no scattered input, so there are no batches")
    if not data:
        raise TypeError(f"data for {step!r} is missing: fit(X, Y, ..., batch_size=...)")
    return data[0] if has_parts(data) else Arrays(data)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _as_params(
    vector: np.ndarray, params: Sequence[SharedVariable]
) -> list[np.ndarray]:
    """Return the pieces of a vector that are the parameters', in their shapes."""
    found, at = [], 0
    for param in params:
        shape = np.shape(param.get_value(borrow=True))
        size = int(np.prod(shape))
        found.append(vector[at : at + size].reshape(shape))
        at += size
    return found


@contextlib.contextmanager
def _bar(progress: bool, epochs: int) -> Iterator[Callable[[dict], object]]:
    """Give what shows an epoch's numbers, in a ``with`` block."""
    if not progress:
        yield lambda numbers: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda numbers: None
        return
    with tqdm(total=epochs, unit="epoch") as bar:

        def show(numbers: dict) -> None:
            shown = {k: v for k, v in numbers.items() if "loss" in k}
            bar.set_postfix(shown, refresh=False)
            bar.update()

        yield show
