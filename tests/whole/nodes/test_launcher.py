"""What launchers say in the environment, and the cores that follow from it."""

from __future__ import annotations

import itertools
import os
import warnings

import pytest

from synk.cluster.cores import chosen, take_cores
from synk.cluster.launcher import Launched, launched

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


EVERYTHING = OPEN_MPI | MPICH | SLURM | CPUS


@pytest.mark.parametrize("said", ["", " ", "many", "-1", "2(x"])
@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_a_variable_that_has_no_number_says_nothing(name, said):
    for environment in (OPEN_MPI, MPICH, SLURM | CPUS, EVERYTHING):
        if name in environment:
            without = {k: v for k, v in environment.items() if k != name}
            assert launched(environment | {name: said}) == launched(without)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nodes_of_a_host_share_its_cores(size):
    host = set(range(10))
    found = [chosen(host, host, Launched(k, size, k, size)) for k in range(size)]
    assert sorted(itertools.chain(*found)) == sorted(host)
    found = [chosen({k}, host, Launched(k, size, k, size)) for k in range(size)]
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
