"""The bar that is shown while epochs go by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping


@contextlib.contextmanager
def progress_bar(
    is_shown: bool, total: int, unit: str = "epoch"
) -> Iterator[Callable[[Mapping[str, float]], object]]:
    """Give what shows an epoch's numbers, in a ``with`` block."""
    if not is_shown:
        yield lambda numbers: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda numbers: None
        return
    with tqdm(total=total, unit=unit) as bar:

        def show(numbers: Mapping[str, float]) -> None:
            shown = {k: v for k, v in numbers.items() if "loss" in k}
            bar.set_postfix(shown, refresh=False)
            bar.update()

        yield show
