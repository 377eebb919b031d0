"""``python -m synk info``: what synk finds on the machine, and would fork."""

from __future__ import annotations

import argparse
import os
import platform
import textwrap
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pytensor import config
from pytensor.compile.mode import get_default_mode

from ..choice import records
from ..cluster import launcher
from ..cluster.nodes import probe
from ..errors import SynkError
from ..memory import mapping
from ..memory.limits import cpu_quota, memory_limits
from ..ranks.session import SESSION
from ..ranks.starting import check_can_fork
from ..report.words import count
from ..workers import affinity, devices
from ..workers.control import Control
from ..workers.devices import GPU

WIDTH = 96
"""The most columns of a line; longer values go on in the next line."""

PACKAGES = ("synk", "pytensor", "numpy", "scipy", "numba", "threadpoolctl")
OPTIONAL = ("jax", "torch")
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""Packages with the NCCL library. If both are installed, the loader chooses."""
MISSING = "not installed"
_LABEL = 14
_MAX_RANKS = 16

Rows = list[tuple[str, str]]


def info(argv: Sequence[str]) -> int:
    """Print the report; the exit status is 1 if synk could not fork here."""
    parser = argparse.ArgumentParser(prog="python -m synk info", description=__doc__)
    parser.add_argument(
        "-n", type=int, metavar="RANKS", help="plan for so many ranks, not one per core"
    )
    n = parser.parse_args(argv).n
    if n is not None and n < 1:
        parser.error(f"-n must be at least 1, got {n}")
    launched = launcher.launched()
    if launched is None:
        print(report(n))
        return 1 if refusal(n) else 0
    library, seen = probe(launched)
    rows = [("MPI", library)]
    for node, (host, bound, cores) in enumerate(seen):
        takes = f"{count(len(cores), 'rank')} on {ranges(cores)}"
        rows.append((f"node {node}", f"{host}, bound to {ranges(bound)}: {takes}"))
    if launched.rank == 0:  # only the first process prints
        print(_as_text({"nodes": rows}))
    return 0


def report(n: int | None = None) -> str:
    """Return the report for `n` ranks, or for as many as ``synk.fork()`` would make."""
    sections = {
        "versions": _versions(),
        "cores": _cores(),
        "GPUs": _gpus(),
        "memory": _memory(),
        "pytensor": _pytensor(),
        f"synk.fork({'' if n is None else n})": _fork(n),
    }
    return _as_text(sections)


def _as_text(sections: Mapping[str, Rows]) -> str:
    texts = ["\n".join([t, *(_line(*r) for r in rows)]) for t, rows in sections.items()]
    return "\n\n".join(texts)


def refusal(n: int | None = None) -> str | None:
    """Return why ``synk.fork(n)`` would fail in this process, or None if it would not.

    This makes and drops a session's control segment, which fails on a system without
    such memory.
    """
    try:
        check_can_fork(SESSION.state, SESSION.rank, SESSION.size)
        Control(len(devices.plan("auto", n, affinity.usable_cores())), spin=False)
    except (SynkError, ValueError, OSError) as error:
        return str(error)
    return None


# -- the sections


def _versions() -> Rows:
    rows = [("python", f"{platform.python_version()} on {platform.platform()}")]
    rows += [(name, _version(name)) for name in (*PACKAGES, *OPTIONAL)]
    return rows


def _version(package: str) -> str:
    """Return a version without importing the package, which may take seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def _cores() -> Rows:
    quota = cpu_quota()
    usable = affinity.usable_cores()
    processor = records.processor() or platform.machine()
    return [
        ("machine", f"{os.cpu_count()} ({processor})"),
        ("affinity", ranges(sorted(affinity.allowed_cores()))),
        ("cgroup quota", "none" if quota is None else f"{quota:g} cores"),
        ("usable", f"{len(usable)}: {ranges(usable)}"),
    ]


def _gpus() -> Rows:
    found = devices.find_gpus()
    if not found:
        return [("NVIDIA GPUs", _no_gpus())]
    rows = []
    for gpu in found:
        near = f", near cores {ranges(gpu.cores)}" if gpu.cores else ""
        text = f"{gpu.name}, {gibibytes(gpu.memory)}{near}"
        rows.append((f"GPU {gpu.number}", text))
    versions = devices.driver()
    if versions is not None:
        rows.append(("driver", f"{versions[0]}, for CUDA {versions[1]} and older"))
    if len(found) > 1:
        rows.append(("peer access", _peers(found)))
    rows.append(("JAX", devices.why_not_jax() or "can use them"))
    bindings, libraries = _version("nccl4py"), map(_version, NCCL)
    nccl = "no nccl4py, so values pass through the host: pip install 'synk[cuda13]'"
    if bindings != MISSING:
        there = [version for version in libraries if version != MISSING]
        nccl = f"{there[0] if there else 'of no Python package'}, by nccl4py {bindings}"
    rows.append(("NCCL", nccl))
    return rows


def _no_gpus() -> str:
    """Return words for no GPU, and why synk finds none if the machine has some."""
    cards = list(Path("/proc/driver/nvidia/gpus").glob("*"))
    if not cards and not Path("/dev/nvidiactl").exists():
        return "none"
    if find_spec("pynvml") is None:
        return "not looked for: pip install 'synk[cuda13]'"
    return "none that this process may use (driver, rights, CUDA_VISIBLE_DEVICES)"


def _peers(found: list[GPU]) -> str:
    """Return which GPUs can read each other's memory directly, in words."""
    reads = devices.peer_access(found)
    groups = {tuple(i for i, reaches in enumerate(row) if reaches) for row in reads}
    if len(groups) == 1:
        return "between all"
    return "; ".join("between " + ranges(group) for group in sorted(groups))


def _memory() -> Rows:
    """Return rows with the limits of memory, which hold for shared memory, too."""
    rows = []
    for limit in memory_limits():
        free = f"{gibibytes(limit.total)}, {gibibytes(limit.free)} available"
        cgroup = "" if limit.cgroup is None else f" ({limit.cgroup})"
        rows.append(("cgroup limit" if cgroup else "RAM", free + cgroup))
    rows.append(("huge pages", _huge_pages()))
    return rows


def _huge_pages() -> str:
    """Return whether rows lie in huge pages, and what to do if not, in words."""
    if mapping.are_huge_given():
        return f"given for rows, {gibibytes(mapping.HUGE)} each"
    if not mapping.HUGE:
        return "none: the kernel is built without them (transparent_hugepage)"
    word = mapping.huge_setting()
    if word == "deny":
        advice = "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
        return f"not given for rows, as shmem_enabled is 'deny': as root, {advice}"
    return (
        f"not given for rows (shmem_enabled is {word!r}): memory is in small pieces, or"
        " Linux is older than 6.1; as root, set shmem_enabled to 'always'"
    )


def _pytensor() -> Rows:
    linker = type(get_default_mode().linker).__name__
    compiledir, home = str(config.compiledir), f"{Path.home()}/"
    if compiledir.startswith(home):
        compiledir = f"~/{compiledir.removeprefix(home)}"
    return [
        ("mode", f"{config.mode}, compiles with {linker}"),
        ("floatX", config.floatX),
        ("C++ compiler", config.cxx or "none found"),
        ("compiledir", compiledir),
    ]


def _fork(n: int | None) -> Rows:
    why_not = refusal(n)
    if why_not:
        return [("refused", why_not)]
    cores = affinity.usable_cores()
    planned = devices.plan("auto", n, cores)
    size = len(planned)
    rows = [("ranks", f"{size}: this process and {size - 1} forked")]
    shares = devices.cores_by_rank(planned, cores)
    for rank, (device, share) in enumerate(zip(planned, shares, strict=True)):
        gpu = "" if device.gpu is None else f"GPU {device.gpu.number}, "
        what = "cores" if len(share) > 1 else "core"
        threads = count(len(share), "thread")
        rows.append((f"rank {rank}", f"{gpu}{what} {ranges(share)}, {threads}"))
    if size > _MAX_RANKS:
        rows[_MAX_RANKS:-1] = [("...", f"{size - _MAX_RANKS} more, likewise")]
    if (why_not := affinity.why_not_pinned()) is not None:
        rows.append(("note", f"ranks are not pinned: {why_not}"))
    if size > len(cores):
        rows.append(("note", "more ranks than cores: correct, but slow"))
    return rows


# -- text


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def gibibytes(nbytes: int) -> str:
    """Return a number of bytes as text.

    >>> gibibytes(3 << 29), gibibytes(64 << 20)
    ('1.5 GiB', '64 MiB')
    """
    if nbytes < 1 << 30:
        return f"{nbytes / (1 << 20):.0f} MiB"
    return f"{nbytes / (1 << 30):.1f} GiB"


def _line(label: str, value: str) -> str:
    return textwrap.fill(
        value or "-",
        WIDTH,
        initial_indent=f"  {label}".ljust(_LABEL + 2),
        subsequent_indent=" " * (_LABEL + 2),
        break_on_hyphens=False,
    )
