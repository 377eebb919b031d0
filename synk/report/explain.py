"""`Function.explain`: what a call is going to do, and where the time of calls went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.type import DenseTensorType

from ..compiler.rules.base import name
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Stage
from ..programs.programs import Programs
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from ..times.timing import PHASES, WAIT, Timed, Times
from ..user_frames import made_in
from .explain_text import milliseconds, nbytes, render

LAUNCH = 50e-6
"""Seconds that a call costs on top of its computation, at the least; for functions that
have not been called in a session."""


class Explanation:
    """What :meth:`Function.explain` returns: print it, or take its dict.

    The text has at most 100 columns. What it says of times comes from these rules:

    * A rank's time in a call is divided into taking *rows*, computing (*compute*),
      copying values to buffers and reducing them (*reduce*), and waiting for other
      ranks (*wait*). An all-reduce of up to 2 kB counts as waiting.
    * The call that follows a compilation is left out. JAX compiles for every shape, at
      the first call that brings it, and such calls are not told from others: that they
      are few can be seen from the number of shapes.
    * The *predicted* speed-up takes one rank to need the time that all ranks need for
      their rows and computations together; what no row enters, and so every rank
      computes, counts once. It is that time over the time of a call. One rank alone
      could do better: it has all cores for itself, and all of the memory's speed.
    * The *measured* speed-up is the time of a serial run of as many rows over the time
      of a call. It is known after ``explain(..., measure=True)``, or the second call
      with ``check="serial"`` or of ``as_theano``.
    * What keeps a call from taking one n-th of the serial time is divided into
      launching and joining the ranks, ranks that wait as another has more to do,
      reducing, what every rank repeats, and parts that together take longer than the
      serial run.

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

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, strings and numbers; times in ms."""
        return self._content

    def __str__(self) -> str:
        return render(self._content)

    def __repr__(self) -> str:
        return f"<synk.Explanation of {self._content['name']}>"


def explain(
    title: str,
    spec: FunctionSpec,
    programs: Programs,
    in_session: bool,
    serial: Timed | None,
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
    serial : Timed or None
    """
    stages = _stages(spec, programs)
    content: dict[str, Any] = {
        "name": title,
        "ranks": SESSION.size if SESSION.state == "running" else None,
        "inputs": {
            "scattered": _typed(spec.inputs),
            "broadcast": _typed(spec.bcast_inputs),
            "sliceable": _typed(spec.sliceable),
        },
        "outputs": _outputs(spec),
        "stages": stages,
        "updates": _updates(spec),
        "precision": spec.precision,
        "padding": _padding(spec, programs),
        "shapes_compiled": programs.shapes_compiled(),
        "calls": None,
        "serial": None,
        "speed_up": {"predicted": None, "measured": None},
        "lost": None,
        "verdict": None,
    }
    if serial is not None:
        content["serial"] = {
            "milliseconds": serial.seconds * 1e3,
            "rows": serial.rows,
            "cores": serial.cores,
        }
    times = programs.times
    if times.counted + times.left_out:
        content["calls"] = _calls(programs, in_session, stages)
    _judge(content)
    return Explanation(content)


# -- the plan


def _typed(variables: Sequence[Variable]) -> list[dict[str, str]]:
    return [{"name": str(var), "type": _type(var)} for var in variables]


def _type(var: Variable) -> str:
    if not isinstance(var.type, DenseTensorType):
        return str(var.type)
    lengths = ["?" if length is None else str(length) for length in var.type.shape]
    return f"{var.type.dtype} ({', '.join(lengths)}{',' * (len(lengths) == 1)})"


def _outputs(spec: FunctionSpec) -> list[dict[str, Any]]:
    found = []
    for i, finding in enumerate(spec.findings):
        in_stage = spec.output_ops[i] is not None and spec.wire_ops[i] is None
        found.append(
            {
                "name": finding.what,
                "op": spec.output_ops[i],
                "named": finding.named,
                "kind": finding.kind,
                "agrees": finding.agrees,
                "reason": finding.reason,
                "made": finding.made,
                "reason_made": finding.reason_made,
                "combined": "combined in a stage"
                if in_stage
                else "combined after the call",
            }
        )
    return found


def _updates(spec: FunctionSpec) -> list[dict[str, Any]]:
    own = spec.row_values([new for _, new in spec.updates])
    return [
        {"name": str(shared), "type": _type(shared), "from_own_rows": new in own}
        for shared, new in spec.updates
    ]


def _padding(spec: FunctionSpec, programs: Programs) -> dict[str, Any] | None:
    if not spec.pad:
        return None
    reason: str | None = "this mode compiles once for all shapes"
    if programs.padding is not None:
        reason = programs.padding.reason
    return {"padded": programs.is_padded, "reason": reason}


def _stages(spec: FunctionSpec, programs: Programs) -> list[dict[str, Any]]:
    stages = programs.cut("step", tuple(range(len(spec.outputs)))).stages
    return [_stage(stage, spec, programs) for stage in stages]


def _stage(stage: Stage, spec: FunctionSpec, programs: Programs) -> dict[str, Any]:
    reduces = []
    total: dict[str, int | None] = {}
    for var, given in zip(stage.reduced, stage.contributed, strict=True):
        op = var.owner.op
        shape = _shape(var, spec, programs)
        dtype = var.type.dtype
        size = None
        if shape is not None:
            size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        what = f"gradient of {op.gradient}" if op.gradient else name(given)
        reduces.append(
            {
                "name": what,
                "op": op.op,
                "dtype": dtype,
                "bytes": size,
                "made": made_in(var) or made_in(given),
            }
        )
        before = total.get(dtype, 0)
        total[dtype] = None if size is None or before is None else before + size
    return {
        "computes": _computes(stage),
        "reduces": reduces,
        "bytes": total,
    }


def _computes(stage: Stage) -> str:
    if stage.rows:
        return "on rows"
    return "on every rank" if stage.common else "nothing"


def _shape(
    var: Variable, spec: FunctionSpec, programs: Programs
) -> tuple[int, ...] | None:
    """Return a reduced value's shape: seen in a call, or else known beforehand."""
    shape = programs.shapes.get(var, var.type.shape)
    if None not in shape:
        return shape
    wrt = var.owner.op.gradient
    of_that_name = [
        shared for shared in spec.shared_variables() if wrt and str(shared) == wrt
    ]
    if len(of_that_name) != 1:
        return None
    return of_that_name[0].get_value(borrow=True).shape


# -- the calls


def worker_times(context: RankContext, number: int) -> list:
    """Return this rank's times of a function."""
    return _told(context.registry.functions[number].times)


def _told(times: Times) -> list:
    return [times.counted, times.rows, times.seconds]


def _calls(programs: Programs, in_session: bool, stages: list) -> dict[str, Any]:
    times = programs.times
    told = [_told(times)]
    all_known = SESSION.state == "running" and in_session
    if all_known and SESSION.size > 1:
        told = SESSION.run(worker_times, programs.number)
    calls: dict[str, Any] = {
        "counted": times.launches,
        "left_out": times.left_out,
        "all_ranks_known": all_known,
        "rows": None,
        "scattered_bytes": None,
        "reduced_bytes": None,
        "milliseconds": None,
        "ranks": [],
    }
    if not times.counted or not times.launches:
        return calls
    span = sum(times.seconds) / times.counted
    for rank, (counted, rows, seconds) in enumerate(told):
        mean = [value / counted if counted else 0.0 for value in seconds]
        mean[WAIT] += max(0.0, span - sum(mean))  # for the launch, and in the end
        row = {phase: mean[i] * 1e3 for i, phase in enumerate(PHASES)}
        row["compute"] += row["common"]
        share = rows / counted if counted else 0.0
        calls["ranks"].append({"rank": rank, "share": share, **row})
    if all_known:
        calls["rows"] = sum(row["share"] for row in calls["ranks"])
        calls["scattered_bytes"] = round(calls["rows"] * times.row_bytes)
        sizes = [size for stage in stages for size in stage["bytes"].values()]
        if SESSION.size == 1:
            calls["reduced_bytes"] = 0
        elif None not in sizes:
            calls["reduced_bytes"] = sum(sizes)
    calls["milliseconds"] = times.launched / times.launches * 1e3
    return calls


# -- what follows


def _judge(content: dict[str, Any]) -> None:
    """Add speed-ups, losses and the verdict."""
    calls, serial = content["calls"], content["serial"]
    if calls is None or calls["milliseconds"] is None:
        if serial is not None and serial["milliseconds"] < LAUNCH * 1e3:
            content["verdict"] = (
                "One rank would be faster: the plain function takes"
                f" {milliseconds(serial['milliseconds'])}, and launching and joining"
                " other ranks takes longer"
            )
        return
    ranks, call = calls["ranks"], calls["milliseconds"]
    if not calls["all_ranks_known"] or len(ranks) == 1:
        return
    comparable = serial is not None and abs(serial["rows"] - calls["rows"]) < 0.5
    measured = serial["milliseconds"] if comparable else None
    lost = _losses(ranks, call, measured)
    alone = lost.pop("alone")
    content["lost"] = lost
    content["speed_up"] = {
        "predicted": alone / call,
        "measured": None if measured is None else measured / call,
    }
    one = alone if measured is None else measured
    if one < call:
        alone_takes = "it would take about" if measured is None else "alone it takes"
        content["verdict"] = (
            f"One rank would be faster: {alone_takes} {milliseconds(one)}, and a call"
            f" takes {milliseconds(call)}. Most of that is lost by"
            f" {_main_loss(lost, ranks, calls)}"
        )


def _losses(ranks: list[dict], call: float, serial: float | None) -> dict[str, float]:
    """Divide the time of a call into that of one n-th of the work, and what is lost.

    ``call = alone / n + launch + uneven + reduce + repeated``, where ``alone`` is the
    time that one rank would need. If the serial run is faster than that, ``parts`` is
    what its n-th is below this one's.
    """
    n = len(ranks)
    common = [row["common"] for row in ranks]
    work = [row["rows"] + row["compute"] - row["common"] for row in ranks]
    reduce = [row["reduce"] for row in ranks]
    busy = [sum(parts) for parts in zip(work, common, reduce, strict=True)]
    alone = sum(work) + max(common)
    return {
        "alone": alone,
        "launch": max(0.0, call - max(busy)),
        "uneven": max(busy) - sum(busy) / n,
        "reduce": sum(reduce) / n,
        "repeated": max(0.0, sum(common) - max(common)) / n,
        "parts": 0.0 if serial is None else max(0.0, alone - serial) / n,
    }


def _main_loss(lost: dict[str, float], ranks: list[dict], calls: dict) -> str:
    main = max(lost, key=lambda key: lost[key])
    took = f"({milliseconds(lost[main])})"
    if main == "launch":
        return f"launching, joining and meeting {took}"
    if main == "uneven":
        slowest = min(ranks, key=lambda row: row["wait"])["rank"]
        return f"waiting for rank {slowest}, which has the most to do {took}"
    if main == "reduce":
        return f"reducing {nbytes(calls['reduced_bytes'])} {took}"
    if main == "repeated":
        return f"what every rank computes, as no rows enter it {took}"
    return (
        f"parts that together take longer than the whole {took}: the serial run uses"
        " all cores by itself, memory is the limit, or other programs use the cores"
    )
