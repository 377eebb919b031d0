"""How numba and JAX skip the draws for other ranks' rows (`Passed`, in `synk.draws`).

*numba* lets NumPy skip the numbers if NumPy can. Otherwise it draws the other ranks'
numbers by its own code and discards them, which advances the stream by as many.

*JAX* computes each number of an array from a key and the number's index in the array
(its option ``jax_threefry_partitionable``, since 0.5). For a rank's rows, the key is
extended by the index of their first number. JAX draws with it through an implementation
of random keys that adds it to all indices (``jax.extend.random.define_prng_impl``).
Draws that do not use indices so, such as rejection sampling, every rank makes for all
rows.
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
    """Register how numba computes `Passed`."""
    import numba
    from pytensor.link.numba.dispatch import basic

    @basic.register_funcify_and_cache_key(Passed)
    def passed(op: Passed, node: Apply, **kwargs: Any) -> tuple[Callable, Any]:
        if op.takes_one or is_one_coin(op.draw, node.inputs[3:]):
            return _skipping(op, numba, basic), _key("skipped", op, op.inplace)
        rng, size, _, *params = [var.type() for var in node.inputs]
        # Both outputs, as PyTensor removes a draw whose numbers are unused.
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
    """Return a key for PyTensor's cache on disk that no other Op's code has."""
    return sha256(" ".join(["synk 1", *map(str, facts)]).encode()).hexdigest()


def _skipping(op: Passed, numba: Any, basic: Any) -> Callable:
    """Return a function for numba that advances a stream by NumPy, without drawing."""
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
    """Register how JAX computes `Passed`."""
    from pytensor.link.jax.dispatch import jax_funcify

    @jax_funcify.register(Passed)
    def passed(op: Passed, **kwargs: Any) -> Callable:
        return {"before": _set_start, "all": _split, "behind": _drop_start}[op.where]


def _set_start(rng: Any, size: Any, every: Any, *params: Any) -> Any:
    """Return a stream that notes the shapes of the rows before, and of all rows."""
    return {**rng, "before": size, "every": every}


def _split(rng: Any, size: Any, every: Any, *params: Any) -> Any:
    import jax

    return {**rng, "jax_state": jax.random.split(rng["jax_state"], 2)[0]}


def _drop_start(rng: Any, *rest: Any) -> Any:
    """Return a stream after its draws, without the index of the first number."""
    import jax

    key = rng["jax_state"]
    is_placed = jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    return {**rng, "jax_state": jax.random.key_data(key)[:2] if is_placed else key}


def drawn(node: Apply, draw: Callable) -> Callable:
    """Return a function like PyTensor's `draw` that draws for a rank's rows only.

    Both take a stream's dict (`draw` changes it), a shape and parameters. If the stream
    notes no shapes (see `_set_start`), the function is `draw`.
    """

    def call(rng: Any, size: Any, *parameters: Any) -> Any:
        rng = dict(rng)
        before, every = rng.pop("before", None), rng.pop("every", None)
        if before is None:
            return draw(rng, size, *parameters)
        if is_by_place(node):
            rng["jax_state"] = _key_with_start(rng["jax_state"], before)
            return draw(rng, size, *parameters)
        import jax

        led, numbers = draw(rng, every, *parameters)
        own = numbers.shape[0] if size is None else size[0]
        return led, jax.lax.dynamic_slice_in_dim(numbers, before[0], own)

    return call


def _key_with_start(key: Any, before: Any) -> Any:
    """Return a key of `_implementation`: `key`, and the index of the first number.

    `before` is a shape, whose size is that index.
    """
    import jax
    import jax.numpy as jnp

    count = math.prod(jnp.asarray(length, "uint64") for length in before)
    parts = jnp.stack([count >> np.uint64(32), count]).astype("uint32")
    key = jnp.concatenate([jnp.asarray(key, "uint32"), parts])
    return jax.random.wrap_key_data(key, impl=_implementation())


@cache
def _implementation() -> Any:
    """Return an implementation of keys of four words: threefry's two, and an index.

    A key draws the bits that ``threefry2x32`` draws from that index on. It splits as
    that does, and the parts have the same index.
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
