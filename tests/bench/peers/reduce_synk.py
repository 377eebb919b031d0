"""All-reduces by synk: on the ranks, in a function's graph, and of shared variables.

On the ranks they are timed as the other libraries' are, in a loop within one command.
``two buffers`` is what a stage of a function does: values that lie anywhere, results in
shared memory. ``in place`` is what `synk.all_reduce` does with variables that lie in
shared memory. The others are whole calls, with launch and join and Python around them.
"""

from contextlib import contextmanager

import numpy as np
import pytensor

import synk
from bench.reductions import extremes
from bench.timing import timed
from synk.ranks.replication import master_replicate_variables
from synk.ranks.session import SESSION
from synk.variables.collectives import worker_reduce


@contextmanager
def opened(options, place):
    with synk.session(options.ranks):
        found = {}
        for nbytes in options.nbytes:
            found |= on_the_ranks(nbytes) | in_place(nbytes)
            found |= in_a_graph(nbytes) | of_variables(nbytes)
        yield found


def on_the_ranks(nbytes):
    """Return the questions about a stage's reduction."""

    def check(_):
        return least_and_largest(SESSION.run(worker_check, nbytes))

    def time(calls):
        return max(SESSION.run(worker_time, nbytes, calls))

    return {
        f"check two buffers {nbytes}": check,
        f"time two buffers {nbytes}": time,
    }


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


def in_place(nbytes):
    """Return the questions about the reduction of a variable that lies in its place."""
    var = zeros(nbytes)
    (number,) = master_replicate_variables([var])

    def once():
        synk.all_reduce(var, "sum")  # gives it its place

    def time(calls):
        synk.broadcast(var, np.zeros(nbytes // 4, "float32"))
        once()
        return max(SESSION.run(worker_time_in_place, number, calls))

    found = whole_calls("in place", nbytes, once, var, var)
    return {**found, f"time in place {nbytes}": time}


def worker_time_in_place(context, number, calls):
    """Sum a variable of zeros so many times and return the seconds of one."""

    def once():
        worker_reduce(context, -1, [number], "sum", {}, None, True, [])

    return timed(once, context.comm.barrier)(calls)


def in_a_graph(nbytes):
    source, target = zeros(nbytes), zeros(nbytes)
    reduced = synk.ops.all_reduce(source, "sum")
    call = synk.function([], [], updates=[(target, reduced)])
    return whole_calls("in a graph", nbytes, call, source, target)


def of_variables(nbytes):
    var = zeros(nbytes)
    return whole_calls(
        "synk.all_reduce", nbytes, lambda: synk.all_reduce(var, "sum"), var, var
    )


def whole_calls(name, nbytes, call, source, target):
    """Return the questions about calls from the master."""

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
    return pytensor.shared(np.zeros(nbytes // 4, "float32"))


def least_and_largest(of_ranks):
    lows, highs = zip(*of_ranks, strict=True)
    return [min(lows), max(highs)]
