"""Conversion of graphs to functions of JAX or numba: PyTensor's, with synk's fixes.

PyTensor looks up the conversion of an Op by the Op's class, in tables that all code in
the process shares. synk does not change those entries: its functions have a linker of
synk (`own_mode`), which asks a table of synk. That calls PyTensor's conversion, wrapped
in the `fixes` for the Op.

Some of PyTensor's conversions convert an inner graph or Op, by a global name of their
module (``jax_funcify``). synk calls copies of these functions, in which that name
means synk's table, so that loops and fused Ops have the fixes inside as well.

synk's own Ops, such as convolutions, are in PyTensor's tables: a plain
``pytensor.function`` can compute them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import CellType, FunctionType
from typing import Any

from pytensor.compile import get_mode
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

from ..nn.base import KernelOp
from . import fixes, passed_draws, precision
from .fixes import hinge, jax_compile_time, jax_values


def own_mode(mode: Any, product_precision: str | None = None) -> Mode:
    """Return the mode in which synk compiles for a PyTensor mode: with synk's linker.

    Modes that are more than a linker and rewrites, such as ``DebugMode``, are returned
    unchanged. `product_precision` is that of products of float32 in JAX mode.
    """
    mode = get_mode(mode)
    is_plain = isinstance(mode.provided_optimizer, RewriteDatabaseQuery)
    if type(mode) is not Mode or not is_plain:
        return mode
    if wrong := fixes.wrong_rewrites():
        mode = mode.excluding(*wrong)
    linker: Any = mode.linker
    if type(linker) is NumbaLinker:
        linker = OwnNumbaLinker()
    elif type(linker) is JAXLinker:
        # XLA fuses by itself. In a node that PyTensor fuses of sizes and values, JAX
        # would not know the sizes when it compiles.
        mode = mode.excluding("fusion").register(*fixes.JAX_REWRITES)
        if product_precision in precision.SHORT:
            factors = precision.ConvertFactors(product_precision)
            mode = mode.register((factors, precision.LAST))
        linker = OwnJAXLinker(product_precision)
    else:
        return mode
    return Mode(linker, mode.provided_optimizer, mode.optdb)


# -- JAX


class OwnJAXLinker(JAXLinker):
    """PyTensor's linker for JAX, with synk's conversions."""

    def __init__(self, product_precision: str | None = None) -> None:
        super().__init__()
        self._precision = product_precision

    def fgraph_convert(  # type: ignore[override]
        self, fgraph: Any, input_storage: Any, storage_map: Any, **kwargs: Any
    ) -> Callable:
        """Convert a graph to a function of JAX's."""
        import jax

        _register_jax()
        # With floatX=float32 PyTensor turns this off, and JAX makes 32 bits of all that
        # a graph declares as 64. The setting is one for the whole process.
        jax.config.update("jax_enable_x64", True)
        kwargs["conversions"] = _jax_conversions(self._precision)
        # PyTensor's linker looks up the conversion by the class of the graph.
        kind, fgraph.__class__ = fgraph.__class__, _OwnGraph
        try:
            with warnings.catch_warnings():
                # Such as an assertion about broadcasting, which JAX checks itself.
                warnings.filterwarnings("ignore", "Skipping Assert")
                storages = input_storage, storage_map
                return super().fgraph_convert(fgraph, *storages, **kwargs)
        finally:
            fgraph.__class__ = kind


class _OwnGraph(FunctionGraph):
    """The class of a graph while synk's table converts it."""


class _JAXConversions:
    """A table of conversions to JAX: PyTensor's, with fixes. A call converts an Op."""

    def __init__(self, product_precision: str | None) -> None:
        from pytensor.link.jax.dispatch import jax_funcify, jax_typify
        from pytensor.link.jax.dispatch.random import jax_sample_fn

        self._original: Any = jax_funcify
        self._fixes = [*fixes.JAX_FIXES]
        if product_precision is not None:
            products = partial(precision.in_precision, product_precision)
            self._fixes.append((precision.PRODUCTS, products))
        self._copied = _copier(
            {
                jax_funcify: self,
                jax_typify: partial(jax_compile_time.typified, jax_typify),
                jax_sample_fn: partial(jax_values.sampled, jax_sample_fn),
            }
        )

    def __call__(self, op: Any, node: Apply | None = None, **kwargs: Any) -> Callable:
        """Return JAX's function for an Op or a graph, like PyTensor's `jax_funcify`."""
        original = self._copied(self._original.dispatch(type(op)))

        def convert(op: Any, node: Any) -> Callable:
            return original(op, node=node, **kwargs)

        for kinds, fix in self._fixes if node is not None else ():
            if isinstance(op, kinds):
                convert = partial(fix, convert)
        return convert(op, node)

    def of_graph(self, graph: Any, **kwargs: Any) -> Callable:
        """Return JAX's function for a graph."""
        return self._copied(self._original.dispatch(FunctionGraph))(graph, **kwargs)


_jax_conversions = cache(_JAXConversions)


# -- numba


class OwnNumbaLinker(NumbaLinker):
    """PyTensor's linker for numba, with synk's conversions."""

    def fgraph_convert(self, fgraph: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return numba's function for a graph, and the cache key of its code."""
        _register_numba()
        return _numba_conversions().with_cache(fgraph, **kwargs)


class _NumbaConversions:
    """A table of conversions to numba: PyTensor's, with fixes. A call converts an Op.

    A conversion returns a function and its code's key in PyTensor's cache on disk. The
    functions used here are in the module ``basic`` of PyTensor 2.38 to 3.3.
    """

    def __init__(self) -> None:
        from pytensor.link.numba.dispatch import basic

        self._original: Any = basic.numba_funcify_and_cache_key
        with_keys = {self._original: self}
        without_keys = {basic.numba_funcify: lambda *args, **kw: self(*args, **kw)[0]}
        self.with_cache = _copier(with_keys | without_keys)(
            basic.numba_funcify_ensure_cache
        )
        """Converts an Op or graph, and makes numba keep the code on disk."""
        self._copied = _copier(
            with_keys | {basic.numba_funcify_ensure_cache: self.with_cache}
        )

    def __call__(self, op: Any, node: Apply | None = None, **kwargs: Any) -> tuple:
        """Return numba's function for an Op or a graph, and its key."""
        made = self._copied(self._original.dispatch(type(op)))(op, node=node, **kwargs)
        fix = fixes.NUMBA_FIXES.get(type(op))
        ours = None if fix is None or node is None else fix(node, *made)
        return made if ours is None else ours


_numba_conversions = cache(_NumbaConversions)

# -- copies


def _copier(replacements: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """Return a function that copies a function, with some globals replaced.

    `replacements` has the new objects by the old ones.
    """
    by_id = {id(old): (old, new) for old, new in replacements.items()}

    def replaced(value: Any) -> Any:
        return by_id[id(value)][1] if id(value) in by_id else value

    def of_cell(cell: CellType) -> CellType:
        """Copy a closure's cell: the function that a decorator of PyTensor wraps."""
        value = cell.cell_contents
        is_pytensors = str(getattr(value, "__module__", "")).startswith("pytensor.")
        return CellType(copied(value) if is_pytensors else replaced(value))

    @cache
    def copied(function: Any) -> Any:
        if not isinstance(function, FunctionType):
            return replaced(function)
        made = FunctionType(
            function.__code__,
            {name: replaced(value) for name, value in function.__globals__.items()},
            function.__name__,
            function.__defaults__,
            function.__closure__ and tuple(map(of_cell, function.__closure__)),
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    return copied


# -- synk's own Ops


class _RegisterOps(GraphRewriter):
    """A rewrite that registers synk's Ops with PyTensor, and leaves the graph as it is.

    PyTensor's tables are in modules that import JAX, or much of numba: too slow for
    ``import synk``. A rewrite runs only when a graph is compiled for JAX or numba.
    """

    def __init__(self, register: Callable[[], None]) -> None:
        super().__init__()
        self._register = register

    def apply(self, fgraph: Any) -> None:
        """Register them; the second time has no effect."""
        self._register()


@cache
def _register_jax() -> None:
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(KernelOp)
    def kernel(op: KernelOp, **kwargs: Any) -> Callable:
        return op.jax_kernel

    @jax_funcify.register(_OwnGraph)
    def graph(graph: Any, conversions: _JAXConversions, **kwargs: Any) -> Callable:
        return conversions.of_graph(graph, **kwargs)

    hinge.register()
    precision.register_convert()
    passed_draws.register_jax()


@cache
def _register_numba() -> None:
    from pytensor.link.numba.dispatch import numba_funcify
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl

    @numba_funcify.register(KernelOp)
    def call_perform(op: KernelOp, node: Apply, **kwargs: Any) -> Callable:
        with warnings.catch_warnings():  # object mode is intended
            warnings.filterwarnings("ignore", "Numba will use object mode")
            return generate_fallback_impl(op, node=node, **kwargs)

    passed_draws.register_numba()


optdb.register("synk_nn_jax", _RegisterOps(_register_jax), "jax", position=-1)
optdb.register("synk_nn_numba", _RegisterOps(_register_numba), "numba", position=-1)
