"""Whatever a script does to shared variables, ranks hold what a serial run would leave.

Functions, collectives, failures, checkpoints, new sessions and the script's own
assignments follow on one another at random. After each step what there is, in the
script and on all ranks, is compared with plain PyTensor's (see `state_model`).

The steps are few and the same in every run. Those who change how state is kept look at
20,000, others each time, by ``--hypothesis-profile=long``.
"""

import functools
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
from state_corpus import GRAPHS, KEEPING, LOCAL, OF_OWN_NOISE, OF_SOME_ROWS
from state_graphs import MODE, RNG, ROWWISE, TENSORS, VARIABLES, some_value
from state_world import IN_PLACE, World

import synk

LONG = settings.get_current_profile_name() == "long"

EVERY = list(VARIABLES.values())
NUMBERS = [var for var in TENSORS if var.type.dtype != "bool"]
WITH_ROWS = [var for var in TENSORS if var in ROWWISE]
BY_NAME = {graph.name: graph for graph in LOCAL}

ANY = st.sampled_from(GRAPHS)
WITH_INPUTS = st.sampled_from([graph for graph in GRAPHS if graph.inputs])
FAILING = [graph for graph in GRAPHS if graph.fails]
SEEDS = st.integers(0, 2**16)
SIZES = st.integers(1, 3)
SLICES = st.integers(1, 3)
ROWS = st.one_of(st.integers(0, 7), st.sampled_from([12, 40]))
OPS = st.sampled_from(["avg", "sum", "min", "max", "prod"])
WAYS = st.sampled_from(["copy", "borrow", "container", "twin"])
SETS = st.tuples(st.sampled_from(EVERY), SEEDS, WAYS)


def some_of(variables, most=3):
    return st.lists(st.sampled_from(variables), min_size=1, max_size=most, unique=True)


def values_for(variables, seed, *length):
    return [some_value(var, seed + i, *length) for i, var in enumerate(variables)]


def step(**given):
    """Make a rule of a method, after which what there is is compared."""

    def decorate(method):
        @functools.wraps(method)
        def compared(self, **options):
            self.failed = True
            method(self, **options)
            self.world.look(ranks=self.unread == 0)
            self.unread = max(0, self.unread - 1)
            self.failed = False

        return rule(**given)(compared)

    return decorate


class Machine(RuleBasedStateMachine):
    """Steps; what each does to a session is done to the model, and compared."""

    world: World  # one for all examples: a new session compiles all functions anew
    size: int
    least: int  # of other sessions

    def __init__(self) -> None:
        super().__init__()
        self.sessions = self.deaths = self.unread = 0
        self.failed = True

    def teardown(self):
        if self.failed:
            synk.close()  # another try begins with another session
        elif synk.is_forked():
            self.world.look(ranks=True)

    @rule(steps=st.integers(1, 6))
    def leave_ranks_unread(self, steps):
        """Reading gives ranks what the script has set: some steps go without."""
        self.unread = steps

    @initialize(
        seed=SEEDS,
        sessions=st.sampled_from([0, 0, 1]),
        deaths=st.sampled_from([0, 1, 2]),
    )
    def begin(self, seed, sessions, deaths):
        self.sessions, self.deaths = sessions, deaths
        self.world.breaks_off, self.world.saved = None, {}
        if not synk.is_forked() or synk.size() != self.size:
            synk.close()
            self.world.start(self.size)
        for i, var in enumerate(EVERY):
            self.world.set(var, seed + i, "copy")
        self.failed = False

    @precondition(lambda self: self.sessions)
    @step(size=SIZES, sets=st.lists(SETS, max_size=3))
    def start_another_session(self, size, sets):
        self.sessions -= 1
        synk.close()
        for set_ in sets:
            self.world.set(*set_)
        self.world.start(max(size, self.least))

    @step(graph=ANY, n=ROWS, seed=SEEDS, in_data=st.booleans())
    def call(self, graph, n, seed, in_data):
        self.world.call(graph, n, seed, in_data=in_data)

    @step(graph=st.sampled_from(LOCAL), n=ROWS, seed=SEEDS)
    def call_a_local_one(self, graph, n, seed):
        self.world.call(graph, n, seed)

    @step(graph=WITH_INPUTS, n=ROWS, seed=SEEDS, num_slices=SLICES)
    def call_in_slices(self, graph, n, seed, num_slices):
        self.world.call(graph, n, seed, num_slices)

    @step(
        graph=st.sampled_from(FAILING) | st.just(OF_OWN_NOISE),
        n=ROWS,
        seed=SEEDS,
        num_slices=SLICES,
    )
    def fail(self, graph, n, seed, num_slices):
        self.world.call(graph, n, seed, num_slices, forbidden=seed % 7)

    fail_again = fail

    @step(
        graph=ANY,
        n=ROWS,
        seed=SEEDS,
        how=st.sampled_from(["some outputs", "a batch", "checked"]),
    )
    def call_otherwise(self, graph, n, seed, how):
        self.world.call(graph, n, seed, how=how)

    @step(
        graph=ANY,
        sizes=st.lists(st.integers(0, 5), max_size=4),
        seed=SEEDS,
        num_slices=SLICES,
        forbidden=st.none() | st.integers(0, 15),
    )
    def run(self, graph, sizes, seed, num_slices, forbidden):
        self.world.run(graph, sizes, seed, num_slices, forbidden)

    @step(graph=ANY, n=ROWS, seed=SEEDS)
    def call_the_plain_function(self, graph, n, seed):
        self.world.call_in_master(graph, n, seed)

    @step(n=ROWS, seed=SEEDS)
    def reduce_gradients(self, n, seed):
        """As it was done before there were placed reductions."""
        for name in "gradients", "doubles":
            self.world.call(BY_NAME[name], n, seed)
        both = [VARIABLES["g"], VARIABLES["h"]]
        self.world.collective("all_reduce", both, "avg")

    @rule(n=ROWS, seed=SEEDS, graph=st.sampled_from(KEEPING))
    def call_with_scattered_variables(self, n, seed, graph):
        for var in graph.keeps_rows:
            self.scatter(variables=[var], n=n, seed=seed)
        for i in range(2):
            self.call(graph=graph, n=n, seed=seed + i, in_data=False)

    @step(
        graph=st.sampled_from(OF_SOME_ROWS),
        seed=SEEDS,
        num_slices=SLICES,
        how=st.sampled_from(["slices", "numbers", "all", "one for all"]),
    )
    def call_on_some_rows(self, graph, seed, num_slices, how):
        self.world.call_on_some_rows(graph, seed, num_slices, how)

    @rule(n=st.integers(0, 7), seed=SEEDS, graph=st.sampled_from(OF_SOME_ROWS))
    def call_on_some_rows_of_scattered_ones(self, n, seed, graph):
        self.scatter(variables=graph.sliceable, n=n, seed=seed)
        given = {"graph": graph, "num_slices": 1 + seed % 2, "how": "slices"}
        for i in range(2):
            self.call_on_some_rows(seed=seed + i, **given)

    @step(graph=ANY)
    def make_a_function_anew(self, graph):
        self.world.make_anew(graph)

    @rule(log_seconds=st.floats(-5, -1.5))
    def interrupt_the_next(self, log_seconds):
        self.world.breaks_off = 10**log_seconds, None

    @precondition(lambda self: self.deaths and synk.size() > 1)
    @rule(log_seconds=st.floats(-5, -3), victim=st.integers(1, 2))
    def kill_a_rank_in_the_next(self, log_seconds, victim):
        self.deaths -= 1
        self.world.breaks_off = 10**log_seconds, 1 + victim % (synk.size() - 1)

    @step(given=SETS)
    def set_in_the_script(self, given):
        self.world.set(*given)

    @step(var=st.sampled_from(NUMBERS), in_place=st.booleans())
    def change_by_a_plain_function(self, var, in_place):
        self.world.set_by_plain(var, in_place)

    @step(variables=some_of(EVERY))
    def broadcast(self, variables):
        self.world.collective("broadcast", variables)

    @step(variables=some_of(TENSORS), seed=SEEDS)
    def broadcast_values(self, variables, seed):
        self.world.give("broadcast", variables, values_for(variables, seed))

    @step(variables=some_of(WITH_ROWS), n=st.integers(0, 7), seed=SEEDS)
    def scatter(self, variables, n, seed):
        self.world.give("scatter", variables, values_for(variables, seed, n))

    @step(rank=st.integers(0, 2), variables=some_of(TENSORS), seed=SEEDS)
    def set_on_one_rank(self, rank, variables, seed):
        values = values_for(variables, seed)
        self.world.give("set_value", rank % synk.size(), variables, values)

    @step(var=st.sampled_from(TENSORS), nd_up=st.integers(0, 1))
    def gather(self, var, nd_up):
        self.world.collective("gather", var, nd_up if var.type.ndim else 1)

    @step(var=st.sampled_from(WITH_ROWS))
    def all_gather(self, var):
        if sum(map(len, self.world.model.held[var].values)) <= 40:
            self.world.collective("all_gather", var)  # it doubles each time

    @step(variables=some_of(TENSORS), op=OPS, of_twins=st.booleans())
    def all_reduce(self, variables, op, of_twins):
        op = tame(op, variables, self.world.model)
        self.world.collective("all_reduce", variables, op, of_twins=of_twins)

    @step(variables=some_of(TENSORS), op=OPS, in_place=st.booleans())
    def reduce(self, variables, op, in_place):
        op = tame(op, variables, self.world.model)
        self.world.collective("reduce", variables, op, in_place=in_place)

    @step(variables=some_of([*TENSORS, RNG], most=6))
    def save(self, variables):
        synk.save(self.world.path, variables)
        self.world.saved = {var: self.world.model.of_script(var) for var in variables}

    @precondition(lambda self: self.world.saved)
    @step(which=st.sets(st.integers(0, 5), min_size=1))
    def load(self, which):
        saved = self.world.saved
        variables = [var for i, var in enumerate(saved) if i in which] or list(saved)
        synk.load(self.world.path, variables)
        self.world.model.broadcast(variables, [saved[var] for var in variables])


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
