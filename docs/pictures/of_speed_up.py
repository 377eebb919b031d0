"""Speed-up over ranks, from the figures that :doc:`performance` has."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from . import tables
from .style import BLUE, ORANGE, SKY, WIDTH

DOCS = Path(__file__).parents[1]

PLAIN = "plain PyTensor, numba"
"""As it comes."""


def gather() -> list[tuple[str, dict[int, float]]]:
    """Return what was measured, and for it the speed-up by the number of ranks.

    It is over plain PyTensor with all cores.
    """
    page = (DOCS / "performance.rst").read_text()
    ((_, likelihood),) = _found(page, r"^    logistic .* ([\d.]+) ms +([\d.]+)x  >=")
    found = [("likelihood, 1,000,000 rows", {2: float(likelihood)})]
    for kind in ("element-wise", "matrix"):
        by_ranks = _found(page, rf"^    {kind} step, (\d) ranks .* ([\d.]+)x$")
        found.append((f"{kind} step", {int(n): float(ratio) for n, ratio in by_ranks}))
    small, large = (_network(rows) for rows in ("512 rows, relu", "4096 rows, relu"))
    found.append(("network, 4096 rows", {2: large}))
    found.append(("network, 512 rows", {2: small}))
    return found


def _found(text: str, pattern: str) -> list[tuple[str, str]]:
    """Return two numbers of each line that has this form; there must be one."""
    lines = re.findall(pattern, text, re.M)
    if not lines:
        raise RuntimeError(f"the page of the figures has no line like {pattern!r}")
    return lines


def _network(column: str) -> float:
    """Return how many times synk's time plain PyTensor takes for a network's step."""
    for table in tables.read(DOCS / "engines.inc"):
        rows = table.columns.get(column, {})
        if PLAIN in rows:
            return rows[PLAIN].ratio
    raise RuntimeError(f"engines.inc has no time of {PLAIN!r} for {column!r}")


def draw(found: list[tuple[str, dict[int, float]]]) -> Figure:
    """Draw a bar for each number of ranks, and where nothing is gained, or all."""
    figure = Figure((WIDTH, 3.0), layout="constrained")
    ax = figure.subplots()
    labels, top = [], 0.0
    for name, by_ranks in found:
        for ranks, ratio in sorted(by_ranks.items(), reverse=True):
            ax.barh(top, ratio, 0.7, color=BLUE if ranks > 1 else SKY)
            ax.text(ratio + 0.3, top, f"{ratio:.2f}", va="center", fontsize=9)
            labels.append((top, f"{name}, {ranks} rank{'s' * (ranks > 1)}"))
            top -= 1.0
    for line in (1, 2):
        ax.axvline(line, color=ORANGE, linewidth=1.2, linestyle="--", zorder=0)
    ax.set_yticks(*zip(*labels, strict=True))
    ax.set_xlabel("speed-up over plain PyTensor, which has both cores too")
    ax.tick_params(axis="y", length=0)
    return figure
