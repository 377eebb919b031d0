"""What each rank computes on, and how its process is told: environment variables.

Nothing here touches a GPU. A rank that has one sees no other, so that every library in
it takes that one for granted.
"""

from __future__ import annotations

import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pytensor import config

from ..errors import StateError
from . import affinity, gpus
from .gpus import GPU

Request = str | Sequence[int]
"""What a user asks for: "auto", "cpu", "cuda", or the numbers of GPUs."""

_FRACTION = 0.75
"""Of a GPU's memory: JAX's own default, which ranks that share a GPU divide."""


class Device(NamedTuple):
    """What one rank computes on.

    Attributes
    ----------
    gpu : GPU or None
        None for the CPU.
    sharers : int
        How many ranks compute on it.
    """

    gpu: GPU | None = None
    sharers: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.gpu is not None

    def environment(self) -> dict[str, str]:
        """Return the environment variables of its ranks; a user's own setting stands.

        On the CPU, JAX is kept from the GPUs that it would otherwise take. On a GPU it
        computes products of float32 as such, and not as of TF32.
        """
        if self.gpu is None:
            return _unless_set({"JAX_PLATFORMS": "cpu"})
        wanted = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
        if self.sharers > 1:
            fraction = f"{_FRACTION / self.sharers:.3f}"
            wanted["XLA_PYTHON_CLIENT_MEM_FRACTION"] = fraction
        return {"CUDA_VISIBLE_DEVICES": self.gpu.uuid, **_unless_set(wanted)}


def plan(request: Request, n: int | None, cores: Sequence[int]) -> list[Device]:
    """Return the device of each rank.

    Parameters
    ----------
    request : {"auto", "cpu", "cuda"} or sequence of int
        "auto" is "cuda" where GPUs are found and JAX can use them, and else "cpu".
        Numbers of GPUs, one for each rank, may repeat.
    n : int or None
        The number of ranks; None for one on each device.
    cores : sequence of int
        The usable CPU cores.

    Raises
    ------
    StateError
        If GPUs are asked for and there are none, or JAX cannot use them.
    TypeError, ValueError
        If the request makes no sense, or there are fewer GPUs than ranks.
    """
    if not isinstance(request, str):
        return _on_gpus(_numbers(request), n, gpus.find_gpus())
    if request not in ("auto", "cpu", "cuda"):
        raise ValueError(
            "devices must be 'auto', 'cpu', 'cuda' or a list of GPUs' numbers,"
            f" got {request!r}"
        )
    if request == "cuda" or (request == "auto" and not gpus.why_not_jax()):
        found = gpus.find_gpus()
        if found and n is not None and n > len(found):
            example = [rank % len(found) for rank in range(n)]
            raise ValueError(
                f"{n} ranks, but {len(found)} GPUs: give devices='cpu', or say which"
                f" ranks share a GPU, as in devices={example}"
            )
        if found or request == "cuda":
            return _on_gpus(range(len(found) if n is None else n), n, found)
    return [Device()] * (len(cores) if n is None else n)


def _numbers(request: Sequence[int]) -> list[int]:
    try:
        return [operator.index(number) for number in request]
    except TypeError:
        raise TypeError(
            f"devices must be a name or a list of GPUs' numbers, got {request!r}"
        ) from None


def _on_gpus(numbers: Sequence[int], n: int | None, found: list[GPU]) -> list[Device]:
    if n is not None and n != len(numbers):
        raise ValueError(f"n={n}, but devices names {len(numbers)}")
    if not found:
        raise StateError("no NVIDIA GPU was found; python -m synk info says more")
    if (why_not := gpus.why_not_jax()) is not None:
        raise StateError(f"ranks cannot compute on GPUs: {why_not}")
    if not numbers:
        raise ValueError("devices names no GPU")
    wrong = [number for number in numbers if not 0 <= number < len(found)]
    if wrong:
        raise ValueError(f"there is no GPU {wrong[0]}: {len(found)} were found")
    sharers = Counter(numbers)
    return [Device(found[number], sharers[number]) for number in numbers]


def cores_by_rank(devices: Sequence[Device], cores: list[int]) -> list[list[int]]:
    """Return the CPU cores of each rank: those near to its GPU, divided fairly."""
    near = [_near(device, cores) for device in devices]
    met: Counter[tuple[int, ...]] = Counter()
    shares = []
    for of_rank in near:
        shares.append(affinity.share(list(of_rank), met[of_rank], near.count(of_rank)))
        met[of_rank] += 1
    return shares


def _near(device: Device, cores: list[int]) -> tuple[int, ...]:
    wanted = cores if device.gpu is None else device.gpu.cores
    return tuple(core for core in cores if core in wanted) or tuple(cores)


class Environment:
    """The variables of a device, set in this process until `release`.

    With a GPU, PyTensor's default mode becomes that for JAX.
    """

    def __init__(self, device: Device) -> None:
        self._settings = settings = device.environment()
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        self._is_released = False
        # "Mode" is PyTensor's default: compiled for CPUs.
        self._has_set_mode = device.is_gpu and config.mode == "Mode"
        if self._has_set_mode:
            config.mode = "JAX"
        self._told = _tell_jax(settings)

    def lift(self) -> Callable[[], None]:
        """Restore the variables; return what sets them again. See `children`."""
        ours = {k: v for k, v in self._settings.items() if os.environ.get(k) == v}
        self._restore(ours)

        def set_again() -> None:
            if not self._is_released:
                os.environ.update(ours)

        return set_again

    def _restore(self, names: Iterable[str]) -> None:
        for name in names:
            value = self._before[name]
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def release(self) -> None:
        """Restore what was before; a mode that the script has set since stays."""
        self._is_released = True
        self._restore(self._before)
        if self._has_set_mode and config.mode == "JAX":
            config.mode = "Mode"
        for option in self._told:
            sys.modules["jax"].config.update(option, None)


def _tell_jax(settings: dict[str, str]) -> list[str]:
    """Set options of JAX, which reads its variables when it is imported and not later.

    Returns those that were set: not those that the user has set by a call.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return []
    options = {k.lower(): v for k, v in settings.items() if k.startswith("JAX_")}
    told = [option for option in options if not getattr(jax.config, option)]
    for option in told:
        jax.config.update(option, options[option])
    return told


def _unless_set(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in os.environ}
