"""The options of a session, and the state of the script that each of its ranks gets.

A rank inherits its zygote's state: that of the script when the zygote was forked, or
that of a new interpreter. So it first adopts the script's present state.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import numbers
import operator
import os
import random
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from pytensor import config

from ..cluster.launcher import copies
from ..errors import OversubscriptionWarning, StateError
from ..memory import proc
from ..memory.descriptors import open_pidfd
from ..user_frames import callers_level
from ..workers import affinity
from ..workers.devices import Device, Request, cores_by_rank, plan
from .context import Place

# -- options


class SessionOptions(NamedTuple):
    """The checked arguments of `synk.fork`; `synk.recover` uses them again."""

    places: Sequence[Place]  # of each rank
    spin: bool  # whether each rank has a core of its own
    timeout: float | None  # in seconds; None for no limit
    restores: bool  # whether scattered arrays are kept, to be scattered again
    restarts: int
    groups: int  # the number of groups of ranks


def check_options(
    n: int | None,
    devices: Request,
    threads: int | None,
    timeout: float | None,
    on_death: str,
    restarts: int,
    groups: int = 1,
) -> SessionOptions:
    """Check the arguments of `synk.fork`, and give each rank device and cores."""
    cores = affinity.usable_cores()
    if n is not None:
        n = check_count("n", n)
    plans = plan(devices, n, cores)
    warn_of_few_cores(plans, cores)
    if (why := affinity.why_not_pinned()) is not None:
        text = f"ranks are not pinned to cores, and may be slower: {why}"
        warnings.warn(text, RuntimeWarning, stacklevel=callers_level())
    if threads is not None:
        threads = check_count("threads", threads)
    timeout = check_timeout(timeout)
    if on_death not in ("report", "restore"):
        raise ValueError(f"on_death must be 'report' or 'restore', got {on_death!r}")
    restarts = check_count("restarts", restarts, least=0)
    places = [
        Place(device, share, threads or len(share))
        for device, share in zip(plans, cores_by_rank(plans, cores), strict=True)
    ]
    groups = check_count("groups", groups)
    if len(places) % groups:
        raise ValueError(f"{len(places)} ranks cannot be {groups} groups of one size")
    restores, spin = on_death == "restore", len(places) <= len(cores)
    return SessionOptions(places, spin, timeout, restores, restarts, groups)


def check_can_fork(state: str, rank: int, size: int) -> None:
    """Raise StateError or SynkError unless this process can fork ranks now."""
    if state == "worker":
        raise StateError(f"this is rank {rank}, a worker: it cannot fork ranks")
    if state in ("running", "broken"):
        raise StateError(
            f"synk is forked already, with {size} ranks; call synk.close() first"
        )
    if sys.platform != "linux":
        raise StateError(
            f"synk needs Linux (pidfd, futexes, /proc); got {sys.platform}"
        )
    proc.number()  # raises if this process is not in ``/proc``
    with contextlib.suppress(OSError):  # a limit that is met shows later
        open_pidfd(os.getpid()).close()  # raises SynkError if a sandbox forbids it


def warn_of_few_cores(devices: Sequence[Device], cores: Sequence[int]) -> None:
    """Warn if there are more ranks than cores, so that they take turns."""
    ranks, usable, there = len(devices), len(cores), os.cpu_count() or 0
    if ranks <= usable:
        return
    has = f"{usable} usable core{'s' * (usable != 1)}"
    if there > usable:
        has += f" (of {there}: CPU affinity or a container's quota leaves no more)"
    if devices[0].is_gpu:
        text = f"{ranks} ranks on GPUs and {has}: they take turns to start work on them"
    else:
        text = (
            f"{ranks} ranks on {has}: they take turns, so that calls are slower than"
            f" with synk.fork({usable})"
        )
    warnings.warn(text, OversubscriptionWarning, stacklevel=callers_level())


def check_timeout(timeout: float | None) -> float | None:
    """Return a checked timeout in seconds, or None for no limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    return float(timeout)


def check_count(what: str, value: int, least: int = 1) -> int:
    """Return the int `value` of the argument `what`, which is at least `least`."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, got {value!r}") from None
    if count < least:
        raise ValueError(f"{what} must be at least {least}, got {count}")
    return count


def warn_of_copies() -> None:
    """Warn in the second of the copies of the script that a launcher of MPI runs."""
    # It runs them without ``python -m synk``, so each copy forks ranks and does all.
    found = copies()
    if found is None or found.rank != 1:
        return
    script = sys.argv[0] if sys.argv[0].endswith(".py") else "SCRIPT.py"
    often = "several times" if found.size is None else f"{found.size} times"
    count = "..." if found.size is None else found.size
    warnings.warn(
        f"{found.launcher} runs this script {often}: each run forks ranks of its own,"
        f" and does all of the work. Write `{found.launcher} -n {count} python -m synk"
        f" {script}` to have it run once, with ranks in all of these processes",
        RuntimeWarning,
        stacklevel=callers_level(),
    )


# -- PyTensor's settings, which a script may also change after the fork

_SETTINGS = (
    "cast_policy",
    "exception_verbosity",
    "floatX",
    "linker",
    "mode",
    "numba__cache",
    "numba__fastmath",
    "on_opt_error",
    "openmp",
    "warn_float64",
)
"""Settings for rewriting and compiling graphs; not those for C++, some of which take
PyTensor seconds to find out."""


def pytensor_settings() -> dict[str, Any]:
    """Return the present settings of this process."""
    return {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}


def follow_settings(settings: dict[str, Any]) -> None:
    """Set PyTensor's settings to those of another process."""
    for name, value in settings.items():
        if getattr(config, name) != value:
            setattr(config, name, value)


# -- other state of a process


class Surroundings(NamedTuple):
    """State of the master's process that a rank adopts, beside random generators."""

    environment: dict[str, str]
    folder: str | None  # the working directory; None if it was deleted
    path: list[str]  # ``sys.path``
    filters: list[tuple]  # of warnings
    numpy_errors: dict[str, Any]  # ``np.geterr()``
    pytensor: dict[str, Any]  # settings
    jax: dict[str, Any]  # options, if PyTensor's link to JAX is loaded; it sets some

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return the state of this process."""
        folder, uses_jax = None, _JAX_LINK in sys.modules
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
        return cls(
            dict(os.environ),
            folder,
            list(sys.path),
            list(warnings.filters),
            dict(np.geterr()),
            pytensor_settings(),
            {name: getattr(sys.modules["jax"].config, name) for name in _JAX_NAMES}
            if uses_jax
            else {},
        )

    def adopt(self) -> None:
        """Set this process's state to this one."""
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if self.folder is not None:
            with contextlib.suppress(OSError):  # deleted since
                os.chdir(self.folder)
        sys.path[:] = self.path
        if list(warnings.filters) != self.filters:
            warnings.resetwarnings()  # so modules may warn again of the same
            cast(list, warnings.filters).extend(self.filters)
        np.seterr(**self.numpy_errors)
        follow_settings(self.pytensor)
        if self.jax:
            importlib.import_module(_JAX_LINK)
            settings = sys.modules["jax"].config
            for name, value in self.jax.items():
                if getattr(settings, name) != value:
                    settings.update(name, value)


_JAX_LINK = "pytensor.link.jax.dispatch"

_JAX_NAMES = (
    "jax_debug_nans",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)
"""Options that change results. Those for devices are each rank's own."""


class ScriptSeeds(NamedTuple):
    """Seeds for the global random generators of ranks other than 0."""

    # Without them each forked process would have a copy of the script's generators, and
    # an Op that draws from ``np.random`` would add the same noise on all ranks. Rank 0
    # keeps the script's generators.
    numpy: int
    python: int
    # How often the ranks have been started again: the new ranks must not repeat draws,
    # even if rank 0 has drawn nothing since.
    recoveries: int

    @classmethod
    def of_this_process(cls, recoveries: int) -> ScriptSeeds:
        """Return seeds from this process's generators, which do not change."""
        of_numpy = _digest(np.random.get_state(legacy=False))
        return cls(of_numpy, _digest(random.getstate()), recoveries)

    def adopt(self, rank: int) -> None:
        """Seed the global generators of this process, which is not rank 0."""
        seeds = np.random.SeedSequence(self.numpy, spawn_key=(rank, self.recoveries))
        # A script may have replaced numpy's MT19937 by another bit generator.
        kind = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
        state = dict(kind(seeds).state)
        np.random.set_state({**state, "has_gauss": 0, "gauss": 0.0})
        random.seed(_digest((self.python, rank, self.recoveries)))


def _digest(state: Any) -> int:
    """Return a hash of a generator's state, as an int."""
    text = json.dumps(state, default=lambda part: part.tolist())
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
