"""What a session is started with, and what each of its ranks is told.

A rank has what its zygote had: the state of the script when that was forked, or that of
a new interpreter. It makes the script's present one its own before anything else.
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

import cloudpickle
import numpy as np
from pytensor import config

from ..cluster.launcher import copies
from ..errors import OversubscriptionWarning, StateError
from ..memory import proc, segment
from ..memory.descriptors import open_pidfd
from ..user_frames import callers_level
from ..workers import affinity
from ..workers.devices import Device, Request, cores_by_rank, plan
from .context import Place

# -- what was asked for


class SessionOptions(NamedTuple):
    """What `synk.fork` was asked for, checked; `synk.recover` starts the same again."""

    places: Sequence[Place]  # of each rank
    spin: bool  # each has a core of its own
    timeout: float | None
    restores: bool  # what is scattered is kept, to be scattered again
    restarts: int
    groups: int  # that ranks are to compute in, each by themselves


def check_asked(
    n: int | None,
    devices: Request,
    threads: int | None,
    timeout: float | None,
    on_death: str,
    restarts: int,
    groups: int = 1,
) -> SessionOptions:
    """Check the arguments of `synk.fork`, and find a place for each rank."""
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
    """Raise an error of synk's unless this process can be forked now."""
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
    proc.number()  # which it may not have there
    with contextlib.suppress(OSError):  # a limit, which is told where it matters
        open_pidfd(os.getpid()).close()  # which a sandbox may forbid


def warn_of_few_cores(devices: Sequence[Device], cores: Sequence[int]) -> None:
    """Warn where ranks have to take turns on a core, and say what follows."""
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
    """Return the seconds a command may take, or None for no limit."""
    if timeout is None:
        return None
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    return float(timeout)


def check_count(what: str, value: int, least: int = 1) -> int:
    """Return the value of an argument that counts something."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, got {value!r}") from None
    if count < least:
        raise ValueError(f"{what} must be at least {least}, got {count}")
    return count


def warn_of_copies() -> None:
    """Warn in the second of the processes in which a launcher runs the script."""
    # It knows nothing of synk there: each copy forks ranks of its own, and does all.
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


# -- PyTensor's settings, which a script may change after the fork, too

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
"""Those that decide how a graph is rewritten and compiled. Not those for C++, some of
which PyTensor takes seconds to find out."""


def pytensor_settings() -> dict[str, Any]:
    """Return the present settings of this process."""
    return {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}


def follow_settings(settings: dict[str, Any]) -> None:
    """Make another process's settings this one's."""
    for name, value in settings.items():
        if getattr(config, name) != value:
            setattr(config, name, value)


# -- the rest of a process's state


class Surroundings(NamedTuple):
    """What of a process does not follow from what it has imported."""

    environment: dict[str, str]
    folder: str | None  # the working directory; None where it is gone
    path: list[str]  # where modules are looked for
    filters: list[tuple]  # of warnings
    numpy_errors: dict[str, Any]  # what is done about a division by zero and the like
    pytensor: dict[str, Any]  # settings
    jax: dict[str, Any]  # where it is used: PyTensor's link to it sets some

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Return those of this process."""
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
        """Make them those of this process."""
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        if self.folder is not None:
            with contextlib.suppress(OSError):  # gone since
                os.chdir(self.folder)
        sys.path[:] = self.path
        if list(warnings.filters) != self.filters:
            warnings.resetwarnings()  # modules forget what they have warned of, too
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
"""Those that decide what is computed. Of devices each rank has its own."""


class ScriptSeeds(NamedTuple):
    """What the global generators of ranks other than 0 follow from, beside the rank."""

    # They would be a copy in every process that is forked, and an Op that draws from
    # ``np.random`` would add the same noise on all ranks. Rank 0 keeps the script's.
    numpy: int
    python: int
    # How often these ranks have been started again: they are not to draw once more what
    # they have drawn, though rank 0 may have drawn nothing since.
    comeback: int

    @classmethod
    def of_this_process(cls, comeback: int) -> ScriptSeeds:
        """Return those of the script's process; its generators stay as they are."""
        of_numpy = _digest(np.random.get_state(legacy=False))
        return cls(of_numpy, _digest(random.getstate()), comeback)

    def adopt(self, rank: int) -> None:
        """Seed the generators of this process, which is not rank 0."""
        seeds = np.random.SeedSequence(self.numpy, spawn_key=(rank, self.comeback))
        # A script may have put another one in the place of MT19937.
        kind = type(np.random.get_bit_generator())  # type: ignore[attr-defined]
        state = dict(kind(seeds).state)
        np.random.set_state({**state, "has_gauss": 0, "gauss": 0.0})
        random.seed(_digest((self.python, rank, self.comeback)))


def _digest(state: Any) -> int:
    """Return a number that follows from a state."""
    text = json.dumps(state, default=lambda part: part.tolist())
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


class RankStart(NamedTuple):
    """What each rank of a session is told when it is forked."""

    asked: SessionOptions
    control: segment.Place
    records: segment.Place
    surroundings: Surroundings  # of the master
    seeds: ScriptSeeds
    nodes: tuple[list[int], int] | None = None  # see `Pool`

    def dumps(self) -> bytes:
        """Return it as bytes; classes of the script's warnings are sent by value."""
        return cloudpickle.dumps(tuple(self))
