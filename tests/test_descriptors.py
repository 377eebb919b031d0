"""What programs that the script or a rank starts are given of synk: nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytensor

import synk
from synk.ranks.session import SESSION

OPEN = """
import os
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}"):
        print(os.readlink(f"/proc/self/fd/{name}"))
"""


def open_in_a_program() -> list[str]:
    """Return what a program has open that gets all that is not kept from it."""
    command = [sys.executable, "-c", OPEN]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, close_fds=False
    )
    return [
        line for line in done.stdout.splitlines() if line.startswith(("/memfd", "pipe"))
    ]


def worker_programs(context) -> int:
    return len(open_in_a_program())


def test_programs_get_no_descriptors_of_segments_and_pipes():
    before = len(open_in_a_program())
    values = pytensor.shared(np.ones(10))
    with synk.session(2):
        data = synk.data(np.ones(10))
        synk.all_reduce(values)
        assert len(open_in_a_program()) == before
        # Of a rank, too; its standard input is not the script's.
        assert SESSION.run(worker_programs)[1] <= before
        assert len(data) == 10
