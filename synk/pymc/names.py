"""What synk uses of PyMC that is no public protocol of its, in one place.

It holds for PyMC 5.28 to 6.4, and ``test_pymc_names.py`` tells when it
moves. PyMC is imported where it is needed, and not with this file.
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
from pytensor.link.jax.linker import JAXLinker


def check() -> type:
    """Return the Op around a density that checks its parameters.

    It has ``can_be_replaced_by_ninf``.
    """
    from pymc.logprob.utils import CheckParameterValue

    return CheckParameterValue


def present(model: Any) -> Any:
    """Return a model, by default that of the ``with`` block."""
    from pymc import modelcontext

    return modelcontext(model)


SAMPLE = "pymc.sampling.mcmc", "sample"
"""The module and the function of whose variables some are looked at."""

USUAL = 1000
"""PyMC's number of draws, and of those that it tunes by, where none was given."""


def _frames() -> Iterator[tuple[str, str, FrameType]]:
    """Yield the frames that this is called from, with their modules and functions."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame
        frame = frame.f_back


def _locals_of_sample() -> dict[str, Any]:
    """Return the variables of the call of ``pm.sample`` that this is part of."""
    for module, function, frame in _frames():
        if (module, function) == SAMPLE:
            return dict(frame.f_locals)
    return {}


class Sampling(NamedTuple):
    """A call of ``pm.sample``; `iterations` are those of a chain, `tune` included.

    `mode` is that of its `compile_kwargs`, of which nutpie gets a linker alone.
    """

    cores: int
    chains: int
    iterations: int
    mode: Any


def sampling() -> Sampling | None:
    """Return what this is part of."""
    found = _locals_of_sample()
    cores, chains = found.get("cores"), found.get("chains")
    if not isinstance(cores, Integral) or not isinstance(chains, Integral):
        return None
    draws, tune = found.get("draws"), found.get("tune")
    iterations = [
        each if isinstance(each, Integral) else USUAL for each in (draws, tune)
    ]
    mode = (found.get("compile_kwargs") or {}).get("mode")
    return Sampling(int(cores), int(chains), sum(map(int, iterations)), mode)


def other_sampler() -> str:
    """Return the `nuts_sampler` of that call, "" for PyMC's own, nutpie or none."""
    named = _locals_of_sample().get("nuts_sampler")
    ours = "pymc", "nutpie"
    return named if isinstance(named, str) and named not in ours else ""


def make_initial_point_fn() -> Callable[..., Any]:
    """Return PyMC's function that makes functions of a seed: where chains begin."""
    from pymc.initial_point import make_initial_point_fn

    return make_initial_point_fn


@contextlib.contextmanager
def _replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    """Have something of PyMC's be another in a block."""
    plain = getattr(where, name)
    try:
        setattr(where, name, value)
        yield
    finally:
        setattr(where, name, plain)


def nutpies(
    name: str, by: Callable[[Callable[..., Any]], Any]
) -> AbstractContextManager:
    """Have a function of nutpie's be another in a block, which is made of it.

    ``pm.sample`` takes ``compile_pymc_model`` and ``sample`` by their names in nutpie's
    module, and takes nutpie from PyMC 6.4 on where that is installed.
    """
    if importlib.util.find_spec("nutpie") is None:
        return contextlib.nullcontext()
    nutpie: Any = importlib.import_module("nutpie")
    return _replaced(nutpie, name, by(getattr(nutpie, name)))


LOOKS = "assign_step_methods"
"""It makes the graph of a log-density to see what has a gradient, and computes none."""


def asked_by() -> str:
    """Return the module of PyMC's that wants a log-density, such as "pymc.smc".

    It is "" for one that only looks at its graph.
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
"""They put other variables in a log-density, take its gradient, and compile that."""

_BACKENDS = ("backend", "gradient_backend", "inference_backend")


def wants_jax() -> bool:
    """Tell whether PyMC compiles what it asks for by JAX, where an Op is unknown."""
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
    """Tell whether a mode, a linker or the name of a backend is JAX's."""
    if isinstance(mode, str):
        return mode.lower() in ("jax", "blackjax")
    return isinstance(getattr(mode, "linker", mode), JAXLinker)


def models_logp(by: Callable[[Callable[..., Any]], Any]) -> AbstractContextManager:
    """Have models' method ``logp`` be another one in a block.

    It is that of the class, as some methods of inference copy a model first, and is
    made of PyMC's own.
    """
    from pymc import Model

    return _replaced(Model, "logp", by(Model.logp))


PATHS: dict[str, dict[str, Any]] = {
    "multipath": {"parallel": False},
    "pathfinder": {"concurrent": None},  # of pymc-extras before 0.15
}
"""Modules of Pathfinder's, and how each is told to make no processes."""


@contextlib.contextmanager
def paths_in_turn() -> Iterator[None]:
    """Have Pathfinder make its paths in this process in a block, one after the other.

    By itself it has a process for each.
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


def chains_by(by: Callable[..., Any]) -> AbstractContextManager:
    """Have ``pm.sample`` with several cores run its chains by another function.

    That gets PyMC's two functions, of chains side by side and of chains one after the
    other, and how many chains there are to be.
    """
    import pymc.sampling.mcmc as mcmc

    plain = mcmc._mp_sample

    def chains(*, mp_ctx: Any = None, blas_cores: Any = None, **given: Any) -> Any:
        def side_by_side(**others: Any) -> Any:
            how = given | {"mp_ctx": mp_ctx, "blas_cores": blas_cores} | others
            return plain(**how)

        return by(side_by_side, lambda: mcmc._sample_many(**given), given["chains"])

    return _replaced(mcmc, "_mp_sample", chains)


class ForSteps:
    """What PyMC's steps take for the result of ``Model.logp_dlogp_function``.

    `density` is of the ravelled point, and the gradient is not by `others`.
    """

    _raveled_inputs = True

    def __init__(
        self, density: Callable[[Any], Any], others: dict[str, Any], dtype: str
    ) -> None:
        self._pytensor_function = density
        self._extra_vars_shared = others
        self.dtype = dtype
        self.trust_input = True
        self.profile = None

    def set_extra_values(self, extra_vars: dict[str, Any]) -> None:
        """Set the variables that the gradient is not by."""
        for name, shared in self._extra_vars_shared.items():
            shared.set_value(extra_vars[name])

    def get_extra_values(self) -> dict[str, Any]:
        """Return the variables that the gradient is not by."""
        return {name: v.get_value() for name, v in self._extra_vars_shared.items()}

    def __call__(self, grad_vars: Any, *, extra_vars: Any = None) -> Any:
        """Return the log-density and its gradient at a point."""
        if extra_vars is not None and self._extra_vars_shared:
            self.set_extra_values(extra_vars)
        if hasattr(grad_vars, "point_map_info"):  # a vector with the variables' shapes
            return self._pytensor_function(grad_vars.data)
        if isinstance(grad_vars, (list, tuple)):
            (grad_vars,) = grad_vars
        return self._pytensor_function(grad_vars)


def as_plain(made: Any, others: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return what PyMC's ``logp_dlogp_function`` made as a function of the vector.

    `others` are variables that the gradient is not by.
    """

    def plain(values: Any) -> Any:
        if others:
            made.set_extra_values({n: v.get_value() for n, v in others.items()})
        return made._pytensor_function(values)

    return plain
