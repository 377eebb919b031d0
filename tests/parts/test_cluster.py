"""What masters of several nodes agree on: headers, clocks, cores, what is told."""

import itertools
import os
import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from synk.cluster import clocks
from synk.cluster.cache import NodeCache
from synk.cluster.clocks import ROUND_TRIPS, Clock, between
from synk.cluster.inbox import to_keep
from synk.cluster.launcher import Launched, Node, chosen, launched, take_cores
from synk.cluster.rounds import COMMAND, IDLE, JOIN, MEET, Header, Headers
from synk.memory.segment import Attachments, Segment
from synk.ranks.to_nodes import for_nodes
from synk.variables.collectives import worker_scatter

# -- headers: a thousand masters in one process, each a generator, as `Link` drives it


def master(node: int, plan: list[list[int | None]], log: list):
    """Go through commands: before which meeting each node fails; how many there are."""
    for number, (*failures, meetings) in enumerate(plan):
        yield Header(COMMAND if node == 0 else IDLE, number)
        made, failed = 0, False
        for k in range(meetings):
            if failures[node] == k:
                failed = True
                break
            headers = yield Header(MEET, number + 1, word=k)
            if not headers.are_all(MEET):
                break
            made += 1
        headers = None
        while headers is None or not headers.are_all(JOIN):
            headers = yield Header.of(JOIN, number + 1, bytes([failed]), made)
        log.append((number, node, made, failed, headers.data))
        assert headers.words[node] == made


def drive(masters: list) -> int:
    """Give each master the headers of all; return how many rounds there were."""
    said = [next(each) for each in masters]
    rounds = 0
    while said:
        rounds += 1
        assert len({each.number for each in said}) == 1, said
        kinds = {each.kind for each in said}
        # A command is begun by all, or by none; nobody meets who does not see it.
        assert kinds in ({IDLE, COMMAND}, {COMMAND}, {MEET}, {JOIN}, {MEET, JOIN})
        packed = b"".join([each.packed() for each in said])
        given = Headers(np.frombuffer(packed, np.uint8).reshape(len(said), -1))
        following = []
        for each in masters:
            try:
                following.append(each.send(given))
            except StopIteration:
                continue
        assert len(following) in (0, len(masters)), "some have come to the end alone"
        said = following
    return rounds


@pytest.mark.parametrize(("nodes", "commands"), [(1, 10), (2, 100), (3, 100), (512, 5)])
def test_masters_stay_together_whoever_fails(nodes, commands):
    """That nothing hangs means that all come to the end in as many rounds."""
    generator = random.Random(nodes)
    plan = []
    for _ in range(commands):
        meetings = generator.randrange(6)
        failures: list[int | None] = [None] * nodes
        for _ in range(generator.choice([0, 0, 1, 1, 2, 5])):
            failures[generator.randrange(nodes)] = generator.randrange(meetings + 1)
        plan.append([*failures, meetings])
    log: list = []
    rounds = drive([master(node, plan, log) for node in range(nodes)])
    assert len(log) == nodes * commands
    expected = 0
    for number, (*failures, meetings) in enumerate(plan):
        before = [k for k in failures if k is not None and k < meetings]
        first = min(before, default=None)
        of_command = [entry for entry in log if entry[0] == number]
        # All have made the same meetings: those before the first failure.
        made = meetings if first is None else first
        assert {entry[2] for entry in of_command} == {made}
        # Every node knows who failed, and nobody else did.
        failed = [bytes([bool(before) and k == first]) for k in failures]
        assert all(entry[4] == failed for entry in of_command)
        # One round more where others met while somebody joined already.
        expected += 1 + made + (bool(before) and b"\0" in failed) + 1
    assert rounds == expected


# -- clocks


class Wire:
    """Plays both ends of links to others, whose messages take as long as they like."""

    node = 0

    def __init__(self, monkeypatch, others, seed):
        self.size = 1 + len(others)
        self.now, self.trips = 1000.0, []
        self._others, self._random = others, np.random.default_rng(seed)
        monkeypatch.setattr(clocks, "perf_counter", lambda: self.now)

    def send_to(self, array, node):
        self._passes()
        self._said = self._others[node - 1](self.now)

    def receive_from(self, array, node):
        self._passes()
        array[0] = self._said

    def _passes(self):
        """A message may wait for a long time, on one way alone."""
        self.trips.append(1e-6 * (1 + self._random.pareto(0.7)))
        self.now += self.trips[-1]


def test_a_comparison_is_wrong_by_half_of_the_least_round_trip_at_most(monkeypatch):
    truths, rounded = [lambda t: t + 7e4, lambda t: t - 900.0], 1e-9
    for seed in range(20):
        wire = Wire(monkeypatch, truths, seed)
        itself, *found = clocks.compare(wire)
        assert (itself.ahead, itself.error) == (0, 0)
        trips = np.array(wire.trips).reshape(2, ROUND_TRIPS, 2).sum(-1)
        for sample, truth, of_node in zip(found, truths, trips, strict=True):
            assert sample.error == pytest.approx(of_node.min() / 2, abs=rounded)
            assert abs(sample.ahead - truth(0.0)) <= sample.error + rounded


def test_a_clock_that_goes_faster_is_followed_between_two_comparisons(monkeypatch):
    def truth(t):
        return 1.001 * t + 50.0

    wire = Wire(monkeypatch, [truth], 0)
    begin = clocks.compare(wire)
    wire.now += 100.0
    clock = between(begin, clocks.compare(wire))[1]
    gained = 0.001 * (clock.end.here - clock.begin.here)
    assert clock.ahead[1] - clock.ahead[0] == pytest.approx(gained, abs=3 * clock.error)
    for true in np.linspace(begin[1].here, wire.now, 9):
        assert abs(clock.here(truth(true)) - true) <= clock.error + 1e-9
    # One that was seen at one time alone is taken to go as ours does.
    sample = clocks.Sample(1.0, 5.0, 0.0)
    assert Clock(sample, sample).here(6.0) == 2.0


# -- what launchers say in the environment, and the cores that follow from it

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
MPICH = {
    "PMI_RANK": "1",
    "PMI_SIZE": "4",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}

CPUS = {"SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_CPUS_PER_NODE": "8(x2),6"}


@pytest.mark.parametrize(
    ("environment", "right"),
    [
        ({}, None),
        (OPEN_MPI, Launched(3, 4, 0, 1)),
        (MPICH, Launched(1, 4, 1, 2)),
        (SLURM, Launched(4, 5, 0, 1)),
        (SLURM | {"SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, Launched(4, 5, 1, 2)),
        (SLURM | CPUS, Launched(4, 5, 0, 1, asked=8, of_job=6)),
        (OPEN_MPI | SLURM | CPUS, Launched(3, 4, 0, 1, of_job=6)),  # mpirun in a job
        (MPICH | SLURM | CPUS, Launched(1, 4, 1, 2, of_job=6)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
    ],
)
def test_rank_and_size_are_those_of_the_launcher(environment, right):
    assert launched(environment) == right


@pytest.mark.parametrize("said", ["", " ", "many", "-1", "2(x"])
def test_a_variable_that_has_no_number_says_nothing(said):
    for whole in (OPEN_MPI, MPICH, SLURM | CPUS, OPEN_MPI | MPICH | SLURM | CPUS):
        for name in whole:
            without = {k: v for k, v in whole.items() if k != name}
            assert launched(whole | {name: said}) == launched(without), name


def test_nodes_of_a_host_share_its_cores():
    host = set(range(10))
    for size in (1, 2, 3, 5):
        for bound in (lambda k: host, lambda k: {k}):
            found = [
                chosen(bound(k), host, Launched(k, size, k, size)) for k in range(size)
            ]
            assert sorted(itertools.chain(*found)) == sorted(host)


def test_a_binding_to_as_many_stays():
    assert chosen({5, 6, 7}, set(range(6)), Launched(1, 2, 1, 2)) == [5, 6, 7]
    assert chosen({1}, {0, 1}, Launched(1, 2, 1, 2)) == [1]
    # One node on the host, and the launcher has bound it: it has all.
    assert chosen({1}, {0, 1}, Launched(1, 2, 0, 1)) == [0, 1]


HOST, ALONE = set(range(8)), Launched(1, 2, 0, 1)


@pytest.mark.parametrize(
    ("bound", "said", "right"),
    [
        ({2, 3}, {"asked": 2, "of_job": 8}, [2, 3]),  # a step of several on the host
        ({2}, {"asked": 0, "of_job": 8}, range(8)),  # nobody has asked for one core
        ({2}, {"asked": 2, "of_job": 8}, range(8)),  # nor for less than was asked for
        ({2}, {"asked": 0, "of_job": 2}, [2]),  # the others may be another job's
        ({2, 3}, {"asked": 2, "of_job": 2}, [2, 3]),
        (HOST, {"asked": 2, "of_job": 2}, range(8)),  # nothing is bound here
    ],
)
def test_no_other_jobs_cores_are_taken(bound, said, right):
    assert chosen(bound, HOST, ALONE._replace(**said)) == list(right)


@pytest.mark.parametrize(
    ("bound", "said", "warned"),
    [
        (1, {}, "bound node 1 to 1 core of 2: synk takes 2"),
        (1, {"asked": 1}, None),
        (1, {"asked": 1, "of_job": 1}, None),
        (1, {"of_job": 1}, None),
        (2, {}, None),
    ],
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="made for two cores")
def test_it_is_said_when_more_or_fewer_cores_were_meant(bound, said, warned):
    before = os.sched_getaffinity(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            os.sched_setaffinity(0, sorted(before)[:bound])
            take_cores(ALONE._replace(**said))
        finally:
            os.sched_setaffinity(0, before)
    assert [warned in str(each.message) for each in caught] == [True] * bool(warned)


# -- what is told, and kept


def in_a_window(array):
    """Return a segment with the values of an array, and its window."""
    segment = Segment(max(1, array.nbytes))
    place = segment.array(array.dtype, array.shape)
    place[...] = array
    return segment, segment.window(place)


def test_what_all_are_told_is_as_long_for_a_thousand_nodes():
    kept, sent = in_a_window(np.ones((12_000, 2))), {}
    for nodes in (2, 1000):
        comm = SimpleNamespace(ranks=[2] * nodes)
        array = Attachments().array
        context = SimpleNamespace(comm=comm, size=2 * nodes, array=array)
        bounds = [12_000 * i // context.size for i in range(context.size + 1)]
        args = 1, [0], [kept[1]], slice(0, 12_000), bounds
        sent[nodes] = for_nodes(worker_scatter, args, (), 1, context, NodeCache())
        assert sum(map(len, sent[nodes].rows[-1])) == 12_000 // nodes
    assert len(sent[1000].message) == pytest.approx(len(sent[2].message), abs=8)


def test_nodes_of_one_machine_share_the_half_of_its_memory():
    nodes = [Node("a", 1, 1), Node("b", 1, 1), Node("a", 1, 1)]
    assert [to_keep(1000, 0, nodes, i) for i in range(3)] == [250, 500, 250]
    # What is kept counts as free: it is never more than half in all.
    assert to_keep(750, 250, nodes, 0) == 1
    assert to_keep(600, 400, nodes, 1) == 100
