"""The engines: ways to compile and run a graph on a rank, in the table `ENGINES`.

`Engine` has the attributes of an engine. Its defaults are those of most PyTensor modes:
functions of numpy arrays, on the host. A subclass overrides what differs;
CONTRIBUTING.rst shows how to add one.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

from pytensor import config
from pytensor.compile import get_mode
from pytensor.link.basic import JITLinker, Linker, PerformLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from . import host, jax


@dataclass(frozen=True)
class Costs:
    """How an engine's speed is estimated; docs/modes.rst says how numbers were set."""

    dispatch: float = 0.0
    """The least seconds of a call, if more than some microseconds."""
    slower: float = 1.0
    """Time per element, mostly of matrices, in units of that of numba's loops."""
    serial: float = 1.0
    """The fraction that threads do not speed up (Amdahl's law), except in products."""
    pytensor_exp_factor: float = 1.0
    """Time of ``exp`` and the like in plain PyTensor, in units of this engine's."""


class Engine:
    """A way to compile and run graphs; this one by PyTensor, for numpy arrays."""

    name: str | None = None
    """Its name in plans, records and ``SYNK_ENGINE``; None if synk never chooses it."""
    mode: str | None = None
    """The PyTensor mode that synk compiles in when it chooses this engine."""
    linker: type[Any] = Linker
    """The class of PyTensor linkers whose modes belong to this engine."""
    packages: tuple[str, ...] = ()
    """Packages whose errors mean that this engine cannot compile a graph."""
    costs = Costs()

    ON_DEVICE = False
    """Whether values stay on the engine's device: the rank's GPU, if it has one."""
    PER_SHAPE = False
    """Whether it compiles for each shape of the arguments, from which all others must
    follow."""
    HAS_PRECISIONS = False
    """Whether it can compute products of float32 in another precision."""
    HAS_BLOCKS = False
    """Whether it compiles the loop over blocks of rows."""
    MAKES_CODE_AHEAD = False
    """Whether one rank can make the machine code for all before the first call."""
    RAISES_LESS = False
    """Whether some Ops return a number where other engines raise."""

    compile_graph = staticmethod(host.compile_graph)
    """Compiles a graph to a function of arrays that returns a list of arrays."""
    get_value = staticmethod(host.get_value)
    """Returns the value of a shared variable as the engine's own array, uncopied."""
    set_value = staticmethod(host.set_value)
    """Makes a result of a compiled function the value of a shared variable."""
    as_output = staticmethod(host.as_output)
    """Converts a result of a compiled function to a numpy array."""

    def can_be_chosen(self) -> bool:
        """Return whether synk may choose this engine if the script names no mode."""
        return True


class _Numba(Engine):
    name, mode, linker, packages = "numba", "NUMBA", NumbaLinker, ("numba",)
    # PyTensor's loops call `exp` once per element; synk's are vectorised.
    costs = Costs(pytensor_exp_factor=2.6)
    HAS_BLOCKS = MAKES_CODE_AHEAD = True


class _JAX(Engine):
    name, mode, linker, packages = "JAX", "JAX", JAXLinker, ("jax", "jaxlib")
    costs = Costs(dispatch=100e-6, slower=1.5, serial=0.5)
    ON_DEVICE = PER_SHAPE = HAS_PRECISIONS = RAISES_LESS = True
    compile_graph = staticmethod(jax.compile_graph)
    get_value = staticmethod(jax.get_value)
    set_value = staticmethod(jax.set_value)
    as_output = staticmethod(jax.as_output)

    def can_be_chosen(self) -> bool:
        """Return False if JAX is missing, or the script uses JAX in 32 bits itself."""
        if importlib.util.find_spec("jax") is None:
            return False
        package: Any = sys.modules.get("jax")
        is_untouched = "pytensor.link.jax.dispatch" not in sys.modules
        return not is_untouched or package is None or package.config.jax_enable_x64


HOST, JAX = Engine(), _JAX()

ENGINES: dict[str, Engine] = {"JAX": JAX, "numba": _Numba()}
"""The engines that synk may choose, by name."""


def engine_for(mode: Any) -> Engine:
    """Return the engine of a PyTensor mode."""
    linker = get_mode(mode).linker
    own = (each for each in ENGINES.values() if isinstance(linker, each.linker))
    return next(own, HOST)


def resolved_mode(mode: Any) -> Any:
    """Return `mode`, or for None the mode of PyTensor's present settings.

    Returns None if the settings are PyTensor's defaults: synk then chooses the engine.
    """
    return get_mode(None) if mode is None and not are_settings_default() else mode


def are_settings_default() -> bool:
    """Return whether PyTensor's settings are defaults, so that synk may choose."""
    return (config.mode, config.linker, config.optimizer) == ("Mode", "auto", "o4")


def engine_named(name: str | None) -> Engine:
    """Return the engine of this name; `HOST` for None."""
    return HOST if name is None else ENGINES[name]


def describe_mode(mode: Any) -> str:
    """Return words for a PyTensor mode and what compiles in it."""
    linker: Any = get_mode(mode).linker
    if isinstance(linker, JITLinker):
        by = type(linker).__name__.removesuffix("Linker").replace("Numba", "numba")
    elif getattr(linker, "c_thunks", not isinstance(linker, PerformLinker)):
        by = "C"
    elif getattr(linker, "use_cloop", False):  # what PyTensor makes of a mode for C
        by = "in Python, as there is no C compiler"
        if isinstance(mode, str):
            return f"mode {mode} ({by})"
    else:
        by = "Python"
    if isinstance(mode, str):
        return f"mode {mode}"
    return f"default mode ({by})" if mode is None else f"a mode of its own ({by})"


def compiles_in_calls(mode: Any) -> bool:
    """Return whether a function's machine code is made in its first call."""
    return isinstance(get_mode(mode).linker, JITLinker)
