"""Which terms of a density ranks share: all of a dimension's, or those that can be.

Where the terms together do not go by rows, each is tried beside those that do. So the
one at fault is computed serially, and named, and not the others that stand with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from ..compiler.proof import why_refused
from ..errors import RankTimeout, SplitError, StateError, WorkerDied
from .axes import Axis
from .dimensions import Dimension, Dimensions
from .parts import DensitySettings, SharedTerms
from .substitution import NoRows, NotByRows, Way
from .terms import Term
from .words import without_present_lines

LOST = (WorkerDied, RankTimeout, StateError)
"""Errors that say of the ranks that there are none, or not in time."""

_REFUSALS = (NotByRows, SplitError)

WAYS = (
    *(Way(), Way(scatters=False)),
    *(Way(scatters=False, exchanges=True), Way(False, True, opens=True)),
)
"""Free variables by rows or whole; without rows of other ranks, or with these."""


class Limits(NamedTuple):
    """What is worth sharing, and what is done about errors.

    Attributes
    ----------
    least : int
        Elements that a call computes along a second dimension of the data, for ranks to
        share that as well, by a launch of its own.
    at_least : float
        Elements along the first dimension, for ranks to share anything.
    begins : bool
        Whether the first call is made, by ranks that are there: what fails in it, or
        while it is compiled, is computed serially then.
    raises : bool
        Whether errors that are no refusals are raised, with a note.
    """

    least: int
    at_least: float
    begins: bool
    raises: bool


class Tried(NamedTuple):
    """What came of terms: a part, or why there is none."""

    part: SharedTerms | None
    error: Exception | None


class Sharing:
    """The parts of a density that ranks share.

    Parameters
    ----------
    terms : sequence of Term
    shapes : mapping of Variable to tuple of int
        Of what the density is of.
    how : DensitySettings
    limits : Limits
    start : numpy.ndarray
        A point.

    Attributes
    ----------
    parts : list of SharedTerms
    most_rows : int or None
        The length of the dimension that the terms have most to do with.
    is_small : bool
        Whether there is less to share than is asked for.
    refused : dict of int to str
        Terms that are computed serially, and why.
    faults : dict of int to str
        Of these the ones at fault, and why; others are along the same rows.
    exchanging : set of int
        Terms for which ranks need rows of others.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        shapes: Mapping[Variable, tuple[int, ...]],
        how: DensitySettings,
        limits: Limits,
        start: np.ndarray,
    ) -> None:
        self.terms, self._how, self._limits, self._start = terms, how, limits, start
        self.refused: dict[int, str] = {}
        self.faults: dict[int, str] = {}
        self.exchanging: set[int] = set()
        self.dimensions = Dimensions([term.total for term in terms], shapes)
        found = self.dimensions.of_terms()
        self.most_rows = found[0].length if found else None
        self.is_small = bool(found) and found[0].work < limits.at_least
        self.parts: list[SharedTerms] = []
        if not self.is_small:
            self._share(found)

    def _share(self, found: Sequence[Dimension]) -> None:
        """Make a part for each dimension that pays, with others in the first one."""
        every = [i for each in found for i in each.terms]
        rest = [i for i in range(len(self.terms)) if i not in every]
        for k, dimension in enumerate(found):
            others: list[int] = []
            if not self.parts:
                small = [d for d in found[k + 1 :] if d.work < self._limits.least]
                others = [*rest, *(i for each in small for i in each.terms)]
            elif dimension.work < self._limits.least:
                continue  # its terms are with the first
            part = self._part(dimension.axis, dimension.terms, others)
            if part is not None:
                self.parts.append(part)
                self.exchanging.update(dimension.terms if part.exchanged else ())

    def _part(
        self, dimension: Axis, terms: Sequence[int], others: Sequence[int]
    ) -> SharedTerms | None:
        """Return a part of what can be shared along a dimension.

        `terms` have most to do with it; `others` are of no dimension, and are to be
        computed with them.
        """
        # Likelihoods come first: a prior along the rows has no data by itself.
        order = sorted(terms, key=lambda i: self.terms[i].is_prior)
        tried = self._tried(dimension, [*order, *others])
        if tried.part is not None:
            return tried.part
        errors = dict.fromkeys(order, tried.error)
        kept: list[int] = []
        part: SharedTerms | None = None
        if len(order) + len(others) > 1:
            part, kept, errors = self._one_by_one(dimension, [*order, *others])
        self._note([i for i in order if i not in kept], errors)
        if part is not None:  # else they are for another dimension, or for none
            self._note([i for i in others if i not in kept], errors)
        return part

    def _one_by_one(
        self, dimension: Axis, order: Sequence[int]
    ) -> tuple[SharedTerms | None, list[int], dict[int, Exception | None]]:
        """Return a part of the terms that can be shared together, and these.

        Those without rows of their own are tried again when there are others.
        """
        part: SharedTerms | None = None
        kept: list[int] = []
        errors: dict[int, Exception | None] = {}
        left, has_grown = list(order), True
        while left and has_grown:
            again, has_grown = [], False
            for i in left:
                tried = self._tried(dimension, [*kept, i])
                if tried.part is not None:
                    part, has_grown = tried.part, True
                    kept.append(i)
                    continue
                errors[i] = tried.error
                if isinstance(tried.error, NoRows):
                    again.append(i)
            left = again
        return part, kept, errors

    def _tried(self, dimension: Axis, terms: list[int]) -> Tried:
        error: Exception | None = None
        for way in WAYS:
            try:
                made = SharedTerms(
                    self.dimensions, dimension, sorted(terms), self._how, way
                )
                if self._limits.begins:
                    made.take(self.dimensions.sources)
                    made.add(self._start, self._start.copy())
            except LOST:
                raise
            except Exception as found:
                # Why it does not go by rows says more than an error on another way.
                if error is None or isinstance(found, _REFUSALS):
                    error = found
            else:
                return Tried(made, None)
        return Tried(None, error)

    def _note(
        self, terms: Sequence[int], errors: Mapping[int, Exception | None]
    ) -> None:
        """Take note of terms that are not shared; with `raises`, raise their errors."""
        found = {i: errors.get(i) for i in terms}
        at_fault = {i: e for i, e in found.items() if not isinstance(e, NoRows)}
        for i, error in (at_fault or found).items():
            if (
                self._limits.raises
                and error is not None
                and not isinstance(error, _REFUSALS)
            ):
                term = self.terms[i]
                error.add_note(f"in the term of {term.name!r}{term.line}")
                raise error
            self.faults[i] = self.refused[i] = words(error)
        for i in found:
            names = ", ".join(repr(self.terms[k].name) for k in at_fault)
            self.refused.setdefault(i, f"{names} is not computed by rows")


def words(error: BaseException | None) -> str:
    """Return what an error says, in a line; its class, too, if it is no refusal."""
    text = " ".join(without_present_lines(why_refused(str(error))).split())
    if isinstance(error, _REFUSALS):
        return text
    text = text if len(text) < _LONGEST else text[: _LONGEST - 3] + "..."
    return f"there is an error: {type(error).__name__}: {text}"


_LONGEST = 300
"""Characters of an error that are shown."""
