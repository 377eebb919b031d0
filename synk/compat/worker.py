"""One rank's own model, and the commands with which a rule of `rules` trains it."""

from __future__ import annotations

import contextlib
import random
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.locks import Locks
from ..exchange.worker import Worker
from ..memory.segment import Place, Segment
from ..ranks.context import RankContext
from . import contract
from .recorder import Recorder

_LOCK, _DRAWN = 0, 1  # words that all ranks share


class ModelSpec(NamedTuple):
    """What a rank needs to make its model.

    `divides` is whether each rank has a part of the data; otherwise each has all.
    `drawn` has the states of rank 0's generators: numpy's global one and Python's.
    """

    modelfile: str
    modelclass: str
    divides: bool
    print_freq: int
    verbose: bool
    drawn: tuple[Any, Any]


class Facts(NamedTuple):
    """Facts about a model that must be equal on all ranks."""

    n_epochs: int
    epoch: int
    n_subb: int
    params: tuple[tuple[str, tuple[int, ...]], ...]


class ModelWorker:
    """A model on one rank, with the methods that train and validate it."""

    def __init__(self, context: RankContext, spec: ModelSpec) -> None:
        context.model = self  # first, so that an error can be cleaned up
        self._context, self._divides = context, spec.divides
        self.model: Any = None
        self._passed, self._is_checked = 0, False
        make = contract.find_class(spec.modelfile, spec.modelclass)
        verbose = spec.verbose and context.rank == 0
        rank, size = (context.rank, context.size) if spec.divides else (0, 1)
        config = {"verbose": verbose, "rank": rank, "size": size}
        config |= {"worker": context.rank, "n_workers": context.size}
        self.model = make({**config, "mname": spec.modelclass})
        contract.check(self.model)
        contract.compile_functions(self.model)
        self.recorder = Recorder(spec.print_freq, str(self.model.name), verbose)

    @property
    def params(self) -> list[SharedVariable]:
        """The model's parameters, each once."""
        return list(dict.fromkeys(self.model.params))

    def facts(self) -> Facts:
        """Return the model's facts, which must be equal on all ranks."""
        model = self.model
        params = tuple(
            (var.type.dtype, tuple(np.shape(var.get_value(borrow=True))))
            for var in self.params
        )
        return Facts(int(model.n_epochs), int(model.epoch), int(model.n_subb), params)

    def open(self, shared: Segment) -> None:
        """Use the ranks' shared words: a lock, and the number of drawn batches."""
        context = self._context
        looks, patience = context.control.looks, context.comm.patience
        self.words = shared.array("int64", (2,))
        self._locks = Locks(self.words, context.rank, looks, patience)

    # -- training

    def train(self, number: int, epoch: int, count: int) -> int:
        """Train this rank's share of an epoch.

        `number` is that of the worker in `RankContext.workers`. `count` is the number
        of batches that all ranks have trained before; returns the number after it.
        """
        self.model.epoch = epoch
        n_batches = self._context.comm.exchange(int(self.model.data.n_batch_train))
        if not (any(n_batches) if self._divides else n_batches[0]):
            raise ValueError("data.n_batch_train is 0: there is no data")
        self._worker: Worker = self._context.workers[number]
        with self._worker.running():
            if self._divides:
                count += self._train_part(n_batches, count)
            else:
                count += self._train_some(n_batches[0], count)
        self.recorder.print_train_info(count, is_last=True)
        return count

    def _train_part(self, n_batches: list[int], count: int) -> int:
        """Train all batches of this rank, in step with the others; return all ranks'.

        A rank without a batch left still meets the others, and takes their mean.
        """
        mine = n_batches[self._context.rank]
        done = 0
        for i in range(max(n_batches)):
            rows = [int(i < batches) for batches in n_batches]
            for _ in range(self.model.n_subb):
                if i < mine:
                    self._step(count + done)
                self._exchange(rows)
            done += sum(rows)
            self.recorder.print_train_info(count + done)
        self.model.reset_iter("train")
        return done

    def _train_some(self, n_batches: int, count: int) -> int:
        """Train until all ranks together have trained `n_batches`; return `n_batches`.

        Each rank goes through all of the data, and goes on with it in the next epoch.
        """
        everyone = [1] * self._context.size
        while (i := self._draw()) < n_batches:
            for _ in range(self.model.n_subb):
                self._step(count + i)
            self._exchange(everyone)
            self._passed += 1
            if self._passed >= int(self.model.data.n_batch_train):
                self.model.reset_iter("train")
                self._passed = 0
            self.recorder.print_train_info(count + i + 1)
            self._context.comm.look_about()
        return n_batches

    def _step(self, count: int) -> None:
        first = not self._is_checked
        self._is_checked = True
        check = contract.whole_step(self.model) if first else contextlib.nullcontext()
        with check:
            self.model.train_iter(count, self.recorder)

    def _exchange(self, rows: list[int]) -> None:
        worker = self._worker
        exchanging, waiting = worker.times.seconds, worker.times.waiting
        worker.after_step(rows)
        waited = worker.times.waiting - waiting
        self.recorder.add_time("sync", waited)
        self.recorder.add_time("comm", worker.times.seconds - exchanging - waited)

    def _draw(self) -> int:
        """Return the number of the next batch, counted over all ranks."""
        try:
            self._locks.acquire(_LOCK)
            drawn = int(self.words[_DRAWN])
            self.words[_DRAWN] = drawn + 1
        finally:
            self._locks.release_all(_LOCK, _LOCK + 1)
        return drawn

    # -- between epochs

    def validate(self, count: int) -> tuple[bool, list]:
        """Validate; return whether the model asks to stop, and the recorded errors."""
        i: int | None = 0
        while i is not None and i < int(self.model.data.n_batch_val):
            i = self._validate_batch(i, count)
        self.model.reset_iter("val")
        return i is None, self.recorder.take_val_info()

    def _validate_batch(self, i: int, count: int) -> int | None:
        """Validate a batch; return the next one's index, None if the model stops."""
        following = i + 1
        for _ in range(self.model.n_subb):
            answer = self.model.val_iter(count, self.recorder)
            if isinstance(answer, str) and answer == "stop":
                return None
            if isinstance(answer, (int, np.integer)) and not isinstance(answer, bool):
                following = int(answer)
            elif answer is not None:
                # For example a cost: used as an index, it could loop for ever.
                raise TypeError(
                    "val_iter must return None, the index of the next batch, or 'stop',"
                    f" got {answer!r}"
                )
        return following


# -- commands


def worker_build(context: RankContext, spec: ModelSpec) -> Facts:
    """Make this rank's model, which compiles its functions; return its facts."""
    if context.rank:
        np.random.set_state(spec.drawn[0])
        random.setstate(spec.drawn[1])
    worker = ModelWorker(context, spec)
    if context.rank and not spec.divides:  # to draw other numbers than rank 0
        seed = [*np.random.randint(1 << 31, size=4), context.rank]
        np.random.seed(seed)
        random.seed(repr(seed))
    return worker.facts()


def worker_adopt(
    context: RankContext, numbers: list[int], shared: Segment | Place
) -> None:
    """Enter this rank's parameters under the numbers of rank 0's, and the words."""
    mine: ModelWorker = context.model
    if context.rank:
        context.variables.update(zip(numbers, mine.params, strict=True))
        shared = context.attachments.segment(*shared)  # type: ignore[misc]
    mine.open(shared)  # type: ignore[arg-type]


def worker_train(context: RankContext, number: int, epoch: int, count: int) -> int:
    """Train for an epoch; return the number of batches that all ranks have trained."""
    return context.model.train(number, epoch, count)


def worker_validate(
    context: RankContext, count: int, everywhere: bool
) -> tuple[bool, list]:
    """Validate on all ranks, or on rank 0; see `ModelWorker.validate`."""
    if context.rank and not everywhere:
        return False, []
    return context.model.validate(count)


def worker_adjust(context: RankContext, epoch: int, info: list | None) -> None:
    """Set the model's `current_info` from the validation; call `adjust_hyperp`."""
    model = context.model.model
    model.current_info = info
    model.adjust_hyperp(epoch)


def worker_clean_up(context: RankContext) -> None:
    """Drop the model, and call its `cleanup`."""
    mine, context.model = context.model, None
    end = getattr(mine and mine.model, "cleanup", None)
    if mine is not None:
        mine.model = None
    if callable(end):
        end()
