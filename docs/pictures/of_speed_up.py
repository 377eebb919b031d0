"""Speed-up over ranks, from the figures that :doc:`performance` has."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

from .style import BLUE, ORANGE, SKY, WIDTH

DOCS = Path(__file__).parents[1]


def gather() -> list[tuple[str, dict[int, float]]]:
    """Return what was measured, and for it the speed-up by the number of ranks.

    It is over plain PyTensor with all cores.
    """
    page, table = (
        (DOCS / "performance.rst").read_text(),
        (DOCS / "peers.inc").read_text(),
    )
    ((_, likelihood),) = _found(page, r"^    logistic .* ([\d.]+) ms +([\d.]+)x  >=")
    found = [("likelihood, 1,000,000 rows", {2: float(likelihood)})]
    for kind in ("element-wise", "matrix"):
        by_ranks = _found(page, rf"^    {kind} step, (\d) ranks .* ([\d.]+)x$")
        found.append((f"{kind} step", {int(n): float(ratio) for n, ratio in by_ranks}))
    plain = r"^plain PyTensor, all cores .*\(([\d.]+)\) .*\(([\d.]+)\)$"
    ((small, large),) = _found(table, plain)
    found.append(("network, batch 4096", {2: float(large)}))
    found.append(("network, batch 512", {2: float(small)}))
    return found


def _found(text: str, pattern: str) -> list[tuple[str, str]]:
    """Return two numbers of each line that has this form; there must be one."""
    lines = re.findall(pattern, text, re.M)
    if not lines:
        raise RuntimeError(f"the page of the figures has no line like {pattern!r}")
    return lines


def draw(found: list[tuple[str, dict[int, float]]]) -> Figure:
    """Draw a bar for each number of ranks, and where nothing is gained, or all."""
    figure = Figure((WIDTH, 3.0), layout="constrained")
    ax = figure.subplots()
    labels, top = [], 0.0
    for name, by_ranks in found:
        for ranks, ratio in sorted(by_ranks.items(), reverse=True):
            bar, text = (BLUE, "white") if ranks > 1 else (SKY, "black")
            ax.barh(top, ratio, 0.7, color=bar)
            ax.text(0.05, top, f"{ratio:.2f}", va="center", fontsize=9, color=text)
            labels.append((top, f"{name}, {ranks} rank{'s' * (ranks > 1)}"))
            top -= 1.0
    for line in (1, 2):
        ax.axvline(line, color=ORANGE, linewidth=1.2, linestyle="--", zorder=0)
    ax.set_yticks(*zip(*labels, strict=True))
    ax.set_xlabel("speed-up over plain PyTensor, which has both cores too")
    ax.tick_params(axis="y", length=0)
    return figure
