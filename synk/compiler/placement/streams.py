"""Random streams of a graph: each as all ranks have it alike, and as each its own.

Random numbers are those of the serial run, from a *common* stream: one that begins each
call in the state of the master's variable. What is drawn for rows, `row_draws` places.

Where each rank is to draw for its rows from a stream of its own, a graph may draw from
both kinds of one variable, one after the other. It then falls into two: from a common
stream, which the draws for rows leave as it is, and from an own one, which the others
leave as it is. ::

    rng --normal(3)--> . --normal(n)--> . --uniform(3)--> new value of rng

    common --normal(3)----------------> . --uniform(3)--> new value of common
    rng -----------------normal(n)----------------------> new value of rng

What a user has left to the ranks, by the op of an output, is left as it is written.
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
    """A stream that all ranks have alike, in place of a variable of the user's."""

    source: SharedVariable
    """The user's. On the master it is what the common stream begins with, in every
    call, and where it ends."""
    common: SharedVariable
    """What stands for it in the graph."""
    new: Variable | None = None
    """The new value of the common stream, if the function updates it."""
    is_split: bool = False
    """Whether draws for rows are made from the same variable. Its value is then, in
    each call, a stream that each rank derives from the common one."""


class Streams:
    """The random streams of one graph.

    What is `left` as it is written each rank draws from its own stream. By `draws`,
    draws for rows are those of the serial run, from common streams; without, each rank
    draws them from its own.
    """

    def __init__(
        self,
        whole: Whole,
        left: Iterable[Variable] = (),
        draws: RowDraws | None = None,
    ) -> None:
        self._whole, self._draws = whole, draws
        self._left = own_streams(left)
        # By a stream of the user's graph: each rank's own, and the common one.
        self._pairs: dict[Variable, tuple[Variable, Variable | None]] = {}
        self._commons: dict[SharedVariable, SharedVariable] = {}
        # By a common stream the user's variable that it began with; and by that the
        # last of them.
        self._roots: dict[Variable, SharedVariable] = {}
        self._lasts: dict[SharedVariable, Variable] = {}
        # Common streams that a draw has led on, of variables that are not left.
        self._drawn: set[Variable] = set()

    # -- while a graph is placed

    def placed_draws(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> list[Variable] | None:
        """Return what stands for draws for rows; None if none are known."""
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

    def ways(
        self, node: Apply, inputs: Sequence[Variable]
    ) -> Iterator[tuple[list[Variable], bool]]:
        """Yield operands of a node with each kind of streams, and if that is common.

        Ranks without rows draw from common streams as well, so that the other operands
        are then such as they have.
        """
        if not takes_streams(node):
            yield list(inputs), False
            return
        common = self._with_commons(node, inputs)
        if self._draws is None or common is None:
            pairs = zip(node.inputs, inputs, strict=True)
            given = [self.own(old) if is_stream(old) else var for old, var in pairs]
            yield given, False
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
        """Return each rank's own stream in place of one of the user's graph."""
        return self._pairs[var][0] if var in self._pairs else var

    def common(self, var: Variable) -> Variable | None:
        """Return what all ranks have alike in its place; None if there is no such."""
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
        """Note the streams after a node of the user's graph, which `made` stands for.

        Draws from one kind of stream leave the other as it was before them.
        """
        if not takes_streams(node):
            return
        self._whole.drawn[node] = made
        for old, new in zip(node.outputs, made, strict=True):
            if not is_stream(old):
                continue
            before = _before(old)
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
        """Return the streams of the graph that a node is made of.

        The operands are placed, with the ranks' own streams.
        """
        found = Streams(self._whole, draws=self._draws)
        for new, old in zip(inputs, node.inputs, strict=True):
            if is_stream(old):
                found._pairs[new] = new, self.common(old)
        found._roots, found._lasts = self._roots, self._lasts
        found._left, found._drawn = self._left, self._drawn
        return found

    def follow(self, node: Apply, graph: Sequence[Variable], inner: Streams) -> None:
        """Note the streams after a node, which a graph stands for."""
        for old, made in zip(node.outputs, graph, strict=True):
            if is_stream(old):
                self._pairs[old] = inner.own(made), inner.common(made)

    # -- when it is

    def of_update(self, written: Variable, stable: Variable) -> Variable:
        """Return the new value of each rank's own stream.

        That of a stream of which draws are left to the ranks is as it is written: they
        are among those that lead to it.
        """
        is_left = not self._left.isdisjoint(own_streams([written]))
        return written if is_left else self.own(stable)

    def commons(
        self,
        updates: Iterable[tuple[SharedVariable, Variable]],
        graph: Iterable[Variable],
    ) -> list[CommonStream]:
        """Return the common streams of a function.

        By the user's updates, and the placed outputs and new values but for streams.
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
                continue  # tried, and not taken; or drawn for what was left alone
            new = news.get(source)
            if new is common:
                # The update is by draws for rows alone. The next call has to draw anew.
                new = self._lasts.get(source)
            found.append(CommonStream(source, common, new))
        return found


def own_streams(
    graph: Iterable[Variable], streams: Iterable[CommonStream] = ()
) -> set[Variable]:
    """Return the streams that each rank draws from for itself.

    A graph may lead to a draw by its shape alone, which takes no numbers.
    """
    commons = {stream.common for stream in streams}

    def before(var: Variable) -> list[Variable] | None:
        is_end = var.owner is None or isinstance(var.owner.op, (Shape, Shape_i))
        return None if is_end else var.owner.inputs  # type: ignore[union-attr]

    roots: Any = (var for var in walk(graph, before) if var.owner is None)  # type: ignore[union-attr]
    return {var for var in roots if is_stream(var) and var not in commons}


def _before(stream: Variable) -> Variable | None:
    """Return the stream that draws have led on to this one; None if that is unclear."""
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
            inner = _before(inner)
        places = list(node.op.inner_inputs)
        return None if inner not in places else node.inputs[places.index(inner)]
    return given[0] if len(given) == 1 else None
