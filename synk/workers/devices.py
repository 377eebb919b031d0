"""Each rank's device, a GPU or the CPU, and the environment variables that select it.

Nothing here uses a GPU, as a process with a CUDA context cannot be forked. A rank with
a GPU sees no other, so every library in it uses that one. The driver's library NVML
lists the GPUs without a CUDA context. Its bindings are the package nvidia-ml-py;
without them, or without a driver, no GPU is found.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from pytensor import config

from ..errors import StateError
from . import affinity

Request = str | Sequence[int]
"""The argument `devices` of `synk.fork`: "auto", "cpu", "cuda", or GPUs' numbers."""

_FRACTION = 0.75
"""JAX's default part of a GPU's memory, which ranks that share a GPU divide."""


class GPU(NamedTuple):
    """One GPU that this process may use."""

    number: int  # among the visible GPUs, as in `devices` of `synk.fork`
    uuid: str  # its name for CUDA, whichever GPUs are visible
    name: str
    memory: int  # in bytes
    cores: tuple[int, ...]  # CPU cores near to it; () if NVML does not know


class Device(NamedTuple):
    """A rank's device: a GPU, which `sharers` ranks share, or the CPU (None)."""

    gpu: GPU | None = None
    sharers: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.gpu is not None

    def environment(self) -> dict[str, str]:
        """Return the environment variables for ranks on this device.

        A variable that the user has set is left out, except CUDA_VISIBLE_DEVICES. On
        the CPU, JAX uses no GPU. On a GPU, JAX multiplies float32 in full precision,
        not as TF32.
        """
        if self.gpu is None:
            return _unless_set({"JAX_PLATFORMS": "cpu"})
        wanted = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        if self.sharers > 1:
            fraction = f"{_FRACTION / self.sharers:.3f}"
            wanted["XLA_PYTHON_CLIENT_MEM_FRACTION"] = fraction
        return {"CUDA_VISIBLE_DEVICES": self.gpu.uuid, **_unless_set(wanted)}


def plan(request: Request, n: int | None, cores: Sequence[int]) -> list[Device]:
    """Return the device of each of `n` ranks; None for a rank on each GPU or core."""
    # `cores` are the usable CPU cores. Raises StateError if the request is for GPUs and
    # there are none, or JAX cannot use them; TypeError or ValueError if the request
    # makes no sense, or there are fewer GPUs than ranks.
    if not isinstance(request, str):
        try:
            numbers = [operator.index(number) for number in request]
        except TypeError:
            raise TypeError(
                f"devices must be a name or a list of GPUs' numbers, got {request!r}"
            ) from None
        return _on_gpus(numbers, n, find_gpus())
    if request not in ("auto", "cpu", "cuda"):
        raise ValueError(
            "devices must be 'auto', 'cpu', 'cuda' or a list of GPUs' numbers,"
            f" got {request!r}"
        )
    if request == "cuda" or (request == "auto" and not why_not_jax()):
        found = find_gpus()
        if found and n is not None and n > len(found):
            example = [rank % len(found) for rank in range(n)]
            raise ValueError(
                f"{n} ranks, but {len(found)} GPUs: give devices='cpu', or say which"
                f" ranks share a GPU, as in devices={example}"
            )
        if found or request == "cuda":
            return _on_gpus(range(len(found) if n is None else n), n, found)
    return [Device()] * (len(cores) if n is None else n)


def _on_gpus(numbers: Sequence[int], n: int | None, found: list[GPU]) -> list[Device]:
    if n is not None and n != len(numbers):
        raise ValueError(f"n={n}, but devices names {len(numbers)}")
    if not found:
        raise StateError("no NVIDIA GPU was found; python -m synk info says more")
    if (why_not := why_not_jax()) is not None:
        raise StateError(f"ranks cannot compute on GPUs: {why_not}")
    if not numbers:
        raise ValueError("devices names no GPU")
    wrong = [number for number in numbers if not 0 <= number < len(found)]
    if wrong:
        raise ValueError(f"there is no GPU {wrong[0]}: {len(found)} were found")
    sharers = Counter(numbers)
    return [Device(found[number], sharers[number]) for number in numbers]


def cores_by_rank(devices: Sequence[Device], cores: list[int]) -> list[list[int]]:
    """Return each rank's CPU cores: those near its GPU, divided among its ranks."""
    near = []
    for device in devices:
        wanted = cores if device.gpu is None else device.gpu.cores
        near.append([core for core in cores if core in wanted] or cores)
    return [
        affinity.share(of_rank, near[:rank].count(of_rank), near.count(of_rank))
        for rank, of_rank in enumerate(near)
    ]


class Environment:
    """A device's environment variables, set in this process until `release`.

    On a GPU, PyTensor's default mode becomes JAX.
    """

    def __init__(self, device: Device) -> None:
        settings = device.environment()
        self._variables = affinity.Variables(settings)
        self._variables.set()
        self._is_released = False
        # "Mode" is PyTensor's default: compiled for CPUs.
        self._has_set_mode = device.is_gpu and config.mode == "Mode"
        if self._has_set_mode:
            config.mode = "JAX"
        # JAX reads its variables only when it is imported, so options are set here. An
        # option that the user has set by a call stays.
        self._updated: list[str] = []
        jax: Any = sys.modules.get("jax")
        for name, value in settings.items() if jax is not None else ():
            option = name.lower()
            if name.startswith("JAX_") and not getattr(jax.config, option):
                jax.config.update(option, value)
                self._updated.append(option)

    def lift(self) -> Callable[[], None]:
        """Restore the variables; return a function to set them again. See `forks`."""
        were_set = self._variables.lift()

        def set_again() -> None:
            # Another thread may have ended the session meanwhile.
            if were_set and not self._is_released:
                self._variables.set()

        return set_again

    def release(self) -> None:
        """Restore variables, mode and options; what the script has set since stays."""
        self._is_released = True
        self._variables.lift()
        if self._has_set_mode and config.mode == "JAX":
            config.mode = "Mode"
        for option in self._updated:
            sys.modules["jax"].config.update(option, None)


def _unless_set(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in os.environ}


# -- the GPUs of this machine


def find_gpus() -> list[GPU]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names, in its order."""
    # If it is not set, all GPUs, in the order of the PCI bus. As in CUDA, entries after
    # the first one that names no GPU do not count.
    with _nvml() as nvml:
        if nvml is None:
            return []
        return [
            GPU(
                index,
                nvml.nvmlDeviceGetUUID(gpu),
                nvml.nvmlDeviceGetName(gpu),
                nvml.nvmlDeviceGetMemoryInfo(gpu).total,
                _cores(nvml, gpu),
            )
            for index, gpu in enumerate(_visible(nvml))
        ]


def driver() -> tuple[str, str] | None:
    """Return the versions of the driver and of its CUDA; None without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        text = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return nvml.nvmlSystemGetDriverVersion(), text


def peer_access(gpus: list[GPU]) -> list[list[bool]]:
    """Return, by row a GPU, whether it reads each GPU's memory directly."""
    with _nvml() as nvml:
        if nvml is None:
            return [[False] * len(gpus) for _ in gpus]
        handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus]

        def reads(i: int, k: int) -> bool:
            try:
                status = nvml.nvmlDeviceGetP2PStatus(handles[i], handles[k], _READ)
            except nvml.NVMLError:
                return False
            return status == nvml.NVML_P2P_STATUS_OK

        every = range(len(gpus))
        return [[i == k or reads(i, k) for k in every] for i in every]


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
    """Yield NVML's bindings, initialised, or None where there is no NVML."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no right to use it
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
        uuid = None if handle is None else nvml.nvmlDeviceGetUUID(handle)
        if uuid is None or uuid in handles:
            break
        handles[uuid] = handle
    return list(handles.values())


def _named(nvml: Any, every: list[Any], entry: str) -> Any:
    """Return the GPU of a number, or of the beginning of a UUID; None if none fits."""
    if entry.isdigit():
        return every[int(entry)] if int(entry) < len(every) else None
    if entry.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except nvml.NVMLError:
            return None
    if not entry.startswith("GPU-"):
        return None
    found = [gpu for gpu in every if nvml.nvmlDeviceGetUUID(gpu).startswith(entry)]
    return found[0] if len(found) == 1 else None


def _cores(nvml: Any, gpu: Any) -> tuple[int, ...]:
    words = -(-(os.cpu_count() or 1) // 64)
    try:
        mask = nvml.nvmlDeviceGetCpuAffinity(gpu, words)
    except nvml.NVMLError:  # unknown, as in many containers and virtual machines
        return ()
    return tuple(
        64 * i + bit for i in range(words) for bit in range(64) if mask[i] >> bit & 1
    )


_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which nvidia-ml-py defines as a tuple by mistake."""
