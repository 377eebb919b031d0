"""What tests put in place of hardware, and of what cannot be waited for: all patches.

A test's own copies, transports and versions go where synk looks for CUDA's, NCCL's and
those of this machine, until the test ends.
"""

from collections.abc import Callable
from typing import Any

import pytest

from synk import compiled
from synk.commands import info
from synk.memory import cuda, to_device
from synk.programs.programs import Programs
from synk.ranks import context

Patch = pytest.MonkeyPatch


def obstacle_to_jax(monkeypatch: Patch, why: str | None) -> None:
    """Say why JAX cannot use GPUs, or that it can."""
    monkeypatch.setattr("synk.workers.devices.why_not_jax", lambda: why)


def transport(monkeypatch: Patch, kind: type) -> None:
    """Have a class in place of NCCL's."""
    monkeypatch.setattr(context, "NcclTransport", kind)


def arrays_of_streams(monkeypatch: Patch, opened: Callable[..., None]) -> None:
    """Have JAX's arrays opened for a stream by a function."""
    monkeypatch.setattr(cuda.Capsule, "__init__", opened)


def copier(monkeypatch: Patch, kind: type) -> None:
    """Have a class in place of CUDA's copies."""
    monkeypatch.setattr(context, "CudaCopier", kind)


def small_copies(monkeypatch: Patch) -> None:
    """Have all rows copied, in runs of 100 bytes and pieces of 250."""
    monkeypatch.setattr(to_device, "WORTHWHILE", 1)
    monkeypatch.setattr(to_device, "LONG", 100)
    monkeypatch.setattr(to_device, "PIECE", 250)
    monkeypatch.setattr(to_device, "LEAST", 250)


def imports_for_cuda(monkeypatch: Patch, import_module: Callable[[str], Any]) -> None:
    """Have what CUDA's bindings need imported by a function."""
    monkeypatch.setattr(cuda, "import_module", import_module)


def installed(monkeypatch: Patch, versions: dict[str, str]) -> None:
    """Have these packages installed, in reports on the machine, and no others."""

    def version(package: str) -> str:
        if package not in versions:
            raise info.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(info.metadata, "version", version)


def machine_code(monkeypatch: Patch, make: Callable[..., Any]) -> None:
    """Have rank 0's machine code made by a function."""
    monkeypatch.setattr(Programs, "make_machine_code", make)


def loading_of_kernels(monkeypatch: Patch, load: Callable[..., Any]) -> Any:
    """Have kernels loaded from the cache by a function; return the usual one."""
    usual = compiled._Quick._load_overload
    monkeypatch.setattr(compiled._Quick, "_load_overload", load)
    return usual


def patience_for_code(monkeypatch: Patch, seconds: float) -> None:
    """Have a process wait so long for the code that another makes."""
    monkeypatch.setattr(compiled, "_PATIENCE", seconds)
