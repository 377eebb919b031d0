"""The engines of one function: the one that is settled, or those in a trial.

An engine has replicas of its own of the function on the ranks; what they hold of its
variables is the same for all, so that any of them can make the next call.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from pytensor.graph.traversal import io_toposort

from ..choice import records
from ..choice.comparison import compare
from ..choice.engines_here import (
    MODES,
    asked_for,
    default_engine,
    engines_for,
    may_be_alone,
)
from ..choice.likely import is_for_numba
from ..choice.records import Known
from ..choice.trial import Candidate, Trial
from ..compiler.spec import FunctionSpec
from ..engines import engine_for
from ..programs.programs import kind_of_call
from ..ranks.replication import Replicas, to_distribute
from ..ranks.session import SESSION
from ..report.facts import EngineTimes
from .alone import kind_alone

_COMPILING = {"JAX": (0.5, 0.01), "numba": (1.0, 0.1)}
"""Seconds that a graph is expected to take, and each of its nodes."""

_OVERHEAD = {"JAX": 1e-4}
"""Seconds that a call takes at least; those of other engines take microseconds."""

_CACHED = 0.25
"""Which part of it the next run of a script takes, from the engine's own cache."""

ALONE = ", rank 0 alone"
"""What the name of an engine ends with where the other ranks do nothing."""

AT_ONCE, A_WHILE = 4, 1.0
"""While engines are tried, a run launches so many calls together: four where two are
compared, or what takes a second."""


class Engines:
    """What computes one function.

    Parameters
    ----------
    spec : FunctionSpec
        As the script has made it.

    Attributes
    ----------
    present : Replicas
        Of the engine that has made the last call, or is to make the next one.
    is_trying : bool
        Whether `note` is to be told of calls.
    is_alone : bool
        Whether rank 0 is to make the call alone, as far as that can be; see `alone`.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self.present = Replicas(spec)
        self.is_trying = self.is_alone = False
        self._can_be_alone = True
        self._fixed = self.present
        self._made: dict[str, Replicas] = {}
        self._names: list[str] = []
        self._is_open = False
        self._spelled = ""
        self._trials: dict[int, tuple[Trial, str]] = {}
        self._trial: Trial | None = None
        self._turn: Candidate | None = None
        self._scale = self._generation = -1
        self._written = 1.0
        self._foreseen = 0
        to_distribute(self)

    def turn(self, rows: int, is_usual: bool = True) -> Replicas:
        """Return what is to make the next call, of so many rows.

        Calls that are not usual, in slices or of some outputs, tell nothing of others:
        they are made by the best one, and `note` is not told of them.
        """
        scale = records.scale_of(rows)
        if scale != self._scale or SESSION.generation != self._generation:
            self._begin(scale)
        if self._trial is not None:
            self._turn = self._trial.turn() if is_usual else self._trial.best
            self._take(self._turn)
        return self.present

    def note(
        self, seconds: float, rows: int, calls: int = 1, has_compiled: bool = False
    ) -> None:
        """Take note of calls that `present` has made, while engines are tried."""
        trial, turn = self._trial, self._turn
        assert trial is not None
        assert turn is not None
        programs = self.present.local()
        is_steady = not programs.blocks.is_trying
        if turn.after is None:
            turn.meeting = programs.times.meeting(SESSION.size)
        trial.note(turn, seconds, rows, calls, has_compiled, is_steady)
        if trial.is_over:
            self._settle(trial)
        elif trial.computed > 2 * self._written:  # so that this run counts for the next
            self._write(trial)

    def note_call(self, start: float, rows: int, has_compiled: bool) -> None:
        """Take note of a call that `present` has made, if engines are tried.

        Parameters
        ----------
        start : float
            When it began.
        rows, has_compiled
            See `Trial.note`.
        """
        if self.is_trying:
            seconds = time.perf_counter() - start
            self.note(seconds, rows, has_compiled=has_compiled)

    @property
    def is_waiting(self) -> bool:
        """Whether `present` makes the next call, too, whatever this one takes."""
        trial = self._trial
        return trial is None or (trial.is_waiting and self._turn is trial.best)

    def forbid_alone(self) -> None:
        """Have all ranks make all calls from now on."""
        if self._can_be_alone:
            self._can_be_alone = False
            self._trials.clear()
            self._scale = -1

    def foresee(self, calls: int) -> None:
        """Have it known that so many calls are to come, though few were made."""
        self._foreseen = calls
        for trial, _ in self._trials.values():
            trial.foreseen = calls

    @property
    def may_fail(self) -> bool:
        """Whether `present` has made no usual call yet: see `gives_up`."""
        return self._turn is not None and not self._turn.has_made_calls

    def at_once(self, rows: int) -> int | None:
        """Return how many calls of a run, of so many rows, to launch together."""
        trial = self._trial
        if trial is None:
            return None
        usual = trial.best.typical
        if trial.is_comparing or not usual:
            return AT_ONCE
        return max(AT_ONCE, int(A_WHILE / (usual * max(rows, 1))))

    def gives_up(self, error: Exception) -> bool:
        """Tell whether another engine can make the call that `present` could not.

        That is so if it does not know some Op, or cannot compile it. Other errors are
        the call's own.
        """
        trial, turn = self._trial, self._turn
        if trial is None or turn is None or not self.may_fail:
            return False
        return is_of_engine(error) and trial.drop(turn, _failed(error))

    def prepare_usual(self) -> None:
        """Prepare a call that returns all outputs, on all ranks, in one go."""
        if SESSION.generation != self._generation:
            self._begin(max(self._scale, 0))
        every = tuple(range(len(self._spec.outputs)))
        with self.present.notice:
            self.present.prepare(kind_of_call(1, SESSION.size), every)

    def measure(self, rows: int, seconds: Callable[[Replicas, bool], float]) -> None:
        """Settle what makes calls of so many rows, by making some.

        Parameters
        ----------
        rows : int
        seconds : callable
            Makes a call, on all ranks or on rank 0 alone, and returns what it takes.
        """
        self.turn(rows)
        if not self._names:
            return
        trial = Trial(self._candidates({}))

        def taken(each: Candidate) -> float:
            return seconds(self._replicas(each.name), each.after is not None)

        def is_steady(each: Candidate) -> bool:
            return not self._replicas(each.name).local().blocks.is_trying

        def failed(error: Exception) -> str | None:
            return _failed(error) if is_of_engine(error) else None

        compare(trial, rows, taken, is_steady, failed)
        self._trials[self._scale] = trial, self._trials[self._scale][1]
        self._settle(trial)

    def facts(self) -> list[EngineTimes]:
        """Return what is known of each engine, for an explanation."""
        if self._scale not in self._trials:
            return []
        trial, _ = self._trials[self._scale]
        return [
            EngineTimes(
                each.name,
                each is trial.best,
                None if each.typical is None else each.typical * 1e9,
                each.compiled,
                each.expected,
                each.dropped,
            )
            for each in trial.candidates
        ]

    # -- what there is to choose from

    def _begin(self, scale: int) -> None:
        """Find what may make calls of a scale in this session."""
        if SESSION.generation != self._generation:
            self._names, self._generation = engines_for(self._spec), SESSION.generation
            self._is_open = bool(self._names) and asked_for() == "auto"
        self._scale = scale
        self._trial = self._turn = None
        self.is_trying = self.is_alone = False
        if not self._names:
            self.present = self._fixed
            return
        if scale not in self._trials:
            self._trials[scale] = self._new_trial(scale)
        trial, _ = self._trials[scale]
        self._take(trial.best)
        self.is_trying = not trial.is_over
        self._trial = trial if self.is_trying else None

    def _new_trial(self, scale: int) -> tuple[Trial, str]:
        spec = self._spec
        graph = [*spec.outputs, *(new for _, new in spec.updates)]
        if not self._spelled:
            self._spelled = records.spelled(graph)
        cores = len(SESSION.context.place.cores)
        key = records.key_of(self._spelled, SESSION.size, cores, scale)
        record = records.read(key)
        known = {} if record is None else record.engines
        candidates = self._candidates(known, "" if record is None else record.best)
        if record is None or record.best not in [each.name for each in candidates]:
            trial = Trial(candidates)
        else:
            candidates.sort(key=lambda each: each.name != record.best)
            trial = Trial(candidates, record.computed, record.spent)
        trial.foreseen = self._foreseen
        return trial, key

    def _candidates(self, known: dict[str, Known], best: str = "") -> list[Candidate]:
        """Return what may make calls, but for what is known to be worse than others.

        If that is all there is, as what was better is not here now, it is tried anew.
        """
        spec = self._spec
        graph = [*spec.outputs, *(new for _, new in spec.updates)]
        nodes = len(io_toposort([], graph))
        found = [_candidate(n, self._expected(n, nodes, known)) for n in self._names]
        for each in found:
            each.is_likely = each.name == "numba" and is_for_numba(graph)
            _recall(each, known)
        can_be_alone = self._can_be_alone and may_be_alone(spec)
        if self._is_open and SESSION.size > 1 and can_be_alone:
            for each in found[:]:
                name = f"{each.name}{ALONE}"
                compiles = kind_alone(engine_for(_mode(each.name))) != "step"
                expected = compiles * self._expected(name, nodes, known)
                alone = _candidate(name, expected, after=each)
                _recall(alone, known)
                # It is tried after the same on all ranks; if these are left out, never.
                if name == best or (each.dropped is None and alone.dropped is None):
                    found.append(alone)
        left = [each for each in found if each.dropped is None]
        return left or [_candidate(each.name, each.expected) for each in found]

    def _expected(self, name: str, nodes: int, known: dict[str, Known]) -> float:
        """Return the seconds that it may take to compile for an engine."""
        if name in self._made:  # for calls of another scale
            return 0.0
        if name in known:
            return known[name].compiled * _CACHED
        least, of_node = _COMPILING[name.removesuffix(ALONE)]
        return least + of_node * nodes

    def _take(self, candidate: Candidate) -> None:
        """Have one make the calls from now on."""
        self.present = self._replicas(candidate.name)
        self.is_alone = candidate.after is not None

    def _replicas(self, name: str) -> Replicas:
        """Return the function as an engine computes it."""
        name = name.removesuffix(ALONE)
        if name not in self._made:
            mode = _mode(name)
            spec = dataclasses.replace(
                self._spec,
                mode=mode,
                is_chosen=self._is_open,
                is_compared=bool(self._made),
            )
            self._made[name] = Replicas(spec)
        return self._made[name]

    def _write(self, trial: Trial) -> None:
        """Keep on disk what is known."""
        _, key = self._trials[self._scale]
        self._written = max(trial.computed, 1.0)
        records.write(key, trial)

    def _settle(self, trial: Trial) -> None:
        """Go on with the best one, and let the ranks forget the others."""
        self._take(trial.best)
        self._trial = self._turn = None
        self.is_trying = False
        self._write(trial)
        used = {trial.best.name for trial, _ in self._trials.values()}
        used |= {
            each.name
            for trial, _ in self._trials.values()
            if not trial.is_over
            for each in trial.candidates
        }
        used = {name.removesuffix(ALONE) for name in used}
        for name in self._made.keys() - used:
            del self._made[name]


def _candidate(name: str, expected: float, after: Candidate | None = None) -> Candidate:
    overhead = _OVERHEAD.get(name.removesuffix(ALONE), 0.0)
    return Candidate(name, expected, overhead=overhead, after=after)


def _recall(candidate: Candidate, known: dict[str, Known]) -> None:
    """Drop one that earlier runs have found to be slower, or unable to compute this."""
    if (of_it := known.get(candidate.name)) is not None:
        candidate.lost = of_it.lost
        candidate.dropped = of_it.dropped if of_it.is_out else None


def _mode(name: str) -> Any:
    """Return PyTensor's mode for an engine."""
    return None if name == default_engine() else MODES[name]


def is_of_engine(error: Exception) -> bool:
    """Tell whether an engine has failed, and not the call."""
    package = type(error).__module__.partition(".")[0]
    is_packages = package in ("jax", "jaxlib", "numba")
    return is_packages or isinstance(error, NotImplementedError)


def _failed(error: Exception) -> str:
    return f"failed: {error!r:.60}"
