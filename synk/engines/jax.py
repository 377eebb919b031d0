"""PyTensor's JAX mode: shared variables stay where JAX computes.

Three things are done here that PyTensor leaves to the user of such functions:

*Rows.* JAX takes arrays of the CPU without a copy and goes on computing after a call
has returned. A function made here returns when its values are there, so that the memory
of the rows can be used again.

*Random streams.* PyTensor gives each compiled function a copy of a random generator,
which would then be seen by no other function, checkpoint or rank. Here a generator is
an input: each call derives a key for JAX from the variable's own generator, and draws
from that if the function updates it.

*Code.* What XLA compiles is kept on disk, and found by the next run of a script. JAX
has such a cache, which is off until it is told a folder. If the script has told it
none, it gets one beside what PyTensor compiles (``config.base_compiledir``).
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
from .plain_functions import settle, show_numpys, untold


def compile_graph(
    inputs: list[Variable],
    outputs: list[Variable],
    updates: list[tuple[SharedVariable, Variable]],
    mode: Any,
    name: str | None,
    options: dict[str, Any],
    precision: str | None = None,
) -> Callable[..., list[Any]]:
    """Compile a graph to a function of arrays that returns a list of JAX's arrays.

    The arrays it is called with may be numpy's or JAX's.
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
    # What a graph makes of a stream is not kept: the next key is drawn anew.
    graphs = clone_replace([*outputs, *bounds.flags], stand_ins)
    taken = [*inputs, *stand_ins.values()]
    function = host.make_function(taken, graphs, [], mode, name, options, precision)
    show_numpys([*function.get_shared(), *drawn])
    return _Program(function, streams, drawn, bounds)


def start_in(surroundings: Callable[[], AbstractContextManager] | None) -> None:
    """Have XLA started in a ``with`` block, whose cores tell its number of threads."""
    _surroundings[:] = [] if surroundings is None else [surroundings]


_surroundings: list[Callable[[], AbstractContextManager]] = []


def _start() -> None:
    """Start XLA, once; nothing, if the script has done so before."""
    while _surroundings:
        with _surroundings.pop()():
            import jax

            jax.devices()
            keep_code()
    keep_code()


def get_value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable, which from now on is an array of JAX's."""
    show_numpys([variable])
    return _taken_over(variable.container.storage)


def has_value(variable: SharedVariable) -> bool:
    """Tell whether the value of a shared variable is an array of JAX's."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(variable.container.storage[0], jax.Array)


def _taken_over(storage: list[Any]) -> Any:
    """Return what a variable's storage holds, after making it an array of JAX's."""
    value = storage[0]
    if isinstance(value, np.ndarray):
        import jax

        _start()
        # A copy, and not JAX's view of an array that somebody may write to. (For it
        # `jax.numpy.array` compiles for each shape; `may_alias` is not heeded.) It is
        # told its device, as results of arrays that come by DLPack are: for one that is
        # not told, JAX would compile another time.
        value = jax.device_put(np.array(value))
        value = storage[0] = jax.device_put(value, next(iter(value.devices())))
    return value


def set_value(variable: SharedVariable, value: Any) -> None:
    """Make `value` itself, an array of JAX's, the value of a shared variable.

    What a graph makes of a random stream is not kept: the next key is drawn anew.
    """
    if isinstance(variable.type, RandomType):
        _draw(host.get_value(variable))
    elif isinstance(value, np.ndarray):
        host.set_value(variable, value)
    else:  # the variable's own set_value would make it an array of numpy's
        if _look_about:
            wait([value])
        variable.container.storage[0] = value
        settle([variable.container.storage])


def as_output(value: Any) -> Any:
    """Return a value as an array that belongs to the caller."""
    if _look_about:
        wait([value])
    if _read and hasattr(value, "is_ready"):  # what slices add up is numpy's
        return _read[0](value)
    return np.array(value)


def read_with(read: Callable[[Any], np.ndarray] | None) -> None:
    """Have `read` make an array of numpy's of one of JAX's that is there."""
    _read[:] = [] if read is None else [read]


_read: list[Callable[[Any], np.ndarray]] = []


class _Program:
    """A compiled function, and the shared variables that it reads."""

    def __init__(
        self,
        function: Function,
        streams: list[SharedVariable],
        drawn: list[SharedVariable],
        bounds: Bounds,
    ) -> None:
        self._function = untold(function)
        # PyTensor's call takes and stores one array after the other: of hundreds that
        # takes longer than to compute. Modes of a user's own may need that call.
        self._compiled: Any = getattr(function.vm, "jit_fn", None)
        self._read = [var.container.storage for var in function.get_shared()]
        self._streams = streams
        self._drawn, self._bounds = drawn, bounds
        # Of streams whose keys another stage has made.
        self._led_on = [var for var in drawn if var not in streams]
        self.shapes: set[tuple] = set()
        """Of arguments that it was called with; XLA compiles for each."""

    def __call__(self, *args: Any) -> list[Any]:
        # The key of a stream, which another stage has drawn from, is a dict.
        self.shapes.add(tuple([getattr(arg, "shape", None) for arg in args]))
        read = [storage[0] for storage in self._read]
        if np.ndarray in set(map(type, read)):
            read = list(map(_taken_over, self._read))
        keys = [_key(var, draw=var in self._drawn) for var in self._streams]
        results: list[Any] | None = None
        if self._compiled is not None:
            with contextlib.suppress(Exception):  # of which PyTensor's call says more
                results = list(self._compiled(*args, *keys, *read) or ())
        if results is None:
            results = self._function(*args, *keys)
        for var in self._led_on:
            _draw(host.get_value(var))
        wait(results)
        if self._bounds.flags:
            self._bounds.check(as_output(results.pop()))
        return results


def look_about_with(look_about: Callable[[], object] | None) -> None:
    """Have waits call `look_about`, which raises if what they wait for will not come.

    A GPU may be waiting for one of another rank; the CPU comes to its end by itself.
    """
    _look_about[:] = [] if look_about is None else [look_about]


_look_about: list[Callable[[], object]] = []
_POLL = 20e-6
"""Seconds between looks at work that is not done."""


def wait(values: list[Any]) -> None:
    """Return when JAX has computed values; a stream's are a dict."""
    import jax

    for look_about in _look_about:
        arrays: list[Any] = jax.tree.leaves(values)
        for array in arrays:
            while hasattr(array, "is_ready") and not array.is_ready():
                look_about()
                time.sleep(_POLL)
    jax.block_until_ready(values)


def _key(var: SharedVariable, draw: bool) -> Any:
    """Return a stream as compiled functions take it; `draw` it if they update it."""
    from pytensor.link.jax.dispatch import jax_typify

    generator = host.get_value(var)
    drawn = _draw(generator if draw else copy.deepcopy(generator))
    return jax_typify(np.random.default_rng(drawn))


def _draw(generator: np.random.Generator) -> np.ndarray:
    return generator.integers(0, 2**32, 4, dtype=np.uint64)


# -- the cache on disk

_FOLDER = "synk-xla"
_LEAST = 0.1
"""Seconds that it takes to compile what is kept; JAX keeps nothing under 1.0."""
_READS_ITS_OWN = 0, 10, 2
"""The first version of JAX that reads what it has kept without a complaint.

0.9.2 and 0.10.1 print errors as they read code of the same processor: "Target machine
feature +prefer-no-gather is not supported on the host machine" (JAX's issue 38445).
Before 0.10.2 the cache is left to the script.
"""


@functools.cache
def keep_code() -> None:
    """Have JAX keep what XLA compiles, unless it has been told.

    Called with the cores that XLA has, or is to have. Does nothing if no folder can be
    made or written to.
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
            # Of a process that was ended before it could write: JAX would warn of it,
            # each time, and never write it anew.
            if not path.stat().st_size:
                path.unlink()
        if os.access(folder, os.W_OK):
            config.update("jax_compilation_cache_dir", str(folder))
            config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)


def folder_for(threads: int) -> Path:
    """Return the folder of code for this processor and so many threads.

    XLA makes code for the processor, and for as many threads as it has: what was
    compiled with one runs on one. JAX looks at neither when it reads the cache.
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
