"""Whatever a script does to shared variables, ranks hold what a serial run would leave.

Functions, collectives, failures, checkpoints, new sessions and the script's own
assignments follow on one another at random. After each step what there is, in the
script and on all ranks, is compared with plain PyTensor's (see `state_model`).

The steps are few and the same in every run. Those who change how state is kept look at
20,000, others each time, by ``--hypothesis-profile=long``.
"""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_corpus import GRAPHS, OF_OWN_NOISE, OF_SOME_ROWS
from state_graphs import MODE, RNG, ROWWISE, TENSORS, TWINS, VARIABLES, some_value
from state_world import IN_PLACE, Calls, World

import synk

LONG = settings.get_current_profile_name() == "long"

EVERY = list(VARIABLES.values())
NUMBERS = [var for var in TENSORS if var.type.dtype != "bool"]
BY_NAME = {graph.name: graph for graph in GRAPHS}
WITH_ROWS = [var for var in TENSORS if var in ROWWISE]

SEEDS = st.integers(0, 2**16)
SIZES = st.integers(1, 3)
SLICES = st.integers(1, 3)
ROWS = st.one_of(st.integers(0, 7), st.sampled_from([12, 40]))
OPS = st.sampled_from(["avg", "sum", "min", "max", "prod"])
SETS = st.tuples(
    st.sampled_from(EVERY),
    SEEDS,
    st.sampled_from(["copy", "borrow", "container", "twin"]),
)


def some_of(variables, most=3):
    return st.lists(st.sampled_from(variables), min_size=1, max_size=most, unique=True)


def graphs(holds=lambda graph: True):
    return st.sampled_from([graph for graph in GRAPHS if holds(graph)])


class Machine(RuleBasedStateMachine):
    """Steps; what each does to a session is done to the model, and compared."""

    world: World  # one for all examples: a new session compiles all functions anew
    size: int
    least: int  # of other sessions

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls(self.world)
        self.sessions = self.deaths = self.unread = 0
        self.failed = True

    @contextlib.contextmanager
    def step(self):
        """Do a step, and look afterwards."""
        self.failed = True
        yield
        self.world.look(ranks=self.unread == 0)
        self.unread = max(0, self.unread - 1)
        self.failed = False

    def teardown(self):
        if self.failed:
            synk.close()  # another try begins with another session
        elif synk.is_forked():
            self.world.look(ranks=True)

    @rule(steps=st.integers(1, 6))
    def leave_ranks_unread(self, steps):
        """Reading gives ranks what the script has set: some steps go without."""
        self.unread = steps

    # -- sessions

    @initialize(
        seed=SEEDS,
        sessions=st.sampled_from([0, 0, 1]),
        deaths=st.sampled_from([0, 1, 2]),
    )
    def begin(self, seed, sessions, deaths):
        self.sessions, self.deaths, self.world.breaks_off = sessions, deaths, None
        if not synk.is_forked() or synk.size() != self.size:
            synk.close()
            self.world.start(self.size)
        for i, var in enumerate(EVERY):
            self.world.set(var, seed + i, "copy")
        self.failed = False

    @precondition(lambda self: self.sessions)
    @rule(size=SIZES, sets=st.lists(SETS, max_size=3))
    def start_another_session(self, size, sets):
        self.sessions -= 1
        size = max(size, self.least)
        with self.step():
            synk.close()
            for set_ in sets:
                self.world.set(*set_)
            self.world.start(size)

    # -- functions

    @rule(graph=graphs(), n=ROWS, seed=SEEDS, in_data=st.booleans())
    def call(self, graph, n, seed, in_data):
        with self.step():
            self.calls.call(graph, n, seed, in_data=in_data)

    @rule(graph=graphs(lambda g: g.local), n=ROWS, seed=SEEDS)
    def call_a_local_one(self, graph, n, seed):
        with self.step():
            self.calls.call(graph, n, seed)

    @rule(graph=graphs(lambda g: g.inputs), n=ROWS, seed=SEEDS, num_slices=SLICES)
    def call_in_slices(self, graph, n, seed, num_slices):
        with self.step():
            self.calls.call(graph, n, seed, num_slices)

    @rule(graph=graphs(lambda g: g.fails), n=ROWS, seed=SEEDS, num_slices=SLICES)
    def fail(self, graph, n, seed, num_slices):
        with self.step():
            self.calls.call(graph, n, seed, num_slices, forbidden=seed % 7)

    @rule(n=ROWS, seed=SEEDS, num_slices=SLICES)
    def fail_behind_noise(self, n, seed, num_slices):
        with self.step():
            self.calls.call(OF_OWN_NOISE, n, seed, num_slices, forbidden=seed % 7)

    @rule(
        graph=graphs(),
        n=ROWS,
        seed=SEEDS,
        how=st.sampled_from(["some outputs", "a batch", "checked"]),
    )
    def call_otherwise(self, graph, n, seed, how):
        with self.step():
            self.calls.call(graph, n, seed, how=how)

    @rule(
        graph=graphs(),
        sizes=st.lists(st.integers(0, 5), max_size=4),
        seed=SEEDS,
        num_slices=SLICES,
        forbidden=st.none() | st.integers(0, 15),
    )
    def run(self, graph, sizes, seed, num_slices, forbidden):
        with self.step():
            self.calls.run(graph, sizes, seed, num_slices, forbidden)

    @rule(graph=graphs(), n=ROWS, seed=SEEDS)
    def call_the_plain_function(self, graph, n, seed):
        with self.step():
            self.calls.call_in_master(graph, n, seed)

    @rule(n=ROWS, seed=SEEDS)
    def reduce_gradients(self, n, seed):
        """As it was done before there were placed reductions."""
        model, both = self.world.model, [VARIABLES["g"], VARIABLES["h"]]
        with self.step():
            for name in "local gradients", "local doubles":
                self.calls.call(BY_NAME[name], n, seed)
            self.world.both(
                lambda: synk.all_reduce(both), lambda: model.all_reduce(both, "avg")
            )

    @rule(n=ROWS, seed=SEEDS, graph=graphs(lambda g: g.keeps_rows))
    def call_with_scattered_variables(self, n, seed, graph):
        for var in graph.keeps_rows:
            self.scatter([var], n, seed)
        for i in range(2):
            with self.step():
                self.calls.call(graph, n, seed + i)

    @rule(
        graph=st.sampled_from(OF_SOME_ROWS),
        seed=SEEDS,
        num_slices=SLICES,
        how=st.sampled_from(["slices", "numbers", "all", "one for all"]),
    )
    def call_on_some_rows(self, graph, seed, num_slices, how):
        with self.step():
            self.calls.call_on_some_rows(graph, seed, num_slices, how)

    @rule(n=st.integers(0, 7), seed=SEEDS, graph=st.sampled_from(OF_SOME_ROWS))
    def call_on_some_rows_of_scattered_ones(self, n, seed, graph):
        self.scatter(graph.sliceable, n, seed)
        for i in range(2):
            self.call_on_some_rows(graph, seed + i, 1 + seed % 2, "slices")

    @rule(graph=graphs())
    def make_a_function_anew(self, graph):
        with self.step():
            self.world.make_anew(graph)

    # -- interrupts and deaths

    @rule(log_seconds=st.floats(-5, -1.5))
    def interrupt_the_next(self, log_seconds):
        self.world.breaks_off = 10**log_seconds, None

    @precondition(lambda self: self.deaths and synk.size() > 1)
    @rule(log_seconds=st.floats(-5, -3), victim=st.integers(1, 2))
    def kill_a_rank_in_the_next(self, log_seconds, victim):
        self.deaths -= 1
        self.world.breaks_off = 10**log_seconds, 1 + victim % (synk.size() - 1)

    # -- the script

    @rule(given=SETS)
    def set_in_the_script(self, given):
        with self.step():
            self.world.set(*given)

    @rule(var=st.sampled_from(NUMBERS), in_place=st.booleans())
    def change_by_a_plain_function(self, var, in_place):
        with self.step():
            self.world.set_by_plain(var, in_place)

    # -- collectives

    @rule(variables=some_of(EVERY))
    def broadcast(self, variables):
        model = self.world.model
        with self.step():
            self.world.both(
                lambda: synk.broadcast(variables), lambda: model.broadcast(variables)
            )

    @rule(variables=some_of(TENSORS), seed=SEEDS)
    def broadcast_values(self, variables, seed):
        values = [some_value(var, seed + i) for i, var in enumerate(variables)]
        with self.step():
            synk.broadcast(variables, values)
            for var, value in zip(variables, values, strict=True):
                self.world.model.set(var, value)

    @rule(variables=some_of(WITH_ROWS), n=st.integers(0, 7), seed=SEEDS)
    def scatter(self, variables, n, seed):
        values = [some_value(var, seed + i, n) for i, var in enumerate(variables)]
        with self.step():
            synk.scatter(variables, values)
            for var, value in zip(variables, values, strict=True):
                self.world.model.scatter(var, value)

    @rule(rank=st.integers(0, 2), variables=some_of(TENSORS), seed=SEEDS)
    def set_on_one_rank(self, rank, variables, seed):
        rank %= synk.size()
        values = [some_value(var, seed + i) for i, var in enumerate(variables)]
        with self.step():
            synk.set_value(rank, variables, values)
            for var, value in zip(variables, values, strict=True):
                self.world.model.set_on(rank, var, value)

    @rule(var=st.sampled_from(TENSORS), nd_up=st.integers(0, 1))
    def gather(self, var, nd_up):
        nd_up = nd_up if var.type.ndim else 1
        model = self.world.model
        with self.step():
            self.world.both(
                lambda: synk.gather(var, nd_up), lambda: model.gather(var, nd_up)
            )

    @rule(var=st.sampled_from(WITH_ROWS))
    def all_gather(self, var):
        model = self.world.model
        if sum(map(len, model.held[var].values)) > 40:
            return  # it doubles each time
        with self.step():
            self.world.both(lambda: synk.all_gather(var), lambda: model.all_gather(var))

    @rule(variables=some_of(TENSORS), op=OPS, by_twins=st.booleans())
    def all_reduce(self, variables, op, by_twins):
        op = tame(op, variables, self.world.model)
        model = self.world.model
        given = [TWINS.get(var, var) for var in variables] if by_twins else variables
        with self.step():
            self.world.both(
                lambda: synk.all_reduce(given, op),
                lambda: model.all_reduce(variables, op),
            )

    @rule(variables=some_of(TENSORS), op=OPS, in_place=st.booleans())
    def reduce(self, variables, op, in_place):
        op = tame(op, variables, self.world.model)
        model = self.world.model
        with self.step():
            self.world.both(
                lambda: synk.reduce(variables, op, in_place=in_place),
                lambda: model.reduce(variables, op, in_place),
            )

    # -- checkpoints

    @rule(variables=some_of([*TENSORS, RNG], most=6))
    def save(self, variables):
        with self.step():
            synk.save(self.world.path, variables)
            model = self.world.model
            self.world.saved = {var: model.of_script(var) for var in variables}

    @precondition(lambda self: self.world.saved)
    @rule(which=st.sets(st.integers(0, 5), min_size=1))
    def load(self, which):
        saved = self.world.saved
        variables = [var for i, var in enumerate(saved) if i in which] or list(saved)
        with self.step():
            synk.load(self.world.path, variables)
            for var in variables:
                self.world.model.set(var, saved[var])


def tame(op, variables, model):
    """Return an op that the values have, and under which they do not explode."""
    if op == "avg" and any(var.type.dtype == "bool" for var in variables):
        return "max"
    values = [value for var in variables for value in model.held[var].values]
    largest = max(np.abs(value.astype("float64")).max(initial=0) for value in values)
    return "min" if op in ("sum", "prod") and largest > 1000 else op


MODES = {
    "plain": [MODE],
    "in place": [IN_PLACE],
    "in turns": [MODE, IN_PLACE],
    "default": [None],
}
# On one rank a call is PyTensor's own: what it has written in place before it fails,
# stays written.
CASES = [("plain", 1), *itertools.product(MODES, (2, 3))]
TIMES = 10  # as many steps as without the option
if not LONG:
    CASES, TIMES = [("plain", 3), ("in turns", 2)], 1


@pytest.mark.parametrize(("mode", "size"), CASES)
@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_ranks_hold_what_a_serial_run_would_leave(tmp_path, size, mode):
    Machine.world, Machine.size = World(tmp_path, MODES[mode]), size
    Machine.least = 1 if mode == "plain" else 2
    options = settings(
        max_examples=12 * TIMES,
        stateful_step_count=50,
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # leaving steps out soon shows which ones matter
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Machine, settings=options)
    finally:
        synk.close()
    outcomes = Machine.world.outcomes
    assert outcomes["made"] > 120 * TIMES, outcomes
    assert outcomes["ValueError"] + outcomes["IndexError"] > 5, outcomes
    assert size == 1 or outcomes["refused"] > 5, outcomes
    assert outcomes["to be interrupted"] > 1, outcomes
    assert size == 1 or outcomes["to be killed"] > 0, outcomes
