"""What scripts that are interrupted print afterwards; for test_run."""

from __future__ import annotations

import os
import signal

from processes import is_alive, wait_until
from test_reliability_scripts import AFTERWARDS as AFTERWARDS


def to_group(script) -> None:
    os.killpg(script.pid, signal.SIGINT)


def assert_ends_well(script, pids) -> None:
    script.expect("interrupted", 5)
    script.expect("closed", 20)
    assert script.wait() == 0
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of all processes")
