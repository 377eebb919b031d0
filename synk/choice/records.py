"""What earlier runs have found of a graph's engines: a small file for each, on disk.

They lie beside what PyTensor has compiled (``config.base_compiledir``), and hold
numbers and names alone, as JSON. A file that cannot be read is none; one that cannot be
written is left out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytensor
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort

from .trial import RUNS, Trial

_FOLDER = "synk-engines"
_FORMAT = 3
_FEW = 10
"""Numbers of a constant that are told from others."""
_DECIDING = ("pytensor", "numba", "jax", "numpy", "scipy")
"""Packages that make an engine fast or slow."""


class Known(NamedTuple):
    """What is known of an engine.

    Attributes
    ----------
    compiled : float
        Seconds of its first call.
    dropped : str or None
        Why it is not used.
    lost : int
        See `Candidate`.
    """

    compiled: float
    dropped: str | None
    lost: int

    @property
    def is_out(self) -> bool:
        """Whether it is not to be tried once more."""
        return self.dropped is not None and not 0 < self.lost < RUNS


class Record(NamedTuple):
    """What is known of a graph's engines, and the seconds that it has taken."""

    best: str
    engines: dict[str, Known]
    computed: float
    spent: float


def key_of(graph: str, size: int, cores: int, scale: int) -> str:
    """Return what a graph has in common with itself in another run of the script.

    Parameters
    ----------
    graph : str
        As it is `spelled`.
    size, cores : int
        The ranks, and the cores of each.
    scale : int
        Of the number of rows; see `scale_of`.
    """
    machine = platform.platform(), _processor(), size, cores
    versions = platform.python_version(), *map(_version, _DECIDING)
    about = repr((_FORMAT, machine, versions, scale, graph))
    return hashlib.sha256(about.encode()).hexdigest()[:32]


def spelled(outputs: Sequence[Variable]) -> str:
    """Return a graph as a text: a line for each node, and for each graph within one.

    Variables are numbered as they come, so that no name but those of Ops counts.
    """
    numbers: dict[Variable, int] = {}
    lines = []

    def of(var: Variable) -> str:
        if isinstance(var, Constant):
            data = np.asarray(var.data) if hasattr(var.type, "dtype") else None
            value = data if data is not None and data.size < _FEW else ""
            return f"{var.type}={value}"
        number = numbers.setdefault(var, len(numbers))
        return f"{number}:{var.type}"

    for node in io_toposort([], outputs):
        given, made = map(of, node.inputs), map(of, node.outputs)
        lines.append(f"{','.join(made)}={node.op}({','.join(given)})")
        if isinstance(node.op, HasInnerGraph):
            lines.append(spelled(node.op.inner_outputs))
    lines.append(",".join(map(of, outputs)))
    return "\n".join(lines)


def scale_of(rows: int) -> int:
    """Return about how many rows there are: one more for four times as many."""
    return (rows.bit_length() + 1) // 2


def read(key: str) -> Record | None:
    """Return what was found, if it was."""
    try:
        found = json.loads(_path(key).read_text())
        engines = {
            str(name): Known(
                float(compiled), None if why is None else str(why), int(lost)
            )
            for name, (compiled, why, lost) in found["engines"].items()
        }
        spent = float(found["computed"]), float(found["spent"])
        return Record(str(found["best"]), engines, *spent)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(key: str, trial: Trial) -> None:
    """Keep what was found; replaced as a whole, as other processes may read it."""
    found = {
        "best": trial.best.name,
        "engines": {
            each.name: (each.compiled or each.expected, each.dropped, each.lost)
            for each in trial.candidates
            if each.compiled is not None or each.dropped is not None
        },
        "computed": trial.computed,
        "spent": trial.spent,
    }
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
        try:
            with open(descriptor, "w") as file:
                json.dump(found, file)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _path(key: str) -> Path:
    return Path(pytensor.config.base_compiledir, _FOLDER, f"{key}.json")


@functools.cache
def _version(package: str) -> str | None:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return loaded
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _processor() -> str:
    """Return the model of the processor, where the system says it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()
