"""Giving ranks what the master has: shared variables and functions."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from pytensor.compile import SharedVariable

from .compiler.graphs import dump_graph, load_graph
from .compiler.programs import Programs
from .compiler.registry import Blueprint
from .session import SESSION, Session
from .timing import Times


def master_replicate_variables(variables: Sequence[SharedVariable]) -> list[int]:
    """Make replicas of variables that the ranks do not have; return their numbers.

    A replica starts with the master's present value. Later the ranks' values are their
    own; the collectives move them.
    """
    numbers = SESSION.numbers
    new = [var for var in dict.fromkeys(variables) if var not in numbers]
    try:
        for var in new:
            number = numbers.add(var)
            SESSION.registry.variables[number] = var
            weakref.finalize(var, SESSION.notify, "variable", number).atexit = False
        if new and SESSION.size > 1:
            blueprints = {numbers[var]: Blueprint(var) for var in new}
            SESSION.run(worker_replicate_variables, dump_graph(blueprints, numbers))
    except BaseException:
        # The ranks may not have them, after an interrupt: another time, another number.
        for var in new:
            numbers.drop(var)
        raise
    return [numbers[var] for var in variables]


def worker_replicate_variables(session: Session, data: bytes) -> None:
    """Build this rank's replicas; the master has the originals."""
    if session.rank:
        for number, blueprint in load_graph(data, {}).items():
            session.registry.variables[number] = blueprint.build(session.rank)


def master_replicate_function(number: int, programs: Programs) -> None:
    """Send a function's graph to the ranks, with the variables it needs."""
    spec = programs.spec
    master_replicate_variables(spec.shared_variables())
    order = [SESSION.numbers[var] for var, _ in spec.updates]
    programs.number_updates(order)
    programs.times = Times(programs.times.label)  # as on the new ranks
    SESSION.registry.functions[number] = programs
    if SESSION.size > 1:
        graph = dump_graph(spec, SESSION.numbers)
        SESSION.run(worker_replicate_function, number, graph, order)


def worker_replicate_function(
    session: Session, number: int, graph: bytes, order: list[int]
) -> None:
    """Rebuild the graph on this rank's own variables."""
    if session.rank:
        spec = load_graph(graph, session.registry.variables)
        programs = session.registry.functions[number] = Programs(number, spec)
        programs.number_updates(order)
