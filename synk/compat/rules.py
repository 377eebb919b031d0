"""Theano-MPI's rules for its model classes: BSP, EASGD and GOSGD."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import rules
from ..exchange.group import Workers
from ..memory.segment import Segment
from ..ranks.context import RankContext
from ..ranks.forking import session
from ..ranks.replication import master_adopt
from ..ranks.session import SESSION
from ..user_frames import entry
from ..variables.checkpoints import save
from . import contract
from .recorder import Recorder
from .worker import (
    Facts,
    ModelSpec,
    ModelWorker,
    worker_adjust,
    worker_adopt,
    worker_build,
    worker_clean_up,
    worker_train,
    worker_validate,
)


class ModelRule:
    """The base of the rules: `init` keeps its arguments, `wait` trains.

    Attributes
    ----------
    model : object
        Rank 0's model, which `wait` builds. When `wait` returns, the model has the
        result's parameters: the centre's, or the workers' mean.
    recorder : Recorder
        The records of the whole training.
    print_freq : int
        After how many batches of all workers there is a record of the costs.
    record_dir : str or None
        The folder for the records, which are written after each epoch; None: none.
    snapshot_freq : int
        After how many epochs the model is saved; 0 for never.
    snapshot_dir : str
        The folder for snapshots: files of the model's ``save(path)``, or if it has
        none of `synk.save`, with the parameters named by their index in `params`.
    verbose : bool
        Whether records are printed; rank 0's model gets it as ``config["verbose"]``.
    """

    print_freq = 40
    record_dir: str | None = "./inforec/"
    snapshot_freq = 0
    snapshot_dir = "./snapshots/"
    verbose = True

    _divides = False
    """Whether each rank has a part of the data; otherwise each has all of it."""

    def __init__(self) -> None:
        self.model: Any = None
        self.recorder: Recorder | None = None
        self._asked: tuple[int, Any, str, str] | None = None

    @entry
    def init(self, devices: Sequence[str], modelfile: str, modelclass: str) -> None:
        """Set the devices and the model class; start nothing yet.

        Parameters
        ----------
        devices : list of str
            One for each worker: ``"cuda0"`` and so on for GPUs, ``"cpu"`` for cores.
            The number in ``"cpu0"`` has no effect. All workers train; the first one is
            this process.
        modelfile : str
            The module of the class, as in an import: ``"models.mlp"``.
        modelclass : str
            The name of the class there.
        """
        n, places = places_of(devices)
        contract.check_file(modelfile)
        self._asked = n, places, modelfile, modelclass

    @entry
    def wait(self) -> Recorder:
        """Train for the model's `n_epochs`, or until its `val_iter` says "stop".

        Returns
        -------
        Recorder

        Raises
        ------
        RuntimeError
            If there was no `init`.
        StateError
            If synk is forked already.
        TypeError, ValueError
            If the model lacks a method or attribute, or the ranks' models differ.

        Notes
        -----
        Ctrl-C ends all ranks, calls the models' `cleanup`, and raises
        `KeyboardInterrupt`. The parameters of `model` are the centre's then.
        """
        if self._asked is None:
            raise RuntimeError("there is nothing to wait for: call init(...) first")
        self.model = self.recorder = None
        n, places, modelfile, modelclass = self._asked
        rule = self._rule(n)
        drawn = np.random.get_state(), random.getstate()
        spec = ModelSpec(
            *(modelfile, modelclass, self._divides),
            *(self.print_freq, self.verbose, drawn),
        )
        with session(n, devices=places):
            context = SESSION.context
            try:
                self._train(rule, spec)
            except BaseException as error:
                try:
                    _clean_up(context)
                except Exception as another:  # for example of a half-made model
                    error.add_note(f"[synk] and then, in cleanup: {another!r}")
                raise
            _clean_up(context)
        assert self.recorder is not None
        return self.recorder

    def _rule(self, n: int) -> rules.Rule:
        """Return the training rule by which `n` workers exchange parameters."""
        raise NotImplementedError

    def _train(self, rule: rules.Rule, spec: ModelSpec) -> None:
        SESSION.check_one_node("training by a rule")
        check_equal(SESSION.run(worker_build, spec))
        mine: ModelWorker = SESSION.context.model
        self.model, self.recorder = mine.model, mine.recorder
        segment = Segment(16)
        numbers = master_adopt(mine.params)
        SESSION.run(worker_adopt, numbers, segment.place, mine=(numbers, segment))
        workers, count = Workers(rule, mine.params), 0
        begin = int(self.model.epoch)
        try:
            for epoch in range(begin, int(self.model.n_epochs)):
                if epoch > begin:
                    workers.hide()
                mine.words[:] = 0
                workers.ready()
                mine.recorder.start_epoch()
                count, *_ = SESSION.run(worker_train, workers.number, epoch, count)
                # From here to the next epoch, the model has the result's parameters.
                workers.show()
                if self._end_epoch(epoch, count):
                    break
        except BaseException:
            workers.restore()
            raise

    def _end_epoch(self, epoch: int, count: int) -> bool:
        """Validate, record, save and adjust; return whether the model asks to stop."""
        model, recorder = self.model, self.recorder
        assert recorder is not None
        found = SESSION.run(worker_validate, count, self._divides)
        info = recorder.print_val_info(
            count, [row for _, rows in found for row in rows]
        )
        recorder.end_epoch(count)  # before the records are written
        if self.record_dir is not None:
            rate = float(np.asarray(model.shared_lr.get_value()))
            recorder.save(count, rate, self.record_dir)
        if self.snapshot_freq and (epoch + 1) % self.snapshot_freq == 0:
            self._save(epoch)
        SESSION.run(worker_adjust, epoch, info)
        if callable(show := getattr(model, "print_info", None)):
            show(recorder, self.verbose)
        return any(stops for stops, _ in found)

    def _save(self, epoch: int) -> None:
        folder = Path(self.snapshot_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.model.name}_{epoch}"
        if callable(own := getattr(self.model, "save", None)):
            own(str(path))
        else:
            params = dict.fromkeys(self.model.params)
            named = {str(i): var for i, var in enumerate(params)}
            save(path.with_name(f"{path.name}.npz"), named)


class BSP(ModelRule):
    """Each worker has a part of the data, and all meet after every sub-batch.

    Attributes
    ----------
    sync_type : {"cdd", "avg"}
        Theano-MPI's option: "cdd" added velocities, and "avg" averaged parameters. With
        equal parameters before, both give the serial step on the mean gradient, for SGD
        and momentum. So synk averages parameters in both cases. With optimisers that
        are not linear in the gradient, such as Adam, this is local SGD.
    exch_strategy : str
        Theano-MPI's way of exchange between GPUs. synk always uses shared memory, and
        never rounds to 16 bits: strategies that end in 16 raise an error.

    Notes
    -----
    Models get their rank and the number of workers. If workers have different numbers
    of batches, the last steps are the mean of the workers that have a batch left.
    """

    sync_type = "cdd"
    exch_strategy = "nccl32"
    _divides = True

    def _rule(self, n: int) -> rules.Rule:
        if self.sync_type not in ("cdd", "avg"):
            raise ValueError(
                f"sync_type must be 'cdd' or 'avg', got {self.sync_type!r}; for workers"
                " that exchange in pairs there is GOSGD"
            )
        if str(self.exch_strategy).endswith("16"):
            raise ValueError(
                f"exch_strategy {self.exch_strategy!r} rounds to 16 bits, and here"
                " parameters are exchanged as they are: leave it out"
            )
        return rules.ParameterAveraging()


class EASGD(ModelRule):
    """Each worker trains by itself, coupled to a centre: elastic averaging.

    Attributes
    ----------
    every : int
        After how many of its batches a worker exchanges.
    beta : float
        As in `synk.rules.EASGD`: each exchange moves both sides by ``beta / n`` of
        their difference. Theano-MPI's one half is ``beta = n / 2``.

    Notes
    -----
    Each model gets rank 0 and size 1 in its `config`, as it has all of the data;
    ``config["worker"]`` is the number of the worker. In an epoch all workers together
    train as many batches as the data has; a worker that is ready takes the next one. No
    worker is a server. Rank 0 validates the centre; then workers go on with their own
    parameters.
    """

    every = 10
    beta = 0.9

    def _rule(self, n: int) -> rules.Rule:
        return rules.EASGD(self.every, self.beta, order="free")


class GOSGD(ModelRule):
    """Each worker trains by itself, and sometimes sends its parameters to another.

    Attributes
    ----------
    p : float
        The probability of sending, after each batch of a worker.
    seed : int
        The seed of these draws; each worker has a stream of its own.

    Notes
    -----
    Data and epochs are as with `EASGD`. Validation uses the workers' mean, by the
    weights of gossip, which is also the result.
    """

    p = 0.01
    seed = 0

    def _rule(self, n: int) -> rules.Rule:
        return rules.Gossip(self.p, self.seed)


def places_of(devices: Sequence[str]) -> tuple[int, Any]:
    """Return the number of ranks, and `fork`'s devices, for Theano's names of them."""
    if isinstance(devices, str) or not all(isinstance(name, str) for name in devices):
        raise TypeError(
            f"devices must be a list of names, as ['cpu0', 'cpu1'], got {devices!r}"
        )
    if not devices:
        raise ValueError("devices is empty: it has a name for each worker")
    kinds, numbers = set(), []
    for name in devices:
        if ":" in name:
            raise ValueError(f"{name!r} names a host, and ranks run on one machine")
        found = re.fullmatch(r"(cpu|cuda|gpu)(\d*)", name)
        if found is None:
            raise ValueError(f"a device is cpu0, cuda0 and the like, got {name!r}")
        kinds.add("cpu" if found[1] == "cpu" else "cuda")
        numbers += [int(found[2])] if found[2] else []
    if len(kinds) > 1 or len(numbers) not in (0, len(devices)):
        raise ValueError(
            f"devices are either cores or GPUs, all with numbers or none, got {devices}"
        )
    (kind,) = kinds
    return len(devices), kind if kind == "cpu" or not numbers else numbers


def check_equal(facts: Sequence[Facts]) -> None:
    """Raise ValueError unless the facts of all ranks' models are equal."""
    for rank, of_rank in enumerate(facts):
        for name, mine, theirs in zip(Facts._fields, facts[0], of_rank, strict=True):
            if mine != theirs:
                raise ValueError(
                    f"the ranks' models differ in {name}: {mine} on rank 0, {theirs} on"
                    f" rank {rank}"
                )


def _clean_up(context: RankContext) -> None:
    """Clean up the models of all ranks; that of rank 0 also if a rank is dead."""
    try:
        if SESSION.state == "running":
            SESSION.run(worker_clean_up)
    finally:
        worker_clean_up(context)  # the second time has no effect
