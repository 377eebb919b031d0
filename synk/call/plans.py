"""The plans of one function, and its replicas for the engine of each plan.

The first call on a number of rows makes a plan (`choice.plan`) for all calls of that
*scale*: on about as many rows (`records.scale_of`). Each engine has its own replicas of
the function on the ranks; all of them share the ranks' values of the variables.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..choice import records
from ..choice.engine import (
    VARIABLE,
    Kind,
    asked_for,
    draws_among_rows,
    engine_asked_for,
    engines_for,
    kind_of,
    may_be_alone,
)
from ..choice.plan import (
    KEPT_FROM,
    Plan,
    PlanFacts,
    are_kept,
    block_of,
    choose,
    plans_of,
    why_in_one_go,
)
from ..choice.work import KnownShapes, Work, nbytes_of, work_of
from ..compiler.spec import FunctionSpec
from ..engines import ENGINES, describe_mode, engine_for, engine_named
from ..memory.partition import cuts
from ..programs.programs import CallKind, Programs, Subset
from ..ranks.pool import Pool
from ..ranks.replication import Replicas, distribute_later
from ..ranks.session import SESSION
from ..report.bits import check_bits
from ..report.facts import PlanTimes
from ..user_frames import callers_level
from ..variables.data import Data
from .arguments import CallRows, CallValues

MANY_LENGTHS = 10
"""A warning comes when JAX has compiled a function for this many numbers of rows."""


class Planned(NamedTuple):
    """A plan, and the function's replicas for the plan's engine."""

    plan: Plan
    replicas: Replicas

    def block_and_kind(
        self, subset: Subset, num_slices: int = 1
    ) -> tuple[int, CallKind]:
        """Return the rows of a block, or 0, and the kind of call on ranks with rows.

        A call in blocks has no slices: blocks serve for these. In blocks a single rank
        runs the stages of several ranks, too, so that the bits are the same.
        """
        block = self.replicas.local().block(subset, self.plan.block)
        if num_slices > 1 and not block:
            return block, "slice"
        return block, "uncut" if SESSION.size == 1 and not block else "step"

    def cut(self, rows: CallRows) -> CallRows:
        """Return `rows` with the bounds between ranks at multiples of the block."""
        if not rows.total:
            return rows
        bounds = cuts(rows.total, len(rows.bounds) - 1, self.plan.block or 1)
        return rows._replace(bounds=bounds)


class Plans:
    """The plans of one function, by scale of rows; a plan stays for the session."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._default = Replicas(spec)  # in the mode of the script, or PyTensor's
        # The plan of the last call, or of `settle`; before these, `Plan()`.
        self.last = Planned(Plan(), self._default)
        self.measured: list[PlanTimes] = []  # the last table of `synk.tune`
        self._by_engine: dict[str, Replicas] = {}
        self._by_scale: dict[int, Planned] = {}
        self._inputs_kept: dict[tuple, tuple[int, ...]] = {}
        self._lengths: set[int] = set()
        self._failed: set[str | None] = set()  # engines that could not compile it
        self._proven: set[str | None] = set()  # engines that have made calls
        self._can_be_alone = True
        self._made_for: weakref.ref[Pool] | None = None
        distribute_later(self)

    # -- for a call

    def plan_for(self, rows: int, arrays: Sequence[Any]) -> Planned:
        """Return the plan for a call of `rows` rows, all ranks' together.

        `arrays` are the scattered inputs' whole arrays, then the broadcast inputs.
        """
        if not SESSION.is_of(self._made_for):
            self._by_scale, self._made_for = {}, weakref.ref(SESSION.pool)
        scale = records.scale_of(rows)
        planned = self._by_scale.get(scale)
        if planned is None:
            planned = self._new_plan(rows, arrays)
            if self._spec.has_any_bits:
                check_bits(self._spec, planned.plan)
            self._by_scale[scale] = planned
        self.last = planned
        if len(self._lengths) < MANY_LENGTHS:
            self._note_length(rows, planned)
        return planned

    def _note_length(self, rows: int, planned: Planned) -> None:
        """Warn, once, if JAX has compiled for `MANY_LENGTHS` numbers of rows."""
        engine = planned.replicas.local().engine
        if not engine.PER_SHAPE or self._spec.pad:
            return
        self._lengths.add(rows)
        if len(self._lengths) == MANY_LENGTHS:
            text = (
                f"{self._spec.label} has been called on {MANY_LENGTHS} different"
                f" numbers of rows; {engine.name} compiles for each, which takes a"
                ' second or so. With pad=True it compiles for few, with mode="NUMBA"'
                " once"
            )
            warnings.warn(text, UserWarning, stacklevel=callers_level())

    def forbid_alone(self) -> None:
        """From now on, choose no plan by which rank 0 makes calls alone."""
        if self._can_be_alone:
            self._can_be_alone = False
            self._by_scale.clear()

    def gives_up(self, planned: Planned, error: Exception) -> bool:
        """Return whether to try another engine, as this one cannot compile the graph.

        If so, later plans leave this engine out. Other errors are the call's own.
        """
        engine, engines = planned.plan.engine, self._engines()
        if engine not in engines or self.is_proven(planned):
            return False  # the script named the engine, or the engine has made calls
        is_last = engines == (engine,) and engine == engine_for(None).name
        if is_last or not is_of_engine(error):
            return False
        self._failed.add(engine)
        self._by_scale.clear()
        return True

    def is_proven(self, planned: Planned) -> bool:
        """Return whether the plan's engine has made a call of this function."""
        return planned.plan.engine in self._proven

    def note_success(self, planned: Planned) -> None:
        """Note that the plan's engine has made a call."""
        self._proven.add(planned.plan.engine)

    def prepare_usual(self) -> None:
        """Compile, on all ranks, for a call without slices that returns all outputs."""
        planned = self.last
        if not self._by_scale:  # no call was made, so sizes are not known
            engines, ranks = self._engines(), SESSION.size
            sizes = False, False, 0, 0, None, None
            plan = Plan(engine_asked_for(self._spec))
            if engines:
                plan = choose(PlanFacts(engines, self._kind(), *sizes, ranks, ranks))
            planned = self._with_replicas(plan)
        replicas, every = planned.replicas, tuple(range(len(self._spec.outputs)))
        with replicas.notice:
            replicas.prepare(planned.block_and_kind(every)[1], every)

    def with_kept(
        self,
        programs: Programs,
        kind: CallKind,
        subset: Subset,
        given: CallValues,
        rows: CallRows,
        block: int,
    ) -> tuple[CallKind, list[Any]]:
        """Return the kind of a call whose ranks may keep terms, and the inputs' states.

        A sampler calls a likelihood many times with the same data. Ranks compute once,
        and keep, the terms that depend on the rows of `Data` alone. By the states they
        know that the data is unchanged; the state of an input of no such terms is None.
        """
        states: list[Any] = [None] * len(rows.sources)
        found, inputs = self.kept_kind(programs, kind, subset, rows.total, given)
        values = [given.values[i] for i in inputs]
        known = [v._state if isinstance(v, Data) else None for v in values]
        if None in known or not isinstance(rows.selection, slice):
            # Blocks give the same bits only if the terms are a part of their own.
            return found if block else kind, states
        for i, state in zip(inputs, known, strict=True):
            states[i] = state
        return found, states

    def kept_kind(
        self,
        programs: Programs,
        kind: CallKind,
        subset: Subset,
        rows: int,
        given: CallValues,
    ) -> tuple[CallKind, tuple[int, ...]]:
        """Return ("kept", the inputs of the terms to keep), or (`kind`, no inputs)."""
        scale = records.scale_of(rows)
        if records.rows_of(scale) < KEPT_FROM or kind == "slice" or programs.is_padded:
            return kind, ()
        key = programs.number, subset, scale
        if key not in self._inputs_kept:
            kept, self._inputs_kept[key] = programs.kept(subset), ()
            if kept is not None:
                about, sizes, _ = self._sizes_for(rows, given.arrays)
                row = sum(array[:1].nbytes for array in given.sources)
                if are_kept(about, row, nbytes_of(kept.wants, sizes)):
                    self._inputs_kept[key] = kept.inputs
        inputs = self._inputs_kept[key]
        return ("kept", inputs) if inputs else (kind, ())

    # -- choosing plans

    def _engines(self) -> tuple[str, ...]:
        """Return the engines to choose from; none if no choice is open."""
        found = engines_for(self._spec)
        return tuple(engine for engine in found if engine not in self._failed)

    def _kind(self) -> Kind:
        spec = self._spec
        return kind_of(spec.graph, spec.row_inputs, bool(spec.updates))

    def facts(
        self,
        rows: int,
        arrays: Sequence[Any],
        ranks: int | None = None,
        cores: int | None = None,
    ) -> PlanFacts:
        """Return the facts from which `choose` makes the plan for about `rows` rows.

        `ranks` and `cores` (of all ranks together) are those of the session by default.
        """
        if ranks is None or cores is None:
            ranks = SESSION.size
            cores = len(SESSION.context.place.cores) * ranks
        spec = self._spec
        about, sizes, work = self._sizes_for(rows, arrays)
        nbytes = nbytes_of(spec.inputs, sizes)
        return PlanFacts(
            engines=self._engines(),
            kind=self._kind(),
            is_of_data=not (spec.bcast_inputs or spec.shared_variables()),
            may_be_alone=self._can_be_alone and may_be_alone(spec),
            rows=about,
            row_bytes=0 if nbytes is None or not about else nbytes // about,
            summed=nbytes_of([var for var, _ in spec.sums], sizes),
            work=work,
            ranks=ranks,
            cores=cores,
            has_any_bits=spec.has_any_bits,
        )

    def _sizes_for(
        self, rows: int, arrays: Sequence[Any]
    ) -> tuple[int, KnownShapes, Work | None]:
        """Return the number of rows to plan for, and the graph's sizes and work then.

        That number is the middle of the scale; or `rows` itself, if broadcast inputs
        have one value for each row, so that no other number fits.
        """
        spec, n = self._spec, len(self._spec.inputs)
        shapes = list(map(np.shape, arrays))
        for about in (records.rows_of(records.scale_of(rows)), rows):
            given = zip(spec.inputs, shapes[:n], strict=True)
            known = {var: (about, *shape[1:]) for var, shape in given}
            known[spec.call.as_long] = about, 0
            for i, var in spec.call.none_of.items():
                known[var] = 0, *shapes[i][1:]
            known.update(zip(spec.bcast_inputs, shapes[n:], strict=True))
            sizes = KnownShapes(known)
            work = work_of(spec.graph, spec.row_inputs, sizes)
            if work is not None:
                break
        return about, sizes, work

    def possible_plans(self, rows: int, arrays: Sequence[Any]) -> list[Planned]:
        """Return all possible plans for calls of `rows` rows, each name once."""
        found: dict[str, Planned] = {}
        for plan in plans_of(self.facts(rows, arrays)) if self._engines() else ():
            planned = self._with_replicas(plan)
            found.setdefault(planned.plan.name, planned)
        return list(found.values())

    def settle(self, rows: int, planned: Planned, measured: dict[str, float]) -> None:
        """Use a plan for calls of about `rows` rows, and write that to a record.

        `measured` has the seconds of a call, by the names of plans.
        """
        scale = records.scale_of(rows)
        machine = SESSION.size, len(SESSION.context.place.cores)
        key, label = self._key(scale), self._spec.label
        records.write(key, label, scale, machine, planned.plan, measured)
        plan = dataclasses.replace(planned.plan, why=records.MEASURED)
        self.last = self._by_scale[scale] = planned._replace(plan=plan)
        used = {planned.plan.engine for planned in self._by_scale.values()}
        # Without replicas the ranks drop the code of engines that no plan uses.
        for engine in self._by_engine.keys() - used:
            del self._by_engine[engine]

    def _new_plan(self, rows: int, arrays: Sequence[Any]) -> Planned:
        engines = self._engines()
        if not engines:
            return self._with_replicas(self._named_plan(rows, arrays))
        key = self._key(records.scale_of(rows))
        record = records.find(key, self._spec.label)
        plan = None if record is None else record.plan
        if (
            plan is None
            or plan.engine not in engines
            or (self._spec.has_any_bits and not plan.block)
        ):
            plan = choose(self.facts(rows, arrays))
        return self._with_replicas(plan)

    def _named_plan(self, rows: int, arrays: Sequence[Any]) -> Plan:
        """Return the plan for a mode named by the script or the environment."""
        spec, asked = self._spec, engine_asked_for(self._spec)
        why = describe_mode(spec.mode) if asked is None else "by SYNK_ENGINE"
        engine = asked or engine_for(spec.mode).name
        if not engine_named(engine).HAS_BLOCKS or draws_among_rows(spec):
            at_once = f"{why} goes through all rows of a rank at once"
            return Plan(asked, why=why, in_one_go=at_once)
        facts = self.facts(rows, arrays)
        block, in_one_go = block_of(facts, engine), why_in_one_go(facts, engine)
        if asked_for() == "default" and rows <= block:
            # Cut few rows evenly, as in modes without blocks.
            block, in_one_go = 0, f"{VARIABLE}=default cuts few rows evenly"
        return Plan(asked, False, block, why, in_one_go)

    @cached_property
    def spelled(self) -> str:
        """The graph as a text, from which the key of a record is made."""
        return records.spelled(self._spec.graph)

    def _key(self, scale: int) -> str:
        cores = len(SESSION.context.place.cores)
        return records.key_of(self.spelled, SESSION.size, cores, scale)

    def _with_replicas(self, plan: Plan) -> Planned:
        """Return a plan with the replicas for its engine.

        The plan loses its blocks if some value of rows cannot be computed in blocks.
        """
        engine, replicas = plan.engine, self._default
        if engine is not None:
            if engine not in self._by_engine:
                is_default = engine == engine_for(None).name
                mode = None if is_default else engine_named(engine).mode
                spec = dataclasses.replace(self._spec, mode=mode)
                self._by_engine[engine] = Replicas(spec)
            replicas = self._by_engine[engine]
        if plan.block:
            programs, every = replicas.local(), tuple(range(len(self._spec.outputs)))
            if not programs.block(every, plan.block):
                why = programs.blocks.refused or "no output is of rows"
                plan = dataclasses.replace(plan, block=0, in_one_go=why)
        return Planned(plan, replicas)


def is_of_engine(error: Exception) -> bool:
    """Return whether an engine raised `error`: from its package, or NotImplemented."""
    package = type(error).__module__.partition(".")[0]
    is_packages = any(package in each.packages for each in ENGINES.values())
    return is_packages or isinstance(error, NotImplementedError)
