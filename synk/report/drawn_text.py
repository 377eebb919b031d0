"""The stages of a call drawn as text: a lane for each rank, bars where they meet."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .blocks import Block, blocks, lanes, title
from .explain_text import WIDTH
from .facts import Facts


def as_drawing(facts: Facts) -> str:
    """Return the drawing; see :meth:`synk.Function.explain`."""
    count = lanes(facts)
    numbers = " ".join(map(str, range(count)))
    lines = textwrap.wrap(title(facts), WIDTH, break_on_hyphens=False)
    lines.append(f"  {numbers}")
    for block in blocks(facts):
        lines += _block(block, count)
    return "\n".join(lines)


def _block(block: Block, count: int) -> Iterator[str]:
    first, rest = _lanes(block, count)
    for i, text in enumerate([block.title, *block.texts]):
        left = "   " if i == 0 else "     "
        wrapped = textwrap.wrap(
            text,
            WIDTH - 2 - len(rest) - len(left),
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for line in wrapped:
            yield f"  {first}{left}{line}"
            first = rest


def _lanes(block: Block, count: int) -> tuple[str, str]:
    """Return what is left of a block's first line, and of the others."""
    alone = "|" + " " * (2 * count - 2)
    if block.kind == "meeting":
        return "=" * (2 * count - 1), " ".join("|" * count)
    if block.kind == "end":
        return "+" + "-+" * (count - 1), alone
    mark = "o" if block.kind == "rows" else "*"
    return " ".join(mark * count), " ".join("|" * count)
