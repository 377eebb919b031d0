"""What comes with each epoch besides its steps: a validation, a bar that is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence


def validated(validation: Callable | Sequence) -> dict[str, float]:
    """Return what a validation has found, by name."""
    function, *args = [validation] if callable(validation) else validation
    found = function(*args)
    if isinstance(found, Mapping):
        return {f"val_{name}": float(value) for name, value in found.items()}
    values = found if isinstance(found, list) else [found]
    names = ["val_loss", *[f"val_{i}" for i in range(1, len(values))]]
    return {n: float(value) for n, value in zip(names, values, strict=True)}


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
