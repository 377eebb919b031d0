"""`Explanation`, the result of `Function.explain`, as text, dict, HTML and picture."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from . import drawing, shown
from .facts import Facts


class Explanation:
    """The result of :meth:`Function.explain`: print it, plot it, or get its dict.

    A notebook shows it as a table with a bar for each rank. With ``graph=True`` the
    text, the HTML and the plot show the stages of a call: a lane for each rank, with
    what the rank computes, and where the ranks meet, over which values, and why.

    A value that ranks combine is shown with its bytes, and with what needs it for all
    rows: an Op and its line of the script, an output, or the new value of a variable.
    Collectives that the script has written are "as written", or "for synk.grad". A
    loss goes "along with the others", in one exchange with gradients.

    The text has at most 100 columns; :doc:`speed` explains the times. A call that
    compiles is not counted in the times, except in JAX mode: JAX compiles for every new
    shape, and these calls are counted. The number of shapes shows how many they are.

    Examples
    --------
    >>> import pytensor.tensor as pt, synk
    >>> x = pt.vector("x")
    >>> top = x.max()
    >>> top.name = "top"
    >>> print(synk.function([x], [x.mean(), top], name="f").explain())
    f: not forked
      scattered   x float64 (?,)
      output 0    mean: avg; a mean over the rows; combined after the call
      output 1    top: max; a maximum over the rows; combined after the call
      stage 0     computes on rows
      calls       none yet
    """

    def __init__(self, facts: Facts, graph: bool = False) -> None:
        self._facts, self._view = facts, drawing if graph else shown

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, strings and numbers; times in ms."""
        return dataclasses.asdict(self._facts)

    def plot(self, path: str | os.PathLike | None = None, ax: Any = None) -> Any:
        """Draw where the time goes: a bar for each rank, beside the serial run.

        A bar is a rank's mean time in a call, divided into its phases. The serial run
        has a bar if it was measured. With ``explain(graph=True)`` this draws the
        stages. It needs ``pip install 'synk[plot]'``.

        Parameters
        ----------
        path : str or path-like, optional
            The file to save the figure in; the extension says the format.
        ax : matplotlib.axes.Axes, optional
            Where to draw. By default in a new figure: one of pyplot, or, with a
            path, one that is saved and not shown.

        Returns
        -------
        matplotlib.axes.Axes
            Its ``figure`` is the figure.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If no time is known: no call has been counted, and nothing measured. Stages
            are drawn without any.
        """
        size = self._view.size(self._facts)
        if ax is None:
            ax = _new_axes(path is not None, size)
        self._view.draw(self._facts, ax)
        if path is not None:  # by the canvas, as `figure` may be a SubFigure
            ax.figure.canvas.figure.savefig(path, bbox_inches="tight")
        return ax

    def __str__(self) -> str:
        return self._view.as_text(self._facts)

    def __repr__(self) -> str:
        return f"<synk.Explanation of {self._facts.name}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a table and bars, or the stages."""
        return self._view.as_html(self._facts)


def _new_axes(is_saved: bool, size: tuple[float, float]) -> Any:
    """Return axes of a new figure: of pyplot, or, if it is saved, of its own."""
    try:
        from matplotlib import pyplot
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Explanation.plot draws with matplotlib, which is not installed:"
            " pip install 'synk[plot]', or print the explanation"
        ) from error
    figure = Figure(size) if is_saved else pyplot.figure(figsize=size)
    return figure.subplots()
