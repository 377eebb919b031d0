"""The NVIDIA GPUs of the machine, as the driver's library NVML tells of them.

NVML makes no CUDA context, so it can be asked before ranks are forked. Its bindings are
the package nvidia-ml-py; without them, or without a driver, no GPU is found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple


class GPU(NamedTuple):
    """One GPU that this process may use.

    Attributes
    ----------
    number : int
        Among the visible ones: what `devices` of `synk.fork` calls it.
    uuid : str
        What CUDA calls it, whatever else is visible.
    name : str
    memory : int
        In bytes.
    cores : tuple of int
        The CPU cores near to it; empty if NVML does not say.
    """

    number: int
    uuid: str
    name: str
    memory: int
    cores: tuple[int, ...]


def find_gpus() -> list[GPU]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    Without it they are all, in the order of the PCI bus. As in CUDA, what follows an
    entry of it that names no GPU is not visible either.
    """
    with _nvml() as nvml:
        if nvml is None:
            return []
        return [_describe(nvml, i, gpu) for i, gpu in enumerate(_visible(nvml))]


def driver() -> tuple[str, str] | None:
    """Return the versions of the driver and of the CUDA that it knows, or None."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        text = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return _text(nvml.nvmlSystemGetDriverVersion()), text


def peer_access(gpus: list[GPU]) -> list[list[bool]]:
    """Tell which GPUs, by row, read the memory of which others directly."""
    with _nvml() as nvml:
        if nvml is None:
            return [[False] * len(gpus) for _ in gpus]
        handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus]
        return [[_reads(nvml, mine, other) for other in handles] for mine in handles]


def why_not_jax() -> str | None:
    """Return why JAX cannot use a GPU here, or None if it can."""
    if find_spec("jax") is None:
        return "JAX is not installed: pip install 'synk[cuda13]'"
    for version in (13, 12):
        if find_spec(f"jax_cuda{version}_plugin") is not None:
            return None
    return "JAX has no plugin for CUDA: pip install 'synk[cuda13]'"


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Give NVML's functions, or None where there is no NVML."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or not the rights to use it
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _visible(nvml: Any) -> list[Any]:
    every = [
        nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())
    ]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return every
    handles: dict[str, Any] = {}
    for entry in map(str.strip, chosen.split(",")):
        handle = _named(nvml, every, entry)
        if handle is None or _uuid(nvml, handle) in handles:
            break
        handles[_uuid(nvml, handle)] = handle
    return list(handles.values())


def _named(nvml: Any, every: list[Any], entry: str) -> Any:
    """Return the GPU that an entry names, by number or the beginning of its UUID."""
    if entry.isdigit():
        return every[int(entry)] if int(entry) < len(every) else None
    if entry.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except nvml.NVMLError:
            return None
    if not entry.startswith("GPU-"):
        return None
    found = [gpu for gpu in every if _uuid(nvml, gpu).startswith(entry)]
    return found[0] if len(found) == 1 else None


def _describe(nvml: Any, index: int, gpu: Any) -> GPU:
    return GPU(
        index,
        _uuid(nvml, gpu),
        _text(nvml.nvmlDeviceGetName(gpu)),
        nvml.nvmlDeviceGetMemoryInfo(gpu).total,
        _cores(nvml, gpu),
    )


def _cores(nvml: Any, gpu: Any) -> tuple[int, ...]:
    words = -(-(os.cpu_count() or 1) // 64)
    try:
        mask = nvml.nvmlDeviceGetCpuAffinity(gpu, words)
    except nvml.NVMLError:  # containers and virtual machines often do not know
        return ()
    return tuple(
        64 * i + bit for i in range(words) for bit in range(64) if mask[i] >> bit & 1
    )


def _reads(nvml: Any, mine: Any, other: Any) -> bool:
    if _uuid(nvml, mine) == _uuid(nvml, other):
        return True
    try:
        status = nvml.nvmlDeviceGetP2PStatus(mine, other, _READ)
    except nvml.NVMLError:
        return False
    return status == nvml.NVML_P2P_STATUS_OK


_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py has as a tuple by mistake."""


def _uuid(nvml: Any, gpu: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(gpu))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
