"""Replicas: the master sends its shared variables and functions to the ranks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from ..compiler.spec import FunctionSpec
from ..engines import compiles_in_calls, describe_mode, engine_for, host
from ..engines.numba_code import ignoring
from ..memory.segment import can_be_shared
from ..programs.programs import CallKind, Programs, Subset
from ..times.compile_notice import Notice
from ..times.timing import Times
from ..user_frames import entry
from .context import RankContext
from .graphs import dump_graph, load_graph
from .pool import Pool
from .session import SESSION
from .starting import follow_settings, pytensor_settings
from .streams import value_for_rank

SMALL = 1024
"""Bytes up to which an array is pickled into the command, and not staged."""


class Blueprint:
    """From this, a rank makes its replica of a shared variable.

    If the variable shares its value with one that ranks have, `alias` is that one's
    number, and the replicas share a value, too. (A copy of a running average is such a
    variable, whose default update also updates the average.) If ranks hold different
    values, `parts` has the value of each.
    """

    def __init__(
        self,
        variable: SharedVariable,
        alias: int | None = None,
        parts: list[np.ndarray] | None = None,
    ) -> None:
        self._alias, self._parts = alias, parts
        # With the static shape, so that it fits in a graph made with the original.
        self._class, self._type = type(variable), variable.type
        self._name = variable.name
        self._value = host.get_value(variable) if parts is None else None

    def build(self, rank: int, known: Mapping[int, SharedVariable]) -> SharedVariable:
        """Return the replica for `rank`, which has the replicas `known`, by number."""
        if self._alias is not None:
            return known[self._alias].clone(name=self._name)
        mine = self._value if self._parts is None else self._parts[rank]
        value = value_for_rank(mine, rank)
        return self._class(type=self._type, value=value, strict=False, name=self._name)


def master_replicate_variables(
    variables: Sequence[SharedVariable], are_read: bool = True
) -> list[int]:
    """Send the ranks the variables that they do not have; return all numbers."""
    # If the variables `are_read`, also send values that the script has set since.
    numbers = SESSION.pool.numbers
    entries = SESSION.ledger.entries(variables)
    if are_read:
        known = zip(variables, entries, strict=True)
        master_bring([var for var, entry in known if entry.is_set])
    new = [var for var in dict.fromkeys(variables) if var not in numbers]
    sharing = _by_value() if new else {}
    blueprints = {}
    try:
        for var in new:
            number = _number(var)
            alias = sharing.setdefault(id(var.container), number)
            (entry,) = SESSION.ledger.entries([var])
            parts = None
            if entry.kept is not None and entry.holding.rows is not None:
                # The array was scattered before a death: each rank gets its rows again.
                parts = np.split(entry.kept, np.cumsum(entry.holding.rows)[:-1])
            if alias == number:
                blueprints[number] = Blueprint(var, parts=parts)
            else:
                blueprints[number] = Blueprint(var, alias)
        if new and SESSION.size > 1:
            SESSION.run(worker_replicate_variables, dump_graph(blueprints, numbers))
    except BaseException:
        # After an interrupt some ranks may lack them, so they get new numbers later.
        for var in new:
            numbers.pop(var, None)
        raise
    return [numbers[var] for var in variables]


def _by_value() -> dict[int, int]:
    """Return the numbers of ranks' variables, by the id of the variable's container."""
    return {id(var.container): n for var, n in SESSION.pool.numbers.items()}


def _number(var: SharedVariable) -> int:
    """Give a variable a number; when it goes, notify ranks to drop their replicas."""
    number = SESSION.pool.numbers[var] = next(_numbers)
    SESSION.context.variables[number] = var
    # The collector calls `notify` at any line, in any thread.
    weakref.finalize(var, SESSION.notify, "variable", number).atexit = False
    return number


def master_adopt(variables: Sequence[SharedVariable]) -> list[int]:
    """Return new numbers for variables of which each rank has made its own already."""
    return [_number(var) for var in dict.fromkeys(variables)]


def worker_replicate_variables(context: RankContext, data: bytes) -> None:
    """Build this rank's replicas from pickled blueprints, except in the master."""
    if context.rank:
        for number, blueprint in load_graph(data, {}).items():
            known = context.variables
            known[number] = blueprint.build(context.rank, known)


def master_bring(variables: Sequence[SharedVariable]) -> None:
    """Send the ranks the values that the script has set in the master."""
    # Variables that ranks do not have yet are left out; they come with their values.
    by_value = _by_value()
    known = {by_value.get(id(var.container)): var for var in variables}
    known.pop(None, None)
    numbers = list(known)
    values = list(map(host.get_value, known.values()))
    if numbers and SESSION.size > 1:
        mine = numbers, values
        SESSION.run(worker_bring, numbers, staged(values, SMALL), mine=mine)
    SESSION.ledger.bring(variables)  # last: after an interrupt they are sent again


def staged(values: Sequence, small: int = -1) -> list:
    """Return values, with windows in place of arrays of more than `small` bytes."""
    arrays = {
        i: value
        for i, value in enumerate(values)
        if can_be_shared(value) and value.nbytes > small
    }
    windows = SESSION.pool.stage.put([*arrays.values()])
    described = dict(zip(arrays, windows, strict=True))
    return [described.get(i, value) for i, value in enumerate(values)]


def worker_bring(context: RankContext, numbers: list[int], values: list) -> None:
    """Copy values to this rank's variables, except in the master."""
    if context.rank:
        for number, value in zip(numbers, values, strict=True):
            mine = value_for_rank(context.array(value), context.rank)
            host.set_value(context.variables[number], host.copy_value(mine))


def worker_replicate_function(
    context: RankContext, number: int, graph: bytes, config: dict
) -> None:
    """Rebuild a function's graph with this rank's variables, except in the master."""
    if context.rank:
        follow_settings(config)
        spec = load_graph(graph, context.variables)
        context.functions[number] = Programs(number, spec)


class Replicas:
    """One function on all ranks: sends it to ranks and compiles it at first need."""

    def __init__(self, spec: FunctionSpec) -> None:
        self.number, self._spec = next(_numbers), spec
        self._made_for: weakref.ref[Pool] | None = None
        self._programs: Programs | None = None
        self.notice = Notice(lambda: compile_text(spec, SESSION.size))
        self._prepared: set[tuple[CallKind, Subset]] = set()
        self._forget: weakref.finalize | None = None

    @property
    def is_sent(self) -> bool:
        """Whether the function was sent to the ranks of the present session."""
        return SESSION.is_of(self._made_for)

    def local(self) -> Programs:
        """Return rank 0's programs of the function; needs no session."""
        if self._programs is None:
            self._programs = Programs(self.number, self._spec)
            self._programs.notice = self.notice
        return self._programs

    def prepare(self, kind: CallKind, subset: Subset) -> Programs:
        """Have all ranks compile for one kind of call; return rank 0's programs."""
        # Callers are in a ``with`` block of `notice`. If the first call makes the
        # machine code, that call ends the notice.
        programs = self.local()
        if not self.is_sent:
            self._replicate(programs)
        if (kind, subset) not in self._prepared:
            self.notice.begin()
            makes_ahead = engine_for(self._spec.mode).MAKES_CODE_AHEAD
            if makes_ahead:
                programs.compile(kind, subset)
            how = kind, subset, makes_ahead, pytensor_settings()
            error, *_ = SESSION.run(worker_compile, self.number, *how)
            if error is not None:
                raise error
            self._prepared.add((kind, subset))
            if not compiles_in_calls(self._spec.mode):
                self.notice.end()
        return programs

    def _replicate(self, programs: Programs) -> None:
        """Send the function and its variables to the ranks of the present session."""
        master_replicate_variables(self._spec.shared_variables())
        programs.times = Times(programs.times.label)  # new, as the new ranks' are
        programs.exchanges = None
        SESSION.context.functions[self.number] = programs
        if SESSION.size > 1:
            graph = self.number, dump_graph(self._spec, SESSION.pool.numbers)
            SESSION.run(worker_replicate_function, *graph, pytensor_settings())
        # Last: after an interrupt before this line, all is done again.
        self._made_for = weakref.ref(SESSION.pool)
        self._prepared.clear()
        if self._forget is None:
            self._forget = weakref.finalize(
                self, SESSION.notify, "function", self.number
            )
            self._forget.atexit = False


def worker_compile(
    context: RankContext,
    number: int,
    kind: CallKind,
    subset: Subset,
    makes_ahead: bool,
    config: dict,
) -> Exception | None:
    """Compile for one kind of call on this rank; return rank 0's exception, if any."""
    # In C mode one rank compiles, and the others wait for the lock of PyTensor's cache
    # and find the code there. For numba (`makes_ahead`) rank 0 has compiled its graphs
    # before. It makes the machine code while the others compile their graphs; these
    # then load the code from numba's cache.
    programs, error = context.functions[number], None
    makes_code = makes_ahead and context.size > 1
    try:
        if context.rank == 0 and makes_code:
            programs.make_machine_code(kind, subset)
        elif context.rank == 0:
            programs.compile(kind, subset)
        else:
            follow_settings(config)
            with ignoring(programs.spec.mode, Warning):  # rank 0 gives them
                programs.compile(kind, subset)
    except Exception as caught:
        error = caught
    # If rank 0 has failed, the others mostly have the same error. Theirs is raised only
    # if rank 0 has none.
    has_rank_0_failed, *_ = context.comm.agree(error is not None)
    if context.rank == 0:
        return error
    if error is not None and not has_rank_0_failed:
        raise error
    if makes_code and not has_rank_0_failed:
        with ignoring(programs.spec.mode, Warning):
            programs.make_machine_code(kind, subset)
    return None


def compile_text(spec: FunctionSpec, ranks: int) -> str:
    """Return a text for the notice: the function, the number of ranks, the engine."""
    names = ", ".join(str(var) for var in [*spec.inputs, *spec.bcast_inputs])
    what = f"{spec.name or 'a function'}({names})"
    return f"{what} for {ranks} rank{'s' * (ranks > 1)}, {describe_mode(spec.mode)}"


@entry
def distribute() -> None:
    """Replicate and compile now every function made so far, on all ranks.

    Optional: a function is otherwise replicated and compiled when it is first called.

    Raises
    ------
    StateError
        If not forked.
    """
    SESSION.enter()
    for made in list(_functions):
        made.prepare_usual()


def distribute_later(function: Any) -> None:
    """Have `distribute` call ``function.prepare_usual()`` while the function lives."""
    _functions.add(function)


_functions: weakref.WeakSet[Any] = weakref.WeakSet()
_numbers = itertools.count()
"""Numbers of functions and variables, for all sessions: a notice that a variable of a
former session is gone must not fit another one."""
