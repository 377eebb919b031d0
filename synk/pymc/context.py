"""`synk.pymc.parallel`: a model's methods, while its log-density is computed by ranks.

1. `Parallel.entered` puts methods before those of models, and functions before two of
   PyMC's and nutpie's, and takes them away on every way out.
2. ``pm.sample`` asks for `logp_dlogp_function`, with which it finds its initial points
   and makes its steps, or has nutpie compile the model. `_choose` says who computes
   the log-density: ranks, or PyMC as ever.
3. Methods that make graphs of a log-density get an Op that ranks compute.
4. Whatever else asks the model for a log-density gets PyMC's own, and a warning.
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
    as_plain,
    asked_by,
    chains_by,
    models_logp,
    nutpies,
    other_sampler,
    paths_in_turn,
    present,
    sampling,
    wants_jax,
)
from .nutpie import compiled
from .sharing import LOST, words
from .terms import DRAWN, shared_in

SHORT = 150e-6
"""Seconds: what a call of this length takes one core, ranks take no less time for."""

OF_ELEMENT = 2e-9
"""Seconds that it takes about to compute an element of a density and its gradient."""

USES = 30
"""As many elements a call may compute for each number that it is given."""

SO_LITTLE = "one rank is faster for so little"


class Parallel:
    """How a model is sampled in a block; see `synk.pymc.parallel`.

    `speed_up` is of a call, by ranks, beside PyMC by itself: predicted from the model's
    graph and its sizes, or measured by `synk.pymc.tune`; None if neither is so.
    `is_serial` tells whether PyMC computes the log-density as ever; None before it was
    asked for.
    """

    def __init__(self, model: Any, serial: bool | None, mode: Any, quiet: bool) -> None:
        self._model = present(model)
        self._serial, self._mode, self._quiet = serial, mode, quiet
        self._raises = serial is False  # what fails, and does not compute it serially
        self._made: dict[Any, tuple[Density | None, str]] = {}
        self._settled: list[Density] = []
        self._plan = GroupPlan(1, 1, None)
        self._for_threads: Any = None  # nutpie's model, if it was made here
        self._ops: dict[Any, LogpOfRanks] = {}
        self._told: set[str] = set()
        self._ours = self._has_paths = False
        self.rows: int | None = None
        self.ranks: int | None = None
        self.speed_up: float | None = None
        self.is_serial: bool | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[Parallel]:
        """Have the model's methods be ours in a block."""
        model = self._model
        if "logp_dlogp_function" in vars(model):
            raise ValueError("this model is in a block of synk.pymc.parallel already")
        self._plain = model.logp_dlogp_function
        with contextlib.ExitStack() as stack:
            self._stack, self._leading = stack, contextlib.ExitStack()
            if self._raises or self._rows_if_tiny(model) is None:
                self._fork()
            stack.enter_context(model)
            stack.enter_context(nutpies("compile_pymc_model", self._for_nutpie))
            stack.enter_context(nutpies("sample", self._by_nutpie))
            stack.enter_context(self._leading)
            stack.enter_context(models_logp(self._logp))
            stack.enter_context(chains_by(self._chains))
            try:
                model.logp_dlogp_function = self._logp_dlogp
                yield self
            finally:
                vars(model).pop("logp_dlogp_function", None)

    def _rows_if_tiny(self, model: Any) -> int | None:
        return rows_if_tiny(model, SHORT / OF_ELEMENT / USES)

    def _fork(self) -> None:
        """Have ranks until the block ends, if there are none yet."""
        if not forking.is_forked():
            self._stack.enter_context(forking.session())

    # -- what PyMC and nutpie ask for

    def _pymcs(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return what makes PyMC's own function, when it is first called."""

        @functools.cache
        def made() -> Any:
            with self._without_notes():
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
        """Compile the log-density and its gradient, in place of the model's method."""
        given = {"initial_point": initial_point, "ravel_inputs": ravel_inputs}
        by_pymc = self._pymcs(grad_vars, tempered, **given, **kwargs)
        if reason := _why_plain(tempered, ravel_inputs, kwargs):
            self._tell(reason)
            self.is_serial = True
            return by_pymc()
        variables = values_of(self._model, grad_vars)
        start = initial_point or self._model.initial_point(0)
        density: Density | None = None
        mode = kwargs.get("mode", self._mode)
        self.is_serial = None

        def of_point() -> Plain:
            return as_plain(by_pymc(), density.others if density else {})

        density = self._choose(variables, start, mode, of_point, sampling())
        if density is None:
            return by_pymc()
        made = ForSteps(density, density.others, density.point.dtype)
        made.set_extra_values(start)
        return made

    def _for_nutpie(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands for ``nutpie.compile_pymc_model``."""

        def compile_pymc_model(model: Any, **kwargs: Any) -> Any:
            """Compile a model for nutpie, with its log-density by ranks."""
            if model is not self._model or model.discrete_value_vars:
                return plain(model, **kwargs)
            variables, start = values_of(model, None), model.initial_point(0)
            by_pymc = self._pymcs(variables, initial_point=start, ravel_inputs=True)
            asked = sampling()
            mode = self._mode if asked is None or asked.mode is None else asked.mode
            density = self._choose(
                *(variables, start, mode), lambda: as_plain(by_pymc(), {}), asked
            )
            if density is None:
                if forking.is_forked():  # nutpie's threads get the cores of this one
                    SESSION.context.confinement.widen()
                with self._without_notes():
                    return plain(model, **kwargs)
            taken = inspect.signature(compiled).parameters.keys() & kwargs.keys()
            given = {name: kwargs[name] for name in taken}
            self._for_threads = compiled(model, density, self._led(density), **given)
            return self._for_threads

        return compile_pymc_model

    def _by_nutpie(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands for ``nutpie.sample``."""

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
        """Return what computes the log-density by ranks, or None if PyMC is to do it.

        `plain` makes PyMC's own function, to compute where ranks fail, and `asked` is
        the call that makes chains of it. The rest says which terms of which model, and
        how, as for `Density`; by default all.
        """
        if self._serial:
            self._say(True, "")
            return None
        model = what.pop("model", self._model)
        if self._is_for_one(self._model):
            return None
        self._fork()  # it may not have been so before
        shapes = [np.shape(start[v.name]) for v in model.value_vars]
        shapes += [np.shape(v.get_value(borrow=True)) for v in model.data_vars]
        terms = tuple(what.get("terms_of") or ()), what.get("jacobian")
        key = tuple(variables), tuple(shapes), str(mode), terms
        if key not in self._made:
            self._made[key] = self._density(model, variables, start, mode, **what)
        density, why = self._made[key]
        if density is None:
            self._leave_it(why, forking.size())
            return None
        chains, cores = (1, 1) if asked is None else (asked.chains, asked.cores)
        found = decide(density, chains, min(chains, cores))
        self.rows, self.speed_up = density.rows, found.speed_up
        if self._serial is None and not found.by_ranks:
            self._made[key] = None, "one rank is faster"
            self._leave_it("one rank is faster", found.ranks)
            return None
        if not any(density is each for each in self._settled):
            if not self._raises:
                density.or_else(plain, self._tell)
            self._settled.append(density)
        self._plan = found.plan
        gain = ""
        if self.speed_up is not None:
            how = "measured" if found.is_measured else "predicted"
            gain = f", {self.speed_up:.2f} times as fast as PyMC by itself ({how})"
        self._say(False, f"{count(found.ranks, 'rank')}{gain}")
        return density

    def _is_for_one(self, model: Any) -> bool:
        """Tell whether a model is left to PyMC, as it has so few numbers."""
        rows = None if self._raises else self._rows_if_tiny(model)
        if rows is None:
            return False
        self.rows = rows
        self._leave_it(SO_LITTLE, forking.size())
        return True

    def _density(
        self,
        model: Any,
        variables: list[Any],
        start: Mapping[str, Any],
        mode: Any,
        **what: Any,
    ) -> tuple[Density | None, str]:
        """Return a density, or None and why not."""
        what |= {"at_least": 0 if self._raises else SHORT / OF_ELEMENT}
        what |= {"begins": True, "raises": self._raises}
        try:
            with self._without_notes():
                density = Density(model, variables, start, mode, **what)
        except LOST:
            raise
        except SplitError as error:
            self._tell(str(error))
            return None, "no term is shared"
        except Exception as error:
            if self._raises:
                raise
            self._tell(f"the log-density is computed serially, as {words(error)}")
            return None, "there is an error"
        if density.parts:
            if density.refused:
                self._tell(serial_terms(density))
            return density, ""
        self.rows = density.most_rows
        if density.is_small:
            return None, SO_LITTLE
        self._tell(nothing_shared(density))
        return None, "no term is shared"

    def _leave_it(self, why: str, ranks: int) -> None:
        """Leave it to PyMC, and say why; `ranks` may have been compared with it."""
        slower = ""
        if self.speed_up is not None:
            would_be = f"would be {self.speed_up:.2f} times as fast"
            slower = f" ({count(ranks, 'rank')} {would_be})"
        self._say(True, f"serial: {why}{slower}")

    def _say(self, is_serial: bool, text: str) -> None:
        """Note who computes, and print it before sampling starts."""
        self.is_serial, self.ranks = is_serial, forking.size()
        if text and not self._quiet:
            rows = "" if self.rows is None else f"{self.rows:,} rows, "
            print(f"synk: {rows}{text}")

    # -- graphs of the log-density

    def _logp(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands for models' `logp`: an Op by ranks for who can take one.

        Of others who compute it is told.
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
            with self._without_notes() as was_silent:
                graph = plain(model, vars=vars, jacobian=jacobian, sum=sum)
            who = "" if was_silent else asked_by()
            takes_op = who.startswith(TAKE_OPS)
            if takes_op and sum and (is_ours or self._is_copy(model)):
                return self._as_op(who, model, graph, vars, jacobian)
            if is_ours and who and not takes_op:
                self._tell(_by_itself(who))
            return graph

        return logp

    def _is_copy(self, model: Any) -> bool:
        """Tell whether a model is this one with other data, such as frozen ones."""
        names, ours = ({v.name for v in m.value_vars} for m in (model, self._model))
        return names == ours

    def _as_op(self, who: str, model: Any, graph: Any, of: Any, jacobian: bool) -> Any:
        """Return a log-density as an Op that ranks compute, or its graph."""
        terms = None if of is None else list(of) if isinstance(of, Sequence) else [of]
        if self._serial or (terms and not set(terms).difference(model.free_RVs)):
            return graph  # priors are not shared
        if model.discrete_value_vars or wants_jax():
            self._tell(_by_itself(who))
            return graph
        if self._is_for_one(model):
            return graph
        if any(isinstance(var.type, RandomType) for var in shared_in([graph])):
            self._tell(f"{DRAWN}: {_by_itself(who)}")
            return graph
        values = list(model.value_vars)
        key = tuple(values), tuple(terms or ()), jacobian
        if key not in self._ops:

            @functools.cache
            def of_point() -> Plain:
                with self._without_notes():
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
        """Run chains for which the script has asked for several cores."""
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
        """Print how chains are laid on ranks."""
        at_once, ranks, _ = self._plan
        if self._quiet or chains == 1:
            return
        if at_once == 1:
            print(f"synk: {chains} chains one after the other, each on all cores")
        else:
            print(f"synk: {at_once} chains at once, each on {count(ranks, 'rank')}")

    @contextlib.contextmanager
    def _grouped(self) -> Iterator[RankGroups]:
        """Have processes that are forked in a block lead groups, by the plan."""
        groups = RankGroups(self._plan.at_once, self._plan.ranks)
        for density in self._settled:
            density.groups = groups
        try:
            yield groups
        finally:
            for density in self._settled:
                density.groups = None

    def _led(self, density: Density) -> Plain:
        """Return what computes a density for nutpie's threads."""
        self._leading.close()  # of the chains before these
        asked = sampling()
        if asked is None:
            return density
        self._say_layout(asked.chains)
        if self._plan.at_once == 1:
            return density
        groups = self._leading.enter_context(self._grouped())
        return self._leading.enter_context(Leaders(groups, density))

    @contextlib.contextmanager
    def _without_notes(self) -> Iterator[bool]:
        """Ask for a log-density ourselves in a block; gives whether that is so."""
        was, self._ours = self._ours, True
        try:
            yield was
        finally:
            self._ours = was

    def _tell(self, text: str) -> None:
        """Warn, once."""
        if text not in self._told:
            self._told.add(text)
            warnings.warn(f"synk.pymc: {text}", stacklevel=callers_level())


def _why_plain(
    tempered: bool, ravel_inputs: bool | None, kwargs: Mapping[str, Any]
) -> str:
    """Return why PyMC is to compute it, whatever the rows; "" for no reason."""
    dtype = kwargs.get("dtype")
    unknown = kwargs.keys() - {"mode", "dtype", "casting", "compute_grads"}
    how = ""
    if tempered:
        return "a tempered log-density is computed serially"
    if not ravel_inputs:
        how = "with ravel_inputs=False"
    elif dtype not in (None, pytensor.config.floatX):
        how = f"in {dtype}"
    elif unknown or not kwargs.get("compute_grads", True):
        how = f"for {', '.join(sorted(unknown or {'compute_grads'}))}"
    return how and f"{how} the log-density is computed serially"


def _by_itself(who: str) -> str:
    return f"{who} computes the log-density by itself, serially"
