"""What a run tells of its progress."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any


@contextlib.contextmanager
def count_calls(
    progress: bool | Callable[[int], object], batches: Iterable
) -> Iterator[Callable[[], object] | None]:
    """Return what is to be called after every call, if anything."""
    if callable(progress):
        numbers = itertools.count(1)
        yield lambda: progress(next(numbers))
    elif progress:
        with contextlib.closing(
            Bar(len(batches) if isinstance(batches, Sized) else None)
        ) as bar:
            yield bar
    else:
        yield None


class Bar:
    """A progress bar that begins when everything has been compiled.

    Its rate would be far too low otherwise, and the time left far too long.

    Parameters
    ----------
    total : int or None
        How many calls there will be, if that is known.
    """

    def __init__(self, total: int | None) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from None
        self._make, self._total = tqdm, total
        self._bar: Any = None

    def show(self, counted: int = 0) -> None:
        """Show the bar, if it is not there yet, from so many calls on."""
        if self._bar is None:
            self._bar = self._make(total=self._total, initial=counted)

    def __call__(self) -> None:
        """Count a call; the first, if the bar is not there, has compiled."""
        if self._bar is None:
            self.show(1)
        else:
            self._bar.update()

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.close()
