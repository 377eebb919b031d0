"""All ranks as workers of a training rule: what the master has them do."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable

from ..engines import c_is_there
from ..memory.segment import Place, Segment, Window
from ..ranks.context import RankContext
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..rules.gossip import Gossip
from ..rules.graphs import Functions
from ..rules.rule import Rule
from ..rules.simulate import Exchange, weighed
from .centre import Centre
from .exchanging import Exchanging
from .gossiping import Gossiping, Mailboxes
from .parameters import Parameters
from .worker import Times, Worker

SHOWN = Holding("equal", "a Trainer has set it")
TRAINING = "ranks train by themselves, by a rule"

_numbers = itertools.count()


class Report(NamedTuple):
    """What a worker tells of the steps since it was asked last."""

    exchanges: list[tuple[int, Exchange]]
    times: Times


Medium: TypeAlias = Centre | Mailboxes


class Told(NamedTuple):
    """What makes a rank a worker."""

    rule: Rule
    dtype: str
    size: int
    mode: Any

    def medium(self, ranks: int, segment: Segment | None = None) -> Medium:
        """Return what the workers share: in a segment, or in a new one."""
        if isinstance(self.rule, Gossip):
            sizes = self.dtype, self.size, ranks
            return Mailboxes(*sizes, segment or Segment(Mailboxes.nbytes(*sizes)))
        functions = Functions(self.rule, self.dtype, self.mode)
        shape = functions, self.size, ranks, self.rule.fragments
        is_together = self.rule.order == "together"
        return Centre(*shape, is_together, segment or Segment(Centre.nbytes(*shape)))


class Workers:
    """The ranks, training by a rule.

    Parameters
    ----------
    rule : Rule
    params : list of SharedVariable
        Of one float dtype.

    Attributes
    ----------
    number : int
        By which ranks know it.

    Raises
    ------
    StateError
        If not forked.
    TypeError
        If parameters are no floats, or of several dtypes.
    """

    def __init__(self, rule: Rule, params: Sequence[SharedVariable]) -> None:
        SESSION.enter()
        SESSION.check_one_node("training by a rule")
        n = SESSION.size
        rule.check(n)
        self.number, self._rule, self.params = next(_numbers), rule, list(params)
        dtypes = sorted({var.type.dtype for var in params})  # type: ignore[attr-defined]
        if len(dtypes) != 1 or not dtypes[0].startswith("float"):
            raise TypeError(
                "a training rule exchanges parameters of one float dtype, and these are"
                f" {', '.join(dtypes)}"
            )
        self._generation = SESSION.generation
        start = Parameters(params).vector()
        told = Told(rule, dtypes[0], start.size, "CVM" if c_is_there() else "NUMBA")
        self._medium = told.medium(n)
        segment = self._medium.segment
        self._medium.fill(start)
        numbers = master_replicate_variables(self.params)
        common = self.number, told, numbers
        mine = *common, self._medium
        SESSION.run(worker_open, *common, segment.place, mine=mine)
        SESSION.ledger.note(self.params, Holding("own", TRAINING))
        for notice in (("workers", self.number), ("segment", segment.key)):
            weakref.finalize(self, SESSION.notify, *notice).atexit = False

    @property
    def is_open(self) -> bool:
        """Whether the ranks are still those that it was made with."""
        return self._generation == SESSION.generation and SESSION.state == "running"

    @property
    def centre(self) -> np.ndarray:
        """A copy of the centre's parameters, one after the other."""
        return self._medium.parameters

    def begin(self, start: np.ndarray | None) -> None:
        """Have all begin anew, with the parameters of a vector, or the variables'."""
        if start is None:
            start = Parameters(self.params).vector()
        self._medium.fill(start)
        SESSION.run(worker_begin, self.number)
        SESSION.ledger.note(self.params, Holding("own", TRAINING))

    def restore(self) -> None:
        """Give the script's variables what the centre has; its ranks may be gone."""
        if self._rule.has_centre:
            Parameters(self.params).set(self.centre)

    def begin_again(self) -> None:
        """Have all begin anew after a failure: with the centre, or as rank 0 is."""
        self.begin(self.centre if self._rule.has_centre else None)

    def are_set(self) -> bool:
        """Whether the variables have other values than were shown last."""
        entries = SESSION.ledger.entries(self.params)
        return any(entry.is_set or entry.holding is not SHOWN for entry in entries)

    def ready(self) -> None:
        """Prepare for steps, while no rank makes any."""
        self._medium.ready()

    def report(self) -> list[Report]:
        """Return what each rank tells of the steps since this was asked last."""
        return SESSION.run(worker_report, self.number)

    def show(self) -> None:
        """Give the variables, on all ranks, the values to be used afterwards.

        Those are the centre's, or without one the workers' average. What each worker
        has of its own is kept aside.
        """
        values = self.result()
        staged = SESSION.stage.put([values])[0] if SESSION.size > 1 else values
        SESSION.run(worker_show, self.number, staged, mine=(self.number, values))
        SESSION.ledger.note(self.params, SHOWN)

    def hide(self) -> None:
        """Give the variables back to the workers."""
        SESSION.run(worker_hide, self.number)
        SESSION.ledger.note(self.params, Holding("own", TRAINING))

    def result(self) -> np.ndarray:
        """Return the parameters that are to be used afterwards."""
        if not self._rule.has_centre:
            return self.average()
        if self._rule.is_mean:
            rows = SESSION.context.workers[self.number].rows[:, 0]
            if rows.any():
                return weighed(self._vectors(), rows)
        return self.centre

    def _vectors(self) -> list[np.ndarray]:
        found = SESSION.run(worker_vector, self.number)
        return [found[0], *map(SESSION.context.array, found[1:])]

    def state(self) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
        """Return all that training goes on with: what is shared, and by rank."""
        mine, *others = SESSION.run(worker_state, self.number)
        by_rank = [
            {k: np.array(SESSION.context.array(v)) for k, v in of_rank.items()}
            for of_rank in (mine, *others)
        ]
        return self._medium.state(), by_rank

    def restore_state(
        self, shared: dict[str, np.ndarray], by_rank: list[dict[str, np.ndarray]]
    ) -> None:
        """Go on with what `state` has returned, and show it."""
        self._medium.restore(shared)
        for rank, state in enumerate(by_rank):
            mine = self.number, rank, state
            staged = SESSION.stage.put(list(state.values()))
            theirs = self.number, rank, dict(zip(state, staged, strict=True))
            SESSION.run(worker_restore, *theirs, mine=mine)
        self.show()

    def average(self) -> np.ndarray:
        """Return the mean of the workers' parameters, as the rule weighs them."""
        vectors = self._vectors()
        if isinstance(self._medium, Mailboxes):
            return self._medium.average(vectors)
        return np.mean(vectors, axis=0, dtype=vectors[0].dtype)


def worker_open(
    context: RankContext,
    number: int,
    told: Told,
    numbers: list[int],
    shared: Medium | Place,
) -> None:
    """Make this rank a worker."""
    if isinstance(shared, tuple):
        shared = told.medium(context.size, context.attachments.segment(*shared))
    variables = [context.registry.variables[i] for i in numbers]
    how = variables, context.comm, context.control.looks
    worker: Worker
    if isinstance(shared, Mailboxes):
        assert isinstance(told.rule, Gossip)
        worker = Gossiping(told.rule, shared, *how)
    else:
        worker = Exchanging(told.rule, shared, *how)
    context.workers[number] = worker


def worker_begin(context: RankContext, number: int) -> None:
    """Begin anew, with what the ranks share."""
    context.workers[number].begin()


def worker_report(context: RankContext, number: int) -> Report:
    """Tell of the steps since this was asked last."""
    return Report(*context.workers[number].take_report())


def worker_show(context: RankContext, number: int, values: np.ndarray | Window) -> None:
    """Set the variables to values aside of this worker's own."""
    context.workers[number].show(context.array(values))


def worker_hide(context: RankContext, number: int) -> None:
    """Set the variables to this worker's own values again."""
    context.workers[number].hide()


def worker_state(context: RankContext, number: int) -> dict:
    """Return all that this worker goes on with."""
    state = context.workers[number].state()
    return state if context.rank == 0 else context.leave(state)


def worker_restore(context: RankContext, number: int, rank: int, state: dict) -> None:
    """Have a worker go on with a state."""
    if context.rank == rank:
        arrays = {name: np.array(context.array(v)) for name, v in state.items()}
        context.workers[number].restore(arrays)


def worker_vector(context: RankContext, number: int) -> np.ndarray | Window:
    """Return this worker's parameters."""
    vector = context.workers[number].vector()
    return vector if context.rank == 0 else context.leave({0: vector})[0]
