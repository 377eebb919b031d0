"""What launchers say in the environment, and the cores that follow from it."""

from __future__ import annotations

import itertools

import pytest

from synk.cluster.cores import chosen
from synk.cluster.launcher import Launched, launched

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
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


@pytest.mark.parametrize(
    ("environment", "right"),
    [
        ({}, None),
        (OPEN_MPI, Launched(3, 4, 0, 1)),
        (MPICH, Launched(1, 4, 1, 2)),
        (SLURM, Launched(4, 5, 0, 1)),
        (SLURM | {"SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, Launched(4, 5, 1, 2)),
        (OPEN_MPI | SLURM, Launched(3, 4, 0, 1)),  # mpirun in a Slurm job
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
    ],
)
def test_rank_and_size_are_those_of_the_launcher(environment, right):
    assert launched(environment) == right


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
