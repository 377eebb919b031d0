"""What follows from the times of a function: speed-ups, losses, and the verdict."""

from __future__ import annotations

from .facts import Calls, Conclusions, Lost, RankTimes, Serial, SpeedUp
from .words import milliseconds, nbytes

LAUNCH = 50e-6
"""Seconds that a call costs on top of its computation, at the least; for functions that
have not been called in a session."""


def conclude(calls: Calls | None, serial: Serial | None) -> Conclusions:
    """Return what the times of calls and of the serial run say together."""
    if calls is None or calls.milliseconds is None:
        return Conclusions(verdict=_verdict_before_calls(serial))
    if not calls.all_ranks_known or len(calls.ranks) == 1 or calls.rows is None:
        return Conclusions()
    call = calls.milliseconds
    comparable = serial is not None and abs(serial.rows - calls.rows) < 0.5
    measured = serial.milliseconds if serial is not None and comparable else None
    alone = time_alone(calls.ranks)
    lost = losses(calls.ranks, call, measured)
    one = alone if measured is None else measured
    verdict = None
    if one < call:
        alone_takes = "it would take about" if measured is None else "alone it takes"
        verdict = (
            f"One rank would be faster: {alone_takes} {milliseconds(one)}, and a call"
            f" takes {milliseconds(call)}. Most of that is lost by"
            f" {_main_loss(lost, calls)}"
        )
    speed_up = SpeedUp(alone / call, None if measured is None else measured / call)
    return Conclusions(speed_up, lost, verdict)


def time_alone(ranks: list[RankTimes]) -> float:
    """Return what one rank would need: all ranks' work, and what is common once."""
    return sum(_work(row) for row in ranks) + max(row.common for row in ranks)


def losses(ranks: list[RankTimes], call: float, serial: float | None) -> Lost:
    """Divide the time of a call into that of one n-th of the work, and what is lost.

    ``call = alone / n + launch + uneven + reduce + nodes + repeated``, where ``alone``
    is the time that one rank would need, and ``nodes`` what exchanges of several nodes
    take. If the serial run is faster, ``parts`` is what its n-th is below this one's.
    """
    n = len(ranks)
    common = [row.common for row in ranks]
    busy = [_work(row) + row.common + row.reduce + row.nodes for row in ranks]
    alone = time_alone(ranks)
    return Lost(
        launch=max(0.0, call - max(busy)),
        uneven=max(busy) - sum(busy) / n,
        reduce=sum(row.reduce for row in ranks) / n,
        repeated=max(0.0, sum(common) - max(common)) / n,
        nodes=sum(row.nodes for row in ranks) / n,
        parts=0.0 if serial is None else max(0.0, alone - serial) / n,
    )


def _work(row: RankTimes) -> float:
    return row.rows + row.compute - row.common


def _verdict_before_calls(serial: Serial | None) -> str | None:
    if serial is None or serial.milliseconds >= LAUNCH * 1e3:
        return None
    return (
        "One rank would be faster: the plain function takes"
        f" {milliseconds(serial.milliseconds)}, and launching and joining"
        " other ranks takes longer"
    )


def _main_loss(lost: Lost, calls: Calls) -> str:
    by_cause = vars(lost)
    main = max(by_cause, key=lambda cause: by_cause[cause])
    took = f"({milliseconds(by_cause[main])})"
    if main == "launch":
        return f"launching, joining and meeting {took}"
    if main == "uneven":
        slowest = min(calls.ranks, key=lambda row: row.wait).rank
        return f"waiting for rank {slowest}, which has the most to do {took}"
    if main == "reduce":
        return f"reducing {nbytes(calls.reduced_bytes)} {took}"
    if main == "nodes":
        return f"exchanging {nbytes(calls.reduced_bytes)} between nodes {took}"
    if main == "repeated":
        return f"what every rank computes, as no rows enter it {took}"
    return (
        f"parts that together take longer than the whole {took}: the serial run uses"
        " all cores by itself, memory is the limit, or other programs use the cores"
    )
