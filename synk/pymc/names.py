"""All that synk uses of PyMC's and nutpie's internals, in one place.

It works with PyMC 5.28 to 6.4, and ``test_pymc_names.py`` fails if names move.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from numbers import Integral
from types import FrameType
from typing import Any, NamedTuple

import pytensor
from pymc import Model
from pymc.logprob.utils import CheckParameterValue
from pymc.sampling import mcmc
from pytensor.link.jax.linker import JAXLinker

Check: type = CheckParameterValue
"""The Op around a density that checks its parameters.

Its attribute ``can_be_replaced_by_ninf`` says if a failed check may give -inf."""

SAMPLE = "pymc.sampling.mcmc", "sample"
"""The module and name of the function whose local variables `sampling` reads."""


def _frames() -> Iterator[tuple[str, str, FrameType]]:
    """Yield (module, function, frame) for each caller, from the innermost on."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame
        frame = frame.f_back


def _locals_of_sample() -> dict[str, Any]:
    """Return the local variables of the ``pm.sample`` on the call stack; {} if none."""
    for module, function, frame in _frames():
        if (module, function) == SAMPLE:
            return dict(frame.f_locals)
    return {}


class Sampling(NamedTuple):
    """A call of ``pm.sample``.

    `mode` is that of its `compile_kwargs`, as PyMC passes only the linker on to nutpie.
    """

    cores: int
    chains: int
    mode: Any


def sampling() -> Sampling | None:
    """Return the call of ``pm.sample`` on the call stack; None if there is none."""
    found = _locals_of_sample()
    cores, chains = found.get("cores"), found.get("chains")
    if not isinstance(cores, Integral) or not isinstance(chains, Integral):
        return None
    mode = (found.get("compile_kwargs") or {}).get("mode")
    return Sampling(int(cores), int(chains), mode)


def other_sampler() -> str:
    """Return the `nuts_sampler` of ``pm.sample``, "" for PyMC's own, nutpie or none."""
    named = _locals_of_sample().get("nuts_sampler")
    ours = "pymc", "nutpie"
    return named if isinstance(named, str) and named not in ours else ""


@contextlib.contextmanager
def _replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module or class to `value`, in a block."""
    plain = getattr(where, name)
    try:
        setattr(where, name, value)
        yield
    finally:
        setattr(where, name, plain)


def replaced_nutpie(
    name: str, by: Callable[[Callable[..., Any]], Any]
) -> AbstractContextManager:
    """Replace a function of nutpie by ``by(function)``, in a block.

    ``pm.sample`` looks up ``compile_pymc_model`` and ``sample`` in nutpie's module.
    From PyMC 6.4 on it uses nutpie if that is installed.
    """
    if importlib.util.find_spec("nutpie") is None:
        return contextlib.nullcontext()
    nutpie: Any = importlib.import_module("nutpie")
    return _replaced(nutpie, name, by(getattr(nutpie, name)))


LOOKS = "assign_step_methods"
"""A function of PyMC that makes the graph of a log-density, but does not compute it."""


def asking_module() -> str:
    """Return the module of PyMC that asks for a log-density, such as "pymc.smc".

    Returns "" if it will not compute it, and "the script" if no module of PyMC asks.
    """
    for module, function, _ in _frames():
        if function == LOOKS:
            return ""
        is_pymc = module.startswith(("pymc.", "pymc_extras."))
        if is_pymc and not module.startswith(("pymc.model", "pymc.util")):
            return module
    return "the script"


TAKE_OPS = (
    "pymc.tuning.starting",
    "pymc.variational",
    "pymc_extras.inference.laplace_approx",
    "pymc_extras.inference.pathfinder",
)
"""Modules that can use an Op: they replace its inputs, differentiate and compile."""

_BACKENDS = ("backend", "gradient_backend", "inference_backend")


def wants_jax() -> bool:
    """Return whether PyMC will compile the log-density by JAX, which lacks the Op."""
    if _is_jax(pytensor.config.mode):
        return True
    for module, function, frame in _frames():
        if module.startswith(("pymc.", "pymc_extras.")):
            given = frame.f_locals
            modes = [given.get(key) for key in _BACKENDS]
            modes.append((given.get("compile_kwargs") or {}).get("mode"))
            if any(map(_is_jax, modes)) or "jaxified" in function:
                return True
    return False


def _is_jax(mode: Any) -> bool:
    """Return whether a mode, a linker or the name of a backend is JAX's."""
    if isinstance(mode, str):
        return mode.lower() in ("jax", "blackjax")
    return isinstance(getattr(mode, "linker", mode), JAXLinker)


def replaced_logp(by: Callable[[Callable[..., Any]], Any]) -> AbstractContextManager:
    """Replace the method ``Model.logp`` by ``by(method)``, in a block.

    It is replaced in the class, as some inference methods copy a model first.
    """
    return _replaced(Model, "logp", by(Model.logp))


PATHS: dict[str, dict[str, Any]] = {
    "multipath": {"parallel": False},
    "pathfinder": {"concurrent": None},  # of pymc-extras before 0.15
}
"""Modules of Pathfinder, and the arguments by which each starts no processes."""


@contextlib.contextmanager
def paths_in_turn() -> Iterator[None]:
    """Make Pathfinder compute its paths in this process, one by one, in a block.

    By default Pathfinder starts a process for each path.
    """
    with contextlib.ExitStack() as stack:
        for name, how in PATHS.items():
            module: Any = sys.modules.get(f"pymc_extras.inference.pathfinder.{name}")
            plain = getattr(module, "make_generator", None)
            if plain and how.keys() <= inspect.signature(plain).parameters.keys():
                made = functools.partial(_with, plain, how)
                stack.enter_context(_replaced(module, "make_generator", made))
        yield


def _with(plain: Callable[..., Any], how: Mapping[str, Any], **given: Any) -> Any:
    return plain(**{**given, **how})


def replaced_chain_runner(by: Callable[..., Any]) -> AbstractContextManager:
    """Make ``pm.sample`` with several cores run its chains by `by`, in a block.

    `by` is called with PyMC's function that runs chains in processes, that which runs
    one after the other, and the number of chains.
    """
    plain = mcmc._mp_sample

    def chains(*, mp_ctx: Any = None, blas_cores: Any = None, **given: Any) -> Any:
        def side_by_side(**others: Any) -> Any:
            how = given | {"mp_ctx": mp_ctx, "blas_cores": blas_cores} | others
            return plain(**how)

        return by(side_by_side, lambda: mcmc._sample_many(**given), given["chains"])

    return _replaced(mcmc, "_mp_sample", chains)


class ForSteps:
    """A stand-in for the result of ``Model.logp_dlogp_function``, for PyMC's steps.

    `density` is a function of the point as a vector. `others` are the shared variables
    of free variables outside of the gradient, by name.
    """

    _raveled_inputs = True

    def __init__(
        self, density: Callable[[Any], Any], others: dict[str, Any], dtype: str
    ) -> None:
        self._pytensor_function = density
        self._extra_vars_shared = others
        self.dtype = dtype

    def set_extra_values(self, extra_vars: dict[str, Any]) -> None:
        """Set the free variables outside of the gradient."""
        for name, shared in self._extra_vars_shared.items():
            shared.set_value(extra_vars[name])

    def __call__(self, grad_vars: Any, *, extra_vars: Any = None) -> Any:
        """Return the log-density and its gradient at a point."""
        if extra_vars is not None and self._extra_vars_shared:
            self.set_extra_values(extra_vars)
        if hasattr(grad_vars, "point_map_info"):  # PyMC's `RaveledVars`
            return self._pytensor_function(grad_vars.data)
        if isinstance(grad_vars, (list, tuple)):
            (grad_vars,) = grad_vars
        return self._pytensor_function(grad_vars)


def vector_function(made: Any, others: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the result `made` of ``logp_dlogp_function`` as a function of a vector.

    `others` are the shared variables of free variables outside of the gradient.
    """

    def plain(values: Any) -> Any:
        if others:
            made.set_extra_values({n: v.get_value() for n, v in others.items()})
        return made._pytensor_function(values)

    return plain
