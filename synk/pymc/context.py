"""`synk.pymc.parallel`: replaced methods of a model, so that ranks compute its density.

1. `Parallel.entered` replaces methods of the model and of its class, and functions of
   PyMC and nutpie, and restores them when the block ends.
2. ``pm.sample`` calls the model's `logp_dlogp_function` for its step methods, or
   nutpie's `compile_pymc_model`. `_choose` decides who computes the log-density: the
   ranks, or PyMC itself.
3. Methods of PyMC that put a log-density into a graph get an Op that ranks compute.
4. All other callers get PyMC's own graph of the log-density, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
from pymc import modelcontext
from pytensor.tensor.random.type import RandomType

from ..choice.plan import GroupPlan
from ..errors import SplitError
from ..ranks import forking
from ..ranks.groups import Leaders, RankGroups
from ..ranks.session import SESSION
from ..report.words import count
from ..user_frames import callers_level
from .density import Density, Plain
from .in_graphs import LogpOfRanks, plain_of
from .make import decide, nothing_shared, rows_if_tiny, serial_terms, values_of
from .names import (
    TAKE_OPS,
    ForSteps,
    Sampling,
    asking_module,
    other_sampler,
    paths_in_turn,
    replaced_chain_runner,
    replaced_logp,
    replaced_nutpie,
    sampling,
    vector_function,
    wants_jax,
)
from .nutpie import compiled
from .sharing import LOST, words
from .terms import DRAWN, shared_in

SO_LITTLE = "one rank is faster for so little"


class Parallel:
    """The state of a block of `synk.pymc.parallel`; parameters as there.

    `speed_up` is PyMC's time on one process over that of ranks: predicted from the
    model's graph and sizes, or measured by `synk.pymc.tune`; None if neither.
    `is_serial` is whether PyMC computes the log-density; None before it was needed.
    """

    def __init__(self, model: Any, serial: bool | None, mode: Any, quiet: bool) -> None:
        self._model = modelcontext(model)
        self._serial, self._mode, self._quiet = serial, mode, quiet
        self._raises = serial is False  # errors of ranks, rather than compute serially
        self._made: dict[Any, tuple[Density | None, str]] = {}
        self._plan = GroupPlan(1, 1, None)
        self._for_threads: Any = None  # the model that `_for_nutpie` has compiled
        self._ops: dict[Any, LogpOfRanks] = {}
        self._warned: set[str] = set()
        self._is_asking = self._has_paths = False
        self.rows: int | None = None
        self.ranks: int | None = None
        self.speed_up: float | None = None
        self.is_serial: bool | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[Parallel]:
        """Replace the model's methods in a block; the body of `synk.pymc.parallel`."""
        model = self._model
        if "logp_dlogp_function" in vars(model):
            raise ValueError("this model is in a block of synk.pymc.parallel already")
        self._plain = model.logp_dlogp_function
        with contextlib.ExitStack() as stack:
            self._stack, self._leading = stack, contextlib.ExitStack()
            if self._raises or rows_if_tiny(model) is None:
                self._fork()
            stack.enter_context(model)
            stack.enter_context(replaced_nutpie("compile_pymc_model", self._for_nutpie))
            stack.enter_context(replaced_nutpie("sample", self._by_nutpie))
            stack.enter_context(self._leading)
            stack.enter_context(replaced_logp(self._logp))
            stack.enter_context(replaced_chain_runner(self._chains))
            try:
                model.logp_dlogp_function = self._logp_dlogp
                yield self
            finally:
                vars(model).pop("logp_dlogp_function", None)

    def _fork(self) -> None:
        """Fork ranks until the block ends, if there is no session."""
        if not forking.is_forked():
            self._stack.enter_context(forking.session())

    # -- what PyMC and nutpie ask for

    def _pymcs(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return a function that returns PyMC's own function, and makes it once."""

        @functools.cache
        def made() -> Any:
            with self._asking():
                return self._plain(*args, **kwargs)

        return made

    def _logp_dlogp(
        self,
        grad_vars: Any = None,
        tempered: bool = False,
        initial_point: Any = None,
        ravel_inputs: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the log-density's function, in place of the model's method."""
        given = {"initial_point": initial_point, "ravel_inputs": ravel_inputs}
        by_pymc = self._pymcs(grad_vars, tempered, **given, **kwargs)
        if reason := _why_plain(tempered, ravel_inputs, kwargs):
            self._warn(reason)
            self.is_serial = True
            return by_pymc()
        variables = values_of(self._model, grad_vars)
        start = initial_point or self._model.initial_point(0)
        density: Density | None = None
        mode = kwargs.get("mode", self._mode)
        self.is_serial = None

        def of_point() -> Plain:
            return vector_function(by_pymc(), density.others if density else {})

        density = self._choose(variables, start, mode, of_point, sampling())
        if density is None:
            return by_pymc()
        made = ForSteps(density, density.others, density.point.dtype)
        made.set_extra_values(start)
        return made

    def _for_nutpie(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``nutpie.compile_pymc_model``, which is `plain`."""

        def compile_pymc_model(model: Any, **kwargs: Any) -> Any:
            """Compile a model for nutpie, with its log-density by ranks."""
            if model is not self._model or model.discrete_value_vars:
                return plain(model, **kwargs)
            variables, start = values_of(model, None), model.initial_point(0)
            by_pymc = self._pymcs(variables, initial_point=start, ravel_inputs=True)
            asked = sampling()
            mode = self._mode if asked is None or asked.mode is None else asked.mode
            density = self._choose(
                *(variables, start, mode), lambda: vector_function(by_pymc(), {}), asked
            )
            if density is None:
                if forking.is_forked():  # nutpie's threads inherit this one's cores
                    SESSION.context.confinement.widen()
                with self._asking():
                    return plain(model, **kwargs)
            taken = inspect.signature(compiled).parameters.keys() & kwargs.keys()
            given = {name: kwargs[name] for name in taken}
            self._for_threads = compiled(model, density, self._led(density), **given)
            return self._for_threads

        return compile_pymc_model

    def _by_nutpie(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``nutpie.sample``, which is `plain`."""

        @functools.wraps(plain)
        def sample(compiled_model: Any, **kwargs: Any) -> Any:
            if compiled_model is self._for_threads and self._plan.at_once == 1:
                kwargs["cores"] = 1  # several threads would take turns at each step
            return plain(compiled_model, **kwargs)

        return sample

    # -- who computes it

    def _choose(
        self,
        variables: list[Any],
        start: Mapping[str, Any],
        mode: Any,
        plain: Callable[[], Plain],
        asked: Sampling | None = None,
        **what: Any,
    ) -> Density | None:
        """Return a density that ranks compute, or None if PyMC is to compute it.

        `plain` makes PyMC's own function, for calls after an error of the ranks.
        `asked` is the call of ``pm.sample``; None if no chains are sampled. `what` may
        have `model`, `terms_of` and `jacobian` of `Density`.
        """
        if self._serial:
            self._say(True, "")
            return None
        model = what.pop("model", self._model)
        if self._is_for_one(self._model):
            return None
        self._fork()  # `entered` has not forked for a tiny model, which may have grown
        shapes = [np.shape(start[v.name]) for v in model.value_vars]
        shapes += [np.shape(v.get_value(borrow=True)) for v in model.data_vars]
        terms = tuple(what.get("terms_of") or ()), what.get("jacobian")
        key = tuple(variables), tuple(shapes), str(mode), terms
        if key not in self._made:
            self._made[key] = self._density(model, variables, start, mode, **what)
        density, why = self._made[key]
        if density is None:
            self._leave_to_pymc(why, forking.size())
            return None
        chains, cores = (1, 1) if asked is None else (asked.chains, asked.cores)
        found = decide(density, chains, min(chains, cores))
        self.rows, self.speed_up = density.rows, found.speed_up
        if self._serial is None and not found.by_ranks:
            self._made[key] = None, "one rank is faster"
            self._leave_to_pymc("one rank is faster", found.ranks)
            return None
        if not self._raises:
            density.fallback = plain, self._warn
        self._plan = found.plan
        gain = ""
        if self.speed_up is not None:
            how = "measured" if found.is_measured else "predicted"
            gain = f", {self.speed_up:.2f} times as fast as PyMC by itself ({how})"
        self._say(False, f"{count(found.ranks, 'rank')}{gain}")
        return density

    def _is_for_one(self, model: Any) -> bool:
        """Return whether a model has so few numbers that PyMC computes it."""
        rows = None if self._raises else rows_if_tiny(model)
        if rows is None:
            return False
        self.rows = rows
        self._leave_to_pymc(SO_LITTLE, forking.size())
        return True

    def _density(
        self,
        model: Any,
        variables: list[Any],
        start: Mapping[str, Any],
        mode: Any,
        **what: Any,
    ) -> tuple[Density | None, str]:
        """Return a density and "", or None and why ranks do not compute it."""
        what |= {"begins": True, "raises": self._raises}
        try:
            with self._asking():
                density = Density(model, variables, start, mode, **what)
        except LOST:
            raise
        except SplitError as error:
            self._warn(str(error))
            return None, "no term is shared"
        except Exception as error:
            if self._raises:
                raise
            self._warn(f"the log-density is computed serially, as {words(error)}")
            return None, "there is an error"
        if density.parts:
            if density.refused:
                self._warn(serial_terms(density))
            return density, ""
        self.rows = density.most_rows
        if density.is_small:
            return None, SO_LITTLE
        self._warn(nothing_shared(density))
        return None, "no term is shared"

    def _leave_to_pymc(self, why: str, ranks: int) -> None:
        """Note and print that PyMC computes, and why.

        `ranks` is the number of ranks whose speed was compared with PyMC's, if any.
        """
        slower = ""
        if self.speed_up is not None:
            would_be = f"would be {self.speed_up:.2f} times as fast"
            slower = f" ({count(ranks, 'rank')} {would_be})"
        self._say(True, f"serial: {why}{slower}")

    def _say(self, is_serial: bool, text: str) -> None:
        """Note whether PyMC computes, and print `text`, unless it is empty."""
        self.is_serial, self.ranks = is_serial, forking.size()
        if text and not self._quiet:
            rows = "" if self.rows is None else f"{self.rows:,} rows, "
            print(f"synk: {rows}{text}")

    # -- graphs of the log-density

    def _logp(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `Model.logp`, which is `plain`.

        Callers that can take an Op get one that ranks compute. A warning names other
        callers, which compute the log-density serially.
        """

        def logp(
            model: Any, vars: Any = None, jacobian: bool = True, sum: bool = True
        ) -> Any:
            """Return the graph of the log-density."""
            is_ours = model is self._model
            if is_ours and not self._serial and (named := other_sampler()):
                raise ValueError(
                    f"pm.sample(nuts_sampler={named!r}) in a block of"
                    " synk.pymc.parallel: ranks compute for PyMC's own NUTS; leave"
                    " nuts_sampler out, or see synk.pymc.nutpie_model"
                )
            with self._asking() as was_silent:
                graph = plain(model, vars=vars, jacobian=jacobian, sum=sum)
            who = "" if was_silent else asking_module()
            takes_op = who.startswith(TAKE_OPS)
            if takes_op and sum and (is_ours or self._is_copy(model)):
                return self._as_op(who, model, graph, vars, jacobian)
            if is_ours and who and not takes_op:
                self._warn(_by_itself(who))
            return graph

        return logp

    def _is_copy(self, model: Any) -> bool:
        """Return whether a model is a copy of this one, such as with frozen data."""
        names, ours = ({v.name for v in m.value_vars} for m in (model, self._model))
        return names == ours

    def _as_op(self, who: str, model: Any, graph: Any, of: Any, jacobian: bool) -> Any:
        """Return a log-density as an Op that ranks compute, or its graph."""
        terms = None if of is None else list(of) if isinstance(of, Sequence) else [of]
        if self._serial or (terms and not set(terms).difference(model.free_RVs)):
            return graph  # priors are not shared
        if model.discrete_value_vars or wants_jax():
            self._warn(_by_itself(who))
            return graph
        if self._is_for_one(model):
            return graph
        if any(isinstance(var.type, RandomType) for var in shared_in([graph])):
            self._warn(f"{DRAWN}: {_by_itself(who)}")
            return graph
        values = list(model.value_vars)
        key = tuple(values), tuple(terms or ()), jacobian
        if key not in self._ops:

            @functools.cache
            def of_point() -> Plain:
                with self._asking():
                    return plain_of(model, values, graph, self._mode)

            def made() -> Plain:
                asked = values, model.initial_point(0), self._mode, of_point
                what = {"model": model, "terms_of": terms, "jacobian": jacobian}
                return self._choose(*asked, **what) or of_point()

            self._ops[key] = LogpOfRanks(values, graph, made, of_point)
        if "pathfinder" in who and not self._has_paths:
            self._has_paths = True
            self._stack.enter_context(paths_in_turn())
        found: Any = self._ops[key](*values)
        found[0].name = graph.name
        return found[0]

    # -- chains

    def _chains(
        self,
        side_by_side: Callable[..., Any],
        in_turn: Callable[[], Any],
        chains: int,
    ) -> Any:
        """Run the chains of a ``pm.sample`` that asked for several cores.

        `side_by_side` and `in_turn` are PyMC's functions that run them in processes,
        and one after the other.
        """
        if self.is_serial is False:
            self._say_layout(chains)
            if self._plan.at_once == 1:
                return in_turn()
            with self._grouped() as groups:
                return side_by_side(cores=len(groups), mp_ctx="fork")
        if not forking.is_forked():
            return side_by_side()
        with SESSION.context.confinement.unconfined():  # each chain has a core
            return side_by_side()

    def _say_layout(self, chains: int) -> None:
        """Print whether chains run at once, and on how many ranks each."""
        at_once, ranks, _ = self._plan
        if self._quiet or chains == 1:
            return
        if at_once == 1:
            print(f"synk: {chains} chains one after the other, each on all cores")
        else:
            print(f"synk: {at_once} chains at once, each on {count(ranks, 'rank')}")

    @contextlib.contextmanager
    def _grouped(self) -> Iterator[RankGroups]:
        """Make groups of ranks by the plan; processes forked in the block lead them."""
        groups = RankGroups(self._plan.at_once, self._plan.ranks)
        densities = [made for made, _ in self._made.values() if made is not None]
        for density in densities:
            density.groups = groups
        try:
            yield groups
        finally:
            for density in densities:
                density.groups = None

    def _led(self, density: Density) -> Plain:
        """Return the function by which nutpie's threads compute a density."""
        self._leading.close()  # the groups of an earlier call of `pm.sample`
        asked = sampling()
        if asked is None:
            return density
        self._say_layout(asked.chains)
        if self._plan.at_once == 1:
            return density
        groups = self._leading.enter_context(self._grouped())
        return self._leading.enter_context(Leaders(groups, density))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[bool]:
        """Mark that synk itself calls `logp`, in a block; yields if it was marked."""
        was, self._is_asking = self._is_asking, True
        try:
            yield was
        finally:
            self._is_asking = was

    def _warn(self, text: str) -> None:
        """Warn, once."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"synk.pymc: {text}", stacklevel=callers_level())


def _why_plain(
    tempered: bool, ravel_inputs: bool | None, kwargs: Mapping[str, Any]
) -> str:
    """Return why these arguments of `logp_dlogp_function` need PyMC; "" if not."""
    if tempered:
        return "a tempered log-density is computed serially"
    given = {"ravel_inputs": ravel_inputs, **kwargs}
    dtypes = None, pytensor.config.floatX
    usual = {"ravel_inputs": [True], "dtype": dtypes, "compute_grads": [True]}
    how = ", ".join(
        f"{name}={value}"
        for name, value in given.items()
        if name not in ("mode", "casting") and value not in usual.get(name, [])
    )
    return how and f"with {how} the log-density is computed serially"


def _by_itself(who: str) -> str:
    return f"{who} computes the log-density by itself, serially"
