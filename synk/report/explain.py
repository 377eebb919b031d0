"""`Function.explain`: what a call is going to do, and where the time of calls went.

The facts are gathered here, from a function's spec, stages and times. What follows from
them is in `conclusions`, and how they are shown in `explanation`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from ..choice.plan import Plan
from ..cluster.node import Node
from ..compiler.spec import FunctionSpec
from ..programs.programs import Programs
from ..ranks.context import RankContext
from ..ranks.forking import nodes as synk_nodes
from ..ranks.session import SESSION
from ..times.exchanges import ExchangeTimes
from ..times.timing import NODES, PHASES, WAIT, Timed, Times
from . import facts
from .bits import bits_of
from .conclusions import conclude
from .explanation import Explanation
from .of_stages import draw_facts, own_facts, repeated_facts, stage_facts


def explain(
    title: str,
    spec: FunctionSpec,
    programs: Programs,
    in_session: bool,
    timed: Timed | None,
    variables: list[facts.Held],
    plans: tuple[Plan, list[facts.PlanTimes]],
    graph: bool = False,
) -> Explanation:
    """Gather the plan of a function and, after calls, its times.

    Parameters
    ----------
    title : str
    spec : FunctionSpec
    programs : Programs
        The master's.
    in_session : bool
        Whether the present session knows the function.
    timed : Timed or None
        The serial run.
    variables : list of facts.Held
        The shared variables, as ranks hold them.
    plans : tuple of (Plan, list of facts.PlanTimes)
        The plan of its calls, and what was measured of those that are possible.
    graph : bool
        Whether the stages are to be drawn.
    """
    stages = stage_facts(spec, programs)
    calls = serial = None
    nodes = _nodes()
    if timed is not None:
        serial = facts.Serial(timed.seconds * 1e3, timed.rows, timed.cores)
    if programs.times.counted + programs.times.left_out:
        told = _times(programs, in_session)
        calls = _calls(programs, in_session, stages, told)
        if calls.all_ranks_known:
            nodes = _exchanged(nodes, told)
    conclusions = conclude(calls, serial)
    plan, measured = plans
    bits = bits_of(spec, plan)
    exchanges = _exchanges(programs, in_session)
    if exchanges is not None:  # a step is a rank's own: one rank would make others
        conclusions = facts.Conclusions()
    return Explanation(
        facts.Facts(
            name=title,
            ranks=SESSION.size if SESSION.state == "running" else None,
            inputs=facts.Inputs(
                scattered=_typed(spec.inputs),
                broadcast=_typed(spec.bcast_inputs),
                sliceable=_typed(spec.sliceable),
            ),
            outputs=_outputs(spec, bits[0]),
            stages=stages,
            repeated=repeated_facts(spec, programs, stages, calls),
            own_statistics=own_facts(spec),
            updates=_updates(spec, bits[1]),
            precision=spec.precision,
            padding=_padding(spec, programs),
            shapes_compiled=programs.shapes_compiled(),
            calls=calls,
            serial=serial,
            speed_up=conclusions.speed_up,
            lost=conclusions.lost,
            verdict=conclusions.verdict,
            variables=variables,
            plan=str(plan),
            plans=measured,
            in_blocks=_in_blocks(programs),
            bytes_kept=programs.kept_terms.nbytes,
            draws=draw_facts(spec, programs),
            exchanges=exchanges,
            nodes=nodes,
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
                combined="combined in a stage"
                if in_stage
                else "combined after the call",
                bits=bits[i],
            )
        )
    return found


def _updates(
    spec: FunctionSpec, bits: Sequence[facts.Bits | None]
) -> list[facts.Update]:
    own = spec.row_values([new for _, new in spec.updates])
    # Streams that all ranks have alike may be updated besides.
    every = zip(spec.plain_updates, spec.updates, bits, strict=False)
    return [
        facts.Update(str(shared), _type(shared), new in own, of_it)
        for (shared, _), (_, new), of_it in every
    ]


def _in_blocks(programs: Programs) -> facts.InBlocks | None:
    last = programs.blocks.last
    return None if last is None else facts.InBlocks(*last)


def _padding(spec: FunctionSpec, programs: Programs) -> facts.Padding | None:
    if not spec.pad:
        return None
    reason: str | None = "this mode compiles once for all shapes"
    if programs.padding is not None:
        reason = programs.padding.reason
    return facts.Padding(programs.is_padded, reason)


# -- the calls


def worker_times(context: RankContext, number: int) -> list:
    """Return this rank's times of a function."""
    return _told(context.registry.functions[number].times)


def _told(times: Times) -> list:
    return [times.counted, times.rows, times.seconds, times.between]


def _is_known(in_session: bool) -> bool:
    """Tell whether all ranks have times of a function."""
    return SESSION.state == "running" and in_session


def _times(programs: Programs, in_session: bool) -> list:
    """Return the times of all ranks, or of rank 0 if others have none."""
    if _is_known(in_session) and SESSION.size > 1:
        return SESSION.run(worker_times, programs.number)
    return [_told(programs.times)]


def _calls(
    programs: Programs, in_session: bool, stages: list[facts.StageFacts], told: list
) -> facts.Calls:
    times = programs.times
    all_known = _is_known(in_session)
    if not times.counted or not times.launches:
        return facts.Calls(times.launches, times.left_out, all_known)
    span = sum(times.seconds) / times.counted
    owners = _owners(synk_nodes())
    ranks = [
        _of_rank(rank, owners[rank], counted, rows, seconds, span)
        for rank, (counted, rows, seconds, _) in enumerate(told)
    ]
    in_all = sum(row.share for row in ranks) if all_known else None
    return facts.Calls(
        counted=times.launches,
        left_out=times.left_out,
        all_ranks_known=all_known,
        rows=in_all,
        scattered_bytes=None if in_all is None else round(in_all * times.row_bytes),
        reduced_bytes=_reduced_bytes(stages) if all_known else None,
        milliseconds=times.launched / times.launches * 1e3,
        ranks=ranks,
    )


def _nodes() -> list[facts.NodeFacts]:
    """Return the nodes of the session, if there are several."""
    found = synk_nodes()
    if len(found) == 1 or SESSION.state != "running":
        return []
    return [facts.NodeFacts(node.host, node.ranks) for node in found]


def _owners(nodes: list[Node]) -> list[int]:
    """Return for each rank which node it is of."""
    return [i for i, node in enumerate(nodes) for _ in range(node.ranks)]


def _exchanged(nodes: list[facts.NodeFacts], told: list) -> list[facts.NodeFacts]:
    """Return the nodes with what their masters tell of counted calls."""
    found, first = [], 0
    for node in nodes:
        counted, _, seconds, (exchanges, meeting, nbytes) = told[first]
        if counted:
            each = meeting / counted * 1e3, seconds[NODES] / counted * 1e3
            made = facts.Exchanged(exchanges / counted, round(nbytes / counted), *each)
            node = dataclasses.replace(node, exchanged=made)
        found.append(node)
        first += node.ranks
    return found


def worker_exchanges(context: RankContext, number: int) -> list | None:
    """Return this rank's times of exchanges in a function's steps."""
    return _told_exchanges(context.registry.functions[number].exchanges)


def _told_exchanges(times: ExchangeTimes | None) -> list | None:
    if times is None:
        return None
    spent = times.counted, times.seconds, times.waiting, times.waits
    return [*spent, times.staleness, times.most_stale]


def _exchanges(programs: Programs, in_session: bool) -> facts.Exchanges | None:
    times = programs.exchanges
    if times is None:
        return None
    told = [_told_exchanges(times)]
    if SESSION.state == "running" and in_session and SESSION.size > 1:
        told = SESSION.run(worker_exchanges, programs.number)
    ranks = []
    for rank, of_rank in enumerate(told):
        assert of_rank is not None  # all ranks are workers, or none is
        counted, seconds, waiting, waits, staleness, most = of_rank
        each = [value / max(counted, 1) for value in (seconds, waiting, staleness)]
        found = facts.ExchangesOfRank(
            rank, counted, each[0] * 1e3, each[1] * 1e3, waits, each[2], most
        )
        ranks.append(found)
    return facts.Exchanges(times.rule, times.nbytes, ranks)


def _of_rank(
    rank: int, node: int, counted: int, rows: int, seconds: list[float], span: float
) -> facts.RankTimes:
    """Return a rank's means; `span` is the mean time of rank 0's phases in a call."""
    mean = [value / counted if counted else 0.0 for value in seconds]
    mean[WAIT] += max(0.0, span - sum(mean))  # for the launch, and in the end
    phases = {phase: mean[i] * 1e3 for i, phase in enumerate(PHASES)}
    phases["compute"] += phases["common"]
    share = rows / counted if counted else 0.0
    return facts.RankTimes(rank, share, **phases, node=node)


def _reduced_bytes(stages: list[facts.StageFacts]) -> int | None:
    if SESSION.size == 1:
        return 0
    sizes = [size for stage in stages for size in stage.bytes.values()]
    return None if None in sizes else sum(size or 0 for size in sizes)
