"""The random streams of a graph: common ones, and each rank's own.

Random numbers are those of the serial run, from a *common* stream, which begins each
call on every rank with the state of the master's variable. `row_draws` places draws for
rows.

With ``has_own_streams``, each rank draws for its rows from its own stream. If a graph
draws from one variable for rows and otherwise, one after the other, the variable is
split in two: draws for rows advance each rank's own stream, other draws advance the
common one. ::

    rng --normal(3)--> . --normal(n)--> . --uniform(3)--> new value of rng

    common --normal(3)----------------> . --uniform(3)--> new value of common
    rng -----------------normal(n)----------------------> new value of rng

A graph that stays as it is written, as under a named op, draws from own streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors, walk
from pytensor.scan.op import Scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i

from ..domain import Refused, Replicated, is_replicated, unlisted
from ..rules.base import is_stream, takes_streams
from .row_draws import RowDraws
from .whole import Whole


@dataclass
class CommonStream:
    """A stream in the same state on all ranks, in place of a variable of the user's."""

    source: SharedVariable
    """The user's variable. A call begins with the master's value of it, and ends by
    storing the new state there."""
    common: SharedVariable
    """The variable that replaces it in the graph."""
    new: Variable | None = None
    """The new state of the stream; None if the function does not update it."""
    is_split: bool = False
    """Whether ranks also draw from `source` as their own stream. In each call, every
    rank then derives its state of `source` from the common one."""


class Streams:
    """The random streams of one graph.

    `left` are graphs that stay as they are written, and draw from each rank's own
    streams. With `draws`, draws for rows are the serial run's, from common streams;
    with None, each rank draws them from its own.
    """

    def __init__(
        self,
        whole: Whole,
        left: Iterable[Variable] = (),
        draws: RowDraws | None = None,
    ) -> None:
        self._whole, self._draws = whole, draws
        self._left = own_streams(left)
        # By state in the user's graph: each rank's own state, and the common one.
        self._pairs: dict[Variable, tuple[Variable, Variable | None]] = {}
        self._commons: dict[SharedVariable, SharedVariable] = {}
        # By common state, the user's variable that it descends from; and by that
        # variable, its last common state.
        self._roots: dict[Variable, SharedVariable] = {}
        self._lasts: dict[SharedVariable, Variable] = {}
        # Common states after a draw, of variables that are not in `_left`.
        self._drawn: set[Variable] = set()

    # -- while a graph is placed

    def placed_draws(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        """Return the placed outputs of draws for rows; None if the node has none."""
        if self._draws is None or not isinstance(node.op, (RandomVariable, Scan)):
            return None
        given = self._with_commons(node, inputs)
        with contextlib.suppress(Refused):
            return None if given is None else self._draws.place(node, given)
        return None

    def _with_commons(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        pairs = zip(node.inputs, inputs, strict=True)
        given = [self.common(old) if is_stream(old) else var for old, var in pairs]
        return None if None in given else given  # type: ignore[return-value]

    def operand_choices(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> Iterator[tuple[list[Variable], bool]]:
        """Yield a node's operands, as given or with common streams, and whether common.

        `inputs` have the ranks' own streams. Ranks without rows draw from common
        streams as well. So the other operands are then in a form that these ranks have.
        """
        common = self._with_commons(node, inputs) if takes_streams(node) else None
        if self._draws is None or common is None:
            yield list(inputs), False
        if common is None:
            return
        with contextlib.suppress(Refused):
            for i, var in enumerate(common):
                if not is_stream(var):
                    if not is_replicated(unlisted(self._whole.value(var))):
                        return
                    common[i] = self._whole.on_all_ranks(var)
            yield common, True

    def own(self, var: Variable) -> Variable:
        """Return each rank's own state for one of the user's graph."""
        return self._pairs[var][0] if var in self._pairs else var

    def common(self, var: Variable) -> Variable | None:
        """Return the common state for one of the user's graph; None if it has none."""
        if var in self._pairs:
            return self._pairs[var][1]
        made: Any
        if isinstance(var, Constant) and self._draws is not None:
            made = var
        elif isinstance(var, SharedVariable):
            made = pytensor.shared(np.random.default_rng(0), name=str(var))
            self._commons[var], self._roots[made] = made, var
        else:
            return None
        self._whole.values[made] = self._whole.asserted[made] = Replicated()
        self._pairs[var] = var, made
        return made

    def note(self, node: Apply, made: list[Variable], is_common: bool) -> None:
        """Note the states after a node of the user's graph with placed outputs `made`.

        Draws from a common stream do not advance own ones, nor the other way round.
        """
        if not takes_streams(node):
            return
        self._whole.drawn[node] = made
        for old, new in zip(node.outputs, made, strict=True):
            if not is_stream(old):
                continue
            before = _state_before(old)
            own = new if before is None else self.own(before)
            common = None if before is None else self.common(before)
            if not is_common:
                self._pairs[old] = new, common
                continue
            self._pairs[old] = own, new
            root = None if common is None else self._roots.get(common)
            if root is not None:
                self._roots[new], self._lasts[root] = root, new
                if root not in self._left:
                    self._drawn.add(new)

    # -- graphs within a node

    def within(self, node: Apply, inputs: Sequence[Variable]) -> Streams:
        """Return the streams of the graph of simpler Ops that replaces a node.

        `inputs` are the placed operands, with the ranks' own streams.
        """
        found = Streams(self._whole, draws=self._draws)
        for new, old in zip(inputs, node.inputs, strict=True):
            if is_stream(old):
                found._pairs[new] = new, self.common(old)
        found._roots, found._lasts = self._roots, self._lasts
        found._left, found._drawn = self._left, self._drawn
        return found

    def follow(self, node: Apply, graph: Sequence[Variable], inner: Streams) -> None:
        """Note the states after a node that `graph`, with streams `inner`, replaces."""
        for old, made in zip(node.outputs, graph, strict=True):
            if is_stream(old):
                self._pairs[old] = inner.own(made), inner.common(made)

    # -- after the graph is placed

    def of_update(self, written: Variable, stable: Variable) -> Variable:
        """Return the new state of each rank's own stream, for the update `written`.

        It is `written` if that depends on a stream of graphs that stay as written; else
        the own state for `stable`, its stabilised copy.
        """
        is_left = not self._left.isdisjoint(own_streams([written]))
        return written if is_left else self.own(stable)

    def commons(
        self,
        updates: Iterable[tuple[SharedVariable, Variable]],
        graph: Iterable[Variable],
    ) -> list[CommonStream]:
        """Return the common streams that a function uses.

        `updates` are the user's; `graph` has the placed outputs and the placed new
        values other than streams.
        """
        news: dict[SharedVariable, Variable] = {}
        for source, plain in updates:
            new = self.common(plain) if is_stream(source) else None
            if new is not None:
                news[source] = new
        drawn = {source: new for source, new in news.items() if new in self._drawn}
        for source in drawn:
            self.common(source)
        used = set(ancestors([*graph, *drawn.values()])) if self._commons else set()
        found = []
        for source, common in self._commons.items():
            if common not in used and source not in drawn:
                continue  # not used by the placed graph
            new = news.get(source)
            if new is common:
                # Only draws for rows lead to the update; it has to advance anyway.
                new = self._lasts.get(source)
            found.append(CommonStream(source, common, new))
        return found


def own_streams(
    graph: Iterable[Variable], streams: Iterable[CommonStream] = ()
) -> set[Variable]:
    """Return the variables of a graph that are each rank's own streams.

    Without streams of draws whose shape alone the graph takes. `streams` are the common
    ones.
    """
    commons = {stream.common for stream in streams}

    def before(var: Variable) -> list[Variable] | None:
        is_end = var.owner is None or isinstance(var.owner.op, (Shape, Shape_i))
        return None if is_end else var.owner.inputs  # type: ignore[union-attr]

    roots: Any = (var for var in walk(graph, before) if var.owner is None)  # type: ignore[union-attr]
    return {var for var in roots if is_stream(var) and var not in commons}


def _state_before(stream: Variable) -> Variable | None:
    """Return the state that a node advanced to `stream`; None if that is unclear."""
    node = stream.owner
    assert node is not None
    given = [var for var in node.inputs if is_stream(var)]
    if isinstance(node.op, RandomVariable):
        return given[0]
    if isinstance(node.op, Scan):
        states = node.op.outer_untraced_sit_sot(node.inputs)
        news = node.op.outer_untraced_sit_sot_outs(node.outputs)
        return dict(zip(news, states, strict=True)).get(stream)
    if isinstance(node.op, HasInnerGraph):
        inner: Variable | None = node.op.inner_outputs[node.outputs.index(stream)]
        while inner is not None and inner.owner is not None:
            inner = _state_before(inner)
        places = list(node.op.inner_inputs)
        return None if inner not in places else node.inputs[places.index(inner)]
    return given[0] if len(given) == 1 else None
