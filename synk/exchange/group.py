"""All ranks as workers of a training rule: the master's side, and its commands."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pytensor.compile import SharedVariable

from ..memory.segment import Segment
from ..ranks.context import RankContext
from ..ranks.ledger import Holding
from ..ranks.replication import master_replicate_variables
from ..ranks.session import SESSION
from ..rules.centre import Centre, mean_by_rows
from ..rules.gossip import Gossip, Mailboxes
from ..rules.graphs import RuleGraphs
from ..rules.rule import Rule
from ..rules.simulate import Exchange
from .worker import Parameters, Worker
from .workers import CentreWorker, GossipWorker, NodeWorker

SHOWN = Holding("replicated", "a Trainer has set it")
TRAINING = Holding("local", "ranks train by themselves, by a rule")

_numbers = itertools.count()

Medium: TypeAlias = Centre | Mailboxes


class Setup(NamedTuple):
    """The settings by which a rank becomes a worker; `size` counts parameters."""

    rule: Rule
    dtype: str
    size: int
    workers: int
    are_nodes: bool

    def medium(self, ranks: int, memory: Callable[[int], Segment] = Segment) -> Medium:
        """Return the centre or mailboxes that a machine's `ranks` share.

        ``memory(nbytes)`` returns the segment for it, by default a new one.
        """
        if isinstance(self.rule, Gossip):
            return Mailboxes(self.dtype, self.size, self.workers, memory)
        at_once = self.rule.order == "together" or self.are_nodes
        graphs, givers = RuleGraphs(self.rule, self.dtype), ranks if at_once else 0
        return Centre(graphs, self.size, self.workers, givers, at_once, memory)


class Workers:
    """The ranks as workers of a training rule, in the master.

    `number` is its key in every rank's `RankContext.workers`. With `are_nodes` the
    ranks of a machine are one worker, and make exact steps together.
    """

    def __init__(
        self, rule: Rule, params: Sequence[SharedVariable], are_nodes: bool = False
    ) -> None:
        SESSION.enter()
        if rule.order == "free":
            SESSION.check_one_node(f"{rule!r}, where each comes when it is ready")
        n = SESSION.nodes if are_nodes else SESSION.size
        rule.check(n)
        self.number, self._rule, self.params = next(_numbers), rule, list(params)
        dtypes = sorted({var.type.dtype for var in params})  # type: ignore[attr-defined]
        if len(dtypes) != 1 or not dtypes[0].startswith("float"):
            raise TypeError(
                "a training rule exchanges parameters of one float dtype, and these are"
                f" {', '.join(dtypes)}"
            )
        self._made_for = weakref.ref(SESSION.pool)
        size = Parameters(params).vector().size
        setup = Setup(rule, dtypes[0], size, n, are_nodes)
        numbers = master_replicate_variables(self.params)
        SESSION.run(worker_open, self.number, setup, numbers)
        self._medium: Medium = SESSION.context.workers[self.number].medium
        SESSION.ledger.note(self.params, TRAINING)
        key = self._medium.segment.key
        for notice in (("workers", self.number), ("segment", key)):
            weakref.finalize(self, SESSION.notify, *notice).atexit = False

    @property
    def is_open(self) -> bool:
        """Whether the session still runs with the ranks that this was made for."""
        return SESSION.is_of(self._made_for) and SESSION.state == "running"

    @property
    def centre(self) -> np.ndarray:
        """A copy of the centre's parameters, as one vector."""
        return self._medium.parameters

    def begin(self, start: np.ndarray | None) -> None:
        """Restart all workers with the parameters `start`, or the variables'."""
        if start is None:
            start = Parameters(self.params).vector()
        self._medium.fill(start)
        self._ask("begin", {"w": start})
        SESSION.ledger.note(self.params, TRAINING)

    def restore(self) -> None:
        """Set the script's variables to the centre, if any; this needs no ranks."""
        if self._rule.has_centre:
            Parameters(self.params).set(self.centre)

    def are_set(self) -> bool:
        """Whether variables were changed since `show` set them."""
        entries = SESSION.ledger.entries(self.params)
        return any(entry.is_set or entry.holding is not SHOWN for entry in entries)

    def ready(self) -> None:
        """Prepare the centre or mailboxes, while no rank makes steps."""
        self._medium.ready()

    def report(self) -> tuple[list[Exchange], float, float]:
        """Return the exchanges since the last report, their seconds, and those waiting.

        Exchanges are in the order of the centre's moves; seconds are means over ranks.
        """
        by_rank, spent = zip(*self._ask("report"), strict=True)
        moves = list(itertools.chain.from_iterable(by_rank))
        moves.sort(key=lambda move: (move[1].fragment, move[0]))
        seconds, waiting = np.mean(spent, axis=0).tolist()
        return [exchange for _, exchange in moves], seconds, waiting

    def show(self) -> None:
        """Set the variables, on all ranks, to the `result` of training.

        Each worker keeps its own values aside, until `hide`.
        """
        self._ask("show", {"w": self.result()})
        SESSION.ledger.note(self.params, SHOWN)

    def hide(self) -> None:
        """Set the variables to each worker's own values again."""
        self._ask("hide")
        SESSION.ledger.note(self.params, TRAINING)

    def result(self) -> np.ndarray:
        """Return the trained parameters: the centre's, or the workers' average."""
        if not self._rule.has_centre:
            return self.average()
        if self._rule.is_mean:
            rows = SESSION.context.workers[self.number].rows[:, 0]
            if rows.any():
                return mean_by_rows(self._vectors(), rows)
        return self.centre

    def _vectors(self) -> list[np.ndarray]:
        """Return each worker's own parameters, as vectors."""
        found = [SESSION.context.array(of["w"]) for of in self._ask("own_parameters")]
        return [vector for vector in found if vector.size]

    def state(self) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
        """Return the state of training, for a checkpoint: shared, and of each rank."""
        by_rank = [
            {k: np.array(SESSION.context.array(v)) for k, v in of_rank.items()}
            for of_rank in self._ask("state")
        ]
        return self._medium.state(), by_rank

    def restore_state(
        self, shared: dict[str, np.ndarray], by_rank: list[dict[str, np.ndarray]]
    ) -> None:
        """Continue from a result of `state`, and `show` it."""
        self._medium.restore(shared)
        if SESSION.nodes > 1:
            self._ask("restore_medium", shared)
        for rank, state in enumerate(by_rank):
            self._ask("restore", state, rank)
        self.show()

    def _ask(
        self,
        what: str,
        arrays: dict[str, np.ndarray] | None = None,
        rank: int | None = None,
    ) -> list[Any]:
        """Call a method of the workers, on all ranks or one; see `worker_of_rule`."""
        mine = arrays or {}
        staged: list[Any] = [*mine.values()]
        if mine and SESSION.size > 1:
            staged = SESSION.pool.stage.put(staged)
        theirs = dict(zip(mine, staged, strict=True))
        common = self.number, what, rank
        return SESSION.run(worker_of_rule, *common, theirs, mine=(*common, mine))

    def average(self) -> np.ndarray:
        """Return the mean of the workers' parameters, as the rule weighs them."""
        vectors = self._vectors()
        if isinstance(self._medium, Mailboxes):
            return self._medium.average(vectors)
        return np.mean(vectors, axis=0, dtype=vectors[0].dtype)


def worker_open(
    context: RankContext, number: int, setup: Setup, numbers: list[int]
) -> None:
    """Make this rank a worker of a rule.

    `numbers` are those of the parameters' variables. The first rank of each machine
    makes the centre or mailboxes.
    """
    variables = [context.variables[i] for i in numbers]
    local, over_nodes, several = context.local, None, context.comm is not context.local
    if local.rank:
        segment = context.attachments.segment(*local.exchange(None)[0])
        shared = setup.medium(local.size, lambda nbytes: segment)
    else:
        shared = setup.medium(local.size)
        shared.fill(Parameters(variables).vector())
        if context.rank:
            notice = "segment", shared.segment.key
            weakref.finalize(shared, SESSION.notify, *notice).atexit = False
        local.exchange(shared.segment.place)
    if several:
        from .over_nodes import OverNodes  # imports MPI

        over_nodes = OverNodes(context.comm, shared)
    rank = context.rank
    if setup.are_nodes:
        rank = context.comm.node if several else 0
    kind: type[Worker] = NodeWorker if setup.are_nodes else CentreWorker
    if isinstance(setup.rule, Gossip):
        kind = GossipWorker
    how = setup.rule, shared, variables, rank, setup.workers, context, over_nodes
    context.workers[number] = worker = kind(*how)
    worker.begin()


def worker_of_rule(
    context: RankContext, number: int, what: str, rank: int | None, arrays: dict
) -> Any:
    """Call the method `what` of this rank's worker; only on `rank`, if it is not None.

    `arrays`, if there are any, are its argument, by name. The master must read a dict
    of arrays that it returns before the next command.
    """
    if rank not in (None, context.rank):
        return None
    method = getattr(context.workers[number], what)
    given = {name: context.array(value) for name, value in arrays.items()}
    found = method(given) if given else method()
    return context.publish(found) if context.rank and isinstance(found, dict) else found
