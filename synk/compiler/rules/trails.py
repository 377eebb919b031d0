"""The states of a scan along the rows: which entries of them are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..domain import Refused, Replicated, Sharded, Trail, Value, describe, unlisted

Bounds = int | tuple[int | None, ...]
"""A number, or start, stop and step of a slice."""

_TURNED = {"first": "last", "last": "first", "all": "all"}


def taken(trail: Trail, bounds: Bounds) -> Value:
    """Return what comes of indexing the steps."""
    if isinstance(bounds, int):
        found = {0: _entry(trail, "first"), -1: _entry(trail, "last")}.get(bounds)
        if found is not None:
            return found
    elif _is_whole(bounds):
        return trail
    elif bounds == (None, None, -1):
        return replace(trail, place=_TURNED[trail.place])
    elif _skips_first(bounds) and trail.offset > 0 and trail.place != "first":
        # What is left has an entry for each row, so the last one is among it.
        return replace(trail, offset=trail.offset - 1)
    raise Refused(f"takes some of {describe(trail)}")


def changed(
    trail: Trail,
    bounds: Bounds,
    other: Value,
    put: Callable[[Sequence[Value]], Value],
) -> Value:
    """Return what comes of setting or increasing entries, where all were alike."""
    is_first = bounds in (0, (None, 1, None), (0, 1, None))
    if trail.place == "all" and (is_first or bounds == -1):
        other = unlisted(other)
        if isinstance(other, Sharded):
            raise Refused(f"puts rows into {describe(trail)}")
        # Where anything may be, it is not added to.
        one = other if trail.one is None else put([trail.one, other])
        return replace(trail, one=one, place="first" if is_first else "last")
    if (
        isinstance(bounds, tuple)
        and _skips_first(bounds)
        and isinstance(other, Trail)
        and 0 < trail.offset == other.offset + 1
        and trail.place == "all"
        and other.place != "first"
        and other.one is not None
        and _are_zeros(trail.rest)
        and _are_zeros(other.rest)
    ):
        assert trail.rest is not None
        return replace(trail, one=put([trail.rest, other.one]), place="last")
    raise Refused(f"changes some of {describe(trail)}")


def _entry(trail: Trail, place: str) -> Value | None:
    return trail.one if trail.place in (place, "all") else None


def _are_zeros(value: Value | None) -> bool:
    return isinstance(value, Replicated) and value.power is None


def _is_whole(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start in (None, 0) and stop is None and step in (None, 1)


def _skips_first(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start == 1 and stop is None and step in (None, 1)


def first_of(value: Value) -> Value:
    """Return what a scan along the rows starts with."""
    if isinstance(value, Trail) and value.offset == 1:
        found = _entry(value, "first")
        if found is not None:
            return found
    raise Refused("starts along the rows with what is not understood")


def others_of(value: Value) -> Replicated:
    """Return what is in the entries after the first."""
    if (
        isinstance(value, Trail)
        and value.place != "last"
        and isinstance(value.rest, Replicated)
    ):
        return value.rest
    raise Refused("takes along the rows what is not understood")
