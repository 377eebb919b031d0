"""`Trainer`: the loop over epochs and batches, for exact training or by a rule."""

from __future__ import annotations

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
from ..errors import CheckpointError, StateError
from ..exchange.group import Workers
from ..exchange.worker import Parameters
from ..files.order import Part
from ..ranks.ledger import Holding
from ..ranks.session import SESSION
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from ..user_frames import entry
from . import files
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
from .training import (
    check_local,
    check_of_nodes,
    check_params,
    is_keras_model,
    step_of_keras,
)


class Trainer:
    """Trains a step for epochs: exactly, or by a rule, with ranks as its workers.

    Parameters
    ----------
    step : Function or keras.models.Model
        A training step, whose first output is its loss. For a rule, make it with
        ``local=True`` and gradients of each rank's own rows (`pytensor.grad`); other
        variables that it updates, such as velocities, are then each rank's own. A
        compiled model of Keras 2 on its Theano backend is made into a step: see
        :doc:`keras`.
    params : shared variable, or list of these, optional
        The parameters that the rule exchanges, of one float dtype. By default the
        parameters of a `synk.train.Step`, or the trainable weights of a Keras model.
    rule : synk.rules.Rule, optional
        By default training is exact.
    seed : int
        The seed of the order of rows.
    shuffle : bool
        Whether rows are taken in another order in each epoch.
    workers : {"ranks", "nodes"}
        The workers of the rule. With "nodes", each machine is a worker, whose ranks
        make exact steps together on all of the machine's rows; the step is one as for
        exact training. (On one machine there is then one worker.)

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
        if is_keras_model(step):
            params = step.trainable_weights if params is None else params
            step = step_of_keras(step, rule is not None and workers == "ranks")
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
        self._is_whole = True  # the last epoch has neither failed nor was interrupted
        self.history = History()
        self.exchanges: list[Exchange] = []
        self._callbacks = CallbackList()
        self._set = files.SetVariables(self._step)
        # The callbacks' states in a loaded file, until the next fit.
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
            The inputs of the step, as in a call. In place of the inputs with rows,
            :class:`synk.files.Rows` or an object with a method `parts` like theirs.
        batch_size : int
            Rows of one step, of all ranks together.
        epochs : int
            The number of further epochs.
        validation : callable or (function, arguments...), optional
            Called after each epoch, while variables have the parameters that training
            results in; returns a number, or numbers by name. The first argument of a
            synk function may be :class:`synk.files.Rows`.
        callbacks : sequence of Callback or callable
            Called between epochs: see ``synk.callbacks``, or functions that take the
            trainer and an epoch's numbers. Training ends, for all ranks, after an epoch
            for which one of them returns True. Files of `save` have their states.
        progress : bool
            Whether to show a progress bar of epochs, if tqdm is installed.
        rows : int, slice, array of int, or array of bool, optional
            The rows of the data to train on, as `batch` in a call: an epoch has each of
            these once. By default all.

        Returns
        -------
        History
            The history of this and all earlier calls.

        Raises
        ------
        StateError
            If not forked.

        Notes
        -----
        By a rule, all ranks' parameters afterwards are those of the rule's centre, or
        the workers' average if the rule has none. The next call goes on with the
        workers as they were, unless the script has set parameters meanwhile: then all
        workers begin with these.
        """
        source = source_of(self._step, data, rows)
        is_read = not isinstance(source, Arrays)
        others = data[1:] if is_read else ()
        self._callbacks, states = CallbackList(callbacks), self._states
        self._states = None
        self._set.begin()
        if states is not None and self._callbacks.restore(self, states):
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
        """The seed of the order of rows."""
        return self._seed

    @property
    def centre(self) -> list[np.ndarray]:
        """The centre's parameters: an array for each of `params`."""
        if self._rule is not None and not self._rule.has_centre:
            raise AttributeError(f"{self._rule!r} has no centre: see average()")
        if self._workers is None:
            raise StateError("there is no centre: nothing was trained by a rule yet")
        return Parameters(self._params).cut(self._workers.centre)

    def average(self) -> list[np.ndarray]:
        """Return the mean of the workers' parameters, with the rule's weights."""
        if self._workers is None:
            raise StateError("there are no workers: nothing was trained by a rule yet")
        return Parameters(self._params).cut(self._workers.average())

    # -- files

    @entry
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of training to a file, so that `load` can go on from it.

        The file has all variables that the step updates, the history, the states of the
        last `fit`'s callbacks, and by a rule the states of the centre and each worker,
        also within a round. Of the variables that the step only reads, such as a
        learning rate, it has those of up to 1 MB that were set since the first `fit`
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
            If the state of a callback has values that a file cannot hold.
        """
        SESSION.enter()
        variables = self._step.updated
        holdings = [SESSION.ledger.of(var) for var in variables]
        arrays: dict[str, np.ndarray] = {}
        pairs = zip(variables, files.copy_values(variables), strict=True)
        values = [files.as_json(v, arrays, "variable", str(var)) for var, v in pairs]
        kept: dict[str, Any] = {"history": vars(self.history)}
        kept["set"] = self._set.changed()
        if self._rule is not None:
            workers = self._workers
            if workers is None or not workers.is_open:
                workers = self._prepare_workers(self._is_whole)
                workers.show()
            kept["workers"] = workers.state()
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

        The further steps have the same bits as if training had gone on, except in the
        order "free", or if an engine is chosen anew. A file of exact training can be
        loaded on any number of ranks: on another one, numbers are the same to rounding,
        and random streams are derived from rank 0's. The next `fit` restores those of
        its callbacks that are of the same class, and look at the same number, as one
        that was saved. If a callback has saved the file, that `fit` first calls the
        callbacks after it for the file's last epoch. If a callback loads a file, the
        callbacks, and the variables that they have set, stay as they are.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        CheckpointError
            If the file is damaged, or has another rule or seed; or if it has another
            number of ranks, and each has values of its own, as by a rule.
        StateError
            If not forked.
        """
        SESSION.enter()
        path = Path(path)
        header = files.read(path)
        files.check_same(path, "the rule", header["rule"], self._rule_in_file)
        files.check_same(path, "the seed", header["seed"], self._seed)
        if self._are_nodes:
            files.check_same(
                path, "the number of nodes", header["nodes"], SESSION.nodes
            )
        holdings = [
            Holding(kind, since, rows and tuple(rows))
            for kind, since, rows in header["held"]
        ]
        variables, ranks = self._step.updated, header["ranks"]
        values = header["variables"]
        others = self._set.values_of(path, header["set"])
        if ranks == SESSION.size:
            files.restore_values(variables, values, holdings, "Trainer.load")
        else:
            pairs = zip(variables, holdings, strict=True)
            own = [f"{var} was {of}" for var, of in pairs if of.kind != "replicated"]
            if self._rule is not None:
                own = [f"by {self._rule!r} each rank has parameters of its own"]
            if own:
                raise CheckpointError(
                    f"{path} is of {ranks} ranks, and there are {SESSION.size}, but"
                    f" only replicated variables fit another number of ranks: {own[0]}"
                )
            files.restore_in_script(variables, values)
        if self._rule is not None:
            self._workers = workers = Workers(self._rule, self._params, self._are_nodes)
            workers.restore_state(*header["workers"])
            self._is_whole = True
        # If a callback loads the file, callbacks and what they have set stay.
        if not self._callbacks.are_running:
            self._set.restore(others)
            self._states = header["callbacks"]
        self.history = History()
        vars(self.history).update(header["history"])

    # -- an epoch

    def _train(
        self, parts: Iterator[Part], others: tuple, named: dict
    ) -> tuple[EpochSteps, dict[str, float]]:
        """Make the steps of an epoch; return their results, and the epoch's times.

        By a rule, variables then have the parameters that training results in.
        """
        start, step, workers = perf_counter(), self._step, None
        run: Callable = step.run
        if self._rule is not None:
            # Before anything is changed: an interrupt may come at any line.
            was_whole, self._is_whole = self._is_whole, False
            workers, are_nodes = self._prepare_workers(was_whole), self._are_nodes
            run = partial(run_as_workers, step, workers.number, are_nodes=are_nodes)
        made = make_steps(parts, step, lambda *some: run(*some, *others, **named))
        numbers = dict(made.ran.spent)
        if workers is not None:
            self.exchanges, exchanging, waiting = workers.report()
            workers.show()
            self._is_whole = True
            numbers["exchange"] += exchanging - waiting
            numbers["wait"] += waiting
        stale = [exchange.staleness for exchange in self.exchanges]
        numbers["staleness"] = float(np.mean(stale)) if stale else 0.0
        return made, {"seconds": perf_counter() - start, **numbers}

    @property
    def _rule_in_file(self) -> str:
        """The text that a file has for the rule and its workers."""
        return repr(self._rule) + (", workers='nodes'" if self._are_nodes else "")

    def _prepare_workers(self, is_whole: bool) -> Workers:
        """Return the workers for an epoch; begin anew if the last was not whole."""
        workers = self._workers
        assert self._rule is not None
        if workers is None or not workers.is_open:
            if workers is not None and not is_whole:
                workers.restore()  # ranks have died: the centre's values remain
            workers = self._workers = Workers(self._rule, self._params, self._are_nodes)
        elif not is_whole and self._rule.has_centre:
            workers.begin(workers.centre)
        elif not is_whole or workers.are_set():
            workers.begin(None)
        else:
            workers.hide()
        workers.ready()
        return workers

    def _new_like_this(self) -> Trainer:
        """Return a trainer like this one that has made no step; see `repeated`."""
        how: dict[str, Any] = {"seed": self._seed, "shuffle": self._shuffle}
        how["workers"] = "nodes" if self._are_nodes else "ranks"
        return Trainer(self._step, self._params, self._rule, **how)
