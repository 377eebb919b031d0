"""`Function.explain`: gathers the facts from a function's spec, stages and times.

`explanation` shows them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from ..choice.plan import Plan
from ..compiler.spec import FunctionSpec
from ..programs.programs import Programs
from ..ranks.context import RankContext
from ..ranks.forking import nodes as synk_nodes
from ..ranks.session import SESSION
from ..times.timing import NODES, PHASES, WAIT, ExchangeTimes, Timed, Times
from . import facts
from .bits import bits_of
from .explanation import Explanation
from .stages import draw_facts, in_all, own_facts, repeated_facts, stage_facts
from .words import milliseconds, nbytes

Conclusions = tuple[dict[str, float | None], dict[str, float] | None, str | None]
"""`speed_up`, `lost` and `verdict` of `Facts`."""


def explain(
    title: str,
    spec: FunctionSpec,
    programs: Programs,
    in_session: bool,
    timed: Timed | None,
    variables: list[facts.Held],
    plans: tuple[Plan, list[facts.PlanTimes]],
    alone: Times,
    graph: bool = False,
) -> Explanation:
    """Return the explanation of a function, with its plan and, after calls, its times.

    `programs` are the master's, and `in_session` is whether ranks of the present
    session have the function. `timed` is a serial run, if one was measured, `variables`
    how ranks hold the shared variables, `plans` the plan of calls, and what `synk.tune`
    has measured. `alone` has the times of calls that rank 0 has made alone.
    """
    stages = stage_facts(spec, programs)
    all_known = SESSION.state == "running" and in_session
    spent = _times_of_ranks(programs, all_known)
    calls = serial = None
    if timed is not None:
        serial = facts.Serial(timed.seconds * 1e3, timed.rows, timed.cores)
    if programs.times.counted + programs.times.left_out:
        calls = _calls(programs, all_known, stages, spent)
    made = programs.exchanges
    exchanges = None if made is None else _exchanges(made, spent)
    # With one rank, a training rule would make other steps: no speed-up.
    speed_up, lost, verdict = conclude(calls if made is None else None, serial)
    plan, measured = plans
    of_outputs, of_updates = bits_of(spec, plan)
    last = programs.blocks.last
    padding = None
    if spec.pad:
        reason: str | None = "this mode compiles once for all shapes"
        if programs.padding is not None:
            reason = programs.padding.reason
        padding = facts.PaddingFacts(programs.is_padded, reason)
    return Explanation(
        facts.Facts(
            name=title,
            ranks=SESSION.size if SESSION.state == "running" else None,
            inputs={
                "scattered": _typed(spec.inputs),
                "broadcast": _typed(spec.bcast_inputs),
                "sliceable": _typed(spec.sliceable),
            },
            outputs=_outputs(spec, of_outputs),
            stages=stages,
            repeated=repeated_facts(spec, programs, stages, calls),
            own_statistics=own_facts(spec),
            updates=_updates(spec, of_updates),
            precision=spec.precision,
            padding=padding,
            shapes_compiled=programs.shapes_compiled(),
            calls=calls,
            serial=serial,
            speed_up=speed_up,
            lost=lost,
            verdict=verdict,
            variables=variables,
            plan=str(plan),
            plans=measured,
            calls_alone=_calls_alone(alone),
            in_blocks=None if last is None else facts.InBlocks(*last),
            bytes_kept=programs.kept_terms.nbytes,
            draws=draw_facts(spec, programs),
            exchanges=exchanges,
            nodes=_nodes(spent if calls is not None and all_known else None),
        ),
        graph,
    )


# -- the plan


def _typed(variables: Sequence[Variable]) -> list[facts.Input]:
    return [facts.Input(str(var), _type(var)) for var in variables]


def _type(var: Variable) -> str:
    if not isinstance(var.type, DenseTensorType):
        return str(var.type)
    lengths = ["?" if length is None else str(length) for length in var.type.shape]
    return f"{var.type.dtype} ({', '.join(lengths)}{',' * (len(lengths) == 1)})"


def _outputs(
    spec: FunctionSpec, bits: Sequence[facts.Bits | None]
) -> list[facts.Output]:
    found = []
    for i, finding in enumerate(spec.findings):
        in_stage = spec.output_ops[i] is not None and spec.wire_ops[i] is None
        where = "in a stage" if in_stage else "after the call"
        found.append(
            facts.Output(
                name=finding.what,
                op=spec.output_ops[i],
                named=finding.named,
                kind=finding.kind,
                agrees=finding.agrees,
                reason=finding.reason,
                made=finding.made,
                reason_made=finding.reason_made,
                combined=f"combined {where}",
                bits=bits[i],
            )
        )
    return found


def _updates(
    spec: FunctionSpec, bits: Sequence[facts.Bits | None]
) -> list[facts.Update]:
    own = spec.row_values([new for _, new in spec.updates])
    # `spec.updates` may have more: updates of streams that all ranks share.
    every = zip(spec.plain_updates, spec.updates, bits, strict=False)
    return [
        facts.Update(str(shared), _type(shared), new in own, of_it)
        for (shared, _), (_, new), of_it in every
    ]


# -- the calls


class OwnTimes(NamedTuple):
    """A rank's times of calls and exchanges, without their tracers."""

    calls: Times
    exchanges: ExchangeTimes | None


def worker_times(context: RankContext, number: int) -> OwnTimes:
    """Return this rank's times of a function."""
    return _own_times(context.functions[number])


def _own_times(programs: Programs) -> OwnTimes:
    exchanges = programs.exchanges
    if exchanges is not None:
        exchanges = dataclasses.replace(exchanges, tracer=None)
    return OwnTimes(dataclasses.replace(programs.times, tracer=None), exchanges)


def _times_of_ranks(programs: Programs, all_known: bool) -> list[OwnTimes]:
    """Return the times of all ranks, or of rank 0 alone if others' are unknown."""
    times = programs.times
    has_any = times.counted + times.left_out or programs.exchanges is not None
    if has_any and all_known and SESSION.size > 1:
        return SESSION.run(worker_times, programs.number)
    return [_own_times(programs)]


def _calls(
    programs: Programs,
    all_known: bool,
    stages: list[facts.StageFacts],
    spent: list[OwnTimes],
) -> facts.Calls:
    times = programs.times
    if not times.counted or not times.launches:
        return facts.Calls(times.launches, times.left_out, all_known)
    span = sum(times.seconds) / times.counted
    owners = [i for i, node in enumerate(synk_nodes()) for _ in range(node.ranks)]
    ranks = [_of_rank(i, owners[i], spent[i].calls, span) for i in range(len(spent))]
    rows = scattered = reduced = None
    if all_known:
        rows = sum(row.share for row in ranks)
        scattered = round(rows * times.row_bytes)
        sizes = [size for stage in stages for size in stage.bytes.values()]
        reduced = in_all(sizes) if SESSION.size > 1 else 0
    mean = times.launched / times.launches * 1e3
    counts = times.launches, times.left_out, all_known
    return facts.Calls(*counts, rows, scattered, reduced, mean, ranks)


def _of_rank(rank: int, node: int, times: Times, span: float) -> facts.RankTimes:
    """Return a rank's mean times; `span` is the sum of rank 0's, in seconds."""
    counted = times.counted
    mean = [value / counted if counted else 0.0 for value in times.seconds]
    mean[WAIT] += max(0.0, span - sum(mean))  # the wait before and after the call
    phases = {phase: mean[i] * 1e3 for i, phase in enumerate(PHASES)}
    phases["compute"] += phases["common"]
    share = times.rows / counted if counted else 0.0
    return facts.RankTimes(rank, share, **phases, node=node)


def _calls_alone(times: Times) -> facts.CallsAlone | None:
    if not times.counted + times.left_out:
        return None
    counted, launches = max(1, times.counted), max(1, times.launches)
    mean = times.launched / launches * 1e3
    return facts.CallsAlone(times.launches, times.left_out, times.rows / counted, mean)


def _nodes(spent: list[OwnTimes] | None) -> list[facts.NodeFacts]:
    """Return facts of several nodes, with their masters' exchanges; [] for one node."""
    nodes = synk_nodes()
    if len(nodes) == 1 or SESSION.state != "running":
        return []
    found, first = [], 0
    for node in nodes:
        made = None
        if spent is not None and (counted := spent[first].calls.counted):
            times = spent[first].calls
            exchanges, meeting, sent = (value / counted for value in times.between)
            took = times.seconds[NODES] / counted * 1e3
            made = facts.Exchanged(exchanges, round(sent), meeting * 1e3, took)
        found.append(facts.NodeFacts(node.host, node.ranks, made))
        first += node.ranks
    return found


def _exchanges(times: ExchangeTimes, spent: list[OwnTimes]) -> facts.Exchanges:
    ranks = []
    for rank, of_rank in enumerate(spent):
        own = of_rank.exchanges
        assert own is not None  # all ranks are workers, or none is
        of_all = own.seconds * 1e3, own.waiting * 1e3, own.staleness
        took, wait, stale = (value / max(own.counted, 1) for value in of_all)
        ages = own.waits, stale, own.most_stale
        ranks.append(facts.ExchangesOfRank(rank, own.counted, took, wait, *ages))
    return facts.Exchanges(times.rule, times.nbytes, ranks)


# -- conclusions from times: speed-ups, losses, and the verdict


def conclude(calls: facts.Calls | None, serial: facts.Serial | None) -> Conclusions:
    """Return conclusions from the times of calls and of the serial run."""
    if (
        calls is None
        or calls.milliseconds is None
        or calls.rows is None  # as the times of other ranks are unknown
        or len(calls.ranks) == 1
    ):
        return {"predicted": None, "measured": None}, None, None
    call, verdict = calls.milliseconds, None
    comparable = serial is not None and abs(serial.rows - calls.rows) < 0.5
    measured = serial.milliseconds if serial is not None and comparable else None
    alone = time_alone(calls.ranks)
    lost = losses(calls.ranks, call, measured)
    one = alone if measured is None else measured
    if one < call:
        alone_takes = "it would take about" if measured is None else "alone it takes"
        verdict = (
            f"One rank would be faster: {alone_takes} {milliseconds(one)}, and a call"
            f" takes {milliseconds(call)}. Most of that is lost by"
            f" {_main_loss(lost, calls)}"
        )
    ratio = None if measured is None else measured / call
    return {"predicted": alone / call, "measured": ratio}, lost, verdict


def time_alone(ranks: list[facts.RankTimes]) -> float:
    """Return the time one rank would need: all ranks' work, and common work once."""
    return sum(_work(row) for row in ranks) + max(row.common for row in ranks)


def losses(
    ranks: list[facts.RankTimes], call: float, serial: float | None
) -> dict[str, float]:
    """Return the parts of a call's time beyond 1 / n of the work, by cause.

    ``call = alone / n + launch + uneven + reduce + nodes + repeated``, where ``alone``
    is the time that one rank would need, and ``nodes`` that of exchanges between nodes.
    If the serial run is faster than ``alone``, ``parts`` is 1 / n of the difference.
    """
    n = len(ranks)
    common = [row.common for row in ranks]
    busy = [_work(row) + row.common + row.reduce + row.nodes for row in ranks]
    alone = time_alone(ranks)
    return {
        "launch": max(0.0, call - max(busy)),
        "uneven": max(busy) - sum(busy) / n,
        "reduce": sum(row.reduce for row in ranks) / n,
        "repeated": max(0.0, sum(common) - max(common)) / n,
        "parts": 0.0 if serial is None else max(0.0, alone - serial) / n,
        "nodes": sum(row.nodes for row in ranks) / n,
    }


def _work(row: facts.RankTimes) -> float:
    return row.rows + row.compute - row.common


def _main_loss(lost: dict[str, float], calls: facts.Calls) -> str:
    main = max(lost, key=lambda cause: lost[cause])
    slowest = min(calls.ranks, key=lambda row: row.wait).rank
    size = nbytes(calls.reduced_bytes)
    said = {
        "launch": "launching, joining and meeting {}",
        "uneven": f"waiting for rank {slowest}, which has the most to do {{}}",
        "reduce": f"reducing {size} {{}}",
        "nodes": f"exchanging {size} between nodes {{}}",
        "repeated": "what every rank computes, as no rows enter it {}",
        "parts": "parts that together take longer than the whole {}: the serial run"
        " uses all cores by itself, memory is the limit, or other programs use the"
        " cores",
    }
    return said[main].format(f"({milliseconds(lost[main])})")
