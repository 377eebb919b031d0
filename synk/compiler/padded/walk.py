"""Going through a graph for more rows than are real: what each variable becomes.

The inputs have N rows, of which the first n are the call's; the others are copies of
one of these. A variable of the graph becomes one of three:

exact
    It has the value that it would have without the copies.
padded (`Padded`)
    Along one axis it has the entries of N rows, those of the n real ones first, as they
    would be without the copies. What is in the others is of no account.
a size
    It is exact, and there is a second variable, *long*, of what it would be if all N
    rows were real: a length, from which JAX makes arrays of N rows.

A rule, registered for an Op, rewrites a node so that this stays true, or raises
`Refused`. What combines rows takes the copies for something that changes nothing: zero
in a sum. They are replaced and not multiplied, as zero times infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort

from ..domain import Refused
from ..inlining import remade
from ..lengths import ONE, Length, Symbol, product, remembered, size
from ..rules.base import name, op_name
from ..table import entry_of, padded


@dataclass(frozen=True)
class Padded:
    """A variable that has entries of all N rows along an axis.

    Attributes
    ----------
    axis : int
    many : Length
        How many entries each row has along the axis.
    blocks : Length or None
        In how many blocks they lie, with all rows in each; the real ones are the first
        of each block. None if it may be any number, as all entries are alike.
    numbers : bool
        Whether these are 0, 1, ... along the axis: with them as an index, entries are
        taken one by one.
    """

    axis: int
    many: Length = ONE
    blocks: Length | None = ONE
    numbers: bool = False

    def each(self, length: Any, rows: Any) -> Any:
        """Return how many entries each of so many rows has in a block.

        Parameters
        ----------
        length, rows : int, or a variable
            Of the axis, and N.
        """
        if self.blocks in (None, ONE):
            return length // rows
        assert self.blocks is not None
        if self.blocks == self.many:
            return 1
        if self.blocks.symbols:
            raise Refused("has rows in blocks of several entries of each")
        return length // (rows * self.blocks.number)


class CannotPad(Exception):
    """A graph in which something is in the way; the text says what."""


Rule = Callable[["Padder", Apply], None]


rule = padded


def unknown(padder: Padder, node: Apply) -> None:
    """An Op of which nothing is known computes the same from the same."""
    if any(var in padder.found for var in node.inputs):
        raise Refused("is not known to work row by row")
    padder.check_no_sizes(node.inputs)
    padder.become(node.outputs, padder.made(node, padder.given(node)))


class Padder:
    """Rewrites graphs of one function.

    Parameters
    ----------
    rows : sequence of Variable
        The inputs that have N rows; none in a graph within another.
    real : Variable
        n, an integer.
    facts : Padder, optional
        One that has gone through the whole graph, of which this one's is a part.

    Attributes
    ----------
    new : dict of Variable to Variable
        What variables become.
    found : dict of Variable to Padded
        Of those that are padded.
    long : dict of Variable to Variable
        Of those that are sizes.
    """

    def __init__(
        self, rows: Sequence[Variable], real: Variable, facts: Padder | None = None
    ) -> None:
        self.real = real
        self.new: dict[Variable, Any] = {var: var for var in rows}
        self.found: dict[Variable, Padded] = {var: Padded(0) for var in rows}
        self.long: dict[Variable, Variable] = {}
        self.facts = facts or self
        self.inlined: dict[Apply, list[Variable]] = facts.inlined if facts else {}
        self._rows = list(rows)
        self._row: Symbol | None = (rows[0], 0) if rows else None
        self._masked: dict[tuple, Variable] = {}

    @property
    def padded_rows(self) -> Any:
        """N, from a shape."""
        for var in self._rows:
            return self.new[var].shape[0]
        for var, state in self.found.items():  # in a step of a scan
            if state.many == ONE:
                return self.new[var].shape[state.axis]
        raise Refused("has rows whose number is known outside of a scan only")

    def walk(self, graph: Iterable[Variable]) -> None:
        """Rewrite a graph, down to what is known already.

        Raises
        ------
        CannotPad
            If it cannot be done.
        """
        graph = list(graph)
        with remembered(self._rows):
            for node in io_toposort([var for var in self.new if var.owner], graph):
                if not all(var in self.new for var in node.outputs):
                    self._rewrite(node)
            for var in graph:
                self._know(var)

    def _rewrite(self, node: Apply) -> None:
        for var in node.inputs:
            self._know(var)
        touched = any(var in self.found or var in self.long for var in node.inputs)
        try:
            if touched:
                apply = entry_of(node.op).padded or unknown
                apply(self, node)
                for var in node.outputs:
                    self._check(var)
            else:
                self.become(node.outputs, self.made(node, self.given(node)))
        except Refused as refused:
            raise CannotPad(f"{_where(node)} {refused}") from None
        except CannotPad:
            raise
        except Exception as error:
            # An Op of a version of PyTensor that a rule was not written for.
            raise CannotPad(f"{_where(node)} could not be examined: {error!r}") from (
                error
            )

    def _know(self, var: Variable) -> None:
        if var.owner is None:
            self.new.setdefault(var, var)

    def _check(self, var: Variable) -> None:
        state = self.found.get(var)
        if state is not None and var.type.shape[state.axis] is not None:
            raise Refused("fixes the number of rows")

    # -- what rules make

    def given(self, node: Apply) -> list[Variable]:
        """Return what the inputs of a node have become."""
        return [self.new[var] for var in node.inputs]

    def long_of(self, var: Variable) -> Variable:
        """Return what an exact variable would be if all rows were real."""
        return self.long.get(var, self.new[var])

    def made(self, node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
        """Return what a node's Op makes of other inputs."""
        if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
            return node.outputs
        return remade(node, inputs)

    def become(
        self,
        outputs: Sequence[Variable],
        new: Sequence[Variable],
        state: Padded | None = None,
    ) -> None:
        """Say what variables become: padded, all in one way, or exact."""
        for var, made in zip(outputs, new, strict=True):
            self.new[var] = made
            if state is not None:
                self.found[var] = state

    def row_by_row(self, node: Apply, state: Padded | None) -> None:
        """Keep a node as it is: what it makes of N rows is padded."""
        self.become(node.outputs, self.made(node, self.given(node)), state)

    def state(self, var: Variable) -> Padded | None:
        """Return how a variable is padded, if it is."""
        return self.found.get(var)

    def check_no_sizes(self, variables: Iterable[Variable]) -> None:
        """Raise where a number of rows would have to be known when JAX compiles."""
        for var in variables:
            if var in self.long and is_integer(var):
                raise Refused("takes a number that follows from that of the rows")

    # -- lengths

    def length(self, var: Variable, axis: int) -> tuple[int, Length]:
        """Return the length of an axis as a power of the number of rows, and a factor.

        Raises
        ------
        Refused
            If it depends on the number of rows in another way.
        """
        state = self.facts.found.get(var)
        if state is not None and state.axis == axis:
            return 1, state.many
        return self.normal(size(var, axis))

    def normal(self, length: Length) -> tuple[int, Length]:
        """Return a length as a power of the number of rows, and a factor."""
        power, factors = 0, [Length(length.number)]
        for symbol, times in length.symbols:
            var, which = symbol
            state = self.facts.found.get(var)
            if symbol == self._row or (state is not None and state.axis == which):
                power += times
                factors += [state.many if state is not None else ONE] * times
            elif var in self.facts.long or not self._is_known(var):
                raise Refused("takes a length that may follow from the number of rows")
            else:
                factors += [Length(1, frozenset([(symbol, 1)]))] * times
        return power, product(factors)

    def _is_known(self, var: Variable) -> bool:
        return var in self.facts.new or var.owner is None

    # -- the real ones among the rows

    def mask(self, like: Any, state: Padded) -> Any:
        """Return which entries along an axis are real ones', with `like`'s axes."""
        order: list[Any] = ["x"] * like.type.ndim
        order[state.axis] = 0
        return self.real_places(like.shape[state.axis], state).dimshuffle(order)

    def real_places(self, length: Any, state: Padded) -> Any:
        """Return which entries along an axis so long are real ones', as a vector."""
        places = pt.arange(length)
        if state.many == ONE:
            return places < self.real
        rows = self.padded_rows
        each = state.each(length, rows)
        if state.blocks in (None, ONE):
            return places < self.real * each
        if state.blocks != state.many:
            places = places // each
        return places % rows < self.real

    def masked(self, var: Variable, instead: Any, like: Padded | None = None) -> Any:
        """Return a variable with all copies replaced by a number.

        Parameters
        ----------
        var : Variable
            Of the graph that is rewritten.
        instead : number
            What changes nothing.
        like : Padded, optional
            In which blocks the rows lie that it is combined with.
        """
        state, new = self.found.get(var), self.new[var]
        if state is None:
            return new
        if like is not None:
            state = replace(state, blocks=like.blocks)
        key = (var, float(instead), state)
        if key not in self._masked:
            self._masked[key] = self.chosen(new, state, instead)
        return self._masked[key]

    def chosen(self, new: Variable, state: Padded, instead: Any) -> Variable:
        """Return a rewritten variable with all copies replaced by a number."""
        number = np.asarray(instead, new.type.dtype)
        return pt.switch(self.mask(new, state), new, number)


def aligned(states: Iterable[Padded | None]) -> Padded | None:
    """Return how what is combined elementwise is padded, None if nothing is.

    Raises
    ------
    Refused
        If it is padded in different ways.
    """
    found: Padded | None = None
    for state in states:
        if state is None:
            continue
        if found is None:
            found = replace(state, numbers=False)
        elif found.axis != state.axis:
            raise Refused("pairs every row with every other row")
        elif found.blocks is None:
            found = replace(state, numbers=False)
        elif state.blocks is not None and not _lie_alike(found, state):
            raise Refused("pairs rows in one order with rows in another")
    return found


def _lie_alike(first: Padded, second: Padded) -> bool:
    """Tell whether entries of axes that are equally long belong to the same rows.

    Rows have equally many entries along both, whether that is shown or not.
    """
    if first.blocks == second.blocks:
        return first.many == second.many or first.blocks == ONE
    return all(state.blocks == state.many for state in (first, second))


def check_spread(padder: Padder, variables: Sequence[Variable], back: int) -> None:
    """Raise unless what is exact is repeated along the axis of the rows.

    Axes are counted from the last one.
    """
    for var in variables:
        if var in padder.found or var.type.ndim < -back:
            continue
        if var.type.shape[back] != 1:
            raise Refused(
                f"meets the rows with {name(var)}, whose length along their axis does"
                " not follow theirs"
            )


def constant_of(var: Variable) -> int | None:
    """Return the integer that a variable is, if the graph says so."""
    while var.owner is not None and len(var.owner.inputs) == 1 and not var.type.ndim:
        (var,) = var.owner.inputs  # a conversion
    if not isinstance(var, Constant):
        return None
    data = np.asarray(var.data)
    is_one = data.size == 1 and data.dtype.kind in "iu"
    return int(data.item()) if is_one else None


def is_integer(var: Variable) -> bool:
    """Tell whether a variable may be a length, or a vector of them."""
    return str(getattr(var.type, "dtype", ""))[:3] in ("int", "uin", "boo")


def _where(node: Apply) -> str:
    op, var = op_name(node.op), name(node.outputs[0])
    return var if var.startswith(op) else f"{op}, in {var},"
