"""The records of `synk.tune` on disk, which override the rules for plans.

A record has the plan for a graph, a scale of rows, and numbers of ranks and cores. It
is valid only with the versions and the processor that it was measured with. Each record
is a file beside PyTensor's compiled code (``config.base_compiledir``); or all are in
the file that ``SYNK_PLANS`` names, which can be kept beside a script. Files are JSON,
with names and numbers alone.
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
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort

from .plan import Plan

# An environment variable: the file of records that a script reads and writes.
VARIABLE = "SYNK_PLANS"
MEASURED = "as it was measured by synk.tune"  # `Plan.why` of a plan from a record
_FEW = 10  # constants with fewer numbers are spelled with their values
# Packages whose versions change how fast engines are
_DECIDING = ("synk", "pytensor", "numba", "jax", "numpy", "scipy")


class Record(NamedTuple):
    """A record as `python -m synk tune` lists it."""

    function: str
    rows: int
    ranks: int
    cores: int
    plan: Plan
    measured: dict[str, float]  # seconds of a call, by the names of possible plans
    here: bool  # whether it is valid with the present versions and processor


def scale_of(rows: int) -> int:
    """Return the scale of a number of rows; twice as many rows are the next scale."""
    return rows.bit_length()


def rows_of(scale: int) -> int:
    """Return the number of rows in the middle of a scale."""
    return 3 << scale - 2 if scale > 1 else scale


def key_of(graph: str, ranks: int, cores: int, scale: int) -> str:
    """Return the key of a record; `graph` is a text of `spelled`."""
    about = repr((ranks, cores, scale, graph))
    return hashlib.sha256(about.encode()).hexdigest()[:32]


def spelled(outputs: Sequence[Variable]) -> str:
    """Return a graph as a text, the same in every run: a line for each node.

    Inner graphs follow their node. Variables are numbered, without their names.
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


def find(key: str, function: str) -> Record | None:
    """Return the valid record of a key, or None; warn of one for other versions."""
    entry: Any = _read(_path(key)).get(key)
    record = _record(entry)
    if record is None or record.here:
        return record
    made_by = entry["made_by"]
    differs = [
        f"{name} {made_by.get(name)}, and it is {value}"
        for name, value in _versions().items()
        if made_by.get(name) != value
    ]
    warnings.warn(
        f"the record of synk.tune for {function} is left out: it was made with"
        f" {'; '.join(differs)}. Tune again, or clear it by"
        " `python -m synk tune --clear`",
        stacklevel=2,
    )
    return None


def write(
    key: str,
    function: str,
    scale: int,
    machine: tuple[int, int],
    plan: Plan,
    measured: dict[str, float],
) -> None:
    """Write a record with the fastest `plan`; `machine` is (ranks, cores of each).

    If the file cannot be written: raise if ``SYNK_PLANS`` names it, or else go on.
    """
    ranks, cores = machine
    entry = {
        "function": function,
        "rows": rows_of(scale),
        "ranks": ranks,
        "cores": cores,
        "engine": plan.engine,
        "alone": plan.is_alone,
        "block": plan.block,
        "measured": measured,
        "made_by": _versions(),
    }
    path = _path(key)
    try:
        _store(path, _read(path) | {key: entry})
    except OSError:
        if os.environ.get(VARIABLE):
            raise


def listed() -> list[Record]:
    """Return all records, of the file that ``SYNK_PLANS`` names or of the folder."""
    entries = [entry for path in _files() for entry in _read(path).values()]
    found = [record for record in map(_record, entries) if record is not None]
    return sorted(found, key=lambda each: (each.function, each.rows))


def clear() -> int:
    """Delete all records; return how many there were."""
    many = len(listed())
    for path in _files():
        path.unlink()
    return many


def _files() -> list[Path]:
    named = os.environ.get(VARIABLE)
    files = [Path(named)] if named else sorted(_path("*").parent.glob("*.json"))
    return [path for path in files if path.exists()]


def _path(key: str) -> Path:
    folder = Path(pytensor.config.base_compiledir, "synk-plans")
    return Path(os.environ.get(VARIABLE) or folder / f"{key}.json")


def _read(path: Path) -> dict[str, Any]:
    """Return a file's entries by key; none if the file cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _record(entry: Any) -> Record | None:
    """Return the record of an entry; None if the entry is not valid."""
    try:
        engine = None if entry["engine"] is None else str(entry["engine"])
        plan = Plan(engine, bool(entry["alone"]), int(entry["block"]), MEASURED)
        measured = {str(k): float(v) for k, v in entry["measured"].items()}
        about = int(entry["rows"]), int(entry["ranks"]), int(entry["cores"])
        is_here = entry["made_by"] == _versions()
        return Record(str(entry["function"]), *about, plan, measured, is_here)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _store(path: Path, entries: dict[str, Any]) -> None:
    """Write a file, replacing it as a whole, as other processes may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_text(json.dumps(entries, indent=1))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _versions() -> dict[str, str | None]:
    """Return the present versions and processor, for `made_by` of a record."""
    versions = {package: _version(package) for package in _DECIDING}
    python = platform.python_version()
    return versions | {"Python": python, "processor": processor()}


@functools.cache
def _version(package: str) -> str | None:
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def processor() -> str:
    """Return the model of the processor; its architecture if that is not known."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
