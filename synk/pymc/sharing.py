"""Which terms of a density ranks share.

If the terms of a dimension cannot be shared together, `Sharing` tries them one by one,
beside those that can. So only the terms at fault are computed serially, and named.
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
"""Errors that mean that ranks are missing, or too slow, whatever they compute."""

_REFUSALS = (NotByRows, SplitError)

WAYS = Way(), Way(exchanges=True), Way(exchanges=True, replicates=True)
"""Ways that are tried in this order, the cheapest first."""

LITTLE = 75_000
"""A call that computes fewer elements, at some 2 ns each, is not faster on ranks."""

LEAST = 50_000
"""A further dimension gets a part if a call computes as many elements along it."""


class Sharing:
    """The `parts` of a density that ranks share, one for each dimension of the data.

    `refused` says why terms are computed serially, by their indices in `terms`.
    `faults` has those at fault, without terms that only share rows with these. For the
    terms in `exchanging`, ranks need rows of other ranks.
    """

    def __init__(self, terms: Sequence[Term], settings: DensitySettings) -> None:
        self.terms, self._settings = terms, settings
        self.refused: dict[int, str] = {}
        self.faults: dict[int, str] = {}
        self.exchanging: set[int] = set()
        self.dimensions = Dimensions([term.total for term in terms], settings.shapes)
        found = self.dimensions.of_terms()
        # Rows of the dimension with the most work.
        self.most_rows = found[0].length if found else None
        self.is_small = not settings.raises and bool(found) and found[0].work < LITTLE
        self.parts: list[SharedTerms] = []
        if not self.is_small:
            self._share(found)

    def refused_by_names(self) -> dict[str, str]:
        """Return `refused` by the names of the terms."""
        return {self.terms[i].name: why for i, why in self.refused.items()}

    def arranged(self) -> Sharing:
        """Return this, or a better sharing of terms that `arranging.arranged` rewrites.

        It rewrites terms that are refused or exchange rows. The new sharing is better
        if it refuses fewer, or as many and fewer exchange rows.
        """
        looked_at = self.exchanging.union(self.refused)
        if not looked_at:
            return self
        terms: list[Term] = []
        try:
            for i, term in enumerate(self.terms):
                each = [term.total]
                if i in looked_at:
                    each = arranged(term.total, self._settings.shapes)
                terms += [term._replace(total=total) for total in each]
            if terms == list(self.terms):
                return self
            anew = Sharing(terms, self._settings)
        except LOST:
            raise
        except Exception:  # keep the terms as they were
            return self
        before, after = (
            (len(each.refused_by_names()), len(each.exchanging))
            for each in (self, anew)
        )
        return anew if after < before else self

    def _share(self, found: Sequence[Dimension]) -> None:
        """Make a part for each large dimension; the first one gets all other terms."""
        every = [i for each in found for i in each.terms]
        rest = [i for i in range(len(self.terms)) if i not in every]
        for k, dimension in enumerate(found):
            others: list[int] = []
            if not self.parts:
                small = [d for d in found[k + 1 :] if d.work < LEAST]
                others = [*rest, *(i for each in small for i in each.terms)]
            elif dimension.work < LEAST:
                continue  # its terms are in the first part
            part = self._part(dimension.axis, dimension.terms, others)
            if part is not None:
                self.parts.append(part)
                self.exchanging.update(dimension.terms if part.exchanged else ())

    def _part(
        self, dimension: Axis, terms: Sequence[int], others: Sequence[int]
    ) -> SharedTerms | None:
        """Return a part with all terms that ranks can share along `dimension`, or None.

        `terms` are those of the dimension; `others` have none or a small one, and join
        the part if they can.
        """
        # Likelihoods come first: a prior along the rows has no data by itself.
        own = sorted(terms, key=lambda i: self.terms[i].is_prior)
        every = [*own, *others]
        part, error = self._tried(dimension, every)
        if part is not None:
            return part
        kept: list[int] = []
        errors: dict[int, Exception | None] = dict.fromkeys(own, error)
        # One by one; a term without rows again after others have joined the part.
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
        # Without a part, `others` are tried with another dimension.
        asked = own if part is None else every
        self._note({i: errors[i] for i in asked if i not in kept})
        return part

    def _tried(
        self, dimension: Axis, terms: list[int]
    ) -> tuple[SharedTerms | None, Exception | None]:
        """Return a part of these terms by the first way that works; or an error."""
        error: Exception | None = None
        for way in WAYS:
            try:
                made = SharedTerms(
                    self.dimensions, dimension, sorted(terms), self._settings, way
                )
                if (start := self._settings.begin_at) is not None:
                    made.add(start, start.copy())
                return made, None
            except LOST:
                raise
            except Exception as found:
                # A refusal says more than an error in another way.
                if error is None or isinstance(found, _REFUSALS):
                    error = found
        return None, error

    def _note(self, found: Mapping[int, Exception | None]) -> None:
        """Enter terms that are not shared; with `raises`, raise all but refusals."""
        at_fault = {i: e for i, e in found.items() if not isinstance(e, NoRows)}
        for i, error in (at_fault or found).items():
            is_refusal = error is None or isinstance(error, _REFUSALS)
            if self._settings.raises and error is not None and not is_refusal:
                term = self.terms[i]
                error.add_note(f"in the term of {term.name!r}{term.line}")
                raise error
            self.faults[i] = self.refused[i] = words(error)
        names = ", ".join(repr(self.terms[k].name) for k in at_fault)
        for i in found:
            self.refused.setdefault(i, f"{names} is not computed by rows")


def words(error: BaseException | None) -> str:
    """Return an error's message in one line, with its class if it is no refusal."""
    text = " ".join(without_present_lines(why_refused(str(error))).split())
    if isinstance(error, _REFUSALS):
        return text
    text = text if len(text) < _LONGEST else text[: _LONGEST - 3] + "..."
    return f"there is an error: {type(error).__name__}: {text}"


_LONGEST = 300
"""The most characters of an error's message that are shown."""
