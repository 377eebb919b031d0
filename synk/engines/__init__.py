"""Ways of compiling and running a graph on a rank: a table, which other rooms ask.

`Engine` is what there is to know of one, with the values for most of PyTensor's modes:
functions of numpy's arrays, on the host. Another engine says what is otherwise with it;
CONTRIBUTING.rst shows how one is added.
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
    """What calls take beside computing; docs/modes.rst says how numbers were set."""

    dispatch: float = 0.0
    """Seconds that a call takes at least, if they are more than some microseconds."""
    slower: float = 1.0
    """How many times as long elements take as in numba's loops: of matrices, mostly."""
    serial: float = 1.0
    """The part that more threads do not shorten (Amdahl's law), but in products."""
    dear_by_pytensor: float = 1.0
    """How many times as long PyTensor alone takes for functions such as ``exp``."""


class Engine:
    """What compiles graphs; this one by PyTensor, to code for numpy's arrays."""

    name: str | None = None
    """What plans, records and ``SYNK_ENGINE`` call it; None if it is never chosen."""
    mode: str | None = None
    """PyTensor's mode that it is chosen by."""
    linker: type[Any] = Linker
    """What compiles in the modes that are this engine's."""
    packages: tuple[str, ...] = ()
    """Whose errors say that it cannot compile a graph, so that another engine is to."""
    costs = Costs()

    NEEDS_SIZES = False
    """Whether shapes must follow from those of arguments."""
    ON_DEVICE = False
    """Whether values lie where the engine computes: on a GPU, if the rank has one."""
    PER_SHAPE = False
    """Whether code is made for each shape of the arguments, when that is first met."""
    HAS_PRECISIONS = False
    """Whether products of float32 can be computed in others."""
    HAS_BLOCKS = False
    """Whether a compiled loop goes through rows in blocks."""
    MAKES_CODE_AHEAD = False
    """Whether one rank can make the machine code for all before the first call."""
    RAISES_LESS = False
    """Whether some Ops go on with some number where others raise."""

    compile_graph = staticmethod(host.compile_graph)
    """Compiles a graph to a function of arrays that returns a list of arrays."""
    get_value = staticmethod(host.get_value)
    """Returns the value of a shared variable itself, an array where they lie."""
    set_value = staticmethod(host.set_value)
    """Makes what a function has returned the value of a shared variable."""
    as_output = staticmethod(host.as_output)
    """Returns what a function has returned as an array of numpy's."""

    def can_be_chosen(self) -> bool:
        """Tell whether it can compute here, where the script has named no mode."""
        return True


class _Numba(Engine):
    name, mode, linker, packages = "numba", "NUMBA", NumbaLinker, ("numba",)
    # PyTensor's loops call such functions number by number, and synk's do not.
    costs = Costs(dear_by_pytensor=2.6)
    HAS_BLOCKS = MAKES_CODE_AHEAD = True


class _JAX(Engine):
    name, mode, linker, packages = "JAX", "JAX", JAXLinker, ("jax", "jaxlib")
    costs = Costs(dispatch=100e-6, slower=1.5, serial=0.5)
    NEEDS_SIZES = ON_DEVICE = PER_SHAPE = HAS_PRECISIONS = RAISES_LESS = True
    compile_graph = staticmethod(jax.compile_graph)
    get_value = staticmethod(jax.get_value)
    set_value = staticmethod(jax.set_value)
    as_output = staticmethod(jax.as_output)

    def can_be_chosen(self) -> bool:
        """Not in a script that computes in 32 bits by JAX, and is to go on so."""
        if importlib.util.find_spec("jax") is None:
            return False
        package: Any = sys.modules.get("jax")
        is_untouched = "pytensor.link.jax.dispatch" not in sys.modules
        return not is_untouched or package is None or package.config.jax_enable_x64


HOST, JAX = Engine(), _JAX()

ENGINES: dict[str, Engine] = {"JAX": JAX, "numba": _Numba()}
"""Those that can be chosen."""


def engine_for(mode: Any) -> Engine:
    """Return what compiles graphs in one of PyTensor's modes."""
    linker = get_mode(mode).linker
    own = (each for each in ENGINES.values() if isinstance(linker, each.linker))
    return next(own, HOST)


def mode_now(mode: Any) -> Any:
    """Return a mode that stays as it is, whatever becomes of PyTensor's settings.

    None, as they come: then engines are chosen.
    """
    return get_mode(None) if mode is None and not are_settings_default() else mode


def are_settings_default() -> bool:
    """Tell whether PyTensor's settings leave open what compiles."""
    return (config.mode, config.linker, config.optimizer) == ("Mode", "auto", "o4")


def engine_named(name: str | None) -> Engine:
    """Return the engine of a plan; None stands for those that have no name."""
    return HOST if name is None else ENGINES[name]


def described(mode: Any) -> str:
    """Say what one of PyTensor's modes is, and what compiles there."""
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
    """Tell whether machine code is made in a function's first call only."""
    return isinstance(get_mode(mode).linker, JITLinker)
