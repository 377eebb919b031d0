"""Which terms of a density ranks share: all of a dimension's, or those that can be.

Where the terms together do not go by rows, each is tried beside those that do. So the
one at fault is computed serially, and named, and not the others that stand with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..compiler.proof import why_refused
from ..errors import RankTimeout, SplitError, StateError, WorkerDied
from .arranging import arranged
from .axes import Axis
from .dimensions import Dimension, Dimensions
from .parts import DensitySettings, SharedTerms
from .substitution import NoRows, NotByRows, Way
from .terms import Term, without_present_lines

LOST = (WorkerDied, RankTimeout, StateError)
"""Errors that say of the ranks that there are none, or not in time."""

_REFUSALS = (NotByRows, SplitError)

WAYS = (
    *(Way(), Way(scatters=False)),
    *(Way(scatters=False, exchanges=True), Way(False, True, opens=True)),
)
"""Free variables by rows or whole; without rows of other ranks, or with these."""


LEAST = 50_000
"""Elements that a call computes along a second dimension, for it to have a launch."""


class Sharing:
    """The parts of a density that ranks share.

    `refused` are terms that are computed serially, and why, `faults` the ones of these
    at fault; others are along the same rows. For terms that are `exchanging` ranks need
    rows of others.
    """

    def __init__(self, terms: Sequence[Term], how: DensitySettings) -> None:
        self.terms, self._how = terms, how
        self.refused: dict[int, str] = {}
        self.faults: dict[int, str] = {}
        self.exchanging: set[int] = set()
        self.dimensions = Dimensions([term.total for term in terms], how.shapes)
        found = self.dimensions.of_terms()
        # Of the dimension that the terms have most to do with.
        self.most_rows = found[0].length if found else None
        self.is_small = bool(found) and found[0].work < how.at_least
        self.parts: list[SharedTerms] = []
        if not self.is_small:
            self._share(found)

    def refused_by_names(self) -> dict[str, str]:
        """Return what is refused, by the names of the terms."""
        return {self.terms[i].name: why for i, why in self.refused.items()}

    def arranged(self) -> Sharing:
        """Look again at terms that are refused, or need all rows, arranged anew.

        That is kept if fewer are refused then, or as many and fewer need all rows.
        """
        looked_at = self.exchanging.union(self.refused)
        if not looked_at:
            return self
        terms: list[Term] = []
        try:
            for i, term in enumerate(self.terms):
                each = [term.total]
                if i in looked_at:
                    each = arranged(term.total, self._how.shapes, self._how.check)
                terms += [term._replace(total=total) for total in each]
            if terms == list(self.terms):
                return self
            anew = Sharing(terms, self._how)
        except LOST:
            raise
        except Exception:  # the terms as they were are at hand
            return self
        before, after = (
            (len(each.refused_by_names()), len(each.exchanging))
            for each in (self, anew)
        )
        return anew if after < before else self

    def _share(self, found: Sequence[Dimension]) -> None:
        """Make a part for each dimension that pays, with others in the first one."""
        every = [i for each in found for i in each.terms]
        rest = [i for i in range(len(self.terms)) if i not in every]
        for k, dimension in enumerate(found):
            others: list[int] = []
            if not self.parts:
                small = [d for d in found[k + 1 :] if d.work < LEAST]
                others = [*rest, *(i for each in small for i in each.terms)]
            elif dimension.work < LEAST:
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
        own = sorted(terms, key=lambda i: self.terms[i].is_prior)
        every = [*own, *others]
        part, error = self._tried(dimension, every)
        if part is not None:
            return part
        kept: list[int] = []
        errors: dict[int, Exception | None] = dict.fromkeys(own, error)
        # One by one; those without rows of their own again when there are others.
        left = every if len(every) > 1 else []
        has_grown = True
        while left and has_grown:
            again, has_grown = [], False
            for i in left:
                made, error = self._tried(dimension, [*kept, i])
                if made is not None:
                    part, has_grown = made, True
                    kept.append(i)
                    continue
                errors[i] = error
                if isinstance(error, NoRows):
                    again.append(i)
            left = again
        # The others are for another dimension, or for none, if there is no part.
        asked = own if part is None else every
        self._note({i: errors[i] for i in asked if i not in kept})
        return part

    def _tried(
        self, dimension: Axis, terms: list[int]
    ) -> tuple[SharedTerms | None, Exception | None]:
        """Return a part of terms, or why there is none."""
        error: Exception | None = None
        for way in WAYS:
            try:
                made = SharedTerms(
                    self.dimensions, dimension, sorted(terms), self._how, way
                )
                if self._how.begins:
                    made.add(self._how.start, self._how.start.copy())
                return made, None
            except LOST:
                raise
            except Exception as found:
                # Why it does not go by rows says more than an error on another way.
                if error is None or isinstance(found, _REFUSALS):
                    error = found
        return None, error

    def _note(self, found: Mapping[int, Exception | None]) -> None:
        """Take note of terms that are not shared; with `raises`, raise their errors."""
        at_fault = {i: e for i, e in found.items() if not isinstance(e, NoRows)}
        for i, error in (at_fault or found).items():
            is_refusal = error is None or isinstance(error, _REFUSALS)
            if self._how.raises and error is not None and not is_refusal:
                term = self.terms[i]
                error.add_note(f"in the term of {term.name!r}{term.line}")
                raise error
            self.faults[i] = self.refused[i] = words(error)
        names = ", ".join(repr(self.terms[k].name) for k in at_fault)
        for i in found:
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
