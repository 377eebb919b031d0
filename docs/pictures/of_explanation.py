"""What `Explanation.plot` draws, of a training step on two ranks."""

from __future__ import annotations

from matplotlib.figure import Figure

import synk

from .steps import seen
from .style import WIDTH


def gather() -> synk.Explanation:
    """Return the explanation of a training step, measured."""
    return seen().explanation


def draw(explanation: synk.Explanation) -> Figure:
    """Draw it as users do."""
    figure = Figure((WIDTH * 0.7, 3.2))
    explanation.plot(ax=figure.subplots())
    return figure
