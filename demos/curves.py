"""Learning curves, for the demos that train networks."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter


def plot(history: dict[str, list[float]], title: str, path: str) -> None:
    """Save curves over the epochs, a panel for each quantity.

    Parameters
    ----------
    history : dict of list of float
        A value for each epoch of "train loss", "validation loss" and so on. The axis of
        a loss is logarithmic.
    title : str
    path : str
        The PNG to write.
    """
    curves = [name.split(maxsplit=1) for name in history]
    whats = [what for part, what in curves if part == "train"]
    figure = Figure(figsize=(4.5 * len(whats), 3.6), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(whats), squeeze=False)[0]
    for panel, what in zip(panels, whats, strict=True):
        for part, style in ("train", "--"), ("validation", "-"):
            values = history[f"{part} {what}"]
            epochs = range(1, len(values) + 1)
            panel.plot(epochs, values, style, marker=".", label=part)
        panel.set(xlabel="epoch", ylabel=what)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        panel.legend()
        if what == "loss":
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, format="png", dpi=120)
