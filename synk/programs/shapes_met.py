"""Which shapes the ranks have met, and with that had code compiled for."""

from __future__ import annotations

from collections.abc import Sequence

from .padding import CompiledSizes


class ShapesMet:
    """The numbers of rows that all ranks have met in calls of one function.

    Every rank keeps the same account, so that all leave the same calls out of their
    times: a rank that compiles keeps the others waiting.
    """

    def __init__(self) -> None:
        self._calls: set[tuple] = set()
        self._shares: set[tuple] = set()
        self._compiled_sizes: dict[tuple, list[CompiledSizes]] = {}

    def are_new(self, kind: tuple, by_rank: Sequence[int], is_padded: bool) -> bool:
        """Tell whether a call of a kind is the first one that a rank compiles for.

        Parameters
        ----------
        kind : tuple
            What else code is made for.
        by_rank : sequence of int
            The rows of each rank.
        is_padded : bool
        """
        if is_padded:
            sizes = self._compiled_sizes.setdefault(
                kind, [CompiledSizes() for _ in by_rank]
            )
            by_rank = [
                of_rank.rows(rows) if rows else 0
                for of_rank, rows in zip(sizes, by_rank, strict=True)
            ]
        call = kind, tuple(by_rank)
        if call in self._calls:
            return False
        self._calls.add(call)
        shares = {(kind, rank, rows) for rank, rows in enumerate(by_rank)}
        is_new = not shares <= self._shares
        self._shares |= shares
        return is_new
