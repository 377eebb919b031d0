"""Which terms of a density ranks share: all of a dimension's, or those that can be.

Where the terms together do not go by rows, each is tried beside those that do. So the
one at fault is computed serially, and named, and not the others that stand with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..compiler.proof import why_refused
from ..errors import RankTimeout, SplitError, StateError, WorkerDied
from .axes import Axis
from .parts import Part
from .substitution import NoRows, NotByRows
from .words import without_present_lines

LOST = (WorkerDied, RankTimeout, StateError)
"""Errors that say of the ranks that there are none, or not in time."""

_REFUSALS = (NotByRows, SplitError)

WAYS = (
    *((True, False, False), (False, False, False)),
    *((False, True, False), (False, True, True)),
)
"""Free variables by rows or whole; without rows of other ranks, or with these."""


class Tried(NamedTuple):
    """What came of terms: a part, or why there is none."""

    part: Part | None
    error: Exception | None


class Sharing:
    """The parts of a density that ranks share.

    Parameters
    ----------
    make : callable
        Makes a part, of a dimension, terms, and two bools; see `WAYS`.
    names, lines : sequence of str
        Of the terms, and where the script has made each.
    priors : collection of int
        Of the terms those of free variables.
    raises : bool
        Whether errors that are no refusals are raised, with a note.

    Attributes
    ----------
    refused : dict of int to str
        Terms that are computed serially, and why.
    faults : dict of int to str
        Of these the ones at fault, and why; others are along the same rows.
    """

    def __init__(
        self,
        make: Callable[[Axis, list[int], bool, bool, bool], Part],
        names: Sequence[str],
        lines: Sequence[str],
        priors: Collection[int],
        raises: bool,
    ) -> None:
        self._make, self._raises = make, raises
        self._names, self._lines, self._priors = names, lines, priors
        self.refused: dict[int, str] = {}
        self.faults: dict[int, str] = {}

    def part(
        self, dimension: Axis, terms: Sequence[int], others: Sequence[int]
    ) -> Part | None:
        """Return a part of what can be shared along a dimension.

        Parameters
        ----------
        dimension : Axis
        terms : sequence of int
            Those that have most to do with it.
        others : sequence of int
            Those that are to be computed with them, as they are of no dimension.
        """
        # Likelihoods come first: a prior along the rows has no data by itself.
        order = sorted(terms, key=lambda i: i in self._priors)
        tried = self._tried(dimension, [*order, *others])
        if tried.part is not None:
            return tried.part
        errors = dict.fromkeys(order, tried.error)
        kept: list[int] = []
        part: Part | None = None
        if len(order) + len(others) > 1:
            part, kept, errors = self._one_by_one(dimension, [*order, *others])
        self._note([i for i in order if i not in kept], errors)
        if part is not None:  # else they are for another dimension, or for none
            self._note([i for i in others if i not in kept], errors)
        return part

    def _one_by_one(
        self, dimension: Axis, order: Sequence[int]
    ) -> tuple[Part | None, list[int], dict[int, Exception | None]]:
        """Return a part of the terms that can be shared together, and these.

        Those without rows of their own are tried again when there are others.
        """
        part: Part | None = None
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
                made = self._make(dimension, sorted(terms), *way)
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
            if self._raises and error is not None and not isinstance(error, _REFUSALS):
                error.add_note(f"in the term of {self._names[i]!r}{self._lines[i]}")
                raise error
            self.faults[i] = self.refused[i] = words(error)
        for i in found:
            names = ", ".join(repr(self._names[k]) for k in at_fault)
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


def begin(part: Part, sources: Any, start: Any) -> None:
    """Make a part's first call, in which it is compiled.

    Parameters
    ----------
    part : Part
    sources : Sources
    start : numpy.ndarray
        A point.
    """
    part.take(sources)
    part.add(start, start.copy())
