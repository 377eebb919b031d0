"""`Density`: the log-density of a PyMC model and its gradient, computed by ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pytensor
from pytensor.graph.basic import Variable

from ..call.uses import has_bits_of_any_ranks, predicted, spelled
from ..choice import records
from ..choice.plan import Plan, Predicted
from ..errors import StateError, WorkerDied
from ..ranks.groups import RankGroups
from ..ranks.session import SESSION
from .parts import DensitySettings, Point, SerialTerms, SharedTerms
from .sharing import LOST, Sharing, words
from .terms import Terms, are_same, hidden_in

IN_ONE_PROCESS = (
    "ranks compute for the process that has forked them: sample with"
    " pm.sample(cores=1), and all cores work on each chain"
)

Plain: TypeAlias = Callable[[np.ndarray], Any]
"""A function of the point as a vector, computed in one process."""


AGAIN = 5
"""How many times a group repeats a call in which a rank has died."""

OF_LEFT = 10e-6
"""Seconds to compute a term that ranks do not share, roughly."""

BY_RANKS, BY_PYMC = "ranks", "PyMC by itself"
"""The names of the two timings of `synk.pymc.tune`, also in records."""

OF_PART = 80e-6
"""Seconds to make the arguments of a part's call, and to add up its results."""


class Density:
    """A function of the point as a vector, which returns the log-density and gradient.

    The gradient is by `variables`, value variables of the model. `start` is a point of
    the model, by names: it sets the shapes, and values of the other free variables. For
    the other parameters see `DensitySettings` and `Terms`.
    """

    def __init__(
        self,
        model: Any,
        variables: Sequence[Variable],
        start: Mapping[str, Any],
        mode: Any = None,
        begins: bool = False,
        raises: bool = True,
        terms_of: Sequence[Variable] | None = None,
        jacobian: bool = True,
    ) -> None:
        self._name = str(model.name)
        self._lock = threading.Lock()
        # Groups of ranks: each process forked from the script leads one of them.
        self.groups: RankGroups | None = None
        # After an error in a call: what makes the serial function that computes from
        # then on, and a function that is called with a warning's text.
        self.fallback: tuple[Callable[[], Plain], Callable[[str], None]] | None = None
        self._plain: Plain | None = None
        terms = Terms(model, terms_of, jacobian)
        # Names of foreign Ops, which may contain data that synk cannot see.
        self.hidden = hidden_in([term.total for term in terms.all])
        variables = [terms.stands[var] for var in variables]
        given = {var: np.asarray(start[str(var.name)]) for var in terms.free}
        shapes = {var: value.shape for var, value in given.items()}
        dtype = pytensor.config.floatX
        self.point = Point({var: shapes[var] for var in variables}, dtype)
        self.start = self.ravelled({str(v.name): given[v] for v in variables})
        # Shared variables for the free variables outside of the gradient.
        self.others: dict[str, Any] = {}
        stands: dict[Variable, Any] = {}
        for var, value in given.items():
            if var not in self.point.shapes:
                ones: Any = [1 if length == 1 else None for length in value.shape]
                shared = pytensor.shared(value, f"{var.name}_shared__", shape=ones)
                self.others[str(var.name)] = stands[var] = shared
        settings = DensitySettings(
            *(self.point, self.start if begins else None, shapes, stands),
            *(model.check_bounds, mode, f"logp_dlogp_{model.name or 'model'}"),
            raises,
        )
        sharing = Sharing(terms.all, settings).arranged()
        self.parts, self._sources = sharing.parts, sharing.dimensions.sources
        self.most_rows, self.is_small = sharing.most_rows, sharing.is_small
        # `refused`: why ranks do not share a term, by name. `faults`: the same, by name
        # and line, without terms refused only as they share rows with a faulty one.
        self.refused = sharing.refused_by_names()
        self.faults = {
            f"{sharing.terms[i].name!r}{sharing.terms[i].line}": why
            for i, why in sharing.faults.items()
        }
        left = sorted(sharing.refused)
        self._left = len(left)
        self._all: list[SharedTerms | SerialTerms] = [*self.parts]
        if self.parts and left:
            serial = SerialTerms(sharing.dimensions, left, settings)
            self._all.append(serial)
            if begins:
                serial.add(self.start, self.start.copy())
        self._held = self._sources.held()

    @property
    def rows(self) -> int:
        """The number of rows that ranks share, over all dimensions."""
        return sum(part.rows for part in self.parts)

    @property
    def exchanged(self) -> list[str]:
        """The computations for which ranks need rows of other ranks."""
        return [why for part in self.parts for why in part.exchanged]

    @property
    def _key(self) -> str:
        """The key of this density's record."""
        graphs = "\n".join(spelled(part.function) for part in self.parts)
        cores = len(SESSION.context.place.cores)
        about = f"beside PyMC by itself\n{self._left}\n{graphs}"
        return records.key_of(about, SESSION.size, cores, records.scale_of(self.rows))

    @cached_property
    def measured(self) -> float | None:
        """PyMC's time over that of ranks, in a record of `synk.pymc.tune`; or None."""
        record = records.find(self._key, "a model's log-density")
        if record is None:
            return None
        return record.measured[BY_PYMC] / record.measured[BY_RANKS]

    def write_record(self, measured: dict[str, float]) -> None:
        """Write a record of the seconds of a call, by `BY_RANKS` and by `BY_PYMC`."""
        plan = Plan(min(measured, key=measured.__getitem__))
        machine = SESSION.size, len(SESSION.context.place.cores)
        scale = records.scale_of(self.rows)
        label = f"model {self._name}".rstrip()
        records.write(self._key, label, scale, machine, plan, measured)

    def predicted(self, ranks: int, cores: int) -> Predicted | None:
        """Return the predicted seconds of a call, by ranks and by PyMC on one core.

        `ranks` ranks have `cores` cores together. None if the graph and its shapes do
        not suffice for a prediction.
        """
        left = self._left * OF_LEFT
        by_ranks = by_pytensor = serial = left
        for part in self.parts:
            how = part.arguments(self.start), ranks, cores
            if (found := predicted(part.function, *how)) is None:
                return None
            by_ranks += OF_PART + found.by_ranks
            by_pytensor += found.by_pytensor
            serial += found.serial
        return Predicted(by_ranks, by_pytensor, serial, False)

    @property
    def has_bits_of_any_ranks(self) -> bool:
        """Whether calls like the last one have the same bits on any number of ranks."""
        return all(has_bits_of_any_ranks(part.function) for part in self.parts)

    def unravelled(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values of the variables in a point, by name."""
        point = self.point
        return {str(var.name): point.value(var, values) for var in point.places}

    def ravelled(self, parts: Mapping[str, Any]) -> np.ndarray:
        """Return the point as a vector, from values by name, which are broadcast."""
        values = np.empty(self.point.size, self.point.dtype)
        for var, place in self.point.places.items():
            shape = self.point.shapes[var]
            values[place] = np.broadcast_to(parts[str(var.name)], shape).ravel()
        return values

    def __reduce__(self) -> Any:
        """Raise StateError: another process has no ranks to compute with."""
        raise StateError(IN_ONE_PROCESS)

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density at a point, and its gradient."""
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
                if self.fallback is None:
                    raise
                failed = error
            make, warn = self.fallback
            plain = make()
            found = plain(values)  # raises as well if the model is at fault
            why = words(failed)
            warn(f"the log-density is computed serially from here on, as {why}")
            self._plain = plain
            return found

    def _computed_by_ranks(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density and gradient; a group repeats this if a rank dies."""
        is_leader = self.groups is not None and self.groups.is_leader
        for _ in range(AGAIN if is_leader else 0):
            with contextlib.suppress(WorkerDied):
                return self._computed(values)
        return self._computed(values)

    def _computed(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density and gradient, after reading changed data anew."""
        held = self._sources.held()
        if not are_same(held, self._held):
            self._sources.read()
            for shared in self.parts:
                shared.take()
            self._held = held  # last, so that an interrupted update is repeated
        gradient = np.zeros(self.point.size, self.point.dtype)
        total: Any = 0.0
        for part in self._all:
            total = total + part.add(values, gradient)
        return np.asarray(total), gradient
