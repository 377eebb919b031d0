"""The sentences of an explanation, for its text, its HTML and its drawings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .facts import (
    Bits,
    Calls,
    CallsAlone,
    Exchanges,
    Facts,
    Held,
    NodeFacts,
    Output,
    PlanTimes,
    Reduced,
    Repeated,
    StageFacts,
)

_LONGEST = 40
"""The most characters of a name that are shown."""

_MOST, _FEW = 6, 3
"""How many are shown: values of a stage, and Ops that need all rows."""

_FIRST, _LAST = 12, 4
"""If there are more stages, so many of the first and of the last are shown."""


class Sentence(NamedTuple):
    """A text, and a label that stands before it; "" below the same label."""

    label: str
    text: str


def head(facts: Facts) -> str:
    """Return the function's name and the number of ranks."""
    where = "not forked" if facts.ranks is None else count(facts.ranks, "rank")
    if facts.nodes:
        where += f" on {len(facts.nodes)} nodes"
    return f"{short(facts.name)}: {where}"


def call_sentences(facts: Facts) -> Iterator[Sentence]:
    """Yield sentences about what a call does, and the number of calls."""
    for role, variables in facts.inputs.items():
        if variables:
            texts = [f"{short(var.name)} {var.type}" for var in variables]
            yield Sentence(role, ", ".join(texts))
    yield from map(_output, facts.outputs)
    for level, stage in levels(facts.stages):
        if stage is None:
            yield Sentence("", f"and {level} more stages with their reductions")
        else:
            reduces = f"; all-reduces {sizes(stage)}" if stage.bytes else ""
            texts = [f"computes {stage.computes}{reduces}", *reductions(stage)]
            yield from _listed(f"stage {level}", texts)
    if facts.repeated is not None:
        yield Sentence("repeated", _repeated(facts.repeated))
    for draw in facts.draws[:_MOST]:
        which = "each rank draws those of its rows"
        if draw.ranks_draw == "all rows":
            which = "every rank draws those of all rows, and keeps its own"
        text = f"{draw.name}{_in(draw.made)} for rows: {which}"
        yield Sentence("draws", text)
    if facts.own_statistics:
        texts = [f"{short(one.name)}{_at(one.made)}" for one in facts.own_statistics]
        yield Sentence("local", f"{', '.join(first(texts))}: of each rank's own rows")
    if facts.updates:
        texts = [
            short(update.name) + (" (own rows)" if update.from_own_rows else "")
            for update in facts.updates
        ]
        yield Sentence("updates", ", ".join(texts))
    yield from _listed("variables", map(_held, facts.variables))
    if facts.plan:
        yield Sentence("plan", facts.plan)
    yield from _listed("bits", _bits(facts))
    yield from _listed("measured", map(_plan_times, facts.plans))
    if facts.precision is not None:
        yield Sentence("products", f"of float32 in {facts.precision}")
    if facts.padding is not None:
        padded = "calls of fewer rows, for code that was compiled for more"
        is_padded = facts.padding.padded
        yield Sentence("padded", padded if is_padded else f"no: {facts.padding.reason}")
    if (part := facts.in_blocks) is not None:
        by = "in a compiled loop" if part.is_compiled else "from Python"
        yield Sentence("blocks", f"{part.blocks:,} on rank 0, {by}")
    if facts.bytes_kept:
        size = f"{facts.bytes_kept:,} bytes on rank 0"
        yield Sentence("kept", f"terms of the data alone, {size}")
    if (shapes := facts.shapes_compiled) is not None:
        text = f"by JAX, on rank 0 for {count(shapes, 'shape')} of arguments"
        yield Sentence("compiled", text)
    if facts.calls is not None or facts.calls_alone is None:
        yield Sentence("calls", _calls(facts.calls))
    if (alone := facts.calls_alone) is not None:
        text = f"{_counted(alone)} by rank 0 alone"
        if alone.counted:
            mean = milliseconds(alone.milliseconds)
            text += f"; {number(alone.rows)} rows; mean {mean}"
        yield Sentence("calls", text)


def time_sentences(facts: Facts) -> Iterator[Sentence]:
    """Yield sentences about times, except the ranks' phases, which are bars."""
    yield from _listed("exchanged", _between_nodes(facts.nodes))
    calls, speed_up, serial = facts.calls, facts.speed_up, facts.serial
    if calls is not None and calls.ranks and not calls.all_ranks_known:
        yield Sentence("", "the other ranks' times ended with their session")
    if facts.exchanges is not None:
        yield from _listed("exchanges", _exchanges(facts.exchanges))
    how = {"predicted": "predicted from the ranks' times", "measured": "measured"}
    texts = [f"{v:.2f} {how[key]}" for key, v in speed_up.items() if v is not None]
    if texts:
        yield Sentence("speed-up", ", ".join(texts))
    if serial is not None:
        took, cores = milliseconds(serial.milliseconds), count(serial.cores, "core")
        yield Sentence("serial run", f"{took} for {serial.rows:,} rows on {cores}")


def _listed(label: str, texts: Iterator[str] | Sequence[str]) -> Iterator[Sentence]:
    """Yield sentences for texts below one label."""
    for i, text in enumerate(texts):
        yield Sentence("" if i else label, text)


# -- sentences


def levels(stages: list[StageFacts]) -> Iterator[tuple[int, StageFacts | None]]:
    """Yield (level, stage) for stages to show, and (number, None) for the others."""
    between = len(stages) - _FIRST - _LAST
    for level, stage in enumerate(stages):
        if between <= 0 or not _FIRST <= level < len(stages) - _LAST:
            yield level, stage
        elif level == _FIRST:
            yield between, None


def sizes(stage: StageFacts) -> str:
    """Return the bytes of each dtype that a stage reduces, in words."""
    return ", ".join(f"{nbytes(n)} of {dtype}" for dtype, n in stage.bytes.items())


def reductions(stage: StageFacts) -> list[str]:
    """Return a text for each value that a stage reduces, with what needs it."""
    return first(list(map(_reduced, stage.reduces)))


def plan_table(title: str, plans: list[PlanTimes]) -> str:
    """Return a table of the measured times of a function's plans."""
    if not plans:
        return f"{title}: there is one plan for it"
    return "\n  ".join([title, *map(_plan_times, plans)])


def _output(output: Output) -> Sentence:
    # The name has the form "output 0 (loss)".
    words = output.name.split(" ", 2)
    label, name = " ".join(words[:2]), words[2][1:-1]
    # An output without a name, shown as an Op with "(...)", gets its line as well.
    where = _in(output.made) if name.endswith(")") else ""
    shown = output.kind
    if output.reason is not None:
        shown = f"not shown: {output.reason}"
        if not (where and output.made == output.reason_made):
            shown += _in(output.reason_made)
    op = output.op or ("the same on all ranks" if output.agrees else "rank 0's own")
    by = ", as named" if output.named else ""
    fits = "" if output.agrees or output.reason else " (another op is shown)"
    text = f"{short(name)}{where}: {op}{by}; {shown}{fits}; {output.combined}"
    return Sentence(label, text)


def _reduced(value: Reduced) -> str:
    where = _at(value.made) if _at(value.made) != _at(value.why_made) else ""
    op = "all rows" if value.op == "read" else value.op
    return (
        f"{op} of {short(value.name)}{where}, {nbytes(value.bytes)},"
        f" {value.why}{_in(value.why_made)}"
    )


def _repeated(found: Repeated) -> str:
    needed = first([f"{op.name}{_in(op.made)}" for op in found.by], _FEW)
    verb = "needs" if len(found.by) == 1 else "need"
    text = f"{', '.join(needed)} {verb} all rows, {nbytes(found.bytes)}"
    if found.ops:
        some_of = f"{found.ops} of the {found.of} Ops on rows"
        text += f": every rank computes {some_of} from all of them"
    if found.milliseconds is None:
        return text
    return f"{text}; in up to {milliseconds(found.milliseconds)} of a call"


def _held(held: Held) -> str:
    text = f"{some(held.names)}: {held.state}"
    if held.times_brought:
        many = count(held.times_brought, "time")
        text += f" (sent to each rank {many}, {nbytes(held.bytes_brought)})"
    return text


def _bits(facts: Facts) -> Iterator[str]:
    """Yield texts that say if the bits of outputs and updates depend on the ranks."""
    named = [(f"output {i}", each.bits) for i, each in enumerate(facts.outputs)]
    named += [(short(each.name), each.bits) for each in facts.updates]
    found: dict[Bits, list[str]] = {}
    for name, bits in named:
        if bits is not None:
            found.setdefault(bits, []).append(name)
    for bits, names in found.items():
        of = "" if len(found) == 1 else f" of {some(names)}"
        yield f"{bits.on}{of}" + (f", as {bits.why}" if bits.why else "")


def _plan_times(plan: PlanTimes) -> str:
    if plan.failed is not None:
        return f"{plan.name}; {plan.failed}"
    text = f"{plan.name}: {plan.milliseconds:,.3g} ms"
    if plan.first_call is not None:
        text += f", the first call {plan.first_call:.1f} s"
    return text + "; makes the calls" * plan.is_best


def _counted(calls: Calls | CallsAlone) -> str:
    text = f"{calls.counted:,}"
    if calls.left_out:
        text += f" (and {calls.left_out} after a compilation, not counted)"
    return text


def _calls(calls: Calls | None) -> str:
    """Return the number of calls, their mean rows and bytes, and their mean time."""
    if calls is None:
        return "none yet"
    text = _counted(calls)
    if calls.milliseconds is None:
        return text
    if calls.rows is not None:
        text += f"; {number(calls.rows)} rows, {nbytes(calls.scattered_bytes)}"
        text += f" scattered, {nbytes(calls.reduced_bytes)} all-reduced"
    return f"{text}; mean {milliseconds(calls.milliseconds)}"


def _between_nodes(nodes: list[NodeFacts]) -> Iterator[str]:
    """Yield a text for each node: its exchanges with other nodes in a call."""
    for i, node in enumerate(nodes):
        found = node.exchanged
        if found is None:
            continue
        text = "nothing"
        if found.times:
            met, took = map(milliseconds, (found.meeting, found.milliseconds))
            text = f"{count(found.times, 'time')} in a call; {met} until all nodes had"
            text += f" met, then {nbytes(found.bytes)} sent in {took}"
        yield f"{node_name(i, node)}: {text}"


def node_name(number: int, node: NodeFacts) -> str:
    """Return a node's number and host in words."""
    return f"node {number} ({short(node.host)})"


def _exchanges(made: Exchanges) -> Iterator[str]:
    """Yield texts about a training rule's exchanges: times, waits, staleness."""
    yield f"{made.rule}, {nbytes(made.bytes)} of parameters"
    for row in made.ranks:
        text = f"rank {row.rank}: {row.exchanges:,} exchanges"
        if row.exchanges:
            each, wait = milliseconds(row.milliseconds), milliseconds(row.wait)
            waits = count(row.waits, "wait")
            text += f", {each} each, {wait} of it waiting ({waits})"
            text += f"; staleness {row.staleness:.1f}, at most {row.most_stale}"
        yield text


# -- parts of sentences


def count(number_of: float, what: str) -> str:
    """Return a number with the noun that it counts, in the plural if it is not 1.

    >>> count(1, "rank"), count(1_200, "time"), count(0.5, "time")
    ('1 rank', '1,200 times', '0.5 times')
    """
    return f"{number(number_of)} {what}{'s' * (number_of != 1)}"


def number(value: float) -> str:
    """Return a number with commas, and one decimal if it is no whole number.

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
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value is not None and value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{'?' if value is None else value} B"


def first(texts: list[str], most: int = _MOST, what: str = "") -> list[str]:
    """Return the first `most` texts, and one that counts the others."""
    more = len(texts) - most
    return [*texts[:most], f"and {more} more{what}"] if more > 0 else texts


def some(names: list[str]) -> str:
    """Return the first names, shortened, and the number of others."""
    return ", ".join(first(list(map(short, names))))


def short(name: str) -> str:
    """Return a name; of a long one both ends, with dots between."""
    name = " ".join(name.split())
    if len(name) <= _LONGEST:
        return name
    half = (_LONGEST - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _at(made: str | None) -> str:
    """Return the place of a line of `made_in`, as " (fit.py:12)"; "" for None."""
    place = (made or "").split("`")[0].removesuffix(": ")
    return f" ({place})" if place else ""


def _in(made: str | None) -> str:
    return f" ({made})" if made else ""
