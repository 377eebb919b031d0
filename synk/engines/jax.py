"""PyTensor's JAX mode: values of shared variables stay on JAX's device.

synk's functions do three things that PyTensor's JAX functions do not:

*Rows.* JAX takes arrays of the CPU without a copy and goes on computing after a call
has returned. A function made here returns when its values are computed, so that the
memory of the rows can be used again.

*Random streams.* PyTensor gives each compiled function a copy of a random generator,
and other functions, checkpoints and ranks do not see its draws. Here a generator is
an input: each call derives a key for JAX from the variable's own generator, and
advances that generator if the function updates it.

*Code.* XLA's code is kept on disk for the next run of a script. JAX's cache on disk is
off unless it has a folder. If the script has set none, synk sets one beside PyTensor's
compiled code (``config.base_compiledir``).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import Function, SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from ..workers.affinity import allowed_cores
from . import host
from .jax_bounds import Bounds
from .plain_functions import make_numpy_without_ranks, show_as_numpy, unwatched


def compile_graph(
    inputs: list[Variable],
    outputs: list[Variable],
    updates: list[tuple[SharedVariable, Variable]],
    mode: Any,
    name: str | None,
    options: dict[str, Any],
    precision: str | None = None,
) -> Callable[..., list[Any]]:
    """Compile a graph to a function that returns a list of arrays of JAX.

    Arguments of that function may be arrays of numpy or JAX.
    """
    _start()
    drawn = [var for var, _ in updates]
    assert all(isinstance(var.type, RandomType) for var in drawn)
    graph = [*outputs, *[new for _, new in updates]]
    streams = [
        var
        for var in graph_inputs(graph)
        if isinstance(var, SharedVariable) and isinstance(var.type, RandomType)
    ]
    stand_ins: dict[Variable, Variable] = {
        var: var.type(name=var.name) for var in streams
    }
    bounds = Bounds(graph)
    # The graph's new state of a stream is dropped: each call derives a new key.
    graphs = clone_replace([*outputs, *bounds.flags], stand_ins)
    taken = [*inputs, *stand_ins.values()]
    function = host.make_function(taken, graphs, [], mode, name, options, precision)
    show_as_numpy([*function.get_shared(), *drawn])
    return _Program(function, streams, drawn, bounds)


class _OfRank:
    """What the process's rank sets for JAX, while there is one."""

    starts_in: Callable[[], AbstractContextManager] | None = None
    """The context in which XLA starts, with as many threads as cores; else it starts
    with the cores that the process has."""
    read: Callable[[Any], np.ndarray] | None = None
    """Copies a computed array of JAX to numpy."""
    look_about: Callable[[], object] | None = None
    """Is called in waits, and raises if another rank has failed. Needed on GPUs, which
    may wait for another rank's GPU."""


OF_RANK = _OfRank()


def _start() -> None:
    """Start XLA, in the rank's context, unless it has been started."""
    if (starts_in := OF_RANK.starts_in) is not None:
        OF_RANK.starts_in = None
        with starts_in():
            import jax

            jax.devices()
            enable_code_cache()
    enable_code_cache()


def get_value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable, after making it an array of JAX."""
    show_as_numpy([variable])
    return _as_jax_array(variable.container.storage)


def has_value(variable: SharedVariable) -> bool:
    """Return whether the value of a shared variable is an array of JAX."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(variable.container.storage[0], jax.Array)


def _as_jax_array(storage: list[Any]) -> Any:
    """Return the value in a variable's storage, after making it an array of JAX."""
    value = storage[0]
    if isinstance(value, np.ndarray):
        import jax

        _start()
        # Copied, as the script may write to the numpy array. (`jax.numpy.array` would
        # copy too, but compiles for each shape, and `may_alias` has no effect.) Named
        # a device, like results computed from arrays that come by DLPack: JAX compiles
        # again for an array whose device is not set.
        value = jax.device_put(np.array(value))
        value = storage[0] = jax.device_put(value, next(iter(value.devices())))
    return value


def set_value(variable: SharedVariable, value: Any) -> None:
    """Make `value` itself the value of a shared variable, without a copy.

    For a random stream `value` is ignored, and the variable's generator is advanced.
    """
    if isinstance(variable.type, RandomType):
        _draw(host.get_value(variable))
    elif isinstance(value, np.ndarray):
        host.set_value(variable, value)
    else:  # the variable's own set_value would convert to numpy
        if OF_RANK.look_about:
            wait([value])
        variable.container.storage[0] = value
        make_numpy_without_ranks([variable.container.storage])


def as_output(value: Any) -> Any:
    """Return a value as a numpy array that belongs to the caller."""
    if OF_RANK.look_about:
        wait([value])
    # Sums of slices are numpy's already.
    if OF_RANK.read is not None and hasattr(value, "is_ready"):
        return OF_RANK.read(value)
    return np.array(value)


class _Program:
    """A compiled function, called with arrays; returns a list of arrays of JAX.

    Parameters
    ----------
    function : PyTensor's function; its last inputs are `streams`
    streams : random streams that the graph reads
    drawn : random streams that the function updates
    bounds : the checks of indices, whose flags are the last output, if there are any
    """

    def __init__(
        self,
        function: Function,
        streams: list[SharedVariable],
        drawn: list[SharedVariable],
        bounds: Bounds,
    ) -> None:
        self._function = unwatched(function)
        # JAX's function itself: with hundreds of arrays, PyTensor's call takes longer
        # than the computation. A user's own mode may have no such function.
        self._compiled: Any = getattr(function.vm, "jit_fn", None)
        self._read = [var.container.storage for var in function.get_shared()]
        self._streams = streams
        self._drawn, self._bounds = drawn, bounds
        # Updated streams that reach this stage as an argument, from another stage.
        self._led_on = [var for var in drawn if var not in streams]
        self.shapes: set[tuple] = set()
        """Shapes of arguments in calls so far; XLA has compiled for each."""

    def __call__(self, *args: Any) -> list[Any]:
        # A key of a stream, from another stage, is a dict and has no shape.
        self.shapes.add(tuple([getattr(arg, "shape", None) for arg in args]))
        read = [storage[0] for storage in self._read]
        if np.ndarray in set(map(type, read)):
            read = list(map(_as_jax_array, self._read))
        keys = [_key(var, draw=var in self._drawn) for var in self._streams]
        results: list[Any] | None = None
        if self._compiled is not None:
            with contextlib.suppress(Exception):  # PyTensor's call has a better error
                results = list(self._compiled(*args, *keys, *read) or ())
        if results is None:
            results = self._function(*args, *keys)
        for var in self._led_on:
            _draw(host.get_value(var))
        wait(results)
        if self._bounds.flags:
            self._bounds.check(as_output(results.pop()))
        return results


_POLL = 20e-6
"""Seconds between two looks at an unfinished array."""


def wait(values: list[Any]) -> None:
    """Wait until JAX has computed `values`: arrays, or dicts of them for streams."""
    import jax

    if (look_about := OF_RANK.look_about) is not None:
        arrays: list[Any] = jax.tree.leaves(values)
        for array in arrays:
            while hasattr(array, "is_ready") and not array.is_ready():
                look_about()
                time.sleep(_POLL)
    jax.block_until_ready(values)


def _key(var: SharedVariable, draw: bool) -> Any:
    """Return a key of JAX for a stream; `draw` it from the variable's own generator.

    Otherwise the key comes from a copy, and the generator stays as it is.
    """
    from pytensor.link.jax.dispatch import jax_typify

    generator = host.get_value(var)
    drawn = _draw(generator if draw else copy.deepcopy(generator))
    return jax_typify(np.random.default_rng(drawn))


def _draw(generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, 2**32, 4, dtype=np.uint64)


# -- the cache on disk

_FOLDER = "synk-xla"
_LEAST = 0.1
"""Code is kept if it takes these seconds to compile; JAX's own default is 1.0."""
_READS_ITS_OWN = 0, 10, 2
"""The first version of JAX that reads its own cache without error messages.

0.9.2 and 0.10.1 print errors as they read code of the same processor: "Target machine
feature +prefer-no-gather is not supported on the host machine" (JAX's issue 38445).
Before 0.10.2 the cache is left to the script.
"""


@functools.cache
def enable_code_cache() -> None:
    """Turn on JAX's cache of compiled code on disk, unless the script has set one.

    Call it while the process has the cores that XLA uses. Does nothing if the folder
    cannot be made or written to.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    if jax.__version_info__ < _READS_ITS_OWN:
        return
    folder = folder_for(threads=len(allowed_cores()))
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*-cache"):
            # An empty file, of a process that died as it wrote: JAX would warn of the
            # file each time, and never replace it.
            if not path.stat().st_size:
                path.unlink()
        if os.access(folder, os.W_OK):
            config.update("jax_compilation_cache_dir", str(folder))
            config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)


def folder_for(threads: int) -> Path:
    """Return the folder of code for this processor and number of threads.

    XLA compiles for a processor and a number of threads: code compiled with one thread
    runs on one. JAX checks neither when it reads the cache.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    names = "model name", "flags", "CPU part", "Features"  # the last two on ARM
    processor = "\n".join(found.get(name, "") for name in names)
    about = hashlib.sha256(processor.encode()).hexdigest()[:12]
    return Path(pytensor.config.base_compiledir, _FOLDER, f"{about}-{threads}")
