"""Ways of running a graph on a rank; one file each, with one interface.

An engine compiles graphs, and knows how a shared variable holds its value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pytensor.compile import SharedVariable, get_mode
from pytensor.graph.basic import Variable
from pytensor.link.basic import JITLinker, PerformLinker

from . import host, jax


class Engine(Protocol):
    """What a module of this package offers."""

    NEEDS_SIZES: bool
    ON_DEVICE: bool
    PER_SHAPE: bool
    HAS_PRECISIONS: bool

    def compile_graph(
        self,
        inputs: list[Variable],
        outputs: list[Variable],
        updates: list[tuple[SharedVariable, Variable]],
        mode: Any,
        name: str | None,
        options: dict[str, Any],
        precision: str | None = None,
    ) -> Callable[..., list[Any]]:
        """Compile a graph to a function of arrays that returns a list of arrays."""

    def get_value(self, variable: SharedVariable) -> Any:
        """Return the value of a shared variable itself, an array where they lie."""

    def set_value(self, variable: SharedVariable, value: Any) -> None:
        """Make what a function has returned the value of a shared variable."""

    def as_output(self, value: Any) -> Any:
        """Return what a function has returned as an array of numpy's."""


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


def engine_for(mode: Any) -> Engine:
    """Return what compiles graphs in one of PyTensor's modes."""
    linker = type(get_mode(mode).linker)
    return jax if linker.__module__.startswith("pytensor.link.jax") else host
