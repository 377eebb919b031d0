"""A history as a picture, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SPENT = {
    "compute": "#4c72b0",
    "rows": "#55a868",
    "exchange": "#dd8452",
    "wait": "#999999",
}
"""What the time of an epoch is spent on, from below, and in which colour."""

REST = "compile, start"


def new_panels() -> list[Any]:
    """Return three axes of a new figure, which pyplot does not know."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "History.plot draws with matplotlib, which is not installed:"
            " pip install 'synk[plot]', or see to_frame()"
        ) from error
    return list(Figure((12, 3.6), layout="constrained").subplots(1, 3))


def draw(
    epochs: Sequence[Mapping[str, float]], losses: Sequence[float], panels: Sequence
) -> None:
    """Draw losses by steps, validation by epochs, and the time of each epoch."""
    of_steps, of_epochs, of_time = panels
    of_steps.plot(range(1, len(losses) + 1), losses, linewidth=0.6, label="of a step")
    ends, means = zip(*[(of["step"], of["loss"]) for of in epochs], strict=True)
    of_steps.plot(ends, means, "k.-", label="mean of the epoch")
    of_steps.set(xlabel="step", ylabel="loss")
    numbers = [of["epoch"] for of in epochs]
    names = dict.fromkeys(n for of in epochs for n in of if n.startswith("val_"))
    for name in names or ["loss"]:
        values = [of.get(name, np.nan) for of in epochs]
        of_epochs.plot(numbers, values, ".-", label=name)
    of_epochs.set(xlabel="epoch")
    _stack(of_time, epochs, numbers)
    for panel in panels:
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(frameon=False, fontsize="small")
        panel.spines[["top", "right"]].set_visible(False)


def _stack(panel: Any, epochs: Sequence[Mapping[str, float]], numbers: list) -> None:
    """Draw a bar for each epoch: what its seconds were spent on."""
    low = np.zeros(len(epochs))
    for name, colour in SPENT.items():
        high = np.array([of.get(name, 0.0) for of in epochs])
        panel.bar(numbers, high, 0.8, low, color=colour, label=name)
        low = low + high
    whole = np.array([of["seconds"] for of in epochs])
    panel.bar(numbers, (whole - low).clip(0), 0.8, low, color="#e5e5e5", label=REST)
    panel.set(xlabel="epoch", ylabel="seconds, mean of the ranks")
    usual = whole[1:].max(initial=0)
    if 0 < 2 * usual < whole[0]:  # nothing could be told of the others
        panel.set_ylim(0, 1.5 * usual)
        panel.set_title(
            f"the first, which compiles: {whole[0]:.3g} s", fontsize="small"
        )
