"""How numba and JAX pass draws: see `synk.draws`.

*numba* has NumPy skip where that is possible, and else draws by its own code what it
throws away: that takes as many numbers as its draws for the rows do.

*JAX* computes each number of an array from a key and its place in the array (its option
``jax_threefry_partitionable``, since 0.5). A key for a rank's rows has the place of the
first of them beside it, and JAX's functions draw from that by an implementation of
theirs, which adds it to the places: see ``jax.extend.random.define_prng_impl``. Draws
that are not by place, as those by trial, every rank draws for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph

from ..compiler.rules.randomness import is_by_place
from ..draws import Passed, is_one_coin


def register_numba() -> None:
    """Let numba pass draws."""
    import numba
    from pytensor.link.numba.dispatch import basic

    @basic.register_funcify_and_cache_key(Passed)
    def passed(op: Passed, node: Apply, **kwargs: Any) -> tuple[Callable, Any]:
        if op.takes_one or is_one_coin(op.draw, node.inputs[3:]):
            return _skipping(op, numba, basic), _key("skipped", op, op.inplace)
        rng, size, _, *params = [var.type() for var in node.inputs]
        # With its draws: PyTensor leaves one out of which only the stream is taken.
        outputs = op.draw.make_node(rng, size, *params).outputs
        graph = FunctionGraph([rng, size, *params], outputs, clone=False)
        mode = get_mode("NUMBA")
        if not op.inplace:
            mode = mode.excluding("inplace")
        mode.optimizer.rewrite(graph)
        draw, key = basic.numba_funcify_and_cache_key(graph, node=None)

        @basic.numba_njit
        def draw_and_forget(rng, size, every, *params):
            return draw(rng, size, *params)[0]

        return draw_and_forget, None if key is None else _key("passed", key)


def _key(*facts: Any) -> str:
    """Return a key for PyTensor's cache on disk, which no other Op's code has."""
    return sha256(" ".join(["synk 1", *map(str, facts)]).encode()).hexdigest()


def _skipping(op: Passed, numba: Any, basic: Any) -> Callable:
    from pytensor.link.numba.dispatch.compile_ops import numba_deepcopy

    inplace = op.inplace

    @basic.numba_njit
    def skip(rng, size, every, *params):
        led = rng if inplace else numba_deepcopy(rng)
        with numba.objmode():
            op.lead_on(led, size, params)
        return led

    return skip


def register_jax() -> None:
    """Let JAX pass draws."""
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(Passed)
    def passed(op: Passed, **kwargs: Any) -> Callable:
        return {"before": _begin_amid, "all": _go_on, "behind": _end_amid}[op.where]


def _begin_amid(rng: Any, size: Any, every: Any, *params: Any) -> Any:
    """Note where draws begin: how many rows are before, and of which array they are."""
    return {**rng, "before": size, "every": every}


def _go_on(rng: Any, size: Any, every: Any, *params: Any) -> Any:
    import jax

    return {**rng, "jax_state": jax.random.split(rng["jax_state"], 2)[0]}


def _end_amid(rng: Any, *rest: Any) -> Any:
    """Return a stream that draws have led on, without the place where they began."""
    import jax

    key = rng["jax_state"]
    is_placed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    return {**rng, "jax_state": jax.random.key_data(key)[:2] if is_placed else key}


def drawn(node: Apply, draw: Callable) -> Callable:
    """Return what draws for a rank's rows where a stream says so, and else as `draw`.

    PyTensor's `draw` takes a key's dict, which it changes, a shape and parameters.
    """

    def call(rng: Any, size: Any, *parameters: Any) -> Any:
        rng = dict(rng)
        before, every = rng.pop("before", None), rng.pop("every", None)
        if before is None:
            return draw(rng, size, *parameters)
        if is_by_place(node):
            rng["jax_state"] = _placed(rng["jax_state"], before)
            return draw(rng, size, *parameters)
        import jax

        led, numbers = draw(rng, every, *parameters)
        own = numbers.shape[0] if size is None else size[0]
        return led, jax.lax.dynamic_slice_in_dim(numbers, before[0], own)

    return call


def _placed(key: Any, before: Any) -> Any:
    """Return a key with the place in the array where draws begin."""
    import jax
    import jax.numpy as jnp

    count = math.prod(jnp.asarray(length, "uint64") for length in before)
    parts = jnp.stack([count >> np.uint64(32), count]).astype("uint32")
    key = jnp.concatenate([jnp.asarray(key, "uint32"), parts])
    return jax.random.wrap_key_data(key, impl=_implementation())


@cache
def _implementation() -> Any:
    """Return keys of four words: those of threefry, and the place of the first draw.

    They draw the bits that ``threefry2x32`` draws from that place on, and split as that
    does: the place stays.
    """
    import jax
    import jax.numpy as jnp
    from jax.extend.random import define_prng_impl, threefry2x32_p

    def bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
        places = jnp.arange(math.prod(shape), dtype="uint64").reshape(shape)
        first = (key[2].astype("uint64") << np.uint64(32)) | key[3].astype("uint64")
        places = places + first
        words = (places >> np.uint64(32)).astype("uint32"), places.astype("uint32")
        high, low = threefry2x32_p.bind(key[0], key[1], *words)
        if width == 64:
            return (high.astype("uint64") << np.uint64(32)) | low.astype("uint64")
        return (high ^ low).astype(f"uint{width}")

    def split(key: Any, shape: tuple[int, ...]) -> Any:
        keys = jax.random.split(key[:2], shape)
        places = jnp.broadcast_to(key[2:], (*shape, 2))
        return jnp.concatenate([keys, places], axis=-1)

    def seed(seed: Any) -> Any:
        return jnp.concatenate([jax.random.PRNGKey(seed), jnp.zeros(2, "uint32")])

    def fold_in(key: Any, data: Any) -> Any:
        return jnp.concatenate([jax.random.fold_in(key[:2], data), key[2:]])

    return define_prng_impl(
        key_shape=(4,),
        seed=seed,
        split=split,
        random_bits=bits,
        fold_in=fold_in,
        name="threefry2x32 from a place on",
        tag="synk",
    )
