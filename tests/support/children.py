"""Tests that run in a child process of their own, and Python by itself.

From a process in which XLA runs no ranks are forked any more: so a test that calls
functions compiled for JAX leaves the process of the tests as it was.
"""

import functools
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

import synk

_LIMIT = 250  # seconds; less than a test may take, and enough for a busy machine


def in_a_child(test: Callable) -> Callable:
    """Run a test in a forked child, and fail as it fails."""

    @functools.wraps(test)
    def in_parent(*args, **kwargs) -> None:
        pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is missing")
        _import_for_all()
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            _run(writes, test, args, kwargs)
        os.close(writes)
        with open(reads) as lines:
            failure = lines.read()
        _, status = os.waitpid(child, 0)
        if failure or status:
            pytest.fail(
                f"{failure}\nexit status {os.waitstatus_to_exitcode(status)}",
                pytrace=False,
            )

    return in_parent


def run_python(
    *arguments: object, check: bool = True, **environment: str | None
) -> subprocess.CompletedProcess:
    """Run Python with more in its environment, or without what is None there."""
    merged = os.environ | environment
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stdout[-9000:] + done.stderr[-4000:]
    return done


@functools.cache
def _import_for_all() -> None:
    """Import what each child, and each of its ranks, would import for itself."""
    importlib.import_module("pytensor.link.jax.dispatch")
    # JAX has it imported when it first compiles: classes by the hundred.
    importlib.import_module("jaxlib.mlir.dialects.mhlo")


def _run(writes: int, test: Callable, args: tuple, kwargs: dict) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LIMIT)
    try:
        test(*args, **kwargs)
    except BaseException:
        os.write(writes, traceback.format_exc()[-60_000:].encode())
    finally:
        synk.close()
        os._exit(0)
