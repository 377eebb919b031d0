"""The log-density of a PyMC model and its gradient, computed by the ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from ..call.uses import has_bits_of_any_ranks, predicted, spelled
from ..choice import records
from ..choice.plan import Plan, Predicted
from ..errors import StateError, WorkerDied
from ..ranks.groups import RankGroups
from ..ranks.session import SESSION
from .arranging import arranged
from .axes import Axis
from .dimensions import Dimension, Dimensions
from .names import check
from .parts import Part, Point, SerialPart
from .sharing import LOST, Sharing, begin, words
from .terms import Terms
from .words import hidden_in

IN_ONE_PROCESS = (
    "ranks compute for the process that has forked them: sample with"
    " pm.sample(cores=1), and all cores work on each chain"
)

Plain: TypeAlias = Callable[[np.ndarray], Any]
"""A function of the ravelled point that one process computes."""

LEAST = 50_000
"""Elements that a call computes along a second dimension, for it to have a launch."""


AGAIN = 5
"""How often a group computes a call anew whose ranks die."""

OF_LEFT = 10e-6
"""Seconds of a term that ranks do not share, about."""

BY_RANKS, BY_PYMC = "ranks", "PyMC by itself"
"""What `synk.pymc.tune` measures; in records, too."""

OF_PART = 80e-6
"""Seconds in which a point is taken apart for a call, and its results put together."""


class Density:
    """A function of the ravelled point.

    Parameters
    ----------
    model : pymc.Model
    variables : sequence of Variable
        Values of free random variables, which the gradient is by.
    start : mapping of str to array
        A point of the model; its shapes count, and the values of other free variables.
    mode : optional
        As for `synk.function`.
    least : int
        Elements that a call computes along a second dimension of the data, for ranks to
        share that as well, by a launch of its own.
    at_least : float, optional
        Elements along the first dimension, for ranks to share anything.
    begins : bool
        Whether the first call is made, by ranks that are there: what fails in it, or
        while it is compiled, is computed serially then.
    raises : bool
        Whether errors are raised by which a term cannot be computed by ranks.
    terms_of, jacobian
        As for `Terms`.

    Attributes
    ----------
    start : numpy.ndarray
        That point, as a vector.
    others : dict of str to SharedVariable
        Free variables that the gradient is not by.
    refused : dict of str to str
        Terms that ranks do not share, and why.
    faults : dict of str to str
        Of these the ones for which it is so, with the lines that made them; others
        are along the same rows.
    hidden : list of str
        Ops that are not known, in which data may lie.
    is_small : bool
        Whether there is less than `at_least`.
    most_rows : int or None
        The length of the dimension that the terms have most to do with.
    groups : RankGroups or None
        One of which computes it in a process that is forked from the script.
    """

    def __init__(
        self,
        model: Any,
        variables: Sequence[Variable],
        start: Mapping[str, Any],
        mode: Any = None,
        least: int = LEAST,
        at_least: float | None = None,
        begins: bool = False,
        raises: bool = True,
        terms_of: Sequence[Variable] | None = None,
        jacobian: bool = True,
    ) -> None:
        self._model, self._mode, self._least = model, mode, least
        self._lock = threading.Lock()
        self.groups: RankGroups | None = None
        self._instead: Callable[[], Plain] | None = None
        self._tell: Callable[[str], None] = print
        self._plain: Plain | None = None
        terms = Terms(model, terms_of, jacobian)
        variables = [terms.stands[var] for var in variables]
        shapes = {var: np.shape(start[var.name]) for var in terms.free}  # type: ignore[index]
        self.point = Point(
            {var: shapes[var] for var in variables}, pytensor.config.floatX
        )
        parts = [np.ravel(start[var.name]) for var in variables]  # type: ignore[index]
        self.start = np.concatenate([[], *parts]).astype(self.point.dtype)
        self.others: dict[str, SharedVariable] = {}
        stands: dict[Variable, Variable] = {}
        for var in terms.free:
            if var not in self.point.shapes:
                value = np.asarray(start[var.name])  # type: ignore[index]
                ones: Any = [1 if length == 1 else None for length in value.shape]
                shared = pytensor.shared(value, f"{var.name}_shared__", shape=ones)
                self.others[str(var.name)] = stands[var] = shared
        self._stands = stands
        self._at_least, self._begins, self._raises = at_least or 0, begins, raises
        self._lines = dict(zip(terms.names, terms.lines, strict=True))
        self._priors = terms.priors
        self.hidden = hidden_in(terms.sums)
        self._take_apart(terms.names, terms.sums, shapes)
        if self._left or self._exchanging:
            self._arrange(terms, shapes)
        self._all: list[Part | SerialPart] = [*self.parts]
        if self.parts and self._left:
            asked = self._stands, check(), model.check_bounds, mode
            made = SerialPart(self._dimensions, sorted(self._left), self.point, *asked)
            self._all.append(made)
        for part in self._all:
            part.take(self._dimensions.sources)
            if begins and isinstance(part, SerialPart):
                part.add(self.start, self.start.copy())

    def _take_apart(
        self, names: list[str], sums: list[Variable], shapes: Mapping[Variable, Any]
    ) -> None:
        """Find the terms that ranks share, and make the functions."""
        self._dimensions = Dimensions(sums, shapes)
        priors = [i for i, name in enumerate(names) if name in self._priors]
        lines = [self._lines[name] for name in names]
        sharing = Sharing(self._part, names, lines, priors, self._raises)
        self._sharing = sharing
        self._exchanging: set[int] = set()
        of_terms = self._dimensions.of_terms()
        self.most_rows = of_terms[0].length if of_terms else None
        self.is_small = bool(of_terms) and of_terms[0].work < self._at_least
        self.parts = [] if self.is_small else self._make(names, of_terms)
        self._left = set(sharing.refused)
        self.refused = {names[i]: why for i, why in sharing.refused.items()}
        self.faults = {
            f"{names[i]!r}{lines[i]}": why for i, why in sharing.faults.items()
        }

    def _arrange(self, terms: Terms, shapes: Mapping[Variable, Any]) -> None:
        """Look again at terms that are refused, or need all rows, arranged anew.

        That is kept if fewer are refused then, or as many and fewer need all rows.
        """
        found = dict(vars(self))
        names: list[str] = []
        sums: list[Variable] = []
        try:
            for i, total in enumerate(terms.sums):
                is_looked_at = i in self._left | self._exchanging
                each = arranged(total, shapes, check()) if is_looked_at else [total]
                names += [terms.names[i]] * len(each)
                sums += each
            if sums == terms.sums:
                return
            self._take_apart(names, sums, shapes)
        except LOST:
            raise
        except Exception:  # the terms as they were are at hand
            vars(self).update(found)
            return
        before = len(found["refused"]), len(found["_exchanging"])
        if (len(self.refused), len(self._exchanging)) >= before:
            vars(self).update(found)

    def _make(self, names: list[str], of_terms: list[Dimension]) -> list[Part]:
        every = [i for each in of_terms for i in each.terms]
        rest = [i for i in range(len(names)) if i not in every]
        parts: list[Part] = []
        for k, dimension in enumerate(of_terms):
            if not parts:
                small = [each for each in of_terms[k + 1 :] if each.work < self._least]
                with_first = [*rest, *(i for each in small for i in each.terms)]
            elif dimension.work < self._least:
                continue  # its terms are with the first
            others = [] if parts else with_first
            part = self._sharing.part(dimension.axis, dimension.terms, others)
            if part is not None:
                parts.append(part)
                self._exchanging.update(dimension.terms if part.exchanged else ())
        return parts

    def _part(
        self,
        dimension: Axis,
        terms: list[int],
        scatters: bool,
        exchanges: bool,
        opens: bool,
    ) -> Part:
        made = Part(
            *(self._dimensions, dimension, terms, self.point),
            *(self._stands, check(), self._model.check_bounds, self._mode),
            name=f"logp_dlogp_{self._model.name or 'model'}",
            scatters=scatters,
            exchanges=exchanges,
            opens=opens,
        )
        if self._begins:
            begin(made, self._dimensions.sources, self.start)
        return made

    @property
    def rows(self) -> int:
        """How many rows ranks share, of all dimensions."""
        return sum(part.rows for part in self.parts)

    @property
    def exchanged(self) -> list[str]:
        """For what ranks need rows of others."""
        return [why for part in self.parts for why in part.exchanged]

    @property
    def _key(self) -> str:
        """By what a record of it goes."""
        graphs = "\n".join(spelled(part.function) for part in self.parts)
        cores = len(SESSION.context.place.cores)
        about = f"beside PyMC by itself\n{len(self._left)}\n{graphs}"
        return records.key_of(about, SESSION.size, cores, records.scale_of(self.rows))

    @cached_property
    def measured(self) -> float | None:
        """How many times as fast as PyMC by itself it was; see `synk.pymc.tune`."""
        record = records.find(self._key, "a model's log-density")
        if record is None:
            return None
        return record.measured[BY_PYMC] / record.measured[BY_RANKS]

    def keep(self, measured: dict[str, float]) -> None:
        """Write a record of the seconds that a call took by ranks, and by PyMC."""
        plan = Plan(min(measured, key=measured.__getitem__))
        machine = SESSION.size, len(SESSION.context.place.cores)
        scale = records.scale_of(self.rows)
        label = f"model {self._model.name}".rstrip()
        records.write(self._key, label, scale, machine, plan, measured)

    def predicted(self, ranks: int, cores: int) -> Predicted | None:
        """Return the seconds of a call by ranks, and by PyMC by itself on one core.

        None if they do not follow from the graph and its shapes.

        Parameters
        ----------
        ranks, cores : int
            So many ranks, which have so many cores together.
        """
        left = len(self._left) * OF_LEFT
        by_ranks, by_pytensor = left, left
        for part in self.parts:
            how = part.arguments(self.start), ranks, cores
            if (found := predicted(part.function, *how)) is None:
                return None
            by_ranks += OF_PART + found.by_ranks
            by_pytensor += found.by_pytensor
        return Predicted(by_ranks, by_pytensor)

    @property
    def has_bits_of_any_ranks(self) -> bool:
        """Whether calls such as the last one have the same bits on any ranks."""
        return all(has_bits_of_any_ranks(part.function) for part in self.parts)

    def unravelled(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of a vector by the names of the variables."""
        return {
            str(var.name): np.reshape(values[place], self.point.shapes[var])
            for var, place in self.point.places.items()
        }

    def ravelled(self, parts: Mapping[str, Any]) -> np.ndarray:
        """Return the vector of which these are the parts."""
        values = np.empty(self.point.size, self.point.dtype)
        for var, place in self.point.places.items():
            shape = self.point.shapes[var]
            values[place] = np.broadcast_to(parts[str(var.name)], shape).ravel()
        return values

    def __reduce__(self) -> Any:
        """Refuse to be sent to another process, where there are no ranks."""
        raise StateError(IN_ONE_PROCESS)

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density at a point, and its gradient.

        Parameters
        ----------
        values : numpy.ndarray
            The values of the variables, side by side.
        """
        values = np.asarray(values, self.point.dtype)
        if self.groups is not None and SESSION.state == "child":
            self.groups.lead()
        with self._lock:  # chains of other samplers are threads
            if self._plain is not None:
                return self._plain(values)
            try:
                return self._computed_by_ranks(values)
            except LOST:
                raise
            except Exception as error:
                if self._instead is None:
                    raise
                failed = error
            plain = self._instead()
            found = plain(values)  # which raises, too, if it is the model's fault
            why = words(failed)
            self._tell(f"the log-density is computed serially from here on, as {why}")
            self._plain = plain
            return found

    def or_else(self, plain: Callable[[], Plain], tell: Callable[[str], None]) -> None:
        """Have another function compute from the call on in which there is an error.

        Parameters
        ----------
        plain : callable
            Makes it.
        tell : callable
            Is told of it.
        """
        self._instead, self._tell = plain, tell

    def _computed_by_ranks(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute; in a group again where a rank has died, as nothing has changed."""
        is_led = self.groups is not None and self.groups.is_led
        for _ in range(AGAIN if is_led else 0):
            with contextlib.suppress(WorkerDied):
                return self._computed(values)
        return self._computed(values)

    def _computed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sources = self._dimensions.sources
        if sources.are_changed:
            sources.read()
            for part in self._all:
                part.take(sources)
        gradient = np.zeros(self.point.size, self.point.dtype)
        total: Any = 0.0
        for part in self._all:
            total = total + part.add(values, gradient)
        return np.asarray(total), gradient
