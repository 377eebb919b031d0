"""All-reduces of float32: by synk, by torch's Gloo and by MPI.

By synk they are made on the ranks, in a function's graph, and of shared variables. On
the ranks they are timed as the other libraries' are, in a loop within one command.
``two buffers`` is what a stage of a function does: values that lie anywhere, results in
shared memory. ``in place`` is what `synk.all_reduce` does with variables that lie in
shared memory. The others are whole calls, with launch and join and Python around them.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from bench.work import Options, Place, Question, timed

VERSIONS: dict[str, str] = {}
"""Of what is no package of Python's."""


class Reduction(NamedTuple):
    """A sum over the ranks of so many bytes."""

    fill: Callable[[float], object]  # sets all of this rank's values to a number
    call: Callable[[], object]
    result: Callable[[], np.ndarray]  # the sums, as they are on this rank


def questions(
    options: Options,
    place: Place,
    variants: dict[str, Callable[[int], Reduction]],
    together: Callable[[], object],
) -> dict[str, Question]:
    """Return the questions of an implementation whose ranks the driver asks."""
    found: dict[str, Question] = {}
    for name, variant in variants.items():
        for nbytes in options.nbytes:
            reduction = variant(nbytes)

            def check(_: int, reduction=reduction) -> list[float]:
                reduction.fill(place.rank + 1)
                together()
                reduction.call()
                return extremes(reduction.result())

            def time(number: int, reduction=reduction) -> float:
                reduction.fill(0)  # sums of zeros stay small
                return timed(reduction.call, together)(number)

            found[f"check {name} {nbytes}"] = check
            found[f"time {name} {nbytes}"] = time
    return found


def extremes(values: np.ndarray) -> list[float]:
    """Return the least and the largest value."""
    return [float(values.min()), float(values.max())]


@contextmanager
def of_gloo(options, place):
    """In place."""
    import torch
    import torch.distributed as dist
    from bench.peers.in_torch import begin_gloo

    begin_gloo(options, place)

    def in_place(nbytes):
        values = torch.zeros(nbytes // 4)
        return Reduction(values.fill_, lambda: dist.all_reduce(values), values.numpy)

    yield questions(options, place, {"in place": in_place}, dist.barrier)
    dist.destroy_process_group()


@contextmanager
def of_mpi(options, place):
    """In place, and from one buffer to another."""
    from mpi4py import MPI

    VERSIONS["MPI"] = MPI.Get_library_version().split(",")[0].strip()
    comm = MPI.COMM_WORLD

    def in_place(nbytes):
        values = np.zeros(nbytes // 4, "float32")
        call = lambda: comm.Allreduce(MPI.IN_PLACE, values)  # noqa: E731
        return Reduction(values.fill, call, lambda: values)

    def two_buffers(nbytes):
        values = np.zeros(nbytes // 4, "float32")
        results = np.zeros_like(values)
        call = lambda: comm.Allreduce(values, results)  # noqa: E731
        return Reduction(values.fill, call, lambda: results)

    variants = {"in place": in_place, "two buffers": two_buffers}
    yield questions(options, place, variants, comm.Barrier)


# -- by synk


@contextmanager
def of_synk(options, place):
    import synk

    with synk.session(options.ranks):
        found = {}
        for nbytes in options.nbytes:
            found |= on_the_ranks(nbytes) | of_variables(nbytes) | in_a_graph(nbytes)
        yield found


def on_the_ranks(nbytes):
    """Return the questions about a stage's reduction."""
    from synk.ranks.session import SESSION

    def check(_):
        return least_and_largest(SESSION.run(worker_check, nbytes))

    def time(calls):
        return max(SESSION.run(worker_time, nbytes, calls))

    return {f"check two buffers {nbytes}": check, f"time two buffers {nbytes}": time}


def worker_check(context, nbytes):
    """Sum once and return the extremes of this rank's results."""
    values, once = stage(context, nbytes)
    values.fill(context.rank + 1)
    (result,) = once()
    return extremes(result)


def worker_time(context, nbytes, calls):
    """Sum so many times and return the seconds of one."""
    values, once = stage(context, nbytes)
    values.fill(0)
    return timed(once, context.comm.barrier)(calls)


VALUES = {}
"""This rank's values, by their size."""


def stage(context, nbytes):
    """Return this rank's values, and what sums them."""
    values = VALUES.setdefault(nbytes, np.zeros(nbytes // 4, "float32"))
    fixed = ("bench", nbytes), [values], ["sum"], [1] * context.size
    return values, lambda: context.flat_buffers.reduce(*fixed)


def of_variables(nbytes):
    """Return the questions about the reduction of a variable, which has its place."""
    import synk
    from synk.ranks.replication import master_replicate_variables
    from synk.ranks.session import SESSION

    var = zeros(nbytes)
    (number,) = master_replicate_variables([var])

    def whole():
        synk.all_reduce(var, "sum")  # gives it its place

    def time(calls):
        synk.broadcast(var, np.zeros(nbytes // 4, "float32"))
        whole()
        return max(SESSION.run(worker_time_in_place, number, calls))

    found = whole_calls("synk.all_reduce", nbytes, whole, var, var)
    found[f"check in place {nbytes}"] = found[f"check synk.all_reduce {nbytes}"]
    return {**found, f"time in place {nbytes}": time}


def worker_time_in_place(context, number, calls):
    """Sum a variable of zeros so many times and return the seconds of one."""
    from synk.variables.collectives import worker_reduce

    def once():
        worker_reduce(context, -1, [number], "sum", {}, True, False)

    return timed(once, context.comm.barrier)(calls)


def in_a_graph(nbytes):
    import synk

    source, target = zeros(nbytes), zeros(nbytes)
    reduced = synk.ops.all_reduce(source, "sum")
    call = synk.function([], [], updates=[(target, reduced)])
    return whole_calls("in a graph", nbytes, call, source, target)


def whole_calls(name, nbytes, call, source, target):
    """Return the questions about calls from the master."""
    import synk

    def check(_):
        for rank in range(synk.size()):
            value = np.full(nbytes // 4, rank + 1, "float32")
            synk.set_value(rank, source, value)
        call()
        results = [synk.get_value(rank, target) for rank in range(synk.size())]
        return least_and_largest(map(extremes, results))

    def time(calls):
        synk.broadcast(source, np.zeros(nbytes // 4, "float32"))
        return timed(call)(calls)

    return {f"check {name} {nbytes}": check, f"time {name} {nbytes}": time}


def zeros(nbytes):
    import pytensor

    return pytensor.shared(np.zeros(nbytes // 4, "float32"))


def least_and_largest(of_ranks):
    lows, highs = zip(*of_ranks, strict=True)
    return [min(lows), max(highs)]
