"""Who may come to the centre next, if nobody's exchange is to be too stale."""

from __future__ import annotations

from collections.abc import Iterable


def may_come(moves: int, others: Iterable[int], most: int) -> bool:
    """Tell whether after one worker's exchange all others can still come in time.

    The others come in the order in which they came last: the one that has waited
    longest is the next, and so on. If that keeps the bound, it can be kept; and the one
    that has waited longest may always come itself, so nobody waits for ever.

    Parameters
    ----------
    moves : int
        How often the centre has moved.
    others : iterable of int
        Of every other worker that will come again: how often it had moved after that
        one's last exchange.
    most : int
        How many exchanges of others may come between two of a worker; no less than
        there are others.
    """
    return all(moves + 1 + k - came <= most for k, came in enumerate(sorted(others)))
