"""What the steps of an epoch were spent on, by what ranks tell of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..call.run_master import RunTimes
from ..exchange.worker import Report
from ..rules.simulate import Exchange


def spent(
    seconds: float,
    ran: RunTimes,
    reports: Sequence[Report] = (),
    exchanges: Sequence[Exchange] = (),
) -> dict[str, float]:
    """Return an epoch's seconds, and what they were spent on; see `History`.

    Parameters
    ----------
    seconds : float
    ran : RunTimes
        The steps.
    reports : sequence of Report
        What each rank tells of exchanges, by a rule.
    exchanges : sequence of Exchange
        Those of all ranks.
    """
    waiting = _mean([report.waiting for report in reports])
    exchanging = _mean([report.seconds for report in reports])
    return {
        "seconds": seconds,
        "compute": ran.compute,
        "rows": ran.rows,
        "exchange": ran.reduce + exchanging - waiting,
        "wait": ran.wait + waiting,
        "staleness": _mean([exchange.staleness for exchange in exchanges]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def in_order(reports: Sequence[Report]) -> list[Exchange]:
    """Return the exchanges of all workers, in the order in which the centre moved."""
    found = [
        (exchange.fragment, move, exchange)
        for report in reports
        for move, exchange in report.exchanges
    ]
    return [exchange for *_, exchange in sorted(found, key=lambda item: item[:2])]
