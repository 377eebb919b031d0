"""A trial of engines on the calls of one function: which of them makes the next call.

The first call is made by the engine that compiles fastest, or that an earlier run of
the script has found to be best. The others are tried one by one, when what they cost is
a small share of the time that calls have taken: compiling, and what their calls take
beyond those of the best one. The two take turns, so that both meet the same noise. What
is much slower is dropped after a call or two.

Nothing in here compiles or runs anything, or looks at a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median

SHARE = 0.05
"""Of the time that calls have taken, what trying other engines may have cost."""

SHARE_OF_LIKELY = 0.5
"""The share for one that is likely to be faster by a factor."""

GAIN = 0.05
"""By which part rank 0 alone may be faster than what is best, for that to be likely:
all ranks spend it on their meetings."""

SHORT = 4.0
"""Where calls take less than so many times what any call of the best engine takes,
however little it computes, one without that is likely to be faster."""

ROUNDS, MOST = 3, 9
"""Calls of each of two that are compared: if one is slower by `FAR`, and otherwise."""

KEPT = 15
"""Calls of each that are known, the last ones."""

CLOSE = 1.15
"""By which factor one that is timed with others may be slower for more turns."""

NEAR, RUNS = 1.08, 2
"""By which factor one that lost may have been slower for a later run of the script to
try it once more, and in how many runs it may lose so: a noisy minute must not decide
for good. What lost by more, or in a longer comparison, is left out from then on."""

EVEN, SURE = 1.02, 0.8
"""Two that are timed at once are as good as each other if one is slower by this factor
at most; and one is better for sure if it was in so many of the pairs."""

SETTLE = 0.05
"""Seconds of calls that are not counted when rank 0 goes on alone or all ranks do: what
was before leaves threads of BLAS that look out for more work for 30 ms."""

AGAIN = 0.5
"""The part of what all ranks' first call took that rank 0 alone takes to compile, at
most: what the engine has to load, it has loaded."""

HANDICAP = 1.02
"""What rank 0 must gain alone: functions of all ranks, which come after it, take longer
for that, since they are given what it has updated, and cores are divided anew."""

SLOWER = 4.0, 3.0
"""By which factors the faster of one, two first calls may be slower, for an engine to
get another: what else the machine does may make all calls of a second take twice as
long, and those that they are compared with were made before."""

FAR = 2.0
"""By which factor one of two is slower for sure that was so in calls next to others."""


@dataclass(eq=False)
class Candidate:
    """One engine in a trial.

    Attributes
    ----------
    name : str
    expected : float
        Seconds that compiling for it is expected to take.
    compiled : float or None
        Seconds that its first call has taken, which compiles.
    times : deque of float
        Seconds of its last calls, for each row.
    unsteady : list of float
        The same of calls before these, when it may still have become faster.
    dropped : str or None
        Why it is not tried any more.
    lost : int
        In how many runs of the script it was slower, by less than `NEAR`; `RUNS` if it
        was by more.
    overhead : float
        Seconds that its calls take at least, however little they compute.
    is_likely : bool
        Whether it is likely to be the fastest, by what the graph has in it.
    meeting : float
        Which part of its calls all ranks spend on what one alone would not: waiting,
        reducing, and what each of them computes that one would compute once.
    after : Candidate, optional
        The same engine on all ranks, of which this is rank 0 alone. That may need no
        compiling of its own, but a call that may take as long again.
    seconds, least : float
        Seconds of its last call, and of its fastest one.
    """

    name: str
    expected: float
    compiled: float | None = None
    times: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    unsteady: list[float] = field(default_factory=list)
    dropped: str | None = None
    lost: int = 0
    overhead: float = 0.0
    is_likely: bool = False
    meeting: float = 0.0
    after: Candidate | None = None
    seconds: float = 0.0
    least: float = float("inf")

    @property
    def cost(self) -> float:
        """The seconds that it is expected to take to try it."""
        if self.after is None:
            return self.expected
        compiling = self.expected
        if self.after.compiled is not None:
            compiling = min(compiling, AGAIN * self.after.compiled)
        return compiling + 2 * self.after.seconds

    @property
    def has_made_calls(self) -> bool:
        """Whether it can make calls: it has."""
        return self.compiled is not None or bool(self.times or self.unsteady)

    @property
    def has_failed(self) -> bool:
        """Whether it could make no call."""
        return self.dropped is not None and not (self.times or self.unsteady)

    @property
    def handicap(self) -> float:
        """By which factor it must be faster than others to be better."""
        return 1.0 if self.after is None else HANDICAP

    @property
    def typical(self) -> float | None:
        """The median of its last calls."""
        return median(self.times) if self.times else None


class Trial:
    """A trial of candidates, for calls of about as many rows.

    Parameters
    ----------
    candidates : sequence of Candidate
        At least one; the first one begins.
    computed, spent : float
        What earlier runs of the script have taken.

    Attributes
    ----------
    best : Candidate
        The fastest that is known.
    computed, spent : float
        Seconds of all calls but those that compile, and what it has cost to try.
    foreseen : int
        Calls that are known to come.
    spent_alone : float
        The same of rank 0 alone. That is some calls: what it has cost to compile for
        others, which may be more than was expected, does not put it off.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        computed: float = 0.0,
        spent: float = 0.0,
    ) -> None:
        self.candidates = list(candidates)
        self.best = self.candidates[0]
        self.computed, self.spent = computed, spent
        self.spent_alone = 0.0
        self.foreseen = 0
        self._challenger: Candidate | None = None
        self._rounds: list[float] = []
        self._last: Candidate | None = None
        self._in_a_row, self._settling = 0, 0.0
        self._due = 0.0  # what must have been computed for the next one to be tried

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to try."""
        return self._challenger is None and not self._untried()

    def turn(self) -> Candidate:
        """Return the engine that is to make the next call."""
        if self._challenger is None and not self.is_waiting:
            self._challenger = self._affordable()
        challenger = self._challenger
        if challenger is None or self.best.compiled is None:
            return self.best
        if are_alike(challenger, self.best):
            is_due = len(challenger.times) <= len(self._rounds)
        elif self._last in (challenger, self.best) and self._in_a_row < ROUNDS:
            return self._last
        else:
            is_due = self._last is not challenger
        return challenger if is_due else self.best

    @property
    def is_comparing(self) -> bool:
        """Whether two engines take turns."""
        return self._challenger is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the best makes the next call, as no other can be afforded yet."""
        return self._challenger is None and self._computing < self._due

    def note(
        self,
        candidate: Candidate,
        seconds: float,
        rows: int = 0,
        calls: int = 1,
        has_compiled: bool = False,
        is_steady: bool = True,
    ) -> None:
        """Take note of calls that an engine has made.

        Parameters
        ----------
        candidate : Candidate
        seconds : float
            What they have taken together.
        rows, calls : int
            How many rows they had together, and how many calls it were.
        has_compiled : bool
            Whether something was compiled in them. An engine that compiles again and
            again is as slow as that makes it.
        is_steady : bool
            Whether more such calls are expected to take as long. Those that are not
            tell only of engines that are much slower.
        """
        before, self._last = self._last, candidate
        if candidate is not before:
            self._in_a_row = 0
            if before is not None and not are_alike(candidate, before):
                self._settling = SETTLE
        if has_compiled and candidate.compiled is None:
            candidate.compiled = seconds
            if candidate is self._challenger:
                self._spend(candidate, seconds)
            return
        self.computed += seconds
        candidate.seconds = seconds / calls
        candidate.least = min(candidate.least, candidate.seconds)
        each = seconds / max(rows, calls)
        usual = self.best.typical
        if candidate is self._challenger and usual is not None and each:
            self._spend(candidate, max(0.0, seconds * (1 - usual / each)))
        if self._settling > 0:
            self._settling -= seconds
            return
        if not is_steady:
            candidate.unsteady.append(each)
            if candidate is self._challenger:
                self.drop_if_far(candidate)
            return
        self._in_a_row += 1
        candidate.times.append(each)
        if self._challenger is not None and candidate is self.best:
            self._rounds.append(each)
        self._decide()

    def _spend(self, candidate: Candidate, seconds: float) -> None:
        """Count what it has cost to try one."""
        if candidate.after is None:
            self.spent += seconds
        else:
            self.spent_alone += seconds

    def drop(self, candidate: Candidate, why: str) -> bool:
        """Try an engine no more; return False if it is the last one."""
        left = [c for c in self.candidates if c.dropped is None and c is not candidate]
        if not left:
            return False
        candidate.dropped = why
        if candidate is self._challenger:
            self._end_round()
        if candidate is self.best:
            self._end_round()
            known = [c for c in left if c.compiled is not None]
            self.best = min(known, key=_speed, default=left[0])
        return True

    def drop_if_slow(self, candidate: Candidate, calls: Sequence[float]) -> bool:
        """Try one no more whose calls, not noted, take much longer for each row.

        Returns
        -------
        bool
            Whether it takes another call to tell.
        """
        slower = min(calls) / min(map(_speed, self.candidates))
        if _is_slow(slower, len(calls)):
            candidate.dropped = "slower"
        return candidate.dropped is None and slower > SLOWER[-1]

    def drop_if_far(self, candidate: Candidate) -> None:
        """Try one no more that is slower by far, though it may yet get faster."""
        calls = candidate.unsteady
        least = min(map(_speed, self.candidates))
        if len(calls) < ROUNDS or min(calls) < SLOWER[0] * least:
            return
        candidate.dropped = "slower"
        if candidate is self._challenger:
            self._end_round()

    def close(self, within: float = CLOSE) -> list[Candidate]:
        """Return those that are still to be told apart; none if one is fastest.

        By the fastest call of each, which tells most of few in a noisy time: it may be
        slower than the least by the factor `within`.
        """
        left = [each for each in self.candidates if each.dropped is None and each.times]
        fastest = {each: min(each.times) * each.handicap for each in left}
        least = min(fastest.values())
        found = [each for each in left if fastest[each] < within * least]
        return found if len(found) > 1 else []

    def is_in_doubt(self) -> bool:
        """Tell whether one that was slower, as often as not, may yet be the fastest.

        All have been timed as often, in turns: pairs of times are of one moment.
        """
        left = [each for each in self.candidates if each.dropped is None]
        best = min(left, key=_speed)
        for each in left:
            if each is not best and EVEN < _speed(each) / _speed(best) < CLOSE:
                theirs = reversed(best.times), reversed(each.times)
                pairs = list(zip(*theirs, strict=False))
                won = sum(a * best.handicap < b * each.handicap for a, b in pairs)
                if won < SURE * len(pairs):
                    return True
        return False

    def settle(self) -> None:
        """End it: the fastest is the best, and the others are dropped for good."""
        left = [each for each in self.candidates if each.dropped is None]
        self.best = min(left, key=_speed)
        for each in left:
            if each is not self.best:
                each.dropped, each.lost = "slower", RUNS
        self._end_round()

    def _untried(self) -> list[Candidate]:
        return [
            candidate
            for candidate in self.candidates
            if candidate is not self.best
            and candidate.dropped is None
            and not candidate.times
            and (candidate.after is None or not candidate.after.has_failed)
        ]

    @property
    def _computing(self) -> float:
        """Seconds that calls have taken, or are to take in all as far as is known.

        By the fastest call: one may have been slow for what else the machine does.
        """
        to_come = self.foreseen * self.best.least if self.foreseen else 0.0
        return max(self.computed, to_come)

    def _affordable(self) -> Candidate | None:
        """Return what may be tried now."""
        if self.best.typical is None:
            return None
        next_one = min(self._untried(), key=self._due_for, default=None)
        if next_one is not None and self._due_for(next_one) <= self._computing:
            return next_one
        # What that rests on, as how long calls take, may change: it is asked again.
        soon = 2 * self._computing
        self._due = soon if next_one is None else min(soon, self._due_for(next_one))
        return None

    def _due_for(self, candidate: Candidate) -> float:
        """Return what must have been computed for one to be tried."""
        if candidate.after is not None and not candidate.after.times:
            return float("inf")
        spent = self.spent if candidate.after is None else self.spent_alone
        return (candidate.cost + spent) / self._share(candidate)

    def _share(self, candidate: Candidate) -> float:
        """Return the share of what was computed that it may cost to try one."""
        best = self.best
        is_short = best.seconds < SHORT * best.overhead and not candidate.overhead
        is_likely = is_short or candidate.is_likely or self._gains(candidate)
        return SHARE_OF_LIKELY if is_likely else SHARE

    def _gains(self, candidate: Candidate) -> bool:
        """Tell whether rank 0 alone gains, as it meets no others."""
        together, usual = candidate.after, self.best.typical
        if together is None or together.typical is None or usual is None:
            return False
        return together.typical * (1 - together.meeting) < usual * (1 - GAIN)

    def _decide(self) -> None:
        """Drop the slower one of two, as soon as that is clear."""
        challenger, best = self._challenger, self.best
        if challenger is None or not challenger.times or best.typical is None:
            return
        slower = min(challenger.times) / best.typical
        if _is_slow(slower, len(challenger.times)):
            challenger.dropped = f"{slower:.1f} times as slow"
            self._end_round()
            return
        rounds = min(len(challenger.times), len(self._rounds))
        if rounds < ROUNDS:
            return
        mine = _undisturbed(challenger.times) * challenger.handicap
        theirs = _undisturbed(self._rounds) * best.handicap
        # Not in between: who looks again and again decides by what is rare.
        if rounds < MOST and max(mine, theirs) < FAR * min(mine, theirs):
            return
        loser = challenger
        if mine < theirs:
            self.best, loser = challenger, best
        is_near = max(mine, theirs) < NEAR * min(mine, theirs)
        loser.dropped, loser.lost = "slower", loser.lost + 1 if is_near else RUNS
        self._end_round()

    def _end_round(self) -> None:
        self._challenger, self._rounds, self._due = None, [], 0.0


def are_alike(one: Candidate, other: Candidate) -> bool:
    """Tell whether both are of all ranks, or of rank 0 alone."""
    return (one.after is None) is (other.after is None)


def _is_slow(factor: float, calls: int) -> bool:
    """Tell whether the fastest of the first calls is slower by too large a factor."""
    return factor > SLOWER[min(calls, len(SLOWER)) - 1]


def _speed(candidate: Candidate) -> float:
    """Return what a row takes by one that may be the best, the less the better."""
    if not candidate.times:
        return float("inf")
    return _undisturbed(candidate.times) * candidate.handicap


def _undisturbed(times: Collection[float]) -> float:
    """Return the time that a quarter of the calls do not take.

    What else the machine does makes calls slower, and none faster.
    """
    return sorted(times)[round((len(times) - 1) / 4)]
