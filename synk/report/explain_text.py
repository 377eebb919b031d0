"""An explanation as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH = 100
_INDENT = 14
_LONGEST = 40
"""Characters of a name that are shown."""


def render(content: dict[str, Any]) -> str:
    """Return the text of an explanation."""
    lines = [_head(content)]
    for role, variables in content["inputs"].items():
        if variables:
            texts = [f"{short(var['name'])} {var['type']}" for var in variables]
            lines += _entry(role, ", ".join(texts))
    for output in content["outputs"]:
        lines += _entry(*_output(output))
    for level, stage in enumerate(content["stages"]):
        lines += _entry(f"stage {level}", _stage(stage))
    if content["updates"]:
        texts = [
            short(update["name"]) + (" (own rows)" if update["from_own_rows"] else "")
            for update in content["updates"]
        ]
        lines += _entry("updates", ", ".join(texts))
    if content["precision"] is not None:
        lines += _entry("products", f"of float32 in {content['precision']}")
    if (padding := content["padding"]) is not None:
        text = "calls of fewer rows, for code that was compiled for more"
        lines += _entry("padded", text if padding["padded"] else _not_padded(padding))
    if (shapes := content["shapes_compiled"]) is not None:
        text = f"by JAX, on rank 0 for {shapes} shape{'s' * (shapes != 1)} of arguments"
        lines += _entry("compiled", text)
    if content["calls"] is None:
        lines += _entry("calls", "none yet")
    else:
        lines += _calls(content["calls"])
    lines += _speed(content)
    if content["verdict"]:
        text = content["verdict"] + "."
        lines += textwrap.wrap(text, WIDTH, break_on_hyphens=False)
    return "\n".join(lines)


def _not_padded(padding: dict[str, Any]) -> str:
    return f"no: {padding['reason']}"


def short(name: str) -> str:
    """Return a name, or the ends of a long one."""
    name = " ".join(name.split())
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def number(value: float) -> str:
    """Return a mean of whole numbers.

    >>> number(1e6), number(12.5), number(1 / 3)
    ('1,000,000', '12.5', '0.3')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def milliseconds(value: float) -> str:
    """Return a time with three digits and its unit.

    >>> milliseconds(12.345), milliseconds(0.0123), milliseconds(4321.0)
    ('12.3 ms', '12.3 us', '4.32 s')
    """
    for unit, size in (("s", 1e3), ("ms", 1.0)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e3:.3g} us"


def nbytes(value: int | None) -> str:
    """Return a number of bytes with its unit.

    >>> nbytes(12), nbytes(20_480), nbytes(2_543_000), nbytes(None)
    ('12 B', '20.5 kB', '2.54 MB', '? B')
    """
    if value is None:
        return "? B"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value} B"


def _head(content: dict[str, Any]) -> str:
    ranks = content["ranks"]
    where = "not forked" if ranks is None else f"{ranks} rank{'s' * (ranks != 1)}"
    return f"{short(content['name'])}: {where}"


def _entry(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"  {label:{_INDENT - 2}}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    ) or [f"  {label}"]


def _output(output: dict[str, Any]) -> tuple[str, str]:
    """Return the label, as in "output 0", and what there is to say."""
    words = output["name"].split(" ", 2)
    label, name = " ".join(words[:2]), words[2][1:-1]
    where = _where(name, output["made"])
    shown = output["kind"]
    if output["reason"] is not None:
        shown = f"not shown: {output['reason']}"
        if output["reason_made"] and not (where and _same_line(output)):
            shown += f" ({output['reason_made']})"
    op = output["op"] or "rank 0's own"
    if output["op"] is None and output["agrees"]:
        op = "the same on all ranks"
    by = ", as named" if output["named"] else ""
    fits = "" if output["agrees"] or output["reason"] else " (another op is shown)"
    return (
        label,
        f"{short(name)}{where}: {op}{by}; {shown}{fits}; {output['combined']}",
    )


def _same_line(output: dict[str, Any]) -> bool:
    return output["made"] == output["reason_made"]


def _where(name: str, made: str | None) -> str:
    """Return the line that made a value, if it has no name of its own."""
    return f" ({made})" if made is not None and name.endswith(")") else ""


def _at(value: dict[str, Any]) -> str:
    """Return the file and the line's number alone, as "fit.py:12"."""
    place = (value["made"] or "").split("`")[0].removesuffix(": ")
    return _where(value["name"], place or None)


def _stage(stage: dict[str, Any]) -> str:
    text = f"computes {stage['computes']}"
    if not stage["reduces"]:
        return text
    sizes = ", ".join(f"{nbytes(n)} of {dtype}" for dtype, n in stage["bytes"].items())
    values = [
        f"{value['op']} of {short(value['name'])}{_at(value)}"
        for value in stage["reduces"]
    ]
    more = f", and {len(values) - 6} more" if len(values) > 6 else ""
    return f"{text}; all-reduces {sizes}: {', '.join(values[:6])}{more}"


def _calls(calls: dict[str, Any]) -> Iterator[str]:
    text = f"{calls['counted']:,}"
    if calls["left_out"]:
        text += f" (and {calls['left_out']} after a compilation, not counted)"
    if calls["milliseconds"] is None:
        yield from _entry("calls", text)
        return
    if calls["rows"] is not None:
        text += f"; {number(calls['rows'])} rows, {nbytes(calls['scattered_bytes'])}"
        text += f" scattered, {nbytes(calls['reduced_bytes'])} all-reduced"
    yield from _entry("calls", f"{text}; mean {milliseconds(calls['milliseconds'])}")
    titles = ("rows", "taking rows", "compute", "wait", "reduce")
    yield " " * _INDENT + "".join(f"{title:>13}" for title in titles)
    for row in calls["ranks"]:
        times = (row["rows"], row["compute"], row["wait"], row["reduce"])
        cells = "".join(f"{milliseconds(time):>13}" for time in times)
        label = f"rank {row['rank']}"
        yield f"  {label:{_INDENT - 2}}{number(row['share']):>13}{cells}"
    if not calls["all_ranks_known"]:
        yield from _entry("", "the other ranks' times ended with their session")


def _speed(content: dict[str, Any]) -> Iterator[str]:
    serial, speed = content["serial"], content["speed_up"]
    texts = []
    if speed["predicted"] is not None:
        texts.append(f"{speed['predicted']:.2f} predicted from the ranks' times")
    if speed["measured"] is not None:
        texts.append(f"{speed['measured']:.2f} measured")
    if texts:
        yield from _entry("speed-up", ", ".join(texts))
    if serial is not None:
        cores = f"{serial['cores']} core{'s' * (serial['cores'] != 1)}"
        took = milliseconds(serial["milliseconds"])
        yield from _entry(
            "serial run", f"{took} for {serial['rows']:,} rows on {cores}"
        )
