"""`Trainer`: the loop over epochs and batches, for exact training and by a rule."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from ..call.function import Function
from ..call.uses import run_as_workers
from ..callbacks import Callback
from ..errors import StateError
from ..exchange.group import Workers
from ..exchange.worker import Parameters
from ..files.order import Part
from ..ranks.ledger import Holding
from ..ranks.session import SESSION
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..user_frames import entry
from . import files, keras
from .batches import (
    Arrays,
    Epoch,
    EpochSteps,
    make_steps,
    parts_of,
    source_of,
    validated,
)
from .callback_list import CallbackList, progress_bar
from .history import History
from .models import Step
from .training import check_local, check_of_nodes, check_params


class Trainer:
    """Trains for epochs: exactly, or with ranks that train by themselves, by a rule.

    Parameters
    ----------
    step : Function or keras.models.Model
        A training step, whose first output is its loss. For a rule it is made with
        ``local=True``, with gradients of each rank's own rows (`pytensor.grad`), and
        what it updates besides the parameters, as velocities, is each rank's own. Of a
        compiled model of Keras 2 on its Theano backend the step is made here: see
        :doc:`keras`.
    params : shared variable, or list of these, optional
        What the rule exchanges: of one float dtype. By default the trainable weights of
        a Keras model.
    rule : synk.rules.Rule, optional
        By default training is exact.
    seed : int
        Of the order of rows.
    shuffle : bool
        Whether rows are taken in another order in each epoch.
    workers : {"ranks", "nodes"}
        Who exchanges by the rule. "nodes": each machine as a whole, whose ranks make
        exact steps together, on all of the machine's rows; the step is one as for
        exact training. (On one machine there is one worker then.)

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit; if a step for ranks that train by a rule is not
        local, or reduces; if one for nodes is local.

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
        step: Any,
        params: Any = None,
        rule: Rule | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        workers: Literal["ranks", "nodes"] = "ranks",
    ) -> None:
        if workers not in ("ranks", "nodes"):
            raise ValueError(f"workers must be 'ranks' or 'nodes', got {workers!r}")
        if keras.is_model(step):
            params = step.trainable_weights if params is None else params
            step = keras.step_of(step, rule is not None and workers == "ranks")
        if not isinstance(step, Function):
            raise TypeError(f"a step is what synk.function returns, got {step!r}")
        if params is None and isinstance(step, Step):
            params = step.parameters
        if params is None:
            raise TypeError("params: name the shared variables that the step moves")
        self._step, self._params = step, check_params(params)
        self._rule, self._seed, self._shuffle = rule, seed, shuffle
        self._are_nodes = workers == "nodes"
        if self._are_nodes:
            check_of_nodes(step, rule)
        elif rule is not None:
            check_local(step, rule)
        missing = [var for var in self._params if var not in step.updated]
        if missing:
            raise ValueError(f"{step!r} does not update {missing[0]}")
        self._workers: Workers | None = None
        self._is_new = True  # and workers, if there are any, begin anew
        self._is_whole = True  # or an epoch has failed or was interrupted
        self.history = History()
        self.exchanges: list[Exchange] = []
        self._begin_callbacks()

    def _begin_callbacks(self) -> None:
        """Have no callbacks yet, and nothing that they have set."""
        self._callbacks = CallbackList()
        self._set = files.SetVariables(self._step)
        # What a file says of callbacks, until the next fit.
        self._states: list[dict[str, Any]] | None = None

    @entry
    def fit(
        self,
        *data: Any,
        batch_size: int,
        epochs: int = 1,
        validation: Callable[[], Any] | Sequence | None = None,
        callbacks: Sequence[Callable | Callback] = (),
        progress: bool = True,
        rows: Any = None,
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
            an epoch for which one of them returns True. What they keep from epoch to
            epoch is in the files of `save`.
        progress : bool
            Whether to show a progress bar of epochs, if tqdm is installed.
        rows : int, slice, array of int, or array of bool, optional
            Which rows of the data to train on, as `batch` says it in a call: an epoch
            has each of these once. By default all.

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
        source = source_of(self._step, data, rows)
        is_read = not isinstance(source, Arrays)
        others = data[1:] if is_read else ()
        self._callbacks, states = CallbackList(callbacks), self._states
        self._states = None
        self._set.begin()
        if states is not None and self._callbacks.go_on(self, states):
            return self.history
        with progress_bar(progress, epochs) as bar, self._callbacks.running():
            for _ in range(epochs):
                epoch = len(self.history)
                self._callbacks.before_epoch(self, epoch)
                what = Epoch(epoch, self._seed, self._shuffle, batch_size)
                parts = parts_of(source, self._step, what, **named)
                made, numbers = self._train(parts, others, named)
                if is_read:
                    numbers["reading"] = made.reading
                if validation is not None:
                    numbers |= validated(validation, batch_size)
                took = made.ran.calls
                self.history.add_epoch(made.losses, made.sizes, took, numbers)
                numbers = self.history.epochs[-1]
                bar(numbers)
                if self._callbacks.after_epoch(self, numbers):
                    break
        return self.history

    @property
    def step(self) -> Function:
        """The training step."""
        return self._step

    @property
    def seed(self) -> int:
        """That of the order of rows."""
        return self._seed

    @property
    def centre(self) -> list[np.ndarray]:
        """The centre's values of the parameters, in their order."""
        if self._rule is not None and not self._rule.has_centre:
            raise AttributeError(f"{self._rule!r} has no centre: see average()")
        if self._workers is None or self._is_new:
            raise StateError("there is no centre: nothing was trained by a rule yet")
        return Parameters(self._params).cut(self._workers.centre)

    def average(self) -> list[np.ndarray]:
        """Return the mean of the workers' parameters, as the rule weighs them."""
        if self._workers is None or self._is_new:
            raise StateError("there are no workers: nothing was trained by a rule yet")
        return Parameters(self._params).cut(self._workers.average())

    # -- files

    @entry
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that training goes on with to a file.

        That is the parameters and what else the step updates, the history, what the
        callbacks of the last `fit` keep, and by a rule the centre and what each worker
        keeps, wherever it is in a round. Of variables that the step only reads, such as
        a learning rate, it is those of up to 1 MB that were set since the first `fit`
        began, as by a callback.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz`` or ``.safetensors``. An old file is replaced in one step.

        Raises
        ------
        StateError
            If not forked.
        TypeError
            If a callback keeps what a file cannot hold.
        """
        SESSION.enter()
        variables = self._step.updated
        holdings = [SESSION.ledger.of(var) for var in variables]
        arrays: dict[str, np.ndarray] = {}
        pairs = zip(variables, files.take_values(variables), strict=True)
        values = [files.as_json(v, arrays, "variable", str(var)) for var, v in pairs]
        kept: dict[str, Any] = {"history": vars(self.history)}
        kept["set"] = self._set.changed()
        if self._rule is not None:
            kept["workers"] = self._on_ranks().state()
        states = self._callbacks.states() if self._states is None else self._states
        of_callbacks = []
        for one in states:
            what = f"state_dict() of the callback {one['key']}"
            state = files.as_json(one["state"], arrays, "callback", what)
            of_callbacks.append({**one, "state": state})
        header = {
            "rule": self._rule_in_file,
            "ranks": SESSION.size,
            "nodes": SESSION.nodes,
            "seed": self._seed,
            "variables": values,
            "held": [[held.kind, held.since, held.rows] for held in holdings],
            "callbacks": of_callbacks,
            **files.as_json(kept, arrays, "kept", "what training keeps"),
        }
        files.write(Path(path), header, arrays)

    @entry
    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` has written.

        What follows has the very bits of training that went on, but in the order
        "free", and where an engine is chosen anew. A file of exact training is for any
        number of ranks: on another one the numbers are the same to rounding, and random
        streams follow from rank 0's. Callbacks go on with the next `fit`: those of its
        list that are of the same class, and look at the same number, as in the list
        that was saved. A file that a callback has saved asks first, about the epoch
        that it ends with, those which came after that one. If a callback loads a file,
        all callbacks, and what they have set, stay as they are.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        CheckpointError
            If the file is damaged, or of another rule or seed; or of another number of
            ranks, and each has values of its own, as by a rule.
        StateError
            If not forked.
        """
        SESSION.enter()
        path = Path(path)
        header = files.read(path)
        files.check_fits(path, "the rule", header["rule"], self._rule_in_file)
        files.check_fits(path, "the seed", header["seed"], self._seed)
        if self._are_nodes:
            files.check_fits(
                path, "the number of nodes", header["nodes"], SESSION.nodes
            )
        holdings = [
            Holding(kind, since, None if rows is None else tuple(rows))
            for kind, since, rows in header["held"]
        ]
        variables, ranks = self._step.updated, header["ranks"]
        values = header["variables"]
        others = self._set.values_of(path, header["set"])
        files.check_can_be_on(path, ranks, self._rule, variables, holdings)
        if ranks == SESSION.size:
            files.give_values(variables, values, holdings, "Trainer.load")
        else:
            files.give_in_script(variables, values)
        if self._rule is not None:
            self._workers = workers = Workers(self._rule, self._params, self._are_nodes)
            workers.restore_state(*header["workers"])
            self._is_whole, self._is_new = True, False
        # A callback that loads leaves the others, and what they have set, as they are.
        if not self._callbacks.are_running:
            self._set.give(others)
            self._states = header["callbacks"]
        self.history = History()
        vars(self.history).update(header["history"])

    # -- an epoch

    def _train(
        self, parts: Iterator[Part], others: tuple, named: dict
    ) -> tuple[EpochSteps, dict[str, float]]:
        """Make the steps of an epoch, and return what came of them, and what it took.

        Between epochs variables have the parameters that are to be used afterwards.
        """
        start, step = perf_counter(), self._step
        if self._rule is None:
            run: Callable = step.run
            made = make_steps(parts, step, lambda *some: run(*some, *others, **named))
            seconds = perf_counter() - start
            return made, {"seconds": seconds, **made.ran.spent, "staleness": 0.0}
        # Before anything is changed: an interrupt may come at any line.
        was_whole, self._is_whole = self._is_whole, False
        workers, are_nodes = self._ready(was_whole), self._are_nodes
        run = partial(run_as_workers, step, workers.number, are_nodes=are_nodes)
        made = make_steps(parts, step, lambda *some: run(*some, *others, **named))
        self.exchanges, exchanging, waiting = workers.report()
        workers.show()
        self._is_whole = True
        numbers = {"seconds": perf_counter() - start, **made.ran.spent}
        numbers["exchange"] += exchanging - waiting
        numbers["wait"] += waiting
        stale = [exchange.staleness for exchange in self.exchanges]
        numbers["staleness"] = float(np.mean(stale)) if stale else 0.0
        return made, numbers

    @property
    def _rule_in_file(self) -> str:
        """What a file says of who exchanges, and how."""
        return repr(self._rule) + (", workers='nodes'" if self._are_nodes else "")

    def _on_ranks(self) -> Workers:
        """Return the workers, which have made some steps or none."""
        if self._is_new or self._workers is None or not self._workers.is_open:
            self._ready(self._is_whole).show()
        assert self._workers is not None
        return self._workers

    def _ready(self, is_whole: bool) -> Workers:
        """Return the workers as they are to go on."""
        workers = self._workers
        assert self._rule is not None
        if workers is None or not workers.is_open:
            if workers is not None and not (is_whole or self._is_new):
                workers.restore()  # ranks that died have left it to the centre
            workers = self._workers = Workers(self._rule, self._params, self._are_nodes)
        elif self._is_new:
            workers.begin(None)
        elif not is_whole:
            workers.begin_again()
        elif workers.are_set():
            workers.begin(None)
        else:
            workers.hide()
        self._is_new = False
        workers.ready()
        return workers

    # -- others like this one; see `repeated`

    def _anew(self, former: Trainer | None) -> Trainer:
        """Return one like this that has made no step; the former one is not to go on.

        By a rule it has the former one's workers, or this one's if that has made no
        step.
        """
        made = copy.copy(self)
        made.history, made.exchanges = History(), []
        made._is_whole, made._workers = True, self._workers if self._is_new else None
        made._is_new = True
        made._begin_callbacks()
        if former is not None:
            made._take_over(former)
        return made

    def _take_over(self, former: Trainer) -> None:
        """Have another one's workers, which begin anew, unless its own train."""
        if self._is_new:
            self._workers = former._workers
