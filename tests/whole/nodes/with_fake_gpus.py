"""`python -m synk` on a machine that seems to have GPUs; see fake_nvml and fake_nccl.

The environment variable ``GPUS`` has the number of each node, such as "2 0". Where the
file of ``STUCK`` is, the last rank fails in a collective, and the others wait there as
ranks wait for NCCL.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
os.environ["JAX_PLATFORMS"] = "cpu"

import fake_nvml
from fake_nccl import ByExchange

from synk.ranks import context


class MayBeStuck(ByExchange):
    def all_reduce(self, array, op):
        if Path(os.environ["STUCK"]).exists():
            if self._comm.rank == self._comm.size - 1:
                raise ZeroDivisionError("on purpose")
            while True:
                self._comm.look_about()
                time.sleep(1e-3)
        return super().all_reduce(array, op)


if __name__ == "__main__":
    node = int(os.environ["OMPI_COMM_WORLD_RANK"])
    gpus = int(os.environ["GPUS"].split()[node])
    fake_nvml.install(pytest.MonkeyPatch(), [None] * gpus)
    context.NcclTransport = MayBeStuck
    del sys.argv[0]
    sys.argv.insert(0, "synk")
    runpy.run_module("synk", run_name="__main__", alter_sys=True)
