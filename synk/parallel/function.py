"""A function of the script that ranks compute if they are faster.

The script gets a `ParallelFunction` in place of PyTensor's compiled function, which is
compiled when it is first needed. For a call of new shapes, `Ways` finds the arguments
that may be rows (`layouts`), and asks the plan of `synk.function` how fast ranks would
be. Ranks make the call, or the plain function if they gain too little. Calls of the
same shapes are then made in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile import Function as PlainFunction
from pytensor.tensor.type import DenseTensorType

from ..call.function import Function
from ..call.uses import predicted, why_refused
from ..choice.plan import LAUNCH, Predicted
from ..choice.work import KnownShapes, work_of
from ..compiler.arguments import (
    FunctionArguments,
    asked_of,
    chooses_rows,
    make_spec,
)
from ..errors import SynkError
from ..ranks.session import SESSION
from ..report.words import count
from ..user_frames import entry

LEAST = 1.1
"""The least predicted speed-up for which ranks make a call."""

CLEARLY_SMALL = LAUNCH / 4
"""Calls of fewer seconds on one core are serial, without placing the graph to ask."""

MOST_SHAPES = 1_000
"""The most combinations of shapes for which the way of calls is remembered."""

MOST_LAYOUTS = 3
"""The most layouts of one call that are tried."""

NO_ROWS = "without rows"
NOT_CALLED = "not called"
REFUSED = "that ranks cannot share"


class Ranks(NamedTuple):
    """The ranks that make calls: their number, and their cores.

    With `every`, they make all calls with rows, whatever is predicted.
    """

    size: int
    cores: int
    every: bool


@dataclass(eq=False)
class Way:
    """How calls of some shapes are made: by ranks or the plain function."""

    function: Function | None = None  # synk's; None: the plain one makes calls
    order: tuple[int, ...] = ()  # the arguments in its order, scattered ones first
    reason: str = ""  # why calls are serial; "" if they are not
    detail: str = ""  # the prediction, or the error that prevents sharing
    predicted: Predicted | None = None
    calls: int = 0  # number of calls made in this way

    def __str__(self) -> str:
        who = f"serial, as {self.reason}" if self.reason else "on ranks"
        return f"{who}: {self.detail}" if self.detail else who


class Ways:
    """A function of the script, and how its calls are made; `ways` has all ways so far.

    Raises SynkError, TypeError or ValueError if `synk.function` cannot make it.

    Parameters
    ----------
    written : its arguments, with all inputs as broadcast ones, in the script's order
    make_plain : compiles the plain function
    ranks : returns the ranks for calls, those that there are or would be
    start : forks them
    """

    def __init__(
        self,
        written: FunctionArguments,
        make_plain: Callable[[], Any],
        ranks: Callable[[], Ranks],
        start: Callable[[], object],
    ) -> None:
        self._written, self._make_plain = written, make_plain
        self._ranks_of, self._start = ranks, start
        self._asked = asked_of(written)
        self._names = [var.name for var in self._asked.arguments]
        self._can_be_rows = [_can_be_rows(var) for var in self._asked.arguments]
        self._by_shapes: dict[tuple, Way] = {}
        self._by_sizes: dict[tuple, Way] = {}
        self._by_layout: dict[tuple[int, ...], Function | str] = {}
        self.ways: list[Way] = []

    @cached_property
    def _chooses_rows(self) -> bool:
        return chooses_rows(self._asked)

    @property
    def may_have_rows(self) -> bool:
        """Whether calls may have rows."""
        return any(self._can_be_rows) or self._chooses_rows

    @property
    def label(self) -> str:
        """The function's name, and the script's line that made it."""
        return f"{self._written.name or 'a function'}{self._written.made}"

    @cached_property
    def plain(self) -> Any:
        """The plain function, compiled when it is first needed."""
        return self._make_plain()

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Make a call of the function."""
        options = kwargs
        if kwargs:
            args, options = self._in_order(args, kwargs)
        if len(args) != len(self._names) or options.keys() - {"output_subset"}:
            return self._serial(args, options)  # raises PyTensor's error
        shapes = tuple(map(shape_of, args))
        way = self._by_shapes.get(shapes)
        if way is None:
            if SESSION.state in ("worker", "child", "broken"):
                return self._serial(args, options)
            way = self._way_for(shapes, args)
        if way.function is None or SESSION.state != "running":
            way.calls += way.function is None
            return self._serial(args, options)
        way.calls += 1
        return way.function(*[args[i] for i in way.order], **options)

    def _serial(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        if SESSION.state == "running" and SESSION.size > 1:
            SESSION.context.confinement.widen()  # all cores, as other ranks wait
        return self.plain(*args, **kwargs)

    def _in_order(
        self, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments in order, and the other keywords."""
        rest, found = dict(kwargs), list(args)
        for name in self._names[len(args) :]:
            if name not in rest:
                return args, kwargs
            found.append(rest.pop(name))
        return tuple(found), rest

    # -- reports

    @property
    def by_ranks(self) -> list[Way]:
        """The ways in which ranks have made calls."""
        return [way for way in self.ways if way.function is not None and way.calls]

    @property
    def reason(self) -> str:
        """Why its calls were serial, by the way of most calls; "" if they were not."""
        most = max(self.ways, key=lambda way: way.calls, default=None)
        return NOT_CALLED if most is None else most.reason

    def lines(self) -> list[str]:
        """Return a line for each way: the number of calls, and how they were made."""
        counted: Counter[str] = Counter()
        for way in self.ways:
            counted[str(way)] += way.calls
        return [f"{count(n, 'call')} {way}" for way, n in counted.most_common()]

    # -- choosing a way

    def _way_for(self, shapes: tuple, args: tuple) -> Way:
        """Return the way of calls of these shapes, or of similar sizes, and keep it."""
        found = layouts(shapes, self._can_be_rows) + [()] * self._chooses_rows
        sizes = tuple(tuple(map(int.bit_length, shape)) for shape in shapes)
        key = *found, sizes
        way = self._by_sizes.get(key)
        if way is None:
            way = self._by_sizes[key] = self._way(found, shapes, args)
            self.ways.append(way)
        if len(self._by_shapes) == MOST_SHAPES:
            self._by_shapes.clear()
        self._by_shapes[shapes] = way
        return way

    def _way(self, found: list[tuple[int, ...]], shapes: tuple, args: tuple) -> Way:
        ranks = self._ranks_of()
        if ranks.size == 1:
            return Way(reason="on one core")
        ways = [self._way_of(layout, shapes, args, ranks) for layout in found]
        if not ways:
            return Way(reason=NO_ROWS)
        by_ranks = [way for way in ways if way.function is not None]
        if not by_ranks:
            return ways[0]
        if SESSION.state != "running":
            self._start()
        return min(
            by_ranks, key=lambda way: way.predicted.by_ranks if way.predicted else 0.0
        )

    def _way_of(
        self, layout: tuple[int, ...], shapes: tuple, args: tuple, ranks: Ranks
    ) -> Way:
        """Return the way of calls with the arguments of `layout` as rows."""
        if layout and not ranks.every and self._is_small(layout, shapes):
            return Way(reason="too small")
        if layout not in self._by_layout:
            self._by_layout[layout] = self._made(layout)
        function = self._by_layout[layout]
        if isinstance(function, str):
            return Way(reason=REFUSED, detail=function)
        order = *layout, *(i for i in range(len(args)) if i not in layout)
        given = [args[i] for i in order]
        found = predicted(function, given, ranks.size, ranks.cores)
        if ranks.every:
            return Way(function, order, predicted=found)
        if found is None:
            return Way(reason="of unknown duration")
        text = f"predicted {found.by_ranks * 1e3:.3g} ms, and {found.serial * 1e3:.3g}"
        text += " in one process"
        if found.is_alone or found.serial < LEAST * found.by_ranks:
            return Way(None, (), "no faster by ranks", text, found)
        return Way(function, order, "", text, found)

    def _is_small(self, layout: tuple[int, ...], shapes: tuple) -> bool:
        """Return whether the graph as written is far too small to be placed."""
        arguments = self._asked.arguments
        known = KnownShapes(dict(zip(arguments, shapes, strict=True)))
        work = work_of(self._asked.plain_graph, [arguments[i] for i in layout], known)
        if work is None:
            return False
        return work.products + work.elements + work.common < CLEARLY_SMALL

    def _made(self, layout: tuple[int, ...]) -> Function | str:
        """Return synk's function with these inputs as rows, or why there is none."""
        inputs = self._written.bcast_inputs or ()
        rows = [inputs[i] for i in layout]
        whole = [var for i, var in enumerate(inputs) if i not in layout]
        written = replace(self._written, inputs=rows, bcast_inputs=whole)
        try:
            function = Function(partial(make_spec, written))
        except (SynkError, TypeError, ValueError, NotImplementedError) as error:
            return str(error)
        if not function.has_rows:
            return "something needs all of the rows that it chooses at once"
        return why_refused(function) or function


def _can_be_rows(variable: Any) -> bool:
    kind = variable.type
    return isinstance(kind, DenseTensorType) and kind.ndim > 0 and kind.shape[0] is None


# -- which arguments are rows
#
# A wrong guess costs speed alone, never numbers: whatever is scattered, the outputs are
# those of all rows (`compiler.placement`).


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an argument; fast for arrays and numbers."""
    try:
        shape: tuple[int, ...] = value.shape
        return shape
    except AttributeError:
        return () if isinstance(value, int | float) else np.shape(value)


def layouts(
    shapes: Sequence[tuple[int, ...]], can_be_rows: Sequence[bool]
) -> list[tuple[int, ...]]:
    """Return the sets of arguments that may be the rows of a call, likely ones first.

    A set has all arguments of one first length. The length that most arguments have is
    the most likely; of several such lengths, the longest, as it is more work to share.

    >>> layouts([(100, 5), (5,), (100,)], [True] * 3)
    [(0, 2), (1,)]
    """
    lengths = [
        shape[0] if may and shape and shape[0] > 1 else 0
        for shape, may in zip(shapes, can_be_rows, strict=True)
    ]
    counted = Counter(filter(None, lengths))
    likely = sorted(counted, key=lambda length: (-counted[length], -length))
    return [
        tuple(i for i, each in enumerate(lengths) if each == length)
        for length in likely[:MOST_LAYOUTS]
    ]


class ParallelFunction(PlainFunction):
    """The object that a script gets in place of a compiled function.

    Ranks may make its calls. Attributes are those of the plain function, which is then
    compiled.
    """

    def __init__(self, ways: Ways) -> None:
        object.__setattr__(self, "_ways", ways)

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a call, by ranks or by the plain function."""
        return self._ways.call(args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_ways":
            raise AttributeError(name)
        return getattr(self._ways.plain, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ways.plain, name, value)

    def __reduce__(self) -> Any:
        return _itself, (self._ways.plain,)

    def __repr__(self) -> str:
        return f"<ParallelFunction {self._ways.label}>"


def _itself(made: Any) -> Any:
    return made
