"""What an explanation says, in words: a label and a text for each thing it tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .facts import (
    Bits,
    Calls,
    Exchanges,
    Facts,
    Held,
    InBlocks,
    Made,
    NodeFacts,
    Output,
    Padding,
    PlanTimes,
    Reduced,
    Repeated,
    RowDraw,
    StageFacts,
)

_LONGEST = 40
"""Characters of a name that are shown."""

_MOST, _FEW = 6, 3
"""Values of a stage, and Ops that need all rows, that are shown."""

_FIRST, _LAST = 12, 4
"""Stages that are shown where there are more."""


class Entry(NamedTuple):
    """What a text is about, and the text."""

    label: str
    text: str


def head(facts: Facts) -> str:
    """Return the function's name, and how many ranks there are."""
    ranks = facts.ranks
    where = "not forked" if ranks is None else f"{ranks} rank{'s' * (ranks != 1)}"
    if facts.nodes:
        where += f" on {len(facts.nodes)} nodes"
    return f"{short(facts.name)}: {where}"


def plan(facts: Facts) -> Iterator[Entry]:
    """Say what a call is going to do."""
    inputs = facts.inputs
    for role, variables in (
        ("scattered", inputs.scattered),
        ("broadcast", inputs.broadcast),
        ("sliceable", inputs.sliceable),
    ):
        if variables:
            texts = [f"{short(var.name)} {var.type}" for var in variables]
            yield Entry(role, ", ".join(texts))
    yield from map(_output, facts.outputs)
    for level, stage in levels(facts.stages):
        if stage is None:
            yield Entry("", f"and {level} more stages with their reductions")
            continue
        yield Entry(f"stage {level}", _stage(stage))
        for text in reductions(stage):
            yield Entry("", text)
    if facts.repeated is not None:
        yield Entry("repeated", repeated(facts.repeated))
    for draw in facts.draws[:_MOST]:
        yield Entry("draws", drawn(draw))
    if facts.own_statistics:
        yield Entry("local", _own(facts.own_statistics))
    if facts.updates:
        texts = [
            short(update.name) + (" (own rows)" if update.from_own_rows else "")
            for update in facts.updates
        ]
        yield Entry("updates", ", ".join(texts))
    for i, held in enumerate(facts.variables):
        yield Entry("" if i else "variables", _held(held))
    if facts.plan:
        yield Entry("plan", facts.plan)
    for i, text in enumerate(_bits(facts)):
        yield Entry("" if i else "bits", text)
    for i, plan in enumerate(facts.plans):
        yield Entry("" if i else "measured", _plan(plan))
    if facts.precision is not None:
        yield Entry("products", f"of float32 in {facts.precision}")
    if facts.padding is not None:
        yield Entry("padded", _padding(facts.padding))
    if facts.in_blocks is not None:
        yield Entry("blocks", _in_blocks(facts.in_blocks))
    if facts.bytes_kept:
        size = f"{facts.bytes_kept:,} bytes on rank 0"
        yield Entry("kept", f"terms of the data alone, {size}")
    if (shapes := facts.shapes_compiled) is not None:
        text = f"by JAX, on rank 0 for {shapes} shape{'s' * (shapes != 1)} of arguments"
        yield Entry("compiled", text)


def levels(stages: list[StageFacts]) -> Iterator[tuple[int, StageFacts | None]]:
    """Yield the stages to show with their levels; None for those between, so many."""
    count = len(stages)
    between = count - _FIRST - _LAST
    for level, stage in enumerate(stages):
        if between <= 0 or not _FIRST <= level < count - _LAST:
            yield level, stage
        elif level == _FIRST:
            yield between, None


def calls_made(calls: Calls | None) -> Entry:
    """Say how many calls there were, of how many rows, and what one takes."""
    if calls is None:
        return Entry("calls", "none yet")
    text = f"{calls.counted:,}"
    if calls.left_out:
        text += f" (and {calls.left_out} after a compilation, not counted)"
    if calls.milliseconds is None:
        return Entry("calls", text)
    if calls.rows is not None:
        text += f"; {number(calls.rows)} rows, {nbytes(calls.scattered_bytes)}"
        text += f" scattered, {nbytes(calls.reduced_bytes)} all-reduced"
    return Entry("calls", f"{text}; mean {milliseconds(calls.milliseconds)}")


def exchanges(made: Exchanges | None) -> Iterator[Entry]:
    """Say what a training rule's exchanges take, and how old parameters are in them."""
    if made is None:
        return
    yield Entry("exchanges", f"{made.rule}, {nbytes(made.bytes)} of parameters")
    for row in made.ranks:
        text = f"rank {row.rank}: {row.exchanges:,} exchanges"
        if row.exchanges:
            each, wait = milliseconds(row.milliseconds), milliseconds(row.wait)
            waits = f"{row.waits:,} wait{'s' * (row.waits != 1)}"
            text += f", {each} each, {wait} of it waiting ({waits})"
            text += f"; staleness {row.staleness:.1f}, at most {row.most_stale}"
        yield Entry("", text)


def between_nodes(nodes: list[NodeFacts]) -> Iterator[Entry]:
    """Say what each of several nodes exchanges with the others in a call."""
    label = "exchanged"
    for i, node in enumerate(nodes):
        found = node.exchanged
        if found is None:
            continue
        text = "nothing"
        if found.times:
            many = f"{number(found.times)} time{'s' * (found.times != 1)}"
            met, took = map(milliseconds, (found.meeting, found.milliseconds))
            text = f"{many} in a call; {met} until all nodes had met,"
            text += f" then {nbytes(found.bytes)} sent in {took}"
        yield Entry(label, f"{node_name(i, node)}: {text}")
        label = ""


def node_name(number: int, node: NodeFacts) -> str:
    """Return how a node is called."""
    return f"node {number} ({short(node.host)})"


def missing_ranks(calls: Calls | None) -> Iterator[Entry]:
    """Say that the times of a session that has ended are those of rank 0, if so."""
    if calls is not None and calls.ranks and not calls.all_ranks_known:
        yield Entry("", "the other ranks' times ended with their session")


def speed(facts: Facts) -> Iterator[Entry]:
    """Say how a call compares with one rank."""
    speed_up, serial = facts.speed_up, facts.serial
    texts = []
    if speed_up.predicted is not None:
        texts.append(f"{speed_up.predicted:.2f} predicted from the ranks' times")
    if speed_up.measured is not None:
        texts.append(f"{speed_up.measured:.2f} measured")
    if texts:
        yield Entry("speed-up", ", ".join(texts))
    if serial is not None:
        cores = f"{serial.cores} core{'s' * (serial.cores != 1)}"
        took = milliseconds(serial.milliseconds)
        yield Entry("serial run", f"{took} for {serial.rows:,} rows on {cores}")


def verdict(facts: Facts) -> str | None:
    """Return the last sentence, if there is one."""
    return f"{facts.verdict}." if facts.verdict else None


# -- parts of sentences


def _plan(plan: PlanTimes) -> str:
    if plan.failed is not None:
        return f"{plan.name}; {plan.failed}"
    text = f"{plan.name}: {plan.milliseconds:,.3g} ms"
    if plan.first_call is not None:
        text += f", the first call {plan.first_call:.1f} s"
    return text + "; makes the calls" * plan.is_best


def plan_table(title: str, plans: list[PlanTimes]) -> str:
    """Return what was measured of a function's plans."""
    if not plans:
        return f"{title}: there is one plan for it"
    return "\n  ".join([title, *map(_plan, plans)])


def _held(held: Held) -> str:
    text = f"{some(held.names)}: {held.state}"
    if held.times_brought:
        many = f"{held.times_brought} time{'s' * (held.times_brought > 1)}"
        text += f" (sent to each rank {many}, {nbytes(held.bytes_brought)})"
    return text


def some(names: list[str]) -> str:
    """Return names, and how many there are more."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(map(short, names[:_MOST])) + more


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


def _output(output: Output) -> Entry:
    # The name is as messages have it: "output 0 (loss)".
    words = output.name.split(" ", 2)
    label, name = " ".join(words[:2]), words[2][1:-1]
    where = _where(name, output.made)
    shown = output.kind
    if output.reason is not None:
        shown = f"not shown: {output.reason}"
        if output.reason_made and not (where and output.made == output.reason_made):
            shown += f" ({output.reason_made})"
    op = output.op or "rank 0's own"
    if output.op is None and output.agrees:
        op = "the same on all ranks"
    by = ", as named" if output.named else ""
    fits = "" if output.agrees or output.reason else " (another op is shown)"
    text = f"{short(name)}{where}: {op}{by}; {shown}{fits}; {output.combined}"
    return Entry(label, text)


def _where(name: str, made: str | None) -> str:
    """Return the line that made a value, if it has no name of its own."""
    return f" ({made})" if made is not None and name.endswith(")") else ""


def _stage(stage: StageFacts) -> str:
    text = f"computes {stage.computes}"
    return f"{text}; all-reduces {sizes(stage)}" if stage.bytes else text


def sizes(stage: StageFacts) -> str:
    """Say how many bytes of each dtype a stage reduces."""
    return ", ".join(f"{nbytes(n)} of {dtype}" for dtype, n in stage.bytes.items())


def reductions(stage: StageFacts) -> list[str]:
    """Say of each value that a stage reduces what it is, and what needs it."""
    texts = [_reduced(value) for value in stage.reduces[:_MOST]]
    more = len(stage.reduces) - len(texts)
    return [*texts, f"and {more} more"] if more else texts


def drawn(draw: RowDraw) -> str:
    """Say of random numbers for rows which of them a rank draws."""
    which = {
        "own rows": "each rank draws those of its rows",
        "all rows": "every rank draws those of all rows, and keeps its own",
    }
    return f"{draw.name}{_in(draw.made)} for rows: {which[draw.ranks_draw]}"


def repeated(found: Repeated) -> str:
    """Say what every rank computes from all rows, and what that takes."""
    first = [f"{op.name}{_in(op.made)}" for op in found.by[:_FEW]]
    if len(found.by) > _FEW:
        first.append(f"{len(found.by) - _FEW} more")
    verb = "needs" if len(found.by) == 1 else "need"
    text = f"{', '.join(first)} {verb} all rows, {nbytes(found.bytes)}"
    if found.ops:
        text += (
            f": every rank computes {found.ops} of the {found.of} Ops on rows from all"
            " of them"
        )
    if found.milliseconds is None:
        return text
    return f"{text}; in up to {milliseconds(found.milliseconds)} of a call"


def _reduced(value: Reduced) -> str:
    where = _at(value.made) if _at(value.made) != _at(value.why_made) else ""
    op = "all rows" if value.op == "read" else value.op
    return (
        f"{op} of {short(value.name)}{where}, {nbytes(value.bytes)},"
        f" {value.why}{_in(value.why_made)}"
    )


def _own(statistics: list[Made]) -> str:
    texts = [f"{short(one.name)}{_at(one.made)}" for one in statistics[:_MOST]]
    if len(statistics) > _MOST:
        texts.append(f"and {len(statistics) - _MOST} more")
    return f"{', '.join(texts)}: of each rank's own rows"


def _at(made: str | None) -> str:
    """Return the file and the line's number alone, as " (fit.py:12)"."""
    place = (made or "").split("`")[0].removesuffix(": ")
    return f" ({place})" if place else ""


def _in(made: str | None) -> str:
    return f" ({made})" if made else ""


def _padding(padding: Padding) -> str:
    if padding.padded:
        return "calls of fewer rows, for code that was compiled for more"
    return f"no: {padding.reason}"


def _bits(facts: Facts) -> Iterator[str]:
    """Say on what the bits of outputs and updates depend."""
    named = [(f"output {i}", each.bits) for i, each in enumerate(facts.outputs)]
    named += [(short(each.name), each.bits) for each in facts.updates]
    found: dict[Bits, list[str]] = {}
    for name, bits in named:
        if bits is not None:
            found.setdefault(bits, []).append(name)
    for bits, names in found.items():
        of = "" if len(found) == 1 else f" of {some(names)}"
        yield f"{bits.on}{of}" + (f", as {bits.why}" if bits.why else "")


def _in_blocks(part: InBlocks) -> str:
    by = "in a compiled loop" if part.is_compiled else "from Python"
    return f"{part.blocks:,} on rank 0, {by}"
