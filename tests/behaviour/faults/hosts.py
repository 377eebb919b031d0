"""Faults of what a session runs on: shared memory, limits, cores, files."""

import ctypes
import functools
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
from ranks import SIGKILL, at
from threadpoolctl import threadpool_limits
from trial import Trial, compare, playing

import synk

_CLONE_NEWNS = 0x20000
_READ_ONLY, _MS_REC, _MS_PRIVATE = 1, 1 << 14, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)

NOBODY = 65534


@functools.cache
def no_mounts() -> str:
    """Return why nothing can be mounted, tried in a child; "" if it can."""
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no tmpfs can be mounted: {tried.stderr}" if tried.returncode else ""


def not_root() -> str:
    return "" if os.geteuid() == 0 else "only root can be another user"


def mount_read_only(path: str) -> None:
    """Mount memory on a folder, which this process and its children alone see."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.mount(b"tmpfs", path.encode(), b"tmpfs", _READ_ONLY, b"size=16m"))


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork_and_check(trial: Trial) -> None:
    """Have a session, in which 24 MB are added up that the master alone has."""
    trial.fork()
    trial.work.check()
    large = np.ones((3, 1 << 20))
    compare(trial.work.sum_(large), large.sum(), "a large sum")


def with_read_only_shm(trial: Trial) -> Iterator[None]:
    mount_read_only("/dev/shm")
    yield
    fork_and_check(trial)


@playing
def with_descriptors(trial: Trial, number: int) -> Iterator[None]:
    """Have a session that may open `number` descriptors."""
    _limit(resource.RLIMIT_NOFILE, number)
    yield
    fork_and_check(trial)


@playing
def without_descriptors(trial: Trial, spare: int) -> Iterator[None]:
    """Have a session with `spare` descriptors more than there are."""
    used = len(os.listdir("/proc/self/fd")) - 1
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    _limit(resource.RLIMIT_NOFILE, used + spare)
    try:
        trial.fork()
    finally:
        _limit(resource.RLIMIT_NOFILE, before)
        synk.close()  # the ranks have the low limit still


def without_processes(trial: Trial) -> Iterator[None]:
    """A user who may have no more processes, as by ``ulimit -u``."""
    before, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    yield
    become_nobody(trial)
    with threadpool_limits(1):
        _limit(resource.RLIMIT_NPROC, 1)
        try:
            trial.fork()
        finally:
            _limit(resource.RLIMIT_NPROC, before)


def privileges_dropped_before(trial: Trial) -> Iterator[None]:
    """A service that drops its privileges, and forks then."""
    yield
    become_nobody(trial)
    fork_and_check(trial)


def privileges_dropped_after(trial: Trial) -> Iterator[None]:
    """A service that drops its privileges after the fork, which is too late."""
    trial.fork()
    yield
    become_nobody(trial)
    try:
        trial.work.scores()
    finally:
        synk.close()


def become_nobody(trial: Trial) -> None:
    """Be another user for good, who cannot do more than any other."""
    os.chown(trial.work.folder, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _limit(which: int, soft: int) -> None:
    resource.setrlimit(which, (soft, resource.getrlimit(which)[1]))


def other_time_of_day(trial: Trial) -> Iterator[None]:
    """The time of day goes ahead or back by an hour, and then a rank is killed.

    As Python tells it: the machine's own clock is left alone. A wait whose deadline
    were a time of day would last for an hour, and nobody would see the death.
    """
    jump = trial.rng.choice([-3600, 3600])
    now, now_ns = time.clock_gettime, time.clock_gettime_ns

    def moved(clock: int) -> float:
        return now(clock) + jump * (clock == time.CLOCK_REALTIME)

    def moved_ns(clock: int) -> int:
        return now_ns(clock) + jump * 10**9 * (clock == time.CLOCK_REALTIME)

    trial.patch.setattr(time, "time", partial(moved, time.CLOCK_REALTIME))
    trial.patch.setattr(time, "time_ns", partial(moved_ns, time.CLOCK_REALTIME))
    trial.patch.setattr(time, "clock_gettime", moved)
    trial.patch.setattr(time, "clock_gettime_ns", moved_ns)
    return at("between stages", SIGKILL)(trial)
