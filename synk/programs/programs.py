"""The compiled parts of a function on one rank, and the kinds of calls that run them.

``step``
    An ordinary call: a graph that draws random numbers, then one graph for each stage.
``uncut``
    An ordinary call on one rank: the whole graph, as plain PyTensor would compile it.
``slice``
    A call with `num_slices`: the rows part of every stage runs for one slice after the
    other, each from the original values of the shared variables; values are
    accumulated, and variables are updated once, at the end.
``kept``
    A step that keeps, from call to call, terms that depend on the rows alone.
``idle``
    On a rank without rows: the common parts only. A step counter is increased, and the
    update by a reduced gradient is made; an own gradient, of no rows (NaN), is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.type import RandomType

from ..compiler.kept import Kept, with_kept
from ..compiler.padded import CannotPad
from ..compiler.placement.streams import CommonStream
from ..compiler.sizes import sizes_from_inputs
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage, cut, store_together, uncut
from ..engines import Engine, engine_for
from ..engines.numba_code import array_type, make_ahead
from ..engines.precision import check_engine
from ..memory.loading import RowLoader
from ..memory.partition import Selection
from ..signals import without_collection
from ..times.compile_notice import Notice
from ..times.timing import COMPUTE, ExchangeTimes, Times
from .blocks import Blocks
from .padding import UNPADDED, PaddedSize, Padding, widened

Subset = tuple[int, ...]
"""Positions of the outputs asked for, ascending."""

CallKind: TypeAlias = Literal["step", "uncut", "slice", "kept", "idle"]
"""The kind of a rank's call; see the top of this file."""


class KeptTerms:
    """The kept values of a part on one rank, for the rows of the last call."""

    def __init__(self) -> None:
        # The key with its values, so that an interrupt finds both or neither.
        self._kept: tuple[Any, dict[Variable, Any]] = None, {}

    @property
    def nbytes(self) -> int:
        """The bytes of the kept values."""
        return sum(value.nbytes for value in self._kept[1].values())

    def of(
        self, part: Part, key: tuple | None, compute: Callable[[], list]
    ) -> dict[Variable, Any]:
        """Return the values of a part; ``compute()`` them unless they are kept.

        `key` identifies the rows: states of `Data`, and bounds of rows. If it is None,
        nothing is kept.
        """
        if key is None:
            return dict(zip(part.wants, compute(), strict=True))
        if (id(part), key) != self._kept[0]:
            self._kept = None, {}  # frees the former values first
            values = dict(zip(part.wants, compute(), strict=True))
            self._kept = (id(part), key), values
        return self._kept[1]


class Programs:
    """The compiled parts of one function on one rank.

    `number` is the function's number, the same on all ranks.
    """

    def __init__(self, number: int, spec: FunctionSpec) -> None:
        self.number = number
        self.spec = spec
        self.engine: Engine = engine_for(spec.mode)
        check_engine(spec.precision, self.engine)
        how = {"mode": spec.mode, "name": spec.name, "options": spec.options}
        self._compile_graph: Callable[..., Callable] = partial(
            self.engine.compile_graph, **how, precision=spec.precision
        )
        self.label = f"function {spec.name!r}" if spec.name else "a function"
        self.label += spec.made
        self.streams_used = [
            shared for shared, _ in spec.updates if isinstance(shared.type, RandomType)
        ]
        """The random streams that calls draw from."""
        self.notice: Notice | None = None  # in the master, to print "compiling"
        self.times = Times(spec.name or f"function {number}")
        self.exchanges: ExchangeTimes | None = None
        """Times of exchanges, if calls are steps of a training rule."""
        self.shapes: dict[Variable, tuple[int, ...]] = {}
        """The shapes of reduced values, for explanations."""
        self._cuts: dict[tuple[CallKind, Subset], Cut] = {}
        self.kept_terms = KeptTerms()
        self.blocks = Blocks(spec)
        # Whether all parts with rows run in blocks; looked up in each call of rank 0.
        self._in_blocks: dict[Subset, bool] = {}
        # By the id of a part, and whether it is padded.
        self._compiled: dict[tuple[int, bool], Callable] = {}
        self._writers: dict[int, Callable] = {}
        self.padding: Padding | None = None
        if spec.pad and self.engine.PER_SHAPE:
            self.padding = Padding(spec)
        self.is_padded = self.padding is not None and self.padding.reason is None
        self.rows_met: dict[tuple, list[list[int]]] = {}
        """For each rank, the numbers of its rows that it has code for, by all else that
        code depends on."""
        self.loader = RowLoader(len(spec.row_inputs), len(spec.bcast_inputs))

    def streams(self, kind: CallKind) -> list[CommonStream]:
        """Return the random streams that all ranks share in a kind of call."""
        return [] if kind == "uncut" else self.spec.streams

    def block(self, subset: Subset, planned: int) -> int:
        """Return `planned`, or 0 if some part with rows cannot run block by block."""
        if not planned:
            return 0
        goes = self._in_blocks.get(subset)
        if goes is None:
            cut = self.cut("step", subset)
            goes = not self.is_padded and self.blocks.cover(cut)
            self._in_blocks[subset] = goes
        return planned if goes else 0

    def takes_part(self, subset: Subset) -> bool:
        """Return whether a rank without rows has anything to compute or reduce."""
        stages = self.cut("idle", subset).stages
        has_work = any(stage.common or stage.reduced for stage in stages)
        return has_work or bool(self.spec.row_updates)

    def cut(self, kind: CallKind, subset: Subset) -> Cut:
        """Return the stages for one kind of call."""
        key: tuple[CallKind, Subset] = ("step" if kind == "idle" else kind, subset)
        if key not in self._cuts:
            if kind == "uncut":
                # If nothing is reduced, use the step's parts, compiled already.
                made = self.cut("step", subset)
                reduces = any(stage.reduced for stage in made.stages)
                if reduces or self.spec.streams:
                    made = uncut(self.spec, subset, not self.engine.ON_DEVICE)
            elif kind == "kept":
                made, kept = with_kept(self.cut("step", subset), self.spec)
                made.stages[0].kept = kept
            else:
                in_place = not self.engine.ON_DEVICE
                made = cut(self.spec, subset, kind == "slice", in_place)
            if self.engine.ON_DEVICE and kind in ("step", "uncut"):
                padding = self.padding if self.is_padded else None
                store_together(
                    made,
                    self.spec,
                    lambda var: padding is None or padding.is_whole(var),
                )
            self._cuts[key] = made
        return self._cuts[key]

    def kept(self, subset: Subset) -> Kept | None:
        """Return the part that computes terms of the rows alone, or None."""
        kept: Any = self.cut("kept", subset).stages[0].kept
        return kept or None

    def shapes_compiled(self) -> int | None:
        """Return the number of shapes that code was made for; None if for any shape."""
        seen: dict[int, int] = {}
        for (piece, _), program in self._compiled.items():
            shapes = getattr(program, "shapes", None)
            if shapes is not None:
                seen[piece] = seen.get(piece, 0) + len(shapes)
        return max(seen.values(), default=None)

    def has(self, kind: CallKind, subset: Subset) -> bool:
        """Return whether all parts for a kind of call are compiled."""
        parts = self._parts(kind, subset)
        return all((id(part), False) in self._compiled for part in parts)

    def overwritten(self, kind: CallKind, subset: Subset) -> list[SharedVariable]:
        """Return the variables that the compiled code of a kind of call updates."""
        parts = self._parts(kind, subset)
        return [shared for part in parts for shared, _ in part.updates]

    def _parts(self, kind: CallKind, subset: Subset) -> list[Part]:
        stages = self.cut(kind, subset).stages
        return [part for stage in stages for part in parts_of(kind, stage)]

    def compile(self, kind: CallKind, subset: Subset) -> None:
        """Compile the parts for a kind of call that are not compiled yet."""
        with without_collection():
            for stage in self.cut(kind, subset).stages:
                for piece in parts_of(kind, stage):
                    has_rows = stage.phase == COMPUTE and piece is not stage.common
                    try:
                        self.program(piece, self.is_padded and has_rows)
                    except CannotPad as error:
                        # PyTensor rewrites inner graphs in place, so they may have
                        # changed since `Padding` examined them.
                        assert self.padding is not None
                        self.padding.reason, self.is_padded = str(error), False
                        self.program(piece)
            for i in self.cut(kind, subset).written:
                self.writer(kind, subset, i)
        self.times.is_fresh = True

    def make_machine_code(self, kind: CallKind, subset: Subset) -> None:
        """Have numba make machine code for a kind of call now, if it can.

        This goes through parts in the order of a call, as the types of the values that
        a part receives follow from the parts before.
        """
        inputs = [array_type(var) for var in self.spec.all_inputs]
        known: dict[Variable, Any] = {}
        for stage in self.cut(kind, subset).stages:
            for piece in parts_of(kind, stage):
                received = [known.get(var) for var in piece.receives]
                made = make_ahead(self.program(piece), [*inputs, *received])
                known.update(zip(piece.wants, made, strict=False))
            known.update({var: array_type(var) for var in stage.reduced})

    def program(self, piece: Part, padded: bool = False) -> Callable:
        """Return the compiled code of a part, in its padded form or not."""
        program = self._compiled.get((id(piece), padded))
        if program is None:
            program = self._compile(piece, padded)
            self._compiled[id(piece), padded] = program
        return program

    def _compile(self, piece: Part, padded: bool) -> Callable:
        needs_sizes = self.engine.PER_SHAPE
        known = sizes_from_inputs(piece.receives) if needs_sizes else {}
        targets, news = [var for var, _ in piece.updates], [v for _, v in piece.updates]
        if padded:
            assert self.padding is not None
            received, graphs = self.padding.rewritten(piece, known, news)
        else:
            stand_ins = {var: var.type(name=var.name) for var in piece.receives}
            received = list(stand_ins.values())
            graphs = clone_replace([*piece.computes, *news], {**stand_ins, **known})
        n = len(piece.computes)
        updates = list(zip(targets, graphs[n:], strict=True))
        inputs = [*self.spec.all_inputs, *received]
        return self._compile_graph(inputs, graphs[:n], updates)

    def writer(self, kind: CallKind, subset: Subset, i: int) -> Callable:
        """Return a function that makes update i by writing to elements, in place."""
        if i not in self._writers:
            made, (shared, _) = self.cut(kind, subset).written[i], self.spec.updates[i]
            taken: list[Variable] = [var.type() for var in made.takes]
            new = shared.type.filter_variable(made.new_value(shared, taken))
            self._writers[i] = self._compile_graph(taken, [], [(shared, new)])
        return self._writers[i]

    # -- rows

    def padded(self, selections: list[Selection]) -> tuple[list[Selection], PaddedSize]:
        """Return selections with padding, if the function is padded, and their size."""
        if not self.is_padded:
            return selections, UNPADDED
        assert self.padding is not None
        padded_size = self.padding.padded_size(selections)
        return widened(selections, padded_size), padded_size


def parts_of(kind: CallKind, stage: Stage) -> list[Part]:
    """Return the parts of a stage that one kind of call runs, in order."""
    parts: dict[CallKind, list[Part]] = {
        "uncut": [stage.merged],
        "step": [stage.drawn, stage.merged],
        "kept": [stage.kept, stage.drawn, stage.merged],
        "slice": [stage.common, stage.rows],
        "idle": [stage.common],
    }
    return [part for part in parts[kind] if part]
